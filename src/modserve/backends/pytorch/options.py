"""Options of the ``pytorch`` backend: model parameters and ``--backend-config`` keys.

Parameter names follow Triton's PyTorch backend (its README; `ModelState::ParseParameters` in src/pt/model_state.cc;
src/model.py), with a few additions. A warning explains each parameter without effect. Does not import PyTorch.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from ..options import MAX_BATCH_SIZE, OptionReader, parameters_of, unknown_parameters
from .archive import Form

BACKEND_OPTIONS: Mapping[str, str] = {MAX_BATCH_SIZE: ""}

RUNTIME_MODEL = "model.py"
"""Value of ``runtime`` for a Python class."""

PRECISIONS = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
}
"""Users' type names → PyTorch's type names."""
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

COMPILE = "TORCH_COMPILE"
COMPILE_PARAMETERS = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_COMPILE_KEYS = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")

JIT_MODES = ("ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER")
"""Process-wide settings of TorchScript."""
_OF_TORCHSCRIPT = (*JIT_MODES, "DISABLE_OPTIMIZED_EXECUTION", "OPTIMIZE_FOR_INFERENCE")
_OF_GPUS = ("DISABLE_CUDNN", "ENABLE_CACHE_CLEANING")
_THREADS = ("INTRA_OP_THREAD_COUNT", "NUM_THREADS")
_INTER_THREADS = ("INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS")
_CASTS = ("PRECISION", "AUTOCAST")
_SHARING = "ENABLE_WEIGHT_SHARING"
_CLASS = "MODEL_CLASS"
_NVFUSER = "ENABLE_NVFUSER"

KNOWN = (
    "INFERENCE_MODE",
    *_OF_TORCHSCRIPT,
    *_OF_GPUS,
    *_THREADS,
    *_INTER_THREADS,
    *_CASTS,
    _SHARING,
    _NVFUSER,
    COMPILE,
    COMPILE_PARAMETERS,
    _CLASS,
)


@dataclass(frozen=True)
class PyTorchOptions:
    """Parsed parameters of a model."""

    optimized_execution: bool = True
    optimize_for_inference: bool = False
    inference_mode: bool = True
    cudnn: bool = True
    cache_cleaning: bool = False
    weight_sharing: bool | None = None
    """None: share weights unless executions change the model."""
    threads: int = 0
    """Threads of each instance; 0: the server's setting."""
    inter_op_threads: int = 0
    """Inter-op threads of the process; 0: unchanged."""
    precision: str = ""
    """PyTorch type for weights and floating-point inputs; empty: unchanged."""
    autocast: str = ""
    """PyTorch type for autocast of single operators; empty: no autocast."""
    jit_modes: Mapping[str, bool] = field(default_factory=dict)
    compile: Mapping[str, Any] | None = None
    """Keywords of ``torch.compile``; None: the model is not compiled."""
    model_class: str = ""

    @property
    def served_precision(self) -> str:
        """Precision for reports."""
        return _SHORT[self.precision or self.autocast or "float32"]


def read(config: ModelConfig) -> PyTorchOptions:
    """Read the options. Raises INVALID_ARG for bad parameters."""
    values = parameters_of(config)

    def is_on(key: str) -> bool:
        return values.flag(key, default=False)

    def count(keys: tuple[str, ...]) -> int:
        return next((values.integer(key, 0) for key in keys if key in values), 0)

    precision, autocast = (_precision(values, key) for key in _CASTS)
    if precision and autocast:
        raise invalid(
            f"{values.where} 'PRECISION' converts the model, and 'AUTOCAST' single operators: set only one of them"
        )
    return PyTorchOptions(
        optimized_execution=not is_on("DISABLE_OPTIMIZED_EXECUTION"),
        optimize_for_inference=is_on("OPTIMIZE_FOR_INFERENCE"),
        inference_mode=values.flag("INFERENCE_MODE", default=True),
        cudnn=not is_on("DISABLE_CUDNN"),
        cache_cleaning=is_on("ENABLE_CACHE_CLEANING"),
        weight_sharing=is_on(_SHARING) if _SHARING in values else None,
        threads=count(_THREADS),
        inter_op_threads=count(_INTER_THREADS),
        precision=precision if precision != "float32" else "",
        autocast=autocast if autocast != "float32" else "",
        jit_modes={key: is_on(key) for key in JIT_MODES if key in values},
        compile=_compile(values),
        model_class=values.text(_CLASS),
    )


def warnings(config: ModelConfig, form: Form, gpus: int) -> list[str]:
    """Return warnings about parameters, or a ``runtime``, without effect, with reasons."""
    notes = [f"model '{config.name}': parameter '{key}' has no effect: {why}" for key, why in _idle(config, form, gpus)]
    if config.runtime not in ("", RUNTIME_MODEL):
        notes.append(
            f"model '{config.name}': 'runtime' is '{config.runtime}', which has no effect; only '{RUNTIME_MODEL}' "
            f"has one, for a class in Python"
        )
    return notes + unknown_parameters("pytorch", config, KNOWN)


def _idle(config: ModelConfig, form: Form, gpus: int) -> Iterator[tuple[str, str]]:
    """Yield the parameters without effect, with reasons."""
    for key in config.parameters:
        if key == _NVFUSER:
            yield key, "PyTorch no longer has NVFuser"
        elif key in _OF_GPUS and not gpus:
            yield key, "it is for GPUs, but PyTorch has none here"
        elif key in _OF_TORCHSCRIPT and form is not Form.TORCHSCRIPT:
            yield key, f"it is for TorchScript, but the model is {form.words}"
        elif key in (COMPILE, COMPILE_PARAMETERS) and form is Form.TORCHSCRIPT:
            yield key, "PyTorch cannot compile TorchScript; export the model with torch.export, or serve its class"
        elif key in (COMPILE, COMPILE_PARAMETERS, *_CASTS) and form is Form.COMPILED:
            yield key, "the package is already compiled"
        elif key == _CLASS and form is not Form.CLASS:
            yield key, f"it is for {RUNTIME_MODEL}, but the model is {form.words}"


def _precision(values: OptionReader, key: str) -> str:
    text = values.text(key).lower()
    if text and text not in PRECISIONS:
        raise values.fault(key, "'fp32', 'bf16' or 'fp16'")
    return PRECISIONS.get(text, "")


def _compile(values: OptionReader) -> Mapping[str, Any] | None:
    parameters: object = {}
    if values.text(COMPILE_PARAMETERS):
        try:
            parameters = json.loads(values.text(COMPILE_PARAMETERS))
        except ValueError as error:
            raise invalid(f"{values.where} '{COMPILE_PARAMETERS}' is not JSON: {error}") from None
    if not isinstance(parameters, dict) or not all(key in _COMPILE_KEYS for key in parameters):
        raise values.fault(COMPILE_PARAMETERS, f"a JSON object with some of {', '.join(_COMPILE_KEYS)}")
    by_default = bool(values.text(COMPILE_PARAMETERS)) and not parameters.get("disable", False)
    return parameters if values.flag(COMPILE, default=by_default) else None
