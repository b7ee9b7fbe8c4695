# The services that do not compute: SERVICE=gateway, router, lora_registry or autoscaler.
# Build context: the root of the repository.
ARG BASE=python:3.11-slim-bookworm
ARG SERVICE

# The same in every image of a service, and so built once.
FROM ${BASE} AS common
# Where pip finds packages is the builder's affair: it may hand these in, and none of them reaches the image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
WORKDIR /src
COPY pyproject.toml constraints.txt deploy/images/requirements.py deploy/images/install.sh ./
RUN sh install.sh dependencies otlp

FROM common AS project
COPY README.md LICENSE ./
COPY libs libs
COPY services services
RUN sh install.sh project

FROM common AS dependencies
ARG SERVICE
RUN sh install.sh dependencies ${SERVICE}

FROM ${BASE} AS service
# What changes seldom is a layer of its own: a new version of the project is a few MB to fetch.
COPY --from=dependencies /opt/stratos /opt/stratos
COPY --from=project /opt/project /opt/stratos
# The root is mounted read-only: what a library wants to write goes to /tmp, an emptyDir.
ENV PATH=/opt/stratos/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Everything that the service imports is there, and torch is not.
ARG SERVICE
RUN python -c "import sys, stratos_${SERVICE}.__main__; assert 'torch' not in sys.modules"
USER 10001:10001
WORKDIR /tmp

FROM service AS gateway
ENTRYPOINT ["python", "-m", "stratos_gateway"]
LABEL org.opencontainers.image.title="stratosserve-gateway" \
      org.opencontainers.image.description="StratosServe gateway: the OpenAI-compatible API"

FROM service AS router
ENTRYPOINT ["python", "-m", "stratos_router"]
LABEL org.opencontainers.image.title="stratosserve-router" \
      org.opencontainers.image.description="StratosServe router: queues and placement"

FROM service AS lora_registry
# Its image has the stratos command as well, for administration.
RUN python -c "import sys, stratos.cli.stores, stratos.cli.main; assert 'torch' not in sys.modules"
ENTRYPOINT ["python", "-m", "stratos_lora_registry"]
LABEL org.opencontainers.image.title="stratosserve-lora-registry" \
      org.opencontainers.image.description="StratosServe lora-registry: adapter names and digests; also the stratos command, for administration"

FROM service AS autoscaler
RUN python -c "import stratos_autoscaler.__main__, kubernetes.aio.client.api_client, kubernetes.aio.watch"
ENTRYPOINT ["python", "-m", "stratos_autoscaler"]
LABEL org.opencontainers.image.title="stratosserve-autoscaler" \
      org.opencontainers.image.description="StratosServe autoscaler: how many workers there are"

FROM ${SERVICE}
ARG VERSION=0.2.0.dev0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
