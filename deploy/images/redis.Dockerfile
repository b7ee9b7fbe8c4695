# Redis for evaluation, from Debian's package; production brings a Redis of its own.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends redis-server redis-sentinel redis-tools \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/* /etc/redis
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["redis-server"]
CMD ["--bind", "0.0.0.0", "--port", "6379", "--dir", "/data", "--maxmemory-policy", "noeviction"]
ARG VERSION=0.2.0.dev0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="stratosserve-redis" \
      org.opencontainers.image.description="Redis for evaluating StratosServe, from Debian's package" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
