"""The client's span out of headers and metadata, and on to models."""

import json

import pytest

from modserve.core.requests import trace_context
from modserve.core.requests.trace_context import SpanContext, TraceHeaders, from_headers, from_metadata

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
GOOD = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("traceparent", "sampled"),
    [
        (GOOD, True),
        (b" " + GOOD + b"\t", True),
        (GOOD[:-2] + b"00", False),
        (GOOD[:-2] + b"02", False),
        (GOOD[:-2] + b"ff", True),
        (b"cc" + GOOD[2:], True),
        (b"cc" + GOOD[2:] + b"-what-comes-later", True),
    ],
)
def test_a_span(traceparent: bytes, sampled: bool) -> None:
    assert from_headers(TraceHeaders(traceparent)) == SpanContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "traceparent",
    [
        b"",
        b"00",
        GOOD[:-1],
        GOOD + b"-more",
        GOOD + b"," + GOOD,
        GOOD.upper(),
        b"ff" + GOOD[2:],
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01",
        b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01",
        GOOD.replace(b"3", b"\xe4"),
    ],
)
def test_what_is_no_span(traceparent: bytes) -> None:
    assert from_headers(TraceHeaders(traceparent, b"a=1")) is None


def test_no_headers() -> None:
    assert from_headers(None) is None
    assert from_metadata([("tracestate", "a=1"), ("x", "y")]) is None


def test_metadata() -> None:
    metadata = [("tracestate", "a=1"), ("traceparent", GOOD.decode()), ("tracestate", "b=2"), ("baggage", "c=3")]
    assert from_metadata([*metadata, ("baggage", b"binary")]) == TraceHeaders(GOOD, b"a=1,b=2", b"c=3")


def test_what_models_get_is_what_a_propagator_extracts() -> None:
    span = SpanContext(TRACE, SPAN, True, "a=1,b=2", "c=3")
    assert json.loads(span.as_json()) == {"traceparent": GOOD.decode(), "tracestate": "a=1,b=2", "baggage": "c=3"}
    assert json.loads(span._replace(state="", baggage="").as_json()) == {"traceparent": GOOD.decode()}
    assert trace_context.from_json(span.as_json()) == span


def test_long_states_are_not_passed_on() -> None:
    span = from_headers(TraceHeaders(GOOD, b"a" * 8192, b"b" * 8193))
    assert span == SpanContext(TRACE, SPAN, True, "a" * 8192, "")
