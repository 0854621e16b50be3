"""Deadlines in HTTP headers: how long the client waits, from the request's arrival on."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from modserve.core.errors import invalid

Timeouts: TypeAlias = tuple[tuple[str, str], ...]
"""Headers that are in `HEADERS`, as sent: names in lower case, and values."""

_MS_NS = 1_000_000
_UNITS_NS = {"H": 3_600 * 10**9, "M": 60 * 10**9, "S": 10**9, "m": 10**6, "u": 10**3, "n": 1}


def _milliseconds(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})(\.\d{1,6})?", text, re.ASCII)
    if match is None or not float(text):
        raise ValueError("milliseconds, as a number above 0")
    return int(match[1]) * _MS_NS + int(float(match[2] or 0) * _MS_NS)


def _grpc_timeout(text: str) -> int:
    """Return the nanoseconds of a time-out as in "gRPC over HTTP/2", Timeout."""
    match = re.fullmatch(r"(\d{1,8})([HMSmun])", text, re.ASCII)
    if match is None or not int(match[1]):
        raise ValueError("1 to 8 digits, above 0, and one of the units H, M, S, m, u, n")
    return int(match[1]) * _UNITS_NS[match[2]]


HEADERS: Mapping[str, Callable[[str], int]] = {
    "x-request-timeout-ms": _milliseconds,
    "grpc-timeout": _grpc_timeout,
    "x-envoy-expected-rq-timeout-ms": _milliseconds,
}
"""Time-out headers: our own name; gRPC's, which its JSON gateways take too; and Envoy's to its upstreams."""

RAW_HEADERS = frozenset(name.encode() for name in HEADERS)


def timeouts(headers: Iterable[tuple[str, str]]) -> Timeouts:
    """Select the headers, with lower-case names, that state how long the client waits."""
    return tuple((name, value) for name, value in headers if name in HEADERS)


def deadline_ns(headers: Timeouts, now_ns: int) -> int:
    """Return the earliest time at which the client of a request from `now_ns` gives up; 0 for never.

    Raises INVALID_ARG.
    """
    if not headers:
        return 0
    return now_ns + min(_read(name, value) for name, value in headers)


def _read(name: str, value: str) -> int:
    try:
        return HEADERS[name](value.strip())
    except ValueError as error:
        raise invalid(f"invalid value '{value}' for the header '{name}', expected {error}") from None
