"""Header blocks as they come: in any pieces they mean what another decoder reads of them, and what is too long of one
does not change what the next one means.
"""

import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
from hpack import Decoder, Encoder

from modserve.frontends.http2.block_decoder import BlockDecoder, DynamicTable
from modserve.frontends.http2.frames import COMPRESSION_ERROR, Http2Error
from modserve.frontends.http2.headers import Pairs, literal
from modserve.frontends.http2.limits import LIMITS

MOST = LIMITS.decoded
HUFFMAN_A = b"\x1f"  # "a", and padding


def text(value: bytes, coded: int = 0) -> bytes:
    return bytes((coded | literal(b"", value)[2],)) + literal(b"", value)[3:]


def indexed(name: bytes, value: bytes) -> bytes:
    return b"\x40" + text(name) + text(value)


def decoded(decoder: BlockDecoder, data: bytes, pieces: Callable[[], int]) -> Pairs:
    decoder.begin()
    while data:
        size = pieces()
        decoder.feed(data[:size])
        data = data[size:]
    return [field.pair for field in decoder.end()]


def decoder_over(table: DynamicTable | None = None) -> BlockDecoder:
    return BlockDecoder(table or DynamicTable(LIMITS.table), MOST)


PIECES: dict[str, Callable[[], Callable[[], int]]] = {
    "whole": lambda: lambda: 1 << 30,
    "byte by byte": lambda: lambda: 1,
    "by chance": lambda: partial(random.Random(5).randrange, 1, 400),
}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("seed", range(10))
def test_any_blocks(seed: int, pieces: str) -> None:
    """Against another decoder, with tables that change their size and texts of every length."""
    choose = random.Random(seed)
    decoder, encoder, reference = decoder_over(), Encoder(), Decoder()
    reference.max_header_list_size = 1 << 30
    for _ in range(40):
        if choose.random() < 0.2:
            encoder.header_table_size = choose.choice((0, 64, 120, 200, 4096))
        fields: Pairs = [
            (b"n%d" % choose.randrange(5), bytes(choose.choices(b"abc", k=choose.choice((0, 1, 20, 126, 300, 4_100)))))
            for _ in range(choose.randrange(6))
        ]
        data = encoder.encode(fields, huffman=choose.random() < 0.5)
        assert reference.decode(data, raw=True) == fields
        assert decoded(decoder, data, PIECES[pieces]()) == fields
        assert not decoder.cut
        assert decoder.size == sum(len(name) + len(value) + 32 for name, value in fields)


LONG = {
    "a long value": literal(b"x", b"y" * 100_000),
    "a long value that enters the table": indexed(b"x", b"y" * 100_000),
    "a long name": literal(b"x" * 100_000, b"y"),
    "a long name that enters the table": indexed(b"x" * 100_000, b"y"),
    "a long name and a long value": indexed(b"x" * 100_000, b"y" * 100_000),
    "long texts in Huffman's code": b"\x40" + text(HUFFMAN_A * 50_000, 0x80) + text(HUFFMAN_A * 50_000, 0x80),
    "a value longer than the table": indexed(b"x", b"y" * 5_000) * 20,
    "many fields": b"".join([literal(b"x%d" % number, b"y") for number in range(3_000)]),
    "many that enter the table": b"".join([indexed(b"x%d" % number, b"y") for number in range(3_000)]),
    "one named again and again": indexed(b"x", b"y" * 900) + b"\xbe" * 1_000,
    "names from the table": indexed(b"x", b"y" * 900) + (b"\x7e" + text(b"z" * 900)) * 100,
}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", LONG)
def test_a_block_that_is_too_long_changes_the_table_as_ever(name: str, pieces: str) -> None:
    table, reference = DynamicTable(LIMITS.table), Decoder()
    decoder = decoder_over(table)
    reference.max_header_list_size = 1 << 30
    first = indexed(b"first", b"1") + indexed(b"second", b"2")
    assert decoded(decoder, first, PIECES[pieces]()) == reference.decode(first, raw=True)
    expected = list(reference.decode(LONG[name], raw=True))
    fields = decoded(decoder, LONG[name], PIECES[pieces]())
    assert decoder.cut
    assert fields == expected[: len(fields)]
    assert decoder.size > LIMITS.header_list
    for number in range(62, 62 + len(reference.header_table.dynamic_entries)):
        assert table.field(number).pair == reference.header_table.get_by_index(number)
    with pytest.raises(Http2Error):
        table.field(62 + len(reference.header_table.dynamic_entries))


BROKEN = {
    "a number without end": b"\x7f" + b"\xff" * 1_000,
    "index 0": b"\x80",
    "an index that is not there": b"\xff\x80\x01",
    "a name that is not there": b"\x7f\x20\x01a",
    "a text that is cut": b"\0\x05abc",
    "a value that is not there": b"\0\x01a",
    "a long text that is cut": b"\0\x01a" + text(b"x" * 50_000)[:-1],
    "a long name without a value": b"\0" + text(b"x" * 50_000),
    "a size behind a field": b"\x82\x20",
    "a size that is too large": b"\x3f\xe2\x1f",
    "wrong Huffman": b"\0\x81\0\x01a",
}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", BROKEN)
def test_broken_blocks(name: str, pieces: str) -> None:
    with pytest.raises(Http2Error) as caught:
        decoded(decoder_over(), BROKEN[name], PIECES[pieces]())
    assert caught.value.code == COMPRESSION_ERROR
    assert len(caught.value.message) < 100


def test_little_is_kept_of_a_long_block() -> None:
    decoder = decoder_over()
    decoder.begin()
    for piece in (literal(b"a", b"b"), b"\0\x01x\x7f\x80\x80\x7f", *[b"y" * 60_000] * 30):
        decoder.feed(piece)
    assert decoder._rest == b""
    assert [field.pair for field in decoder._fields] == [(b"a", b"b")]


@pytest.mark.parametrize(
    "change", ["del hpack.table.HeaderTable.STATIC_TABLE", "hpack.huffman_constants.REQUEST_CODES[97] = 5"]
)
def test_another_hpack_is_refused_at_the_start(change: str) -> None:
    """With the reason, and what to do."""
    program = f"import hpack.table, hpack.huffman_constants; {change}; import modserve.frontends.http2.block_decoder"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "lacks what modserve uses of it" in done.stderr
    assert "pip install 'hpack>=4.0,<4.3'" in done.stderr
