"""Settings of ours that config.pbtxt has no field for: model parameters whose keys begin with ``scheduling.``."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from modserve.pb import inference as pb

from .problems import FieldPath, Problems

PREFIX = "scheduling."


@dataclass(frozen=True, slots=True)
class Extra:
    """One of them: `read` takes its text, or raises ValueError with what is expected."""

    name: str
    """The field of `DynamicBatching` that it sets."""
    read: Callable[[str], Any]


def whole_number(least: int, scale: int = 1) -> Callable[[str], int]:
    """Reads a number of at least `least`; the result is `scale` times that."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,15}", text) or int(text) < least:
            raise ValueError(f"a whole number of {least} or more")
        return int(text) * scale

    return read


EXTRAS: Mapping[str, Extra] = {
    "scheduling.look_ahead": Extra("look_ahead", whole_number(0)),
    "scheduling.ageing_microseconds": Extra("ageing_ns", whole_number(0, scale=1000)),
}


def validate(message: pb.ModelConfig, problems: Problems) -> None:
    """Adds what is no setting, or has no such value."""
    for key, parameter in message.parameters.items():
        if not key.startswith(PREFIX):
            continue
        where: FieldPath = ("parameters", key)
        extra = EXTRAS.get(key)
        if extra is None:
            near = difflib.get_close_matches(key, EXTRAS, n=1, cutoff=0.8)
            hint = f"did you mean '{near[0]}'?" if near else f"known are: {', '.join(EXTRAS)}"
            problems.add(where, f"unknown parameter '{key}'; {hint}")
            continue
        if not message.HasField("dynamic_batching"):
            problems.add(where, f"parameter '{key}' needs dynamic_batching")
        try:
            extra.read(parameter.string_value)
        except ValueError as error:
            problems.add(where, f"parameter '{key}' is '{parameter.string_value}', expected {error}")


def values(message: pb.ModelConfig) -> dict[str, Any]:
    """Field names of `DynamicBatching` with their values; those that can not be read are left out."""
    found: dict[str, Any] = {}
    for key, parameter in message.parameters.items():
        if key in EXTRAS:
            try:
                found[EXTRAS[key].name] = EXTRAS[key].read(parameter.string_value)
            except ValueError:
                continue
    return found
