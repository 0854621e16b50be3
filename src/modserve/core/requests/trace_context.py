"""Span of a request, as clients send it and models receive it (W3C Trace Context, W3C Baggage)."""

import json
import random
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1
_LONGEST: Final = 8192
"""Maximum characters passed on of a ``tracestate`` or ``baggage``. More is dropped, as the recommendations allow."""

NAMES: Final = frozenset((b"traceparent", b"tracestate", b"baggage"))
"""The headers, in lower case, which are also the keys of gRPC's metadata."""


class TraceHeaders(NamedTuple):
    """The three headers as received, several lines of one joined by commas; empty if absent."""

    traceparent: bytes
    tracestate: bytes = b""
    baggage: bytes = b""


class SpanContext(NamedTuple):
    """Span, here or at a client, with the values passed on from one service to the next."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""
    baggage: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED if self.sampled else 0:02x}"

    def as_json(self) -> str:
        """Return the JSON object that a model gets, for a propagator to extract: Triton's, with the baggage."""
        headers = {"traceparent": self.traceparent, "tracestate": self.state, "baggage": self.baggage}
        return json.dumps({name: value for name, value in headers.items() if value})


def from_headers(headers: TraceHeaders | None) -> SpanContext | None:
    """Read the client's span; None without a valid one, as the recommendation says."""
    if headers is None:
        return None
    match = _TRACEPARENT.fullmatch(headers.traceparent.decode("latin-1").strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    sampled = bool(int(flags, 16) & _SAMPLED)
    return SpanContext(int(trace_id, 16), int(span_id, 16), sampled, _text(headers.tracestate), _text(headers.baggage))


def id_of(headers: TraceHeaders | None) -> str:
    """Return the trace of the client's span; empty without one."""
    context = from_headers(headers)
    return "" if context is None else f"{context.trace_id:032x}"


def from_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> TraceHeaders | None:
    """Return the headers among others with lower-case names; None without ``traceparent``."""
    values: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name in NAMES:
            add(values, name, value)
    return of_values(values)


def from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> TraceHeaders | None:
    """Return the headers among the metadata of a gRPC call; None if there is no ``traceparent``."""
    values: dict[bytes, bytes] = {}
    for key, value in metadata:
        name = key.encode("latin-1", "replace")
        if name in NAMES and isinstance(value, str):
            add(values, name, value.encode("latin-1", "replace"))
    return of_values(values)


def add(values: dict[bytes, bytes], name: bytes, value: bytes) -> None:
    """Add a line, joining several of the same name by commas (RFC 9110, 5.3)."""
    values[name] = values[name] + b"," + value if name in values else value


def of_values(values: dict[bytes, bytes]) -> TraceHeaders | None:
    """Return the headers by name; None if there is no ``traceparent``."""
    traceparent = values.get(b"traceparent")
    if traceparent is None:
        return None
    return TraceHeaders(traceparent, values.get(b"tracestate", b""), values.get(b"baggage", b""))


def from_json(text: str) -> SpanContext | None:
    """Read the result of `SpanContext.as_json`."""
    headers = {name.encode(): value.encode("latin-1", "replace") for name, value in json.loads(text).items()}
    return from_headers(of_values(headers))


def new_trace_id() -> int:
    return random.getrandbits(128) or 1


def new_span_id() -> int:
    return random.getrandbits(64) or 1


def _text(value: bytes) -> str:
    return value.decode("latin-1") if len(value) <= _LONGEST else ""
