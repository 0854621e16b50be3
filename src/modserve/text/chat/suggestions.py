"""Suggested sampling parameters of a model, for `modserve chat` and the console."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modserve.core.errors import ModserveError

from ..files import read_json
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


def suggest_sampling(contract: Contract, folder: Path | None) -> dict[str, object]:
    """Read ``generation_config.json`` in the version's or the model's folder, and add usual values for what it omits.

    Adds none for a function, which takes parameters one by one and has its own defaults. Blocking: reads files.
    """
    suggested = _read_sampling(folder)
    if SAMPLING_PARAMETERS in contract.specs:
        if _CHOICE.isdisjoint(suggested):
            suggested |= _USUAL_CHOICE
        suggested.setdefault("max_tokens", min(_USUAL_MAX_TOKENS, contract.default_max_tokens or _USUAL_MAX_TOKENS))
    return {name: value for name, value in suggested.items() if contract.takes(name)}


def _read_sampling(folder: Path | None) -> dict[str, object]:
    """Sampling parameters of the file. Ignores an unreadable file, and values that no request may have."""
    config = None
    for place in () if folder is None else (folder, folder.parent):
        with contextlib.suppress(ModserveError):
            config = config or read_json(place, _FILE)
    if config is None:
        return {}
    sampling: dict[str, object] = {}
    for name, parameter in _NUMBERS.items():
        with contextlib.suppress(RequestFieldError):
            sampling |= fields.sampling({parameter: config.get(name)}, "max_tokens")
    if config.get("do_sample") is False:
        sampling["temperature"] = 0
    return sampling
