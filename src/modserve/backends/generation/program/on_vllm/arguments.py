"""Reading of ``model.json``, which has the arguments of vLLM's engine, and ``multi_lora.json``, its adapters."""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..loading import LoadingError

MULTI_LORA = "multi_lora.json"
_GONE = frozenset(
    {"disable_log_requests", "max_seq_len_to_capture", "swap_space", "use_v2_block_manager", "worker_use_ray"}
)
"""Arguments of older versions without influence on the generated text."""
_FLAGS = {"true": True, "false": False}


def engine_arguments(
    path: str, defaults: Mapping[str, Any], version: str, warn: Callable[[str], object]
) -> dict[str, Any]:
    """Return the arguments in the file at `path`. `defaults` are all of this vLLM `version`. Raises LoadingError.

    A flag may be a text, as in Triton's examples. `model` may be the path of a folder next to the file.
    """
    arguments = {}
    for name, value in read_object(path).items():
        if name in defaults:
            is_flag = isinstance(defaults[name], bool) and isinstance(value, str)
            arguments[name] = _FLAGS.get(value.lower(), value) if is_flag else value
        elif name in _GONE:
            warn(f"'{path}': vLLM {version} has no engine argument '{name}' any more; it has no effect")
        else:
            near = difflib.get_close_matches(name, defaults, n=1, cutoff=0.7)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise LoadingError(f"'{path}': vLLM {version} has no engine argument '{name}'{hint}")
    for name in ("model", "tokenizer"):
        place = os.path.join(os.path.dirname(path), str(arguments.get(name) or ""))
        if arguments.get(name) and not os.path.exists(arguments[name]) and os.path.exists(place):
            arguments[name] = place
    return arguments


def adapters(directory: str) -> dict[str, str]:
    """Read the adapters: name → folder, in order. Raises LoadingError."""
    path = os.path.join(directory, MULTI_LORA)
    if not os.path.isfile(path):
        raise LoadingError(f"'enable_lora' is true, but there is no '{path}' with the names and folders of adapters")
    for name, place in (pairs := read_object(path)).items():
        if not isinstance(place, str) or not place:
            raise LoadingError(f"'{path}': '{name}' is {json.dumps(place)}, expected the folder of an adapter")
    return {name: place if os.path.exists(place) else _beside(directory, place) for name, place in pairs.items()}


def read_object(path: str) -> dict[str, Any]:
    """Read the object in a JSON file. Raises LoadingError with the place of a fault."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except json.JSONDecodeError as error:
        raise LoadingError(f"'{path}' is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LoadingError(f"'{path}' cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise LoadingError(f"'{path}' must hold a JSON object")
    return value


def _beside(directory: str, place: str) -> str:
    beside = os.path.join(directory, place)
    return beside if os.path.exists(beside) else place
