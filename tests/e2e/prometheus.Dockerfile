# Debian's Prometheus, as a cluster's own would watch a release.
ARG IMAGE
FROM ${IMAGE}
USER 0:0
RUN apt-get update && apt-get install -y --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/*
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["prometheus"]
