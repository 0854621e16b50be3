"""What a request may have at most, whatever its model is; checked before anything is made of it."""

from dataclasses import dataclass

import numpy as np

from modserve.core.errors import ModserveError, invalid


@dataclass(frozen=True, slots=True)
class Limits:
    rank: int = 64
    """Dimensions of a tensor; numpy has no more."""
    tensors: int = 4096
    """Inputs, and requested outputs."""
    parameters: int = 1000
    """Of a request."""
    other_json: int = 1024 * 1024
    """Bytes of JSON that are not the `data` of an input. The parsed document takes up to thirty times as many."""
    control_json_parts: int = 100_000
    """Commas and brackets in the JSON of a call other than inference, whose long texts have few of them."""


LIMITS = Limits()


def check_rank(name: str, rank: int) -> None:
    """Raises INVALID_ARG for input `name` with too many dimensions: to multiply them would take minutes."""
    if rank > LIMITS.rank:
        raise too_many_dimensions(name, rank)


def too_many_dimensions(name: str, rank: int) -> ModserveError:
    return invalid(f"invalid shape for input '{name}': it has {rank} dimensions, a tensor has at most {LIMITS.rank}")


def check_tensors(kind: str, count: int) -> None:
    """Raises INVALID_ARG for too many tensors; `kind` is ``inputs`` or ``outputs``."""
    if count > LIMITS.tensors:
        raise too_many_tensors(kind, count)


def too_many_tensors(kind: str, count: int) -> ModserveError:
    return invalid(f"the request has {count} {kind}, at most {LIMITS.tensors} are possible")


def check_parameters(count: int) -> None:
    """Raises INVALID_ARG for too many parameters."""
    if count > LIMITS.parameters:
        raise invalid(f"the request has {count} parameters, at most {LIMITS.parameters} are possible")


def parsed_size(text: bytes) -> int:
    """About how many bytes the Python objects of a JSON document take, text and bytes of its elements included."""
    marks = np.frombuffer(text, np.uint8)
    return len(text) + sum(
        int(np.count_nonzero(marks == mark)) * size for mark, size in zip(b",[{", _SIZES, strict=True)
    )


_SIZES = (120, 100, 250)
"""Of an element, a list and an object."""
