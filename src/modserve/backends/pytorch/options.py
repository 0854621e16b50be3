"""What users may set for the ``pytorch`` backend: model parameters and ``--backend-config`` keys.

The names are those of Triton's PyTorch backend (its README; `ModelState::ParseParameters` in src/pt/model_state.cc;
src/model.py), and a few of our own. Each is acted on, or a warning says why it is not. Nothing here needs PyTorch.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from ..options import flag, integer, unknown_parameters
from .archive import Form

MAX_BATCH_SIZE = "default-max-batch-size"
BACKEND_OPTIONS: Mapping[str, str] = {MAX_BATCH_SIZE: ""}

RUNTIME_MODEL = "model.py"
"""The value of ``runtime`` for a class in Python."""

PRECISIONS = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
}
"""What users write → PyTorch's name."""
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

COMPILE = "TORCH_COMPILE"
COMPILE_PARAMETERS = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_COMPILE_KEYS = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")

JIT_MODES = ("ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER")
"""Settings of TorchScript that hold for the whole process."""
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
class Options:
    """A model's parameters, read."""

    optimized_execution: bool = True
    optimize_for_inference: bool = False
    inference_mode: bool = True
    cudnn: bool = True
    cache_cleaning: bool = False
    weight_sharing: bool | None = None
    """None: share unless the model changes itself."""
    threads: int = 0
    """Of each instance; 0: what the server says."""
    inter_op_threads: int = 0
    """Of the process; 0: as they are."""
    precision: str = ""
    """PyTorch's name of the type that weights and floating-point inputs are converted to; empty: they stay."""
    autocast: str = ""
    """PyTorch's name of the type that single operators may choose; empty: none."""
    jit_modes: Mapping[str, bool] = field(default_factory=dict)
    compile: Mapping[str, Any] | None = None
    """Keywords of ``torch.compile``; None: the model is not compiled."""
    model_class: str = ""

    @property
    def served_precision(self) -> str:
        """For people."""
        return _SHORT[self.precision or self.autocast or "float32"]


def read(config: ModelConfig) -> Options:
    """Raises INVALID_ARG for parameters that are no good."""
    values = config.parameters
    where = f"model '{config.name}': parameter"

    def yes(key: str, default: bool) -> bool:
        return flag(where, values, key, default=default)

    def count(keys: tuple[str, ...]) -> int:
        return next((integer(where, values, key, 0) for key in keys if key in values), 0)

    precision, autocast = (_precision(where, values, key) for key in _CASTS)
    if precision and autocast:
        raise invalid(
            f"{where} 'PRECISION' converts the model, and 'AUTOCAST' single operators: only one of them is good"
        )
    return Options(
        optimized_execution=not yes("DISABLE_OPTIMIZED_EXECUTION", False),
        optimize_for_inference=yes("OPTIMIZE_FOR_INFERENCE", False),
        inference_mode=yes("INFERENCE_MODE", True),
        cudnn=not yes("DISABLE_CUDNN", False),
        cache_cleaning=yes("ENABLE_CACHE_CLEANING", False),
        weight_sharing=yes(_SHARING, False) if _SHARING in values else None,
        threads=count(_THREADS),
        inter_op_threads=count(_INTER_THREADS),
        precision=precision if precision != "float32" else "",
        autocast=autocast if autocast != "float32" else "",
        jit_modes={key: yes(key, True) for key in JIT_MODES if key in values},
        compile=_compile(where, values),
        model_class=values.get(_CLASS, ""),
    )


def warnings(config: ModelConfig, form: Form, gpus: int) -> list[str]:
    """What a model's parameters, and its ``runtime``, say that has no effect, and why."""
    notes = [f"model '{config.name}': parameter '{key}' has no effect: {why}" for key, why in _idle(config, form, gpus)]
    if config.runtime not in ("", RUNTIME_MODEL):
        notes.append(
            f"model '{config.name}': 'runtime' is '{config.runtime}', which has no effect; the one that counts is "
            f"'{RUNTIME_MODEL}', for a class in Python"
        )
    return notes + unknown_parameters("pytorch", config, KNOWN)


def _idle(config: ModelConfig, form: Form, gpus: int) -> Iterator[tuple[str, str]]:
    """Parameters without effect, and why."""
    for key in config.parameters:
        if key == _NVFUSER:
            yield key, "PyTorch has no NVFuser any more"
        elif key in _OF_GPUS and not gpus:
            yield key, "it is for GPUs, and PyTorch can use none here"
        elif key in _OF_TORCHSCRIPT and form is not Form.TORCHSCRIPT:
            yield key, f"it is for TorchScript, and the model is {form.words}"
        elif key in (COMPILE, COMPILE_PARAMETERS) and form is Form.TORCHSCRIPT:
            yield key, "PyTorch cannot compile TorchScript; export the model with torch.export, or serve its class"
        elif key in (COMPILE, COMPILE_PARAMETERS, *_CASTS) and form is Form.COMPILED:
            yield key, "the package is compiled already"
        elif key == _CLASS and form is not Form.CLASS:
            yield key, f"it is for {RUNTIME_MODEL}, and the model is {form.words}"


def _precision(where: str, values: Mapping[str, str], key: str) -> str:
    text = values.get(key, "").lower()
    if not text:
        return ""
    if text not in PRECISIONS:
        raise invalid(f"{where} '{key}' is '{values[key]}', expected 'fp32', 'bf16' or 'fp16'")
    return PRECISIONS[text]


def _compile(where: str, values: Mapping[str, str]) -> Mapping[str, Any] | None:
    text = values.get(COMPILE_PARAMETERS, "").strip()
    parameters: object = {}
    if text:
        try:
            parameters = json.loads(text)
        except ValueError as error:
            raise invalid(f"{where} '{COMPILE_PARAMETERS}' is no JSON: {error}") from None
    if not isinstance(parameters, dict) or not all(key in _COMPILE_KEYS for key in parameters):
        raise invalid(
            f"{where} '{COMPILE_PARAMETERS}' is '{text}', expected a JSON object with some of "
            f"{', '.join(_COMPILE_KEYS)}"
        )
    by_default = bool(text) and not parameters.get("disable", False)
    return parameters if flag(where, values, COMPILE, default=by_default) else None
