"""Content codings: what is read, what is refused, and which one an answer gets."""

import gzip
import random
import zlib

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.protocol import compression

DATA = b"modserve " * 100
LIMIT = len(DATA)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(DATA), "gzip"),
        (gzip.compress(DATA), " GZip "),
        (zlib.compress(DATA), "deflate"),
        (DATA, "identity"),
        (DATA, ""),
    ],
    ids=["gzip", "other letters", "deflate", "identity", "empty"],
)
def test_what_was_compressed_comes_back(body: bytes, encoding: str) -> None:
    assert compression.decode(body, encoding, LIMIT) == DATA


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_an_answer_can_be_read(encoding: str) -> None:
    body = compression.encode([DATA, memoryview(b"and"), b"", bytearray(b" more")], encoding)
    assert compression.decode(body, encoding, 10_000) == DATA + b"and more"


@pytest.mark.parametrize("encoding", ["br", "zstd", "x-gzip", "gzip, gzip"])
def test_other_codings_are_unsupported(encoding: str) -> None:
    with pytest.raises(compression.UnsupportedEncodingError) as caught:
        compression.decode(b"", encoding, LIMIT)
    assert (caught.value.code, caught.value.message) == (Code.UNSUPPORTED, "Unsupported compression type")


@pytest.mark.parametrize(
    ("body", "encoding", "text"),
    [
        (DATA, "gzip", "failed to decompress the request body, which is not gzip data: .*"),
        (gzip.compress(DATA), "deflate", "failed to decompress the request body, which is not deflate data: .*"),
        (gzip.compress(DATA)[:-9], "gzip", "failed to decompress the request body: the gzip data ends early"),
        (b"", "gzip", "failed to decompress the request body: the gzip data ends early"),
        (zlib.compress(DATA) + b"xy", "deflate", "failed to decompress the request body: 2 bytes follow the .*"),
        (
            gzip.compress(DATA + b"!"),
            "gzip",
            f"Decompressed data size exceeds the maximum allowed value of {LIMIT} bytes. "
            "Use --http-max-input-size to increase the limit.",
        ),
    ],
    ids=["no gzip", "no zlib", "cut", "nothing", "surplus", "too long"],
)
def test_bodies_that_are_not_what_they_claim(body: bytes, encoding: str, text: str) -> None:
    with pytest.raises(ModserveError, match=f"^{text}$") as caught:
        compression.decode(body, encoding, LIMIT)
    assert caught.value.code is Code.INVALID_ARG


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(5_000_000))
    with pytest.raises(ModserveError, match="Decompressed data size"):
        compression.decode(bomb, "gzip", 1000)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (None, None),
        ("", None),
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip;q=0", None),
        ("identity, gzip", None),
        ("identity;q=0.1, GZIP;Q=0.2", "gzip"),
        ("br, zstd;q=0.9, gzip;q=0.1", "gzip"),
        ("*", None),
        ("gzip;q=x", None),
        (",,;", None),
    ],
)
def test_the_coding_of_an_answer(accepted: str | None, chosen: str | None) -> None:
    assert compression.choose(accepted) == chosen


MEMBERS = [b"one, ", b"", b"two " * 100_000, random.Random(1).randbytes(200_000), b"", b"three"]


@pytest.mark.parametrize("most", [1, 1000, 1 << 30])
def test_several_members_are_one_body(most: int) -> None:
    whole = b"".join(MEMBERS)
    body = b"".join(map(gzip.compress, MEMBERS))
    assert compression.decode(body, "gzip", len(whole)) == whole
    inflater = compression.Inflater(body, "gzip", len(whole))
    while (read := inflater.read(most)) is None:
        most *= 2
    assert read == whole
    with pytest.raises(ModserveError, match=f"maximum allowed value of {len(whole) - 1} bytes"):
        compression.decode(body, "gzip", len(whole) - 1)


@pytest.mark.parametrize(
    ("behind", "text"),
    [
        (b"x", "1 bytes follow the gzip data"),
        (b"\x1f", "1 bytes follow the gzip data"),
        (bytes(20), "20 bytes follow the gzip data"),
        (b"\x1f\x8b", "the gzip data ends early"),
        (gzip.compress(b"cut", mtime=0)[:-3], "the gzip data ends early"),
        (b"\x1f\x8b" + bytes(20), "which is not gzip data"),
    ],
)
def test_what_may_not_follow_a_member(behind: bytes, text: str) -> None:
    with pytest.raises(ModserveError, match=text):
        compression.decode(gzip.compress(b"one") + behind, "gzip", 1000)


def test_members_are_counted() -> None:
    body = gzip.compress(b"") * 100_001
    with pytest.raises(ModserveError, match="it has more than 100000 gzip members"):
        compression.decode(body, "gzip", 1000)


def test_deflate_has_no_members() -> None:
    with pytest.raises(ModserveError, match="follow the deflate data"):
        compression.decode(zlib.compress(b"one") + zlib.compress(b"two"), "deflate", 1000)
