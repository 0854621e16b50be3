"""Shapes as the configuration, OpenVINO Model Server and OpenVINO write them."""

import re
from collections.abc import Iterable

AUTO = "auto"
"""Every dimension may vary."""
_DIMENSION = re.compile(r"\s*(-1|[0-9]+|[0-9]+:[0-9]+)\s*")


def partial_shapes(text: str) -> str:
    """Convert Model Server's ``(1,3,200:500,-1)`` to OpenVINO's form, or `AUTO`. Raises ValueError."""
    text = text.strip()
    if text.lower() == AUTO:
        return AUTO
    if text[:1] + text[-1:] not in ("()", "[]"):
        raise ValueError(f"'{text}' is not a shape")
    dimensions = [_DIMENSION.fullmatch(part) for part in text[1:-1].split(",")]
    if not all(dimensions):
        raise ValueError(f"'{text}' is not a shape")
    return partial_shape(match[1].replace(":", "..") for match in dimensions if match)


def partial_shape(dimensions: Iterable[int | str]) -> str:
    """Return OpenVINO's form of dims, of which -1 is any size."""
    return "[" + ",".join("?" if str(each) == "-1" else str(each) for each in dimensions) + "]"
