# The trainer: istar. Build it from the root of the repository, for GPUs or for a CPU:
#
#   docker build --file docker/trainer.Dockerfile --tag istar-trainer:0.1.0-cuda .
#   docker build --file docker/trainer.Dockerfile --tag istar-trainer:0.1.0-cpu --build-arg DEVICE=cpu .
#
# PyPI's torch for x86 carries CUDA, whatever the device; where an index with a CPU build is at hand, name it in
# the build argument PIP_EXTRA_INDEX_URL and the CPU image shrinks by gigabytes.
ARG DEVICE=cuda
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm
# The toolkit of torch 2.13's own CUDA; its compilers make kernels at run time.
ARG CUDA_IMAGE=docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04

FROM ${PYTHON_IMAGE} AS cpu

FROM ${CUDA_IMAGE} AS cuda
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM ${DEVICE} AS build
ARG PIP_EXTRA_INDEX_URL=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/base.txt pins.txt
RUN python3 -m venv /opt/istar && /opt/istar/bin/pip install --requirement pins.txt
COPY packages packages
RUN /opt/istar/bin/pip install --no-deps --no-build-isolation \
        ./packages/envs ./packages/judges ./packages/trainer

FROM ${DEVICE}
LABEL org.opencontainers.image.title="istar-trainer" \
      org.opencontainers.image.description="Trains language-model agents that act over many turns" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 istar \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /cache --shell /usr/sbin/nologin istar \
    && install --directory --owner 10001 --group 10001 /cache /models /runs
COPY --from=build /opt/istar /opt/istar
COPY configs /opt/istar/configs
ENV PATH=/opt/istar/bin:$PATH PYTHONUNBUFFERED=1 ISTAR_CACHE=/cache MPLCONFIGDIR=/cache/matplotlib \
    HF_HOME=/models/huggingface
WORKDIR /runs
USER 10001:10001
HEALTHCHECK NONE
ENTRYPOINT ["istar"]
CMD ["train", "/opt/istar/configs/tiny_cpu.yaml", "--run-dir", "/runs/quickstart"]
