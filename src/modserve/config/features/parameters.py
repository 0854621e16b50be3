"""Settings of ours, for which config.pbtxt has no field: the reading of model parameters."""

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from modserve.pb import inference as pb

from ..text.problems import Faults
from ..text.suggest import did_you_mean

Reader = Callable[[str], Any]
"""Makes a value from the text of a parameter. Raises ValueError with a description of the texts that it takes."""


class ParameterSetting(NamedTuple):
    """The meaning of a parameter."""

    field: str
    """The field that the parameter sets."""
    read: Reader
    needs: str = ""
    """Another parameter, without which this one has no effect."""


MAX: Final = 10**15 - 1
"""Above any use; even as microseconds it is a time that fits 64 bits of nanoseconds."""


def whole_number(least: int, scale: int = 1, most: int = MAX) -> Reader:
    """Reads a number from `least` to `most`; the result is `scale` times that."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text) * scale

    return read


def choice(**values: Any) -> Reader:
    """Reads one of these names."""

    def read(text: str) -> Any:
        if text not in values:
            raise ValueError(" or ".join(f"'{name}'" for name in values))
        return values[text]

    return read


def ascending(text: str) -> tuple[int, ...]:
    """Reads numbers of 1 or more, each larger than the one before."""
    numbers = tuple(int(part) for part in text.split(",")) if re.fullmatch("[0-9]{1,9}(, *[0-9]{1,9})*", text) else ()
    if not numbers or numbers[0] < 1 or any(one >= other for one, other in itertools.pairwise(numbers)):
        raise ValueError("ascending whole numbers from 1 to 999999999 with commas between, such as '1,2,4,8'")
    return numbers


def names(text: str) -> tuple[str, ...]:
    """Reads names with commas between."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise ValueError("names with commas between")
    return parts


def fault(key: str, text: str, read: Reader) -> str:
    """Return the reason why a parameter cannot be read; empty if it can."""
    try:
        read(text)
    except ValueError as error:
        return f"parameter '{key}' is '{text}', expected {error}"
    return ""


def faults(message: pb.ModelConfig, prefixes: tuple[str, ...], settings: Mapping[str, ParameterSetting]) -> Faults:
    """Yield the parameters with these prefixes that are not among the `settings`, or cannot be read."""
    for key, parameter in message.parameters.items():
        if not key.startswith(prefixes):
            continue
        if key not in settings:
            hint = did_you_mean(key, settings, f"known parameters are: {', '.join(settings)}")
            yield ("parameters", key), f"unknown parameter '{key}'; {hint}"
        elif text := fault(key, parameter.string_value, settings[key].read):
            yield ("parameters", key), text


def values(message: pb.ModelConfig, settings: Mapping[str, ParameterSetting]) -> dict[str, Any]:
    """Field → value of all `settings` that the message has. Leaves out unreadable ones."""
    return {
        settings[key].field: settings[key].read(parameter.string_value)
        for key, parameter in message.parameters.items()
        if key in settings and not fault(key, parameter.string_value, settings[key].read)
    }


def special_scheduling(message: pb.ModelConfig) -> list[str]:
    """Return the field of the scheduling that our settings cannot be combined with, if there is one."""
    field = message.WhichOneof("scheduling_choice")
    return [field] if field in ("sequence_batching", "ensemble_scheduling") else []
