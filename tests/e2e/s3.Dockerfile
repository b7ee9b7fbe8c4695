# A server of S3's protocol (moto), where a release has stores of its owner's. Build context: the root of the repository.
ARG IMAGE
FROM ${IMAGE}
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_CERT
USER 0:0
COPY constraints.txt /tmp/
RUN PATH=/usr/local/bin:/usr/bin:/bin python3 -m pip --python /opt/stratos/bin/python install --no-cache-dir \
    -c /tmp/constraints.txt flask flask-cors moto && rm /tmp/constraints.txt
USER 10001:10001
