# docker build -t modserve .                               ONNX Runtime and model repositories in buckets
# docker build -t modserve:all --build-arg EXTRAS=all .    all engines that go together    (docs/operations.md)

FROM python:3.11-slim-bookworm AS base
# The official image leaves the bytecode of the standard library out. On a read-only root it could never be kept, so
# every start, and every worker process, would compile it again.
RUN python -m compileall -q -x '/(site-packages|tests?|lib2to3|idlelib)/' /usr/local/lib/python3.11


FROM base AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
# The C compiler makes the compiled form, and stays behind in this stage.
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/modserve
ENV PATH=/opt/modserve/bin:$PATH
WORKDIR /build

# Dependencies first, in the versions of requirements.lock: this slow layer is built again only when that, pyproject.toml or
# the extras change. PIP_ARGS are pip's, such as the index that has PyTorch without CUDA, which is gigabytes smaller. Files
# are compared with the lock's hashes, but in images with PyTorch or with what is not in the lock (gpu, tensorflow).
ARG EXTRAS=remote
ARG PIP_ARGS=""
COPY pyproject.toml requirements.lock deploy/docker/requirements.py ./
RUN python requirements.py pyproject.toml requirements.lock $EXTRAS \
    && pip install --no-compile $PIP_ARGS --constraint constraints.txt --requirement requirements.txt --report report.json \
    && python requirements.py --check report.json hashes.txt

COPY README.md LICENSE NOTICE hatch_build.py ./
COPY scripts/compiled_form.py ./scripts/
COPY model_repository ./model_repository
COPY src ./src
RUN MODSERVE_COMPILED=1 pip wheel --no-deps --wheel-dir dist . \
    && pip install --no-compile --no-deps dist/*.whl
# Hash-checked bytecode stays valid in builders whose COPY --from does not keep modification times (kaniko). Other
# packages may have files that only a later Python understands, as PyTorch does; modserve's own must all compile.
RUN python -m compileall -q --invalidation-mode checked-hash /opt/modserve/lib \
    || python -m compileall -q --invalidation-mode checked-hash /opt/modserve/lib/python3.11/site-packages/modserve


FROM base
# A fixed number, which a Kubernetes runAsNonRoot check and volume permissions can rely on.
RUN groupadd --gid 10001 modserve \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin modserve \
    && ln -s /opt/modserve/bin/modserve /usr/local/bin/tritonserver
COPY deploy/docker/entrypoint.sh /usr/local/bin/modserve-entrypoint
COPY --from=builder /opt/modserve /opt/modserve
ENV PATH=/opt/modserve/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="modserve" \
      org.opencontainers.image.description="An inference server that speaks the KServe v2 protocol as NVIDIA Triton speaks it, in Python" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

USER 10001:10001
EXPOSE 8000 8001 8002
# Live, not ready: a server that still loads its models is healthy. The empty proxy table keeps HTTP_PROXY out of it.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/v2/health/live', timeout=4)"]
ENTRYPOINT ["/usr/local/bin/modserve-entrypoint"]
CMD ["serve", "--model-repository=/models"]
