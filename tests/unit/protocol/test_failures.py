"""Statuses, headers and metadata of failures."""

import pickle

import pytest

from modserve.core.errors import Code, ModserveError, OverloadedError, invalid, unavailable
from modserve.protocol import failures
from modserve.protocol.compression import UnsupportedEncodingError


@pytest.mark.parametrize(
    ("error", "http", "grpc", "headers", "trailers"),
    [
        (invalid("x"), 400, 3, {}, ()),
        (unavailable("x"), 503, 14, {}, ()),
        (UnsupportedEncodingError(), 501, 12, {"Accept-Encoding": "gzip, deflate"}, ()),
        (OverloadedError("x"), 503, 14, {}, ()),
        (OverloadedError("x", 1), 503, 14, {"Retry-After": "1"}, (("grpc-retry-pushback-ms", "1"),)),
        (
            OverloadedError("x", 2_000_000_001, too_many=True),
            429,
            8,
            {"Retry-After": "3"},
            (("grpc-retry-pushback-ms", "2001"),),
        ),
    ],
    ids=["wrong", "unavailable", "encoding", "overloaded", "when", "too many"],
)
def test_spellings(
    error: ModserveError, http: int, grpc: int, headers: dict[str, str], trailers: tuple[tuple[str, str], ...]
) -> None:
    assert (failures.spelling(error).http, failures.spelling(error).grpc) == (http, grpc)
    assert (failures.headers(error), failures.trailers(error)) == (headers, trailers)


def test_an_overload_can_be_sent_to_another_process() -> None:
    found = pickle.loads(pickle.dumps(OverloadedError("x", 5, too_many=True)))
    assert (type(found), found.code, found.message) == (OverloadedError, Code.UNAVAILABLE, "x")
    assert (found.retry_after_ns, found.too_many) == (5, True)
