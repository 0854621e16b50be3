"""``--record``: texts such as ``dir=/var/lib/records,rate=0.1,models=resnet*`` as settings of what is recorded."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator

from modserve.core.configuration.record_settings import RecordSettings

from .options import option

_UNITS: Mapping[str, int] = {
    "": 1,
    **{unit: 1000 ** (index + 1) for index, unit in enumerate(("kB", "MB", "GB", "TB"))},
    **{unit: 1024 ** (index + 1) for index, unit in enumerate(("KiB", "MiB", "GiB", "TiB"))},
}
_LEAST = 64 * 1024
_EXAMPLE = "'dir=DIR,rate=0.01,models=PATTERN,redact=MODEL:TENSOR,size=1GiB'"


def record_texts(text: str) -> list[tuple[str, str]]:
    """``<key>=<value>``, with more keys after commas, as keys and values. Raises ValueError.

    A comma in a value is kept, unless a key and an equals sign follow.
    """
    entries = []
    for part in re.split(rf",(?=(?:{'|'.join(_READERS)})=)", text):
        key, equals, value = part.partition("=")
        if not (equals and value):
            raise ValueError(f"expected {_EXAMPLE}, got: {text}")
        if key not in _READERS:
            raise ValueError(f"there is no setting '{key}'; the settings are {', '.join(_READERS)}")
        _READERS[key](value)
        entries.append((key, value))
    return entries


def record_settings(value: object) -> object:
    """Return a validator: settings of what `record_texts` made of each option, or of a text."""
    if isinstance(value, RecordSettings):
        return value
    if isinstance(value, str):
        value = [record_texts(value)]
    if not isinstance(value, list):
        raise ValueError(f"expected a text such as {_EXAMPLE}")
    settings = RecordSettings()
    for key, text in (entry for group in value for entry in group):
        field, several = _FIELDS[key]
        content = _READERS[key](text)
        change: dict[str, Any] = {field: (*getattr(settings, field), content) if several else content}
        settings = replace(settings, **change)
    if not settings.folder:
        raise ValueError("nothing says where to record: 'dir=DIR' is missing")
    return settings


def _folder(text: str) -> str:
    return text


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise ValueError(f"'rate': expected a number from 0 to 1, the part of all requests, got: {text}")
    return rate


def _model(text: str) -> tuple[str, float | None]:
    pattern, colon, rate = text.rpartition(":")
    if not colon:
        return text, None
    if not pattern:
        raise ValueError(f"'models': expected PATTERN or PATTERN:RATE, got: {text}")
    return pattern, _rate(rate)


def _parse_redaction(text: str) -> tuple[str, str]:
    model, colon, tensor = text.partition(":")
    if not (colon and model and tensor):
        raise ValueError(f"'redact': expected MODEL:TENSOR, both may be patterns, got: {text}")
    return model, tensor


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+) ?([A-Za-z]*)", text)
    unit = None if match is None else _UNITS.get(match[2])
    if match is None or unit is None:
        raise ValueError(f"'size': expected bytes such as 500MB or 1GiB, got: {text}")
    size = int(match[1]) * unit
    if not _LEAST <= size < 2**62:
        raise ValueError(f"'size': expected at least 64KiB, got: {text}")
    return size


_READERS: Mapping[str, Callable[[str], Any]] = {
    "dir": _folder,
    "rate": _rate,
    "models": _model,
    "redact": _parse_redaction,
    "size": _size,
}
_FIELDS = {
    "dir": ("folder", False),
    "rate": ("rate", False),
    "models": ("models", True),
    "redact": ("redacted", True),
    "size": ("size", False),
}
"""The field that each sets, and whether it may be repeated."""

Record = Annotated[RecordSettings, BeforeValidator(record_settings)]
RECORD: Any = option(
    RecordSettings(),
    "Record requests and responses in dir, for 'modserve replay'; keys: rate (0.01), models=PATTERN[:RATE], "
    "redact=MODEL:TENSOR, size (1GiB); repeatable.",
    value="dir=DIR[,KEY=VALUE]",
    default_in_words="nothing",
    parse=record_texts,
    several=True,
)
