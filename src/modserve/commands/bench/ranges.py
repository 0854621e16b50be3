"""The values of ``--concurrency`` and ``--rate``: ``8``, ``1,4,16``, ``100:2000:100``, ``1:64:x2``."""

import math

_MOST = 1000
_EXPECTED = "such as 8, or 1,4,16, or 100:2000:100, or 1:64:x2"


def read_range(text: str) -> tuple[float, ...]:
    """The values, in order. Raises ValueError, which says what is expected."""
    try:
        values = _values(text)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if not values or not all(0 < value < math.inf for value in values):
        raise ValueError(f"numbers above 0, {_EXPECTED}")
    return values


def whole_range(text: str) -> tuple[int, ...]:
    """The same for whole numbers; those that a factor makes are rounded."""
    return tuple(dict.fromkeys(max(1, round(value)) for value in read_range(text)))


def _values(text: str) -> tuple[float, ...]:
    if ":" not in text:
        return tuple(float(part) for part in text.split(","))
    first, last, *step = text.split(":")
    if len(step) > 1:
        raise ValueError
    low, high = float(first), float(last)
    by = step[0] if step else "1"
    factor = float(by[1:]) if by.startswith("x") else 0.0
    gap = 0.0 if by.startswith("x") else float(by)
    if not 0 < low <= high < math.inf or not (factor > 1 or gap > 0):
        raise ValueError
    if (math.log(high / low) / math.log(factor) if factor else (high - low) / gap) > _MOST:
        raise ValueError(f"at most {_MOST} values")
    values = [low]
    while (value := low * factor ** len(values) if factor else low + gap * len(values)) <= high * (1 + 1e-9):
        values.append(value)
    return tuple(values)
