"""Figures of texts: tokens, times to the first one and between two, and goodput, named as in vLLM's benchmark."""

import itertools
import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .percentiles import percentiles_ms

STREAM_METRICS = ("ttft", "tpot", "itl")
METRICS = (*STREAM_METRICS, "e2el")
"""Time to first token, time per output token behind it, inter-token latency, and end-to-end latency."""
LEVELS = (50.0, 99.0)
TAG_WIDTH = 9


@dataclass(slots=True)
class TextResponse:
    """Measured response. Times are nanoseconds of `slots.clock`, 0 for none. A piece may hold several tokens."""

    first: int = 0
    last: int = 0
    pieces: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    """0 where the server does not count them; then each piece counts as one."""

    @property
    def tokens(self) -> int:
        return self.output_tokens or self.pieces


@dataclass(slots=True)
class TextWindow:
    """Sums over the successful requests of a window."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    uncounted: int = 0
    """Responses without the server's count of tokens."""
    limited: bool = False
    good: int = 0
    """Requests within all limits, if it is `limited`."""
    per_token: "array[int]" = field(default_factory=lambda: array("q"))
    """Nanoseconds per token behind the first one, of each response with more than one."""

    def add(self, more: "TextWindow") -> None:
        """Append the window that follows this one."""
        self.limited = self.limited or more.limited
        for name in ("requests", "input_tokens", "output_tokens", "uncounted", "good"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.per_token.extend(more.per_token)


class TextCounter:
    """Counts successful responses, for one window after the other. `limits` are in ms, by names of `METRICS`."""

    def __init__(self, limits: Mapping[str, float], *, streams: bool, numbered: bool) -> None:
        self._limits = limits
        self.streams = streams
        self._numbers = itertools.count(random.getrandbits(32)) if numbered else None
        self._window = TextWindow(limited=bool(limits))

    def tag(self) -> bytes:
        """Return TAG_WIDTH bytes for the gap of the next request, different for each request; or none."""
        return b"" if self._numbers is None else f"{next(self._numbers) % 2**32:08x} ".encode()

    def take(self) -> TextWindow:
        window, self._window = self._window, TextWindow(limited=bool(self._limits))
        return window

    def add(self, response: TextResponse, start: int, end: int) -> None:
        """Add a response to the request of `start`, complete at `end`."""
        window = self._window
        window.requests += 1
        window.input_tokens += response.input_tokens
        window.output_tokens += response.tokens
        window.uncounted += not (response.output_tokens or response.input_tokens)
        times = {"e2el": end - start}
        if self.streams:
            span = response.last - response.first
            times["ttft"] = (response.first or end) - start
            times["tpot"] = span // (response.tokens - 1) if response.tokens > 1 else 0
            times["itl"] = span // (response.pieces - 1) if response.pieces > 1 else 0
            if response.tokens > 1:
                window.per_token.append(times["tpot"])
        window.good += all(times[name] <= limit * 1e6 for name, limit in self._limits.items())


Times = Mapping[str, float]
"""Mean, p50 and p99 in ms."""


@dataclass(frozen=True, slots=True)
class TextMeasurement:
    """The texts of one load. `times` has METRICS of streams only."""

    input_tokens: float
    """Per request, on average."""
    output_tokens: float
    input_rate: float
    """Tokens per second."""
    output_rate: float
    times: Mapping[str, Times]
    goodput: float | None
    """Requests per second within all limits; None without limits."""
    counted: bool
    """True if the server counts tokens. Otherwise each piece of the stream counts as one."""


def measurement(window: TextWindow, seconds: float, firsts: "array[int]", gaps: "array[int]") -> TextMeasurement:
    """Summarise a window. `firsts` and `gaps` are from the pieces of streams; empty for embeddings."""
    times = {"ttft": firsts, "tpot": window.per_token, "itl": gaps} if firsts else {}
    requests, seconds = max(window.requests, 1), seconds or 1.0
    return TextMeasurement(
        window.input_tokens / requests,
        window.output_tokens / requests,
        window.input_tokens / seconds,
        window.output_tokens / seconds,
        {name: _times(values) for name, values in times.items()},
        window.good / seconds if window.limited else None,
        not window.uncounted,
    )


def _times(values: "array[int]") -> Times:
    mean = float(np.frombuffer(values, np.int64).mean()) / 1e6 if values else 0.0
    return {"mean": mean} | {f"p{level:g}": value for level, value in percentiles_ms(values, LEVELS).items()}


def to_json(texts: TextMeasurement) -> dict[str, Any]:
    """Return the JSON report. Names are stable; more may be added."""
    return {
        "input_tokens_per_request": texts.input_tokens,
        "output_tokens_per_request": texts.output_tokens,
        "input_tokens_per_second": texts.input_rate,
        "output_tokens_per_second": texts.output_rate,
        **{f"{name}_ms": dict(times) for name, times in texts.times.items()},
        "request_goodput": texts.goodput,
        "tokens_counted_by_server": texts.counted,
    }


def read_limits(text: str) -> dict[str, float]:
    """Read ``ttft:200,itl:50`` in ms. Raises ValueError with what is expected."""
    limits = {}
    for part in text.split(","):
        name, _, value = part.strip().partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if name not in METRICS or not 0 < limit < 1e9:
            raise ValueError(f"NAME:MS, with a name of {', '.join(METRICS)}, and commas between several")
        limits[name] = limit
    return limits


def stream_names(limits: Mapping[str, float]) -> Sequence[str]:
    """Return the limits that only streams have."""
    return [name for name in limits if name in STREAM_METRICS]
