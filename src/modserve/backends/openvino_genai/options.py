"""The parameters of the ``openvino_genai`` backend, which have the engine's names.

They are checked here, before a process starts. Names in capitals are properties of OpenVINO, which checks them itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from ..generation.model import CONTEXT, OF_CHATS
from ..generation.program.on_genai.loading import EXACT_SETTINGS
from ..options import OptionReader, parameters_of, unknown_parameter
from ..python.options import MODEL_PARAMETERS

DEVICE = "device"
ADAPTERS = "adapters"
REPRODUCIBLE = "reproducible"
_MOST = 1 << 31


def _count(values: OptionReader, key: str) -> None:
    number = values.integer(key, 1)
    if not 1 <= number < _MOST:
        raise values.fault(key, "an integer of 1 or more")


def _size(values: OptionReader, key: str) -> None:
    values.integer(key, 0)


def _flag(values: OptionReader, key: str) -> None:
    values.flag(key, default=False)


SCHEDULER: Mapping[str, Callable[[OptionReader, str], None]] = {
    "cache_size": _size,
    "num_kv_blocks": _size,
    "max_num_batched_tokens": _count,
    "max_num_seqs": _count,
    "enable_prefix_caching": _flag,
    "dynamic_split_fuse": _flag,
    "use_cache_eviction": _flag,
    "use_sparse_attention": _flag,
}
"""Fields of the engine's SchedulerConfig, with the check of a value."""
_KNOWN = (*SCHEDULER, REPRODUCIBLE, DEVICE, ADAPTERS, CONTEXT, *OF_CHATS, *MODEL_PARAMETERS)


@dataclass(frozen=True, slots=True)
class GenaiOptions:
    device: str
    adapters: tuple[str, ...]
    max_model_len: int
    """Limit of the context; 0 if only the model's files limit it."""


def read(config: ModelConfig, path: Path) -> GenaiOptions:
    """Read the options. Raises INVALID_ARG. `path` is the model's file."""
    values = parameters_of(config)
    for key, check in SCHEDULER.items():
        check(values, key)
    if values.flag(REPRODUCIBLE, default=False):
        for key, expected in EXACT_SETTINGS.items():
            if key in values and not _agrees(values, key, expected):
                raise values.fault(key, f"{expected}, or no such parameter: '{REPRODUCIBLE}' needs it")
    if CONTEXT in values:
        _count(values, CONTEXT)
    if values.text(ADAPTERS) and path.suffix == ".gguf":
        raise invalid(
            f"model '{config.name}': parameter '{ADAPTERS}' has no effect on a GGUF file: OpenVINO GenAI applies LoRA "
            "adapters to OpenVINO IR alone; convert the original model with optimum-cli export openvino"
        )
    adapters = tuple(filter(None, (each.strip() for each in values.text(ADAPTERS).split(","))))
    for each in adapters:
        name, _, weight = each.rpartition(":") if ":" in each else (each, "", "")
        if weight and not _is_number(weight):
            raise values.fault(ADAPTERS, "names of files, each with ':' and its weight behind it if that is not 1")
        if not (path.parent / name).is_file():
            raise invalid(f"model '{config.name}': there is no adapter '{path.parent / name}' (parameter '{ADAPTERS}')")
    return GenaiOptions(values.text(DEVICE).upper() or "CPU", adapters, values.integer(CONTEXT, 0))


def warnings(config: ModelConfig) -> list[str]:
    """Return a warning for each parameter without effect."""
    unknown = [key for key in config.parameters if key not in _KNOWN and key != key.upper()]
    return [unknown_parameter("openvino_genai", config, key, _KNOWN) for key in unknown]


def _agrees(values: OptionReader, key: str, expected: str) -> bool:
    """Return True if a value equals the expected one; a flag has several spellings."""
    return not values.flag(key, default=False) if key in SCHEDULER else values.text(key).lower() == expected


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
