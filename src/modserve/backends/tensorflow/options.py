"""Options of the ``tensorflow`` backend: model parameters and ``--backend-config`` keys.

Parameter names follow Triton's TensorFlow backend (its README, and ``ModelState::ParseParameters`` in
src/tensorflow.cc). ALLOW_SOFT_PLACEMENT overrides the backend option for a model. Does not import TensorFlow.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from ..api import ModelSource
from ..options import MAX_BATCH_SIZE, default_max_batch_size, options_of, parameters_of, unknown_parameters

SIGNATURE = "TF_SIGNATURE_DEF"
TAG = "TF_GRAPH_TAG"
INTRA_THREADS = "TF_NUM_INTRA_THREADS"
INTER_THREADS = "TF_NUM_INTER_THREADS"
_PER_SESSION = "TF_USE_PER_SESSION_THREADS"
INIT_OPS = "TF_INIT_OPS_FILE"
_SHARE = "MAX_SESSION_SHARE_COUNT"
_SOFT_PLACEMENT = "ALLOW_SOFT_PLACEMENT"
PARAMETERS = (SIGNATURE, TAG, INTRA_THREADS, INTER_THREADS, _PER_SESSION, INIT_OPS, _SHARE, _SOFT_PLACEMENT)

_SOFT_PLACEMENT_OPTION = "allow-soft-placement"
_GPU_MEMORY = "gpu-memory-fraction"
_VERSION = "version"
BACKEND_OPTIONS: Mapping[str, str] = dict.fromkeys((MAX_BATCH_SIZE, _SOFT_PLACEMENT_OPTION, _GPU_MEMORY, _VERSION), "")

DEFAULT_TAG = "serve"
DEFAULT_SIGNATURE = "serving_default"
SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")

IN_CALLER = -1
"""Thread count for sequential execution of operators on the thread that runs the session."""


@dataclass(frozen=True)
class TensorFlowOptions:
    """Options from a model's parameters and the backend's options."""

    signature: str
    """Empty: the default signature, or the only one."""
    tag: str
    intra_threads: int
    """Intra-op threads, which TensorFlow creates once per process for all models."""
    inter_threads: int
    """Concurrent operators of an execution; `IN_CALLER` is one, without a hop to another thread."""
    own_threads: bool
    """True if a session has its own inter-op threads instead of the process's."""
    share_count: int
    """Maximum number of instances that share a session; 0: all."""
    init_ops_file: Path | None
    soft_placement: bool
    gpu_memory_fraction: float
    """Share of each GPU's memory; 0: allocated on demand."""
    default_max_batch_size: int


def read_options(source: ModelSource) -> TensorFlowOptions:
    """Read the options. Raises INVALID_ARG for bad values."""
    config, values, options = source.config, parameters_of(source.config), options_of(source.options)
    own_threads = values.flag(_PER_SESSION, default=False)
    intra = values.integer(INTRA_THREADS, 0) or source.cpu_threads * source.cpu_instances
    inter = values.integer(INTER_THREADS, 0) or (source.cpu_threads if own_threads else IN_CALLER)
    share = values.integer(_SHARE, 0)
    if _SHARE in values and not share:
        raise invalid(f"parameter '{_SHARE}' must be positive number for TensorFlow model '{config.name}'")
    soft = options.flag(_SOFT_PLACEMENT_OPTION, default=True)
    return TensorFlowOptions(
        signature=values.text(SIGNATURE),
        tag=values.text(TAG) or DEFAULT_TAG,
        intra_threads=intra,
        inter_threads=inter,
        own_threads=own_threads,
        share_count=share,
        init_ops_file=_init_ops_file(source),
        soft_placement=values.flag(_SOFT_PLACEMENT, default=soft),
        gpu_memory_fraction=options.number(_GPU_MEMORY, 0.0, lambda share: 0 <= share <= 1, "a number from 0 to 1"),
        default_max_batch_size=default_max_batch_size(source.options),
    )


def warnings(config: ModelConfig, options: Mapping[str, str]) -> list[str]:
    """Return warnings about model parameters, graph levels and backend options without effect, with reasons."""
    notes = unknown_parameters("tensorflow", config, PARAMETERS)
    if options.get(_VERSION, "2") != "2":
        notes.append(f"backend option '{_VERSION}' is '{options[_VERSION]}': TensorFlow 2 runs all models")
    if (config.graph_optimization_level or 0) > 0 and "tf_xla_cpu_global_jit" not in os.environ.get("TF_XLA_FLAGS", ""):
        notes.append(
            f"model '{config.name}': optimization.graph.level is {config.graph_optimization_level}, which asks for "
            "XLA; on CPUs, TensorFlow uses it only if the environment has TF_XLA_FLAGS=--tf_xla_cpu_global_jit"
        )
    return notes


def find_saved_model(path: Path) -> Path | None:
    """Return the directory of a SavedModel, given by its directory or its file; None for any other path."""
    if path.name in SAVED_MODEL_FILES:
        return path.parent
    return path if path.is_dir() else None


def _init_ops_file(source: ModelSource) -> Path | None:
    """Return the version's file, else the model's."""
    name = source.config.parameters.get(INIT_OPS, "")
    if not name:
        return None
    if os.path.isabs(name) or os.pardir in Path(name).parts:
        raise invalid(
            f"model '{source.config.name}': parameter '{INIT_OPS}' is '{name}', expected a file in the model's folder"
        )
    places = (source.model_directory / str(source.version) / name, source.model_directory / name)
    for place in places:
        if place.is_file():
            return place
    raise invalid(
        f"model '{source.config.name}': parameter '{INIT_OPS}' is '{name}', but there is neither '{places[0]}' nor "
        f"'{places[1]}'"
    )
