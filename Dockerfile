# ChatTTS on Triton, for the CPU: the steps of `make install`, then `chattts-triton serve`. No weights inside.
#
#   docker build --tag chattts-triton .
#   docker run --rm --volume chattts:/models --volume "$PWD/checkpoint:/checkpoint:ro" chattts-triton \
#     export --checkpoint /checkpoint --repository /models --precision int8
#   docker run --init --shm-size=1g --stop-timeout=40 --volume chattts:/models \
#     --publish 127.0.0.1:8000-8002:8000-8002 chattts-triton
#
# --shm-size    Triton passes tensors through /dev/shm, of which a container has 64 MB by default.
# --stop-timeout  longer than the 30 s that `serve` waits for requests in flight.
# --init        reaps the processes that a crashed member leaves behind.
# --publish     the server has no users and no keys for inference: do not publish it to a network
#               that you do not trust.
# A directory of the host in place of the volume must be writable for the user 1000.
# To build from an index of your own: --build-arg PIP_INDEX_URL=... (and PIP_EXTRA_INDEX_URL).

FROM debian:bookworm-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates \
        libpython3.11 \
        make \
        python3.11 \
        python3.11-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY Makefile README.md LICENSE pyproject.toml constraints.txt ./
COPY scripts scripts
COPY client client
COPY chattts_triton chattts_triton
COPY model_repository model_repository
COPY assets assets

ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN make install PYTHON=python3.11

RUN useradd --uid 1000 --create-home chattts \
    && install --directory --owner=chattts --group=chattts /models
ENV PATH=/app/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1
USER chattts
VOLUME /models
EXPOSE 8000 8001 8002

# Asks for the model, not for the server: Triton calls itself ready also when a member has died.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/v2/models/chattts/ready', timeout=4)"]

ENTRYPOINT ["chattts-triton"]
CMD ["serve", "--host", "0.0.0.0", "--repository", "/models"]
