"""Statuses, headers and metadata of failures."""

import pickle

import orjson
import pytest

from modserve.core.errors import Code, ModserveError, OverloadedError, invalid, unavailable
from modserve.protocol import failures
from modserve.protocol.compression import UnsupportedEncodingError
from modserve.protocol.grpc import response_writer
from modserve.protocol.http import infer_response


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


@pytest.mark.parametrize(
    ("message", "most"),
    [("a" * 4096, 4096), ("é" * 1024, 2048), ("\U0001f600" * 512, 2048), ("a" * 2047 + "\n", 2048), ("", 0)],
    ids=["ASCII", "accents", "4 bytes a character", "not printable", "none"],
)
def test_short_messages_are_told_as_they_are(message: str, most: int) -> None:
    assert failures.public_message(invalid(message)) == message
    assert len(message.encode()) == most


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("a" * 4097, 4096),
        ("b" * 10**7, 4096),
        ("é" * 1025, 2048),
        ("\U0001f600" * 10**6, 2048),
        ("\ud800" * 5000, 4096),
    ],
    ids=["a character more", "megabytes", "accents", "4 bytes a character", "lone surrogates"],
)
def test_of_long_messages_the_middle_is_left_out(name: str, most: int) -> None:
    """gRPC's clients refuse metadata of more than 8 KiB, and would not see the status."""
    message = f"unexpected input '{name}', expected 'IN'"
    error = invalid(message)
    shown = failures.public_message(error)
    assert most - 8 <= len(shown.encode()) <= most
    assert shown.startswith("unexpected input '")
    assert shown.endswith("', expected 'IN'")
    assert f"[... {len(error.message)} characters in all ...]" in shown


def test_both_wires_cut_messages() -> None:
    error = invalid("x" * 10**6)
    told = failures.public_message(error)
    assert orjson.loads(infer_response.encode_error(error)) == {"error": told}
    assert orjson.loads(infer_response.encode_stream_error(error, "7", True))["error"] == told
    assert response_writer.encode_stream_error(error, "7").error_message == told
