"""Engines and precisions that can load a file, and the subset that this machine can run."""

import functools
import platform
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modserve.core.errors import invalid
from modserve.core.pip_command import pip_install

from .. import catalogue

FP32 = "fp32"
BF16 = "bf16"
INT8 = "int8"

_BF16_FLAGS = ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16")
"""CPU flags (Linux names) of native bfloat16, which is faster than float32."""
_INT8_FLAGS = ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
"""CPU flags of 8-bit integer dot products without overflow."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine at a precision. `parameters` are passed to the engine together with the model's.

    `variant` distinguishes candidates with the same engine and precision. `needs` lists CPU flags, of which one must be
    present; empty runs on every CPU. `module` is a further required Python module, installed by `extra`.
    """

    backend: str
    precision: str = FP32
    parameters: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    variant: str = ""
    module: str = ""
    extra: str = ""

    @property
    def name(self) -> str:
        """Name in the cache and in races."""
        return " ".join(filter(None, (self.backend, self.precision, self.variant)))

    @property
    def title(self) -> str:
        """Display name."""
        return " ".join(filter(None, (self.library, self.precision, self.variant)))

    @property
    def library(self) -> str:
        engine = catalogue.BY_BACKEND.get(self.backend)
        return engine.library if engine is not None else self.backend

    @property
    def version(self) -> str:
        engine = catalogue.BY_BACKEND.get(self.backend)
        return engine.version if engine is not None else ""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format. Its first available candidate is the reference for the others."""

    name: str
    suffixes: tuple[str, ...]
    candidates: tuple[Candidate, ...]


_OPENVINO = (
    Candidate("openvino", FP32, {"INFERENCE_PRECISION_HINT": "f32"}),
    Candidate("openvino", BF16, {"INFERENCE_PRECISION_HINT": "bf16"}, _BF16_FLAGS),
    Candidate("openvino", INT8, {"INFERENCE_PRECISION_HINT": "f32", "WEIGHT_COMPRESSION": "int8"}, _INT8_FLAGS),
)
_ONNX = (
    Candidate("onnxruntime"),
    *_OPENVINO[:-1],
    Candidate(
        "onnxruntime",
        INT8,
        {"dynamic_quantization": "int8"},
        _INT8_FLAGS,
        module="onnx",
        extra=catalogue.QUANTIZATION,
    ),
    *_OPENVINO[-1:],
)
_PYTORCH = (
    Candidate("pytorch"),
    Candidate("pytorch", BF16, {"AUTOCAST": "bf16"}, _BF16_FLAGS, "autocast"),
    Candidate("pytorch", BF16, {"PRECISION": "bf16"}, _BF16_FLAGS),
)
_TORCHSCRIPT = (
    *_PYTORCH[:1],
    Candidate("pytorch", FP32, {"OPTIMIZE_FOR_INFERENCE": "1"}, (), "optimized"),
    *_PYTORCH[1:],
)

FORMATS = (
    Format("ONNX", (".onnx",), _ONNX),
    Format("OpenVINO IR", (".xml",), _OPENVINO),
    Format("TensorFlow SavedModel", (".savedmodel",), (Candidate("tensorflow"), *_OPENVINO)),
    Format("TensorFlow graph", (".graphdef", ".pb"), (Candidate("tensorflow"), *_OPENVINO)),
    Format("TensorFlow Lite", (".tflite",), _OPENVINO),
    Format("PaddlePaddle", (".pdmodel",), _OPENVINO),
    Format("TorchScript", (".pt", ".torchscript", ".pth", ".ts"), _TORCHSCRIPT),
    Format("PyTorch program", (".pt2",), _PYTORCH),
)
_BY_SUFFIX = {suffix: each for each in FORMATS for suffix in each.suffixes}
_SAVED_MODEL = _BY_SUFFIX[".savedmodel"]
_SAVED_MODEL_FILE = "saved_model.pb"
"""File that marks a directory as a SavedModel."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model's file or directory."""

    path: Path
    format: Format


def find_artifact(path: Path, model: str) -> Artifact:
    """Return the file at `path`; for a version directory, its only file in a known format.

    ``model.<suffix>`` takes precedence. Raises INVALID_ARG if there is no such file, or several.
    """
    if path.name == _SAVED_MODEL_FILE and path.is_file():
        path = path.parent
    format = _format_of(path)
    if format is not None and path.exists():
        return Artifact(path, format)
    if not path.exists():
        raise invalid(f"unable to find model file '{path}' for model '{model}'")
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    known = [(name, format) for name in names if (format := _format_of(path / name)) is not None]
    named = [each for each in known if Path(each[0]).stem == "model"]
    first = sorted(named, key=lambda each: FORMATS.index(each[1]))[:1] or known
    if len(first) == 1:
        return Artifact(path / first[0][0], first[0][1])
    takes = ", ".join(f"{each.name} ({each.suffixes[0]})" for each in FORMATS)
    if known:
        listed = ", ".join(name for name, _ in known)
        raise invalid(f"model '{model}': '{path}' holds several models ({listed}): 'default_model_filename' names one")
    there = "is a file of another format"
    if path.is_dir():
        there = f"holds {', '.join(names[:10])}" if names else "is empty"
    raise invalid(f"model '{model}': '{path}' {there}; backend 'auto' takes {takes}")


def _format_of(path: Path) -> Format | None:
    format = _BY_SUFFIX.get(path.suffix.lower())
    return _SAVED_MODEL if format is None and (path / _SAVED_MODEL_FILE).is_file() else format


def hindrance(candidate: Candidate, available: Collection[str], flags: Collection[str]) -> str:
    """Return the reason why a candidate cannot run here; empty if it can.

    `available` lists the backends with an installed library, `flags` the CPU's flags.
    """
    engine = catalogue.BY_BACKEND.get(candidate.backend)
    if candidate.backend not in available:
        install = f": {engine.install_text}" if engine is not None and engine.install else ""
        return f"{candidate.library} is not installed{install}"
    if engine is not None and engine.stand_in is not None:
        return f"{candidate.library} is not installed, and its stand-in is {engine.stand_in.library}"
    if candidate.needs and not set(candidate.needs) & set(flags):
        return f"this CPU cannot compute {candidate.precision}: it needs one of {', '.join(candidate.needs)}"
    return ""


def missing_package(candidate: Candidate) -> str:
    """Return the missing package and how to install it; empty if none is missing."""
    if not candidate.module or catalogue.is_installed(candidate.module):
        return ""
    return f"{candidate.precision} needs the package {candidate.module}: {pip_install(candidate.extra)}"


@dataclass(frozen=True, slots=True)
class Cpu:
    model: str
    flags: frozenset[str]


@functools.cache
def this_cpu() -> Cpu:
    """Return model and flags of the first CPU on Linux; elsewhere at most the model, without flags."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return read_cpu(text) if text else Cpu(platform.processor() or platform.machine(), frozenset())


def read_cpu(text: str) -> Cpu:
    """Parse the text of ``/proc/cpuinfo``."""
    fields: dict[str, str] = {}
    for key, value in re.findall(r"^([^:\n]+?)\s*:[ \t]*(.*)$", text, re.MULTILINE):
        fields.setdefault(key, value)
    flags = fields.get("flags") or fields.get("Features") or ""
    return Cpu(fields.get("model name") or fields.get("CPU part") or platform.machine(), frozenset(flags.split()))
