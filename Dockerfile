# Featherweight in a container. CPU:   docker build -t featherweight .
# NVIDIA:  docker build -t featherweight:cuda --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 --build-arg TORCH=cuda .
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG TORCH=cpu

# The bases bring Python 3.11 (Debian 12) and 3.12 (Ubuntu 24.04); their package lists change, so nothing is pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 featherweight \
    && mkdir -p /app /data \
    && chown featherweight:featherweight /app /data

WORKDIR /app
USER 10001

# The set-up needs these alone: a change of documents, extensions or models does not install PyTorch again; one below
# modules/ does, as launch.py imports from there.
COPY --chown=featherweight:featherweight launch.py requirements.txt requirements-nodeps.txt requirements-kernels.txt \
    requirements-test.txt ./
COPY --chown=featherweight:featherweight modules ./modules
RUN python3 launch.py --torch "${TORCH}" --skip-torch-cuda-test --exit

COPY --chown=featherweight:featherweight . .

# Settings, images, models: everything that has to stay.
VOLUME /data
ENV FEATHERWEIGHT_DATA=/data
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7860/robots.txt', timeout=4)"]
ENTRYPOINT ["python3", "launch.py"]
# For other machines to reach it; the logins lie in the volume: `docker compose run --rm cpu user add NAME --role admin`
# makes the first one.
CMD ["--skip-install", "--listen", "--auth-file", "/data/users.json"]
