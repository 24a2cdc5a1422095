# All that TARSy runs on a cluster: the operator, its command line, and kubernetes-mcp-server.
#
#   docker build --tag tarsy:0.1.0 .
#   docker run --rm --entrypoint cat tarsy:0.1.0 /opt/tarsy/sbom.cdx.json   # its packages, with versions and licenses
#
# PYTHON and NODE take a digest as well: --build-arg PYTHON=python:3.11.14-slim-trixie@sha256:...
# Why it is as it is: docs/decisions.md. tests/support/image.py builds and runs it without an engine.

ARG PYTHON=python:3.11.14-slim-trixie
ARG NODE=node:24.11.1-trixie-slim

FROM ${NODE} AS mcp
WORKDIR /mcp
COPY dev/node/package.json dev/node/package-lock.json ./
RUN npm ci --ignore-scripts --no-audit --no-fund

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY requirements/build.txt requirements/runtime.txt requirements/
RUN python3 -m venv /build
RUN /build/bin/pip install --no-deps --only-binary=:all: --require-hashes --requirement requirements/build.txt
RUN python3 -m venv --without-pip /opt/tarsy
RUN /build/bin/pip --python /opt/tarsy/bin/python3 install --no-compile --no-deps --only-binary=:all: \
    --require-hashes --requirement requirements/runtime.txt
# The base image has no bytecode, and a read-only root gets none: each start would compile what it imports.
RUN PYTHONPYCACHEPREFIX=/opt/pycache python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash \
    -x '/(site-packages|tests?)/' /usr/local/lib/python3.11
RUN PYTHONPYCACHEPREFIX=/opt/pycache python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/tarsy/lib
COPY operator operator
COPY pyproject.toml README.md ./
RUN /build/bin/python3 -m hatchling build --target wheel --directory /wheels
RUN /build/bin/pip --python /opt/tarsy/bin/python3 install --no-compile --no-deps --no-index --find-links /wheels tarsy
RUN PYTHONPYCACHEPREFIX=/opt/pycache python3 -m compileall -q --invalidation-mode unchecked-hash \
    /opt/tarsy/lib/python3.11/site-packages/tarsy
COPY dev/image/sbom.py dev/node/package-lock.json ./
RUN python3 sbom.py /opt/tarsy/lib/python3.11/site-packages package-lock.json >/opt/tarsy/sbom.cdx.json

FROM ${PYTHON}
ARG TARGETARCH
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="TARSy" \
      org.opencontainers.image.description="Investigates alerts on Kubernetes with chains of LLM agents" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/tarsy/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPYCACHEPREFIX=/opt/pycache
COPY --from=build /opt /opt
COPY --from=mcp /mcp/node_modules/kubernetes-mcp-server-linux-${TARGETARCH}/bin/kubernetes-mcp-server-linux-${TARGETARCH} \
    /opt/tarsy/bin/kubernetes-mcp-server
# A number, because `runAsNonRoot` cannot look names up.
USER 65532:65532
STOPSIGNAL SIGTERM
ENTRYPOINT ["tarsy"]
