"""Options of the ``openvino`` backend: model parameters and ``--backend-config`` keys.

Upper-case names follow Triton's OpenVINO backend (its README and ``ModelState`` in src/openvino.cc) and OpenVINO's own
properties, lower-case names OpenVINO Model Server. Names are case-insensitive. A warning explains each parameter
without effect.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from modserve.core.configuration.model_config import ModelConfig

from ..options import MAX_BATCH_SIZE, SERVER_PARAMETERS, OptionReader, unknown_parameter
from .shapes import partial_shapes

Value: TypeAlias = str | int | bool
T = TypeVar("T")

PRECISION = "INFERENCE_PRECISION_HINT"
STREAMS = "NUM_STREAMS"
THREADS = "INFERENCE_NUM_THREADS"
CACHE_DIR = "CACHE_DIR"
_HINT = "PERFORMANCE_HINT"
_MODE = "EXECUTION_MODE_HINT"
_PINNING = "ENABLE_CPU_PINNING"
_MAPPING = "ENABLE_MMAP"
_FIXED_BATCH = "SKIP_OV_DYNAMIC_BATCHSIZE"
_PADDING = "ENABLE_BATCH_PADDING"
_COMPRESSION = "WEIGHT_COMPRESSION"
_DYNAMIC_GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
_COMPRESSED_GROUP = 32
"""Default number of elements that share a scale."""

_FLAGS = {**dict.fromkeys(("YES", "TRUE", "1"), True), **dict.fromkeys(("NO", "FALSE", "0"), False)}
_PRECISIONS = {"fp32": "f32", "fp16": "f16"}


def _flag(text: str) -> bool:
    return _FLAGS[text.upper()]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _streams(text: str) -> Value:
    text = text.upper().removeprefix("CPU_THROUGHPUT_")
    return text if text in ("AUTO", "NUMA") else _number(text)


def _bfloat16(text: str) -> str:
    return "bf16" if _flag(text) else "f32"


def _pinning(text: str) -> bool:
    return text.upper() == "NUMA" or _flag(text)


def _precision(text: str) -> str:
    text = text.lower()
    return _PRECISIONS.get(text, text)


@dataclass(frozen=True, slots=True)
class _Property:
    """A parameter that sets an OpenVINO property: its name, the parser of its value, and a description."""

    name: str
    read: Callable[[str], Value]
    expected: str


_YES_OR_NO = "YES or NO"
_COUNT = "an integer of 0 or more"
_HINTS = "LATENCY, THROUGHPUT or CUMULATIVE_THROUGHPUT"
_STREAM_COUNT = "an integer of 0 or more, AUTO or NUMA"

_PROPERTIES = {
    _HINT: _Property(_HINT, str.upper, _HINTS),
    "PERFORMANCE_HINT_NUM_REQUESTS": _Property("PERFORMANCE_HINT_NUM_REQUESTS", _number, _COUNT),
    _MODE: _Property(_MODE, str.upper, "ACCURACY or PERFORMANCE"),
    PRECISION: _Property(PRECISION, _precision, "f32, bf16 or f16"),
    "HINT_BF16": _Property(PRECISION, _bfloat16, _YES_OR_NO),
    "ENFORCE_BF16": _Property(PRECISION, _bfloat16, _YES_OR_NO),
    THREADS: _Property(THREADS, _number, _COUNT),
    "CPU_THREADS_NUM": _Property(THREADS, _number, _COUNT),
    "COMPILATION_NUM_THREADS": _Property("COMPILATION_NUM_THREADS", _number, _COUNT),
    STREAMS: _Property(STREAMS, _streams, _STREAM_COUNT),
    "CPU_THROUGHPUT_STREAMS": _Property(STREAMS, _streams, _STREAM_COUNT),
    _PINNING: _Property(_PINNING, _flag, _YES_OR_NO),
    "CPU_BIND_THREAD": _Property(_PINNING, _pinning, "YES, NO or NUMA"),
    "ENABLE_HYPER_THREADING": _Property("ENABLE_HYPER_THREADING", _flag, _YES_OR_NO),
    "SCHEDULING_CORE_TYPE": _Property("SCHEDULING_CORE_TYPE", str.upper, "ANY_CORE, PCORE_ONLY or ECORE_ONLY"),
    "CPU_DENORMALS_OPTIMIZATION": _Property("CPU_DENORMALS_OPTIMIZATION", _flag, _YES_OR_NO),
    _DYNAMIC_GROUP: _Property(_DYNAMIC_GROUP, _number, _COUNT),
    "KV_CACHE_PRECISION": _Property("KV_CACHE_PRECISION", _precision, "f32, bf16, f16 or u8"),
    CACHE_DIR: _Property(CACHE_DIR, str, "a directory"),
}
_OTHERS = (
    _MAPPING,
    "TARGET_DEVICE",
    "CPU_EXTENSION_PATH",
    "RESHAPE_IO_LAYERS",
    _FIXED_BATCH,
    "SKIP_DYNAMIC_BATCHSIZE",
    _PADDING,
    _COMPRESSION,
    "NIREQ",
    "PLUGIN_CONFIG",
    "SHAPE",
    "LAYOUT",
    "TF_GRAPH_TAG",
    "TF_SIGNATURE_DEF",
)
_STATES = "no state is kept between requests"
_WITHOUT_EFFECT = {
    "BATCH_SIZE": "any batch up to max_batch_size runs unpadded",
    "STATEFUL": _STATES,
    "LOW_LATENCY_TRANSFORMATION": _STATES,
    "MAX_SEQUENCE_NUMBER": _STATES,
    "IDLE_SEQUENCE_CLEANUP": _STATES,
}
KNOWN = (*_PROPERTIES, *_OTHERS)

CACHE_OPTION = "cache-dir"
BACKEND_OPTIONS: Mapping[str, str] = dict.fromkeys((MAX_BATCH_SIZE, CACHE_OPTION), "")


@dataclass(frozen=True, slots=True)
class OpenVinoOptions:
    """Parsed parameters of a model."""

    properties: Mapping[str, Value] = field(default_factory=dict)
    """OpenVINO's properties by name."""
    device: str = ""
    """Device of all instances; empty: each instance's placement."""
    extension: str = ""
    """Library with custom operators."""
    mapped: bool = True
    """Map the weights of an IR into memory instead of reading them."""
    reshape: bool = False
    """Reshape the graph to the configured dims."""
    shapes: Mapping[str, str] = field(default_factory=dict)
    """Input → its shape in OpenVINO's notation; the key "" is for all."""
    layouts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Tensor → the clients' layout and the graph's layout; the key "" is for the only input."""
    fixed_batch: bool = False
    """True if all executions have max_batch_size rows."""
    padding: bool = False
    """Pad smaller batches to max_batch_size."""
    requests: int = 0
    """Concurrent executions of an instance; 0: one per stream."""
    tag: str = ""
    compressed: bool = False
    """Compress the weights of matrix products to 8-bit integers."""


def read(config: ModelConfig) -> OpenVinoOptions:
    """Read the options. Raises INVALID_ARG for bad values, with the parameter's name."""
    # The upper-case spelling takes precedence.
    by_name = {key.upper(): config.parameters[key] for key in sorted(config.parameters, reverse=True)}
    values = OptionReader(f"model '{config.name}': parameter", by_name)
    if values.text("TF_SIGNATURE_DEF") not in ("", "serving_default"):
        raise values.fault("TF_SIGNATURE_DEF", "'serving_default', the only signature that OpenVINO can serve")
    return OpenVinoOptions(
        properties=_properties(values),
        device=values.text("TARGET_DEVICE").upper(),
        extension=values.text("CPU_EXTENSION_PATH"),
        mapped=values.flag(_MAPPING, default=True),
        reshape=values.flag("RESHAPE_IO_LAYERS", default=False),
        shapes=_by_tensor(values, "SHAPE", partial_shapes, "such as (1,3,224,224), (-1,3,200:500,-1) or auto"),
        layouts=_by_tensor(values, "LAYOUT", _layouts, "such as NHWC:NCHW"),
        fixed_batch=values.flag(_FIXED_BATCH, default=False) or values.flag("SKIP_DYNAMIC_BATCHSIZE", default=False),
        padding=values.flag(_PADDING, default=False),
        requests=values.integer("NIREQ", 0),
        tag=values.text("TF_GRAPH_TAG"),
        compressed=values.choice(_COMPRESSION, ("int8",)) == "int8",
    )


def warnings(config: ModelConfig) -> list[str]:
    """Return warnings about a model's parameters that have no effect, with reasons."""
    notes, present = [], {key.upper() for key in config.parameters}
    for key in config.parameters:
        who, name = f"model '{config.name}': parameter '{key}' has no effect", key.upper()
        if name in _WITHOUT_EFFECT:
            notes.append(f"{who}: {_WITHOUT_EFFECT[name]}")
        elif name == _PADDING and not present & {_FIXED_BATCH, "SKIP_DYNAMIC_BATCHSIZE"}:
            notes.append(f"{who}: without {_FIXED_BATCH}, any batch up to max_batch_size runs unpadded")
        elif name not in KNOWN and not key.startswith(SERVER_PARAMETERS):
            small = [known.lower() for known in KNOWN]
            notes.append(unknown_parameter("openvino", config, key, small if key.islower() else KNOWN))
    return notes


def compile_properties(
    options: OpenVinoOptions, device: str, *, threads: int, streams: int, cache_directory: str
) -> dict[str, Value]:
    """Return the properties for compiling a model for a device. The model's parameters override these defaults.

    Precision is FP32, whereas OpenVINO by itself uses BF16 on CPUs that support it. On the CPU there are `threads` in
    all, divided between `streams`, and no cores are reserved, since other models and the server run there as well.
    Compressed weights are multiplied in 8 bits, which ACCURACY alone would prevent.
    """
    properties = dict(options.properties)
    if device.startswith(("CPU", "GPU")):
        properties.setdefault(PRECISION, "f32")
        if properties[PRECISION] == "f32":
            properties.setdefault(_MODE, "ACCURACY")
    if device == "CPU":
        if options.compressed:
            properties.setdefault(_DYNAMIC_GROUP, _COMPRESSED_GROUP)
        properties[THREADS] = properties.get(THREADS) or threads
        properties.setdefault(_PINNING, False)
        if _HINT not in properties:
            properties.setdefault(STREAMS, streams)
    if cache_directory:
        properties.setdefault(CACHE_DIR, cache_directory)
    return properties


def _properties(values: OptionReader) -> dict[str, Value]:
    properties = _plugin_config(values)
    for key, row in _PROPERTIES.items():
        if key not in values:
            continue
        try:
            properties[row.name] = row.read(values.text(key))
        except (KeyError, ValueError):
            raise values.fault(key, row.expected) from None
    return properties


def _plugin_config(values: OptionReader) -> dict[str, Value]:
    """Read the parameter ``plugin_config``. Older property names are aliases of the current ones."""
    key, expected = "PLUGIN_CONFIG", 'a JSON object of properties, such as {"NUM_STREAMS": "2"}'
    if key not in values:
        return {}
    try:
        settings = json.loads(values.text(key))
    except ValueError:
        raise values.fault(key, expected) from None
    if not isinstance(settings, dict) or not all(isinstance(value, str | int | bool) for value in settings.values()):
        raise values.fault(key, expected)
    properties: dict[str, Value] = {}
    for name, value in settings.items():
        row = _PROPERTIES.get(name)
        try:
            properties[row.name if row else name] = row.read(str(value)) if row else value
        except (KeyError, ValueError):
            raise values.fault(key, f"{row.expected if row else ''} under '{name}'") from None
    return properties


def _by_tensor(values: OptionReader, key: str, read: Callable[[str], T], expected: str) -> dict[str, T]:
    """Read a JSON object of values by tensor, or one value for all tensors, under the key ""."""
    text = values.text(key)
    if not text:
        return {}
    try:
        by_name = json.loads(text) if text.startswith("{") else {"": text}
        return {str(name): read(str(value)) for name, value in by_name.items()}
    except ValueError:
        raise values.fault(key, f"{expected}, or a JSON object with one for each tensor") from None


def _layouts(text: str) -> tuple[str, str]:
    seen, _, own = text.upper().partition(":")
    if not own or sorted(seen) != sorted(own) or not seen.replace("?", "").isalpha():
        raise ValueError(text)
    return seen, own
