"""What users may set for the ``onnxruntime`` backend: model parameters and ``--backend-config`` keys.

The names are those of Triton's ONNX Runtime backend (its README, and ``ModelState`` in src/onnxruntime.cc). Each is
acted on, or a warning says why it is not.
"""

import re
import threading
from collections.abc import Iterable, Mapping

import onnxruntime as ort

from modserve.core.errors import invalid
from modserve.core.model_config import ModelConfig

from ..api import ModelSource
from ..options import SERVER_PARAMETERS, flag, integer, unknown_parameter

_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
"""As in Triton, any other number is all optimisations; 0, which is also that of an empty block, is the default."""
_EXECUTION_MODES = {0: ort.ExecutionMode.ORT_SEQUENTIAL, 1: ort.ExecutionMode.ORT_PARALLEL}
SILENT = 4
"""The severity from which ONNX Runtime writes to standard error itself: what fails comes as an exception, too."""

SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_CUDA_CHOICES: dict[str, tuple[str, ...]] = {
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "do_copy_in_default_stream": ("0", "1"),
}
"""Triton's numbers → the values of ONNX Runtime's options."""
_CUDA_PARAMETERS = (*_CUDA_CHOICES, "gpu_mem_limit")
_THREAD_COUNTS = ("intra_op_thread_count", "inter_op_thread_count")
_SESSION_PARAMETERS = (*_THREAD_COUNTS, "execution_mode", "enable_mem_arena", "enable_mem_pattern", SHRINKAGE)
_WITHOUT_EFFECT = {
    "share_session_between_instances": "instances on the CPU always share one session, those on GPUs never do"
}
_OTHERS = ("session.", *SERVER_PARAMETERS)
"""Parameters that ONNX Runtime reads by their own keys, or that are the server's."""

MAX_BATCH_SIZE = "default-max-batch-size"
_GLOBAL_THREADS = "enable-global-threadpool"
BACKEND_OPTIONS: Mapping[str, str] = dict.fromkeys((MAX_BATCH_SIZE, _GLOBAL_THREADS, *_THREAD_COUNTS), "")


def warnings(config: ModelConfig, gpus: int) -> list[str]:
    """What a model's parameters and its graph level say that has no effect, and why."""
    notes, known = [], (*_SESSION_PARAMETERS, *_CUDA_PARAMETERS)
    for key in config.parameters:
        who = f"model '{config.name}': parameter '{key}' has no effect"
        if key in _WITHOUT_EFFECT:
            notes.append(f"{who}: {_WITHOUT_EFFECT[key]}")
        elif key in _CUDA_PARAMETERS and not gpus:
            notes.append(f"{who}: it is for GPUs, and ONNX Runtime can use none here")
        elif key in _THREAD_COUNTS and global_threads.enabled:
            notes.append(f"{who}: --backend-config=onnxruntime,{_GLOBAL_THREADS}=1 gives all models the same threads")
        elif key not in known and not key.startswith(_OTHERS):
            notes.append(unknown_parameter("onnxruntime", config, key, known))
    level = config.graph_optimization_level or 0
    if level and level not in _GRAPH_LEVELS:
        notes.append(
            f"model '{config.name}': optimization.graph.level is {level}, which stands for all optimisations, as 0 "
            "does; others are -1 (basic), 1 (extended) and 2 (none)"
        )
    return notes


class GlobalThreads:
    """The threads that all sessions share, instead of having their own. ONNX Runtime has them once in a process."""

    def __init__(self) -> None:
        self.enabled = False
        self._lock = threading.Lock()

    def configure(self, options: Mapping[str, str]) -> None:
        """Make them if the server's options for the backend say so. Raises INVALID_ARG."""
        if not flag("backend option", options, _GLOBAL_THREADS, default=False):
            return
        counts = [integer("backend option", options, key, 0) for key in _THREAD_COUNTS]
        with self._lock:
            if not self.enabled:
                ort.set_global_thread_pool_sizes(*counts)
                self.enabled = True


global_threads = GlobalThreads()


def session_options(source: ModelSource, sharing: int) -> ort.SessionOptions:
    """For a session that so many instances share. Raises INVALID_ARG for parameters of the model that are no good."""
    config = source.config
    options = ort.SessionOptions()
    level = config.graph_optimization_level or 0
    options.graph_optimization_level = _GRAPH_LEVELS.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.log_severity_level = SILENT
    intra = _integer(config, "intra_op_thread_count", 0) or source.cpu_threads
    inter = _integer(config, "inter_op_thread_count", 0) or 1
    if global_threads.enabled:
        options.use_per_session_threads = False
    else:
        # Each instance brings a thread of its own, which works too: together they are `intra` for each of them.
        options.intra_op_num_threads = sharing * (intra - 1) + 1
        options.inter_op_num_threads = inter
    mode = _integer(config, "execution_mode", 0)
    if mode not in _EXECUTION_MODES:
        raise invalid(f"model '{config.name}': parameter 'execution_mode' is {mode}, expected 0 or 1")
    options.execution_mode = _EXECUTION_MODES[mode]
    options.enable_cpu_mem_arena = _flag(config, "enable_mem_arena")
    options.enable_mem_pattern = _flag(config, "enable_mem_pattern")
    for key, value in config.parameters.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    return options


def shrunk_devices(config: ModelConfig) -> tuple[str, ...]:
    """Whose memory is given back after each execution. Raises INVALID_ARG for what names no devices."""
    text = config.parameters.get(SHRINKAGE, "")
    if not text:
        return ()
    devices = tuple(part.strip() for part in text.split(";"))
    who = f"model '{config.name}': parameter '{SHRINKAGE}' is '{text}'"
    if not all(re.fullmatch(r"cpu:0|gpu:[0-9]+", device) for device in devices):
        raise invalid(f"{who}, expected devices such as 'cpu:0' or 'cpu:0;gpu:0'")
    if "cpu:0" in devices and not _flag(config, "enable_mem_arena"):
        raise invalid(f"{who}, but 'enable_mem_arena' is 0: without the arena there is nothing to shrink")
    return devices


def cuda_options(config: ModelConfig, device: int) -> dict[str, str]:
    """The options of the CUDA provider. Raises INVALID_ARG."""
    options = {"device_id": str(device)}
    for key, values in _CUDA_CHOICES.items():
        number = _integer(config, key, -1)
        if number >= len(values):
            who = f"model '{config.name}': parameter '{key}' is {number}"
            raise invalid(f"{who}, expected a number from 0 to {len(values) - 1}")
        if number >= 0:
            options[key] = values[number]
    if limit := _integer(config, "gpu_mem_limit", 0):
        options["gpu_mem_limit"] = str(limit)
    return options


def _integer(config: ModelConfig, parameter: str, default: int) -> int:
    return integer(f"model '{config.name}': parameter", config.parameters, parameter, default)


def _flag(config: ModelConfig, parameter: str) -> bool:
    return flag(f"model '{config.name}': parameter", config.parameters, parameter, default=True)


def visible_gpus(present: Iterable[str], visible: str | None) -> int:
    """How many of the GPUs `present` (the names of their devices) CUDA shows with this ``CUDA_VISIBLE_DEVICES``.

    As CUDA does: the list counts up to its first entry that is no GPU (CUDA C++ Programming Guide, environment
    variables). Those of containers may be named by UUID, which cannot be told from here: each counts.
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
