"""Settings of ours that config.pbtxt has no field for: model parameters whose keys begin with ``scheduling.``."""

import difflib
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from modserve.pb import inference as pb

from .problems import FieldPath, Problems

PREFIX = "scheduling."
BATCHER: Final = "dynamic_batching"
"""Settings that are fields of `core.model_config.DynamicBatching`."""
ADMISSION = "admission"
"""Settings that are fields of `core.model_config.Admission`; any model may have them."""


@dataclass(frozen=True, slots=True)
class Extra:
    """One of them: `read` takes its text, or raises ValueError with what is expected."""

    name: str
    """The field that it sets."""
    read: Callable[[str], Any]
    of: str = BATCHER
    """Whose field that is."""
    needs: str = ""
    """Another of them, without which it would do nothing."""


MOST: Final = 10**15 - 1
"""Above any use, and in microseconds still a time that fits 64 bits of nanoseconds."""


def whole_number(least: int, scale: int = 1, most: int = MOST) -> Callable[[str], int]:
    """Reads a number from `least` to `most`; the result is `scale` times that."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text) * scale

    return read


def choice(**values: Any) -> Callable[[str], Any]:
    """Reads one of these names."""

    def read(text: str) -> Any:
        if text not in values:
            raise ValueError(" or ".join(f"'{name}'" for name in values))
        return values[text]

    return read


def ascending(text: str) -> tuple[int, ...]:
    """Reads numbers of 1 or more, each larger than the one before."""
    found = tuple(int(part) for part in text.split(",")) if re.fullmatch("[0-9]{1,9}(, *[0-9]{1,9})*", text) else ()
    if not found or found[0] < 1 or any(one >= other for one, other in itertools.pairwise(found)):
        raise ValueError("ascending whole numbers from 1 to 999999999 with commas between, such as '1,2,4,8'")
    return found


def names(text: str) -> tuple[str, ...]:
    """Reads names with commas between."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise ValueError("names with commas between")
    return found


_AGEING = "scheduling.ageing_microseconds"
_P99_GOAL = "scheduling.p99_goal_microseconds"
_MAX_DELAY = "scheduling.max_delay_microseconds"
_LATENCY_GOAL = "scheduling.latency_goal_microseconds"

EXTRAS: Mapping[str, Extra] = {
    "scheduling.look_ahead": Extra("look_ahead", whole_number(0)),
    _AGEING: Extra("ageing_ns", whole_number(0, scale=1000)),
    "scheduling.separate_by": Extra("separate_by", names),
    "scheduling.batch_sizes": Extra("batch_sizes", ascending),
    "scheduling.max_batch_elements": Extra("max_batch_elements", whole_number(1)),
    _P99_GOAL: Extra("p99_goal_ns", whole_number(1, scale=1000)),
    _MAX_DELAY: Extra("tuned_delay_limit_ns", whole_number(1, scale=1000), needs=_P99_GOAL),
    "scheduling.admission": Extra("by_deadline", choice(off=False, deadline=True), ADMISSION),
    _LATENCY_GOAL: Extra("latency_goal_ns", whole_number(1, scale=1000), ADMISSION, needs="scheduling.admission"),
    "scheduling.overload_status": Extra("too_many", choice(**{"503": False, "429": True}), ADMISSION),
}


_WITHOUT_ADMISSION: tuple[Literal["sequence_batching", "ensemble_scheduling"], ...] = (
    "sequence_batching",
    "ensemble_scheduling",
)


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
        if extra.of == BATCHER and not message.HasField(BATCHER):
            problems.add(where, f"parameter '{key}' needs {BATCHER}")
        for other in _WITHOUT_ADMISSION:
            if extra.of == ADMISSION and message.HasField(other):
                problems.add(where, f"parameter '{key}' can not be combined with {other}")
        if extra.needs and extra.needs not in message.parameters:
            problems.add(where, f"parameter '{key}' needs '{extra.needs}'")
        try:
            extra.read(parameter.string_value)
        except ValueError as error:
            problems.add(where, f"parameter '{key}' is '{parameter.string_value}', expected {error}")
    if _AGEING in message.parameters and message.HasField(BATCHER) and message.dynamic_batching.priority_levels < 2:
        problems.add(("parameters", _AGEING), f"parameter '{_AGEING}' needs priority_levels of 2 or more")
    _delay_below_goal(message, problems)


def _delay_below_goal(message: pb.ModelConfig, problems: Problems) -> None:
    """Requests that wait for others until the latency goal is over can not keep it."""
    admission, batcher = values(message, ADMISSION), values(message, BATCHER)
    goal_us = admission.get("latency_goal_ns", 0) // 1000
    if not goal_us or not admission.get("by_deadline"):
        return
    goal = f"parameter '{_LATENCY_GOAL}', which is {goal_us}"
    delay_us = message.dynamic_batching.max_queue_delay_microseconds
    tuned_us = batcher.get("p99_goal_ns", 0) // 1000  # the delay is then found by trial
    if tuned_us and goal_us < min(tuned_us, batcher.get("tuned_delay_limit_ns", tuned_us * 1000) // 1000):
        problems.add(
            ("parameters", _P99_GOAL),
            f"parameter '{_P99_GOAL}' is {tuned_us}, expected no more than {goal}, or a '{_MAX_DELAY}' below that: "
            "requests may wait longer for others",
        )
    elif not tuned_us and delay_us >= goal_us:
        problems.add(
            (BATCHER, "max_queue_delay_microseconds"),
            f"max_queue_delay_microseconds is {delay_us}, expected less than {goal}: requests may wait as long for "
            "others",
        )


def values(message: pb.ModelConfig, of: str) -> dict[str, Any]:
    """Field names of `BATCHER` or `ADMISSION` with their values; those that can not be read are left out."""
    found: dict[str, Any] = {}
    for key, parameter in message.parameters.items():
        if key in EXTRAS and EXTRAS[key].of == of:
            try:
                found[EXTRAS[key].name] = EXTRAS[key].read(parameter.string_value)
            except ValueError:
                continue
    return found
