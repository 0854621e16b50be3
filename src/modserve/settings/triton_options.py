"""tritonserver's options that modserve accepts without effect, and why ignoring them is harmless.

An option belongs here only if ignoring it changes neither responses, nor who may call, nor where.
"""

from collections.abc import Mapping

_NO_POOLS = "memory comes from the system, so there are no pools to size"
_OWN_THREADS = "requests are handled on one event loop, and models run on threads of their own"
_ONE_PORT = "--platform=sagemaker and --platform=vertex serve these endpoints at the HTTP port"

WITHOUT_EFFECT: Mapping[str, str] = {
    "allow-sagemaker": _ONE_PORT,
    "allow-vertex-ai": _ONE_PORT,
    "backend-directory": "backends are installed as Python packages",
    "buffer-manager-thread-count": _OWN_THREADS,
    "cache-directory": "the response cache is built in; see --cache-config",
    "cuda-memory-pool-byte-size": _NO_POOLS,
    "cuda-virtual-address-size": _NO_POOLS,
    "enable-peer-access": "no memory is copied between GPUs",
    "grpc-infer-allocation-pool-size": _NO_POOLS,
    "grpc-infer-thread-count": _OWN_THREADS,
    "grpc-max-response-pool-size": _NO_POOLS,
    "host-policy": "threads are not bound to cores or NUMA nodes; numactl and taskset do that",
    "http-thread-count": _OWN_THREADS,
    "min-supported-compute-capability": "the engine decides which GPUs it runs on",
    "model-load-gpu-limit": "the engine decides how much of a GPU a model may use",
    "model-namespacing": "model names must be unique over all repositories; models with the same name do not load",
    "pinned-memory-pool-byte-size": _NO_POOLS,
    "repoagent-directory": "only the repository agent checksum is built in; models that need another one do not load",
    "sagemaker-port": _ONE_PORT,
    "sagemaker-safe-port-range": _ONE_PORT,
    "sagemaker-thread-count": _ONE_PORT,
    "vertex-ai-port": _ONE_PORT,
    "vertex-ai-thread-count": _ONE_PORT,
}
"""Options that nobody misses, each with the reason: accepted with a warning, so that scripts still work."""

SWITCHES = frozenset(
    {
        "allow-sagemaker",
        "allow-vertex-ai",
        "enable-peer-access",
        "model-namespacing",
    }
)
"""Options of `WITHOUT_EFFECT` that switch something on or off: to switch it off needs no warning."""
