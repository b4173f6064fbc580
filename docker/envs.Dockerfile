# The environments over HTTP, and the WebShop site: istar-envs serve. Neither torch nor root; the versions are
# those of requirements/base.txt. Build it from the root of the repository:
#
#   docker build --file docker/envs.Dockerfile --tag istar-envs:0.1.0 .
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/base.txt pins.txt
COPY packages/envs envs
RUN python3 -m venv tools \
    && tools/bin/pip install --constraint pins.txt hatchling \
    && tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels ./envs \
    && python3 -m venv --without-pip /opt/istar \
    && tools/bin/pip --python /opt/istar/bin/python install --constraint pins.txt \
        "$(find "$PWD/wheels" -name '*.whl')[server]"

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="istar-envs" \
      org.opencontainers.image.description="Multi-turn environments for language-model agents over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 istar \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /cache --shell /usr/sbin/nologin istar \
    && install --directory --owner 10001 --group 10001 /cache
COPY --from=build /opt/istar /opt/istar
ENV PATH=/opt/istar/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ISTAR_CACHE=/cache \
    ISTAR_HEALTH_URL=http://127.0.0.1:8700/readyz
USER 10001:10001
EXPOSE 8700
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(os.environ['ISTAR_HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["istar-envs"]
CMD ["serve", "--all", "--host", "0.0.0.0"]
