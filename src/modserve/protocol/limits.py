"""Limits on requests, whatever their model is; checked before anything is made of a request."""

from dataclasses import dataclass

import numpy as np

from modserve.core.errors import ModserveError, invalid


@dataclass(frozen=True, slots=True)
class MessageLimits:
    rank: int = 64
    """Dimensions of a tensor; numpy has no more."""
    tensors: int = 4096
    """Inputs, and requested outputs."""
    parameters: int = 1000
    """Most parameters of a request."""
    other_json: int = 1024 * 1024
    """Bytes of JSON that are not the `data` of an input. The parsed document takes up to thirty times as many."""
    parsed_parts: int = 500_000
    """Commas, colons and opening brackets of JSON that is parsed in one go, in which no other thread runs.

    For JSON of the generate extension, and of KServe v1 besides whole tensors of numbers.
    """
    control_json_parts: int = 100_000
    """Commas and brackets in the JSON of a call other than inference, with few of them in long texts."""


LIMITS = MessageLimits()

MOST_TENSOR_BYTES = 4
"""Bytes of tensors that come of a byte of JSON: ``1,`` may be a number of 64 bits."""

_AT_A_TIME = 256 * 1024
_SIZES = (120, 100, 250)
"""Bytes of an element, a list and an object."""


def too_many_dimensions(name: str, rank: int) -> ModserveError:
    """Return INVALID_ARG for an input above `MessageLimits.rank`: to multiply its dimensions would take minutes."""
    return invalid(f"invalid shape for input '{name}': it has {rank} dimensions, a tensor has at most {LIMITS.rank}")


def too_many_tensors(kind: str, count: int) -> ModserveError:
    """Return INVALID_ARG for more than `MessageLimits.tensors`; `kind` is ``inputs`` or ``outputs``."""
    return invalid(f"the request has {count} {kind}, at most {LIMITS.tensors} are possible")


def check_parameters(count: int) -> None:
    """Check the count. Raises INVALID_ARG for too many parameters."""
    if count > LIMITS.parameters:
        raise invalid(f"the request has {count} parameters, at most {LIMITS.parameters} are possible")


def count_parts(text: bytes) -> int:
    """Count the commas, colons and opening brackets in JSON, including those in its strings."""
    return sum(_count_marks(text, b",:[{"))


def check_parts(parts: int, besides: str = "") -> None:
    """Check the size. Raises INVALID_ARG for JSON of too many parts; `besides` names parts that do not count."""
    if parts > LIMITS.parsed_parts:
        raise invalid(
            f"the request has {parts} values, keys, lists and objects{besides}, at most {LIMITS.parsed_parts} are "
            "possible; binary tensor data has no such limit (/v2/models/.../infer)"
        )


def estimate_size(text: bytes) -> int:
    """Estimate the bytes of a JSON document's Python objects, including text and bytes of its elements."""
    return len(text) + sum(count * size for count, size in zip(_count_marks(text, b",[{"), _SIZES, strict=True))


def _count_marks(text: bytes, marks: bytes) -> list[int]:
    """Count each of the marks in a text."""
    whole = np.frombuffer(text, np.uint8)
    counts = [0] * len(marks)
    for start in range(0, len(text), _AT_A_TIME):
        some = whole[start : start + _AT_A_TIME]
        for index, mark in enumerate(marks):
            counts[index] += int(np.count_nonzero(some == mark))
    return counts
