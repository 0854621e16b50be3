"""Parameters, files and failures of the pytorch backend. Without PyTorch."""

import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modserve.backends.pytorch import archive, failures, options
from modserve.backends.pytorch.archive import Form
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError

CONFIG = ModelConfig("m", "pytorch")


def with_parameters(**values: str) -> ModelConfig:
    return replace(CONFIG, parameters=values)


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        ({}, "inference_mode", True),
        ({"INFERENCE_MODE": "false"}, "inference_mode", False),
        ({"DISABLE_OPTIMIZED_EXECUTION": "true"}, "optimized_execution", False),
        ({"DISABLE_CUDNN": "1"}, "cudnn", False),
        ({"ENABLE_CACHE_CLEANING": "true"}, "cache_cleaning", True),
        ({}, "weight_sharing", None),
        ({"ENABLE_WEIGHT_SHARING": "false"}, "weight_sharing", False),
        ({"INTRA_OP_THREAD_COUNT": "3"}, "threads", 3),
        ({"NUM_THREADS": "4"}, "threads", 4),
        ({"NUM_INTEROP_THREADS": "2"}, "inter_op_threads", 2),
        ({"ENABLE_JIT_PROFILING": "false"}, "jit_modes", {"ENABLE_JIT_PROFILING": False}),
        ({"PRECISION": "BF16"}, "served_precision", "bf16"),
        ({"PRECISION": "fp32"}, "precision", ""),
        ({"AUTOCAST": "float16"}, "served_precision", "fp16"),
        ({}, "compile", None),
        ({"TORCH_COMPILE": "true"}, "compile", {}),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"mode": "default"}'}, "compile", {"mode": "default"}),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"disable": true}'}, "compile", None),
        ({"TORCH_COMPILE": "false", "TORCH_COMPILE_OPTIONAL_PARAMETERS": "{}"}, "compile", None),
        ({"MODEL_CLASS": "Net"}, "model_class", "Net"),
    ],
)
def test_read(values: dict[str, str], field: str, expected: object) -> None:
    assert getattr(options.read(with_parameters(**values)), field) == expected


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"INFERENCE_MODE": "maybe"}, "parameter 'INFERENCE_MODE' is 'maybe'"),
        ({"INTRA_OP_THREAD_COUNT": "-1"}, "'INTRA_OP_THREAD_COUNT' is '-1', expected an integer of 0 or more"),
        ({"AUTOCAST": "int8"}, "'AUTOCAST' is 'int8', expected 'fp32', 'bf16' or 'fp16'"),
        ({"AUTOCAST": "bf16", "PRECISION": "bf16"}, "set only one of them"),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": "{"}, "is not JSON"),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"model": 1}'}, "expected a JSON object with some of fullgraph"),
    ],
)
def test_refused(values: dict[str, str], text: str) -> None:
    with pytest.raises(ModserveError, match=text) as caught:
        options.read(with_parameters(**values))
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(
    ("values", "form", "text"),
    [
        ({"ENABLE_NVFUSER": "1"}, Form.TORCHSCRIPT, "PyTorch no longer has NVFuser"),
        ({"DISABLE_CUDNN": "1"}, Form.TORCHSCRIPT, "it is for GPUs"),
        ({"ENABLE_JIT_EXECUTOR": "1"}, Form.EXPORTED, "it is for TorchScript, but the model is an exported program"),
        ({"TORCH_COMPILE": "1"}, Form.TORCHSCRIPT, "PyTorch cannot compile TorchScript"),
        ({"PRECISION": "bf16"}, Form.COMPILED, "the package is already compiled"),
        ({"MODEL_CLASS": "Net"}, Form.TORCHSCRIPT, "it is for model.py"),
        ({"INFRENCE_MODE": "1"}, Form.TORCHSCRIPT, "did you mean 'INFERENCE_MODE'?"),
    ],
)
def test_warnings(values: dict[str, str], form: Form, text: str) -> None:
    (warning,) = options.warnings(with_parameters(**values), form, gpus=0)
    assert text in warning
    assert "'m'" in warning


def test_nothing_to_warn_of() -> None:
    values = {"INFERENCE_MODE": "true", "DISABLE_CUDNN": "true", "padding.values": "0"}
    assert options.warnings(replace(with_parameters(**values), runtime="model.py"), Form.TORCHSCRIPT, gpus=1) == []


def test_runtimes() -> None:
    (warning,) = options.warnings(replace(CONFIG, runtime="other"), Form.TORCHSCRIPT, gpus=0)
    assert "'runtime' is 'other', which has no effect" in warning


def _zip(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as target:
        for name, content in entries.items():
            target.writestr(name.replace("__", "/"), content)
    return path


@pytest.mark.parametrize(
    ("entry", "form"),
    [
        ("m__constants.pkl", Form.TORCHSCRIPT),
        ("m__models__model.json", Form.EXPORTED),
        ("serialized_exported_program.json", Form.EXPORTED),
        ("m__data__aotinductor__model__x.so", Form.COMPILED),
    ],
)
def test_forms(tmp_path: Path, entry: str, form: Form) -> None:
    assert archive.form_of(_zip(tmp_path / "model.pt", m__version=b"3", **{entry: b""})) is form


def test_a_class(tmp_path: Path) -> None:
    assert archive.form_of(tmp_path / "model.py") is Form.CLASS


class Own:
    pass


@pytest.mark.parametrize(
    ("value", "text"), [({"a": 1}, "contains weights without a model"), ([Own()], "a pickle of whole objects (")]
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_torch_save_makes(tmp_path: Path, value: Any, text: str, protocol: int) -> None:
    path = _zip(tmp_path / "model.pt", m__data__pkl=b"")
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("m/data.pkl", pickle.dumps(value, protocol))
    with pytest.raises(ModserveError) as caught:
        archive.form_of(path)
    assert text in caught.value.message
    assert "Own" in caught.value.message or text.startswith("contains")


JIT = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript, serialized code (most recent call last):
  File "code/__torch__/m.py", line 9, in forward
    raise ValueError
RuntimeError: mat1 and mat2 shapes cannot be multiplied
  (2x5 and 4x3)
"""


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            RuntimeError(JIT),
            Code.INTERNAL,
            "pytorch refused the request: mat1 and mat2 shapes cannot be multiplied (2x5 and 4x3)",
        ),
        (IndexError("index out of range in self"), Code.INTERNAL, "index out of range in self"),
        (
            RuntimeError("it broke\nException raised from f at x.cpp:1\nframe #0: f"),
            Code.INTERNAL,
            "pytorch refused the request: it broke",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9"), Code.INTERNAL, "smaller batches need less"),
        (MemoryError(), Code.INTERNAL, "not enough memory: MemoryError"),
        (RuntimeError(""), Code.INTERNAL, "pytorch refused the request: RuntimeError"),
        (RuntimeError("x" * 5000), Code.INTERNAL, "x..."),
    ],
)
def test_failures(error: Exception, code: Code, text: str) -> None:
    failure = failures.of_execution(error)
    assert failure.code is code
    assert failure.message.endswith(text) or text in failure.message
    assert "\n" not in failure.message
    assert len(failure.message) < 500
