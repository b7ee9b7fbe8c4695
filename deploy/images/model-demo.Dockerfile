# The shipped model as an image of its own, and a cp to take it out with: an init container copies /model into a volume of
# its pod, and a cluster that knows image volumes mounts the image itself. Build context: the root of the repository.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS tools
RUN apt-get update && apt-get install -y --no-install-recommends busybox-static && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /tools/bin && cp /bin/busybox /tools/bin/ && ln -s busybox /tools/bin/cp && ln -s busybox /tools/bin/sh

FROM scratch
COPY --from=tools /tools /
ENV PATH=/bin
COPY models/base /model
COPY models/adapters /adapters
USER 10001:10001
ENTRYPOINT ["/bin/cp", "-R", "/model/."]
CMD ["/target"]
ARG VERSION=0.2.0.dev0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="stratosserve-model-demo" \
      org.opencontainers.image.description="The model and the adapters that ship with StratosServe" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
