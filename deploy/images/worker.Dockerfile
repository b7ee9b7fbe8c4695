# Both roles of a worker: the arguments name the role, stratos_decode_worker or stratos_prefill_worker.
# Build context: the root of the repository. EXTRAS=gpu is the variant with CUDA's torch and Triton.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS kernels
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# What a compiler reads and nothing else: minutes of work that a change of anything else does not repeat.
COPY libs/stratos/engine/native/*.cpp libs/stratos/engine/native/*.h libs/stratos/engine/native/build.py \
    libs/stratos/engine/native/isa.py stratos/engine/native/
# For every instruction set: the machine that builds is not the one that runs, which takes the fastest that it can.
RUN python -m stratos.engine.native.build --shipped && python -c "from stratos.engine.native.isa import *; \
    assert all((SOURCE_FOLDER / isa.file_name).exists() for isa in INSTRUCTION_SETS)"

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
ARG EXTRAS=worker
RUN sh install.sh dependencies ${EXTRAS}

FROM ${BASE}
# What changes seldom is a layer of its own: a new version of the project is a few MB to fetch.
COPY --from=dependencies /opt/stratos /opt/stratos
COPY --from=project /opt/project /opt/stratos
COPY --from=kernels /src/stratos/engine/native/*.so /opt/stratos/lib/python3.11/site-packages/stratos/engine/native/
# The root is mounted read-only: what a library wants to write goes to /tmp, an emptyDir.
ENV PATH=/opt/stratos/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ARG EXTRAS=worker
# Triton compiles what starts a kernel at run time, with a C compiler and Python's headers; a base whose Python is the
# distribution's own has those in a package.
RUN case ",${EXTRAS}," in *,gpu,*) \
    headers="$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')" && \
    set -- gcc libc6-dev && { [ -e "$headers/Python.h" ] || set -- "$@" libpython3-dev; } && \
    apt-get update && apt-get install -y --no-install-recommends "$@" && rm -rf /var/lib/apt/lists/* && \
    gcc -fsyntax-only "-I$headers" -include Python.h -x c /dev/null ;; esac
# Everything that both roles import is there, also what they import when they load a model.
RUN python -c 'import stratos_decode_worker.__main__, stratos_prefill_worker.__main__, stratos.quality.expected'
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["python", "-m"]
CMD ["stratos_decode_worker"]
ARG VERSION=0.2.0.dev0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="stratosserve-worker" \
      org.opencontainers.image.description="StratosServe prefill and decode worker" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
