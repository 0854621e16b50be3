"""Options of the ``onnxruntime`` backend: model parameters and ``--backend-config`` keys.

Parameter names follow Triton's ONNX Runtime backend (its README, and ``ModelState`` in src/onnxruntime.cc). A warning
explains each parameter without effect.
"""

import re
import threading
from collections.abc import Iterable, Mapping

import onnxruntime as ort

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from ..api import ModelSource
from ..options import (
    MAX_BATCH_SIZE,
    QUANTIZED_DIRECTORY,
    SERVER_PARAMETERS,
    options_of,
    parameters_of,
    unknown_parameter,
)
from . import SILENT
from .providers import CUDA_PARAMETERS, GRAPH_CAPTURE, PROVIDERS
from .quantization import PARAMETER as QUANTIZATION

_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
"""Triton's levels. Any other number enables all optimisations; 0, also the value of an empty block, is the default."""
_LEVEL_NAMES = {-1: "basic", 1: "extended", 2: "none"}
_EXECUTION_MODES = {0: ort.ExecutionMode.ORT_SEQUENTIAL, 1: ort.ExecutionMode.ORT_PARALLEL}
SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_THREAD_COUNTS = ("intra_op_thread_count", "inter_op_thread_count")
SHARE = "share_session_between_instances"
_LOG_SEVERITY = "log_severity_level"
_PARAMETERS = (
    *_THREAD_COUNTS,
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
    SHRINKAGE,
    SHARE,
    _LOG_SEVERITY,
    PROVIDERS,
    QUANTIZATION,
)
_SESSION_ENTRIES = ("session.", "optimization.", "mlas.", "ep.")
_OTHERS = (*_SESSION_ENTRIES, *SERVER_PARAMETERS)
"""Session entries that ONNX Runtime reads itself, and the server's own parameters."""

_GLOBAL_THREADS = "enable-global-threadpool"
BACKEND_OPTIONS: Mapping[str, str] = dict.fromkeys(
    (MAX_BATCH_SIZE, _GLOBAL_THREADS, *_THREAD_COUNTS, QUANTIZED_DIRECTORY), ""
)


def warnings(config: ModelConfig, gpus: int) -> list[str]:
    """Return warnings about a model's parameters, accelerators and graph level that have no effect, with reasons."""
    notes, known = [], (*_PARAMETERS, *CUDA_PARAMETERS)
    for key in config.parameters:
        who = f"model '{config.name}': parameter '{key}' has no effect"
        if key in CUDA_PARAMETERS and not gpus:
            notes.append(f"{who}: it is for GPUs, but ONNX Runtime has none here")
        elif key in _THREAD_COUNTS and global_threads.enabled:
            notes.append(f"{who}: --backend-config=onnxruntime,{_GLOBAL_THREADS}=1 gives all models the same threads")
        elif key not in known and not key.startswith(_OTHERS):
            notes.append(unknown_parameter("onnxruntime", config, key, known))
    if config.gpu_accelerators and not gpus:
        names = ", ".join(f"'{each.name}'" for each in config.gpu_accelerators)
        notes.append(
            f"model '{config.name}': gpu_execution_accelerator {names} has no effect: it is for instances on "
            "GPUs, but ONNX Runtime has none here"
        )
    for accelerator in (*config.gpu_accelerators, *config.cpu_accelerators):
        for key in sorted(GRAPH_CAPTURE & accelerator.parameters.keys()):
            notes.append(
                f"model '{config.name}': parameter '{key}' of accelerator '{accelerator.name}' has no effect: no "
                "CUDA graphs are recorded, because the inputs of requests are at different addresses"
            )
    level = config.graph_optimization_level or 0
    if level and level not in _GRAPH_LEVELS:
        notes.append(
            f"model '{config.name}': optimization.graph.level is {level}, which means all optimisations, "
            "like 0; other levels are -1 (basic), 1 (extended) and 2 (none)"
        )
    return notes


class GlobalThreads:
    """Thread pool shared by all sessions, one for the process in ONNX Runtime."""

    def __init__(self) -> None:
        self.enabled = False
        self._lock = threading.Lock()

    def configure(self, options: Mapping[str, str]) -> None:
        """Create the pool if the backend's options ask for it. Raises INVALID_ARG."""
        values = options_of(options)
        if not values.flag(_GLOBAL_THREADS, default=False):
            return
        counts = [values.integer(key, 0) for key in _THREAD_COUNTS]
        with self._lock:
            if not self.enabled:
                ort.set_global_thread_pool_sizes(*counts)
                self.enabled = True


global_threads = GlobalThreads()


def threads_of(source: ModelSource) -> int:
    """Return the number of compute threads of an instance. Raises INVALID_ARG."""
    return parameters_of(source.config).integer("intra_op_thread_count", 0) or source.cpu_threads


def session_threads(source: ModelSource, sharing: int) -> int:
    """Return the threads of a session that `sharing` instances share, counting one calling thread; 0 if it has none."""
    if global_threads.enabled:
        return 0
    # Each instance's calling thread computes as well, so that there are `threads_of` threads per instance.
    return sharing * (threads_of(source) - 1) + 1


def shares_session(config: ModelConfig) -> bool:
    """Return whether the CPU instances share one session. Raises INVALID_ARG."""
    return parameters_of(config).flag(SHARE, default=True)


def optimisation_level(config: ModelConfig) -> str:
    """Return the name of the graph's optimisation level."""
    return _LEVEL_NAMES.get(config.graph_optimization_level or 0, "all")


def log_severity(config: ModelConfig) -> int:
    """Return the lowest severity that ONNX Runtime logs for a model. Raises INVALID_ARG."""
    severity = parameters_of(config).integer(_LOG_SEVERITY, SILENT)
    if severity > SILENT:
        raise invalid(
            f"model '{config.name}': parameter '{_LOG_SEVERITY}' is {severity}, expected 0 (everything), 1 "
            "(information), 2 (warnings), 3 (errors) or 4 (nothing)"
        )
    return severity


def session_options(source: ModelSource, sharing: int) -> ort.SessionOptions:
    """Return the options of a session that `sharing` instances share. Raises INVALID_ARG for invalid parameters."""
    config = source.config
    options = ort.SessionOptions()
    level = config.graph_optimization_level or 0
    options.graph_optimization_level = _GRAPH_LEVELS.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.logid = config.name
    options.log_severity_level = log_severity(config)
    inter = parameters_of(config).integer("inter_op_thread_count", 0) or 1
    if global_threads.enabled:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = session_threads(source, sharing)
        options.inter_op_num_threads = inter
    mode = parameters_of(config).integer("execution_mode", 0)
    if mode not in _EXECUTION_MODES:
        raise invalid(f"model '{config.name}': parameter 'execution_mode' is {mode}, expected 0 or 1")
    options.execution_mode = _EXECUTION_MODES[mode]
    options.enable_cpu_mem_arena = parameters_of(config).flag("enable_mem_arena", default=True)
    options.enable_mem_pattern = parameters_of(config).flag("enable_mem_pattern", default=True)
    for key, value in config.parameters.items():
        if key.startswith(_SESSION_ENTRIES):
            options.add_session_config_entry(key, value)
    return options


def shrunk_devices(config: ModelConfig) -> tuple[str, ...]:
    """Return the devices that release their memory after each execution. Raises INVALID_ARG for unknown names."""
    text = config.parameters.get(SHRINKAGE, "")
    if not text:
        return ()
    devices = tuple(part.strip() for part in text.split(";"))
    who = f"model '{config.name}': parameter '{SHRINKAGE}' is '{text}'"
    if not all(re.fullmatch(r"cpu:0|gpu:[0-9]+", device) for device in devices):
        raise invalid(f"{who}, expected devices such as 'cpu:0' or 'cpu:0;gpu:0'")
    if "cpu:0" in devices and not parameters_of(config).flag("enable_mem_arena", default=True):
        raise invalid(f"{who}, but 'enable_mem_arena' is 0: without the arena there is nothing to shrink")
    return devices


def visible_gpus(present: Iterable[str], visible: str | None) -> int:
    """Return the number of the GPUs `present` (device names) that ``CUDA_VISIBLE_DEVICES`` makes visible.

    As in CUDA, the list ends at its first invalid entry (CUDA C++ Programming Guide, environment variables). UUIDs, as
    containers set them, cannot be checked here and all count.
    """
    count = len(list(present))
    if visible is None:
        return count
    shown = 0
    for entry in (part.strip() for part in visible.split(",")):
        by_name = entry.startswith(("GPU-", "MIG-"))
        if not by_name and not (entry.isascii() and entry.isdecimal() and int(entry) < count):
            break
        shown += 1
    return min(shown, count)
