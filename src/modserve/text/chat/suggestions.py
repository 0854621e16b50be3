"""The sampling parameters that suit a model, for programs that talk to it on behalf of people."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modserve.core.files import regular_file

from ..openai_errors import RequestFieldError
from . import fields
from .contract import SAMPLING_PARAMETERS, Contract

_FILE: Final = "generation_config.json"
_NUMBERS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Members of the file → sampling parameters."""
_CHOICE: Final = frozenset({"temperature", "top_p", "top_k", "min_p"})
_USUAL_CHOICE: Final[Mapping[str, float]] = {"temperature": 0.7, "top_p": 0.9}
_USUAL_MAX_TOKENS: Final = 1024


def suggested_sampling(contract: Contract, folder: Path | None) -> dict[str, object]:
    """What ``generation_config.json`` in the folder of the version or the model says, else usual values.

    A model that takes its parameters one by one, as a function does, has values of its own for those that the file does
    not name. Reads files.
    """
    suggested = _configured(folder)
    if SAMPLING_PARAMETERS in contract.specs:
        if _CHOICE.isdisjoint(suggested):
            suggested |= _USUAL_CHOICE
        suggested.setdefault("max_tokens", min(_USUAL_MAX_TOKENS, contract.default_max_tokens or _USUAL_MAX_TOKENS))
    return {name: value for name, value in suggested.items() if contract.takes(name)}


def _configured(folder: Path | None) -> dict[str, object]:
    """In the names of sampling parameters. A file that cannot be read, or a value that no request may have, says
    nothing."""
    for place in () if folder is None else (folder, folder.parent):
        try:
            config = json.loads(regular_file.read_bytes(place / _FILE))
        except (OSError, ValueError, RecursionError):
            continue
        if not isinstance(config, dict):
            continue
        said: dict[str, object] = {}
        for name, parameter in _NUMBERS.items():
            with contextlib.suppress(RequestFieldError):
                said |= fields.sampling({parameter: config.get(name)}, "max_tokens")
        if config.get("do_sample") is False:
            said["temperature"] = 0
        return said
    return {}
