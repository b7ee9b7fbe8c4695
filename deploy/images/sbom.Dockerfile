# The CycloneDX list of what another image holds, as the only file of the result: the builder writes it to a folder with
#   --output type=local,dest=FOLDER
# Build context: the root of the repository.
ARG BASE=python:3.11-slim-bookworm
ARG IMAGE

FROM ${IMAGE} AS subject

FROM ${BASE} AS inventory
# Where pip finds packages is the builder's affair.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
WORKDIR /src
COPY constraints.txt deploy/images/requirements.py pyproject.toml ./
RUN python -m venv /opt/sbom && python requirements.py sbom --alone >/tmp/requirements.txt \
    && /opt/sbom/bin/python -m pip install --no-cache-dir -c constraints.txt -r /tmp/requirements.txt
COPY deploy/images/write_sbom.py ./
ARG IMAGE
ARG VERSION=0.2.0.dev0
RUN --mount=type=bind,from=subject,target=/subject \
    mkdir /sbom && /opt/sbom/bin/python write_sbom.py --root /subject --image "${IMAGE}" --version "${VERSION}" --out /sbom

FROM scratch
COPY --from=inventory /sbom /
