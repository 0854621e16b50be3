"""Header blocks: what is remembered gives what decoding would give, whatever the table does meanwhile."""

import random
from dataclasses import replace

import pytest
from hpack import Decoder, Encoder

from modserve.frontends.http2.block_decoder import FIELD_COST
from modserve.frontends.http2.headers import Head, HeaderBlocks, block, literal, status
from modserve.frontends.http2.limits import LIMITS

REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"b")]


def read(blocks: HeaderBlocks, data: bytes) -> list[tuple[bytes, bytes]]:
    """As a connection does."""
    head = blocks.known(data)
    if head is None:
        decoding, lasting = blocks.decode(data)
        head = Head(decoding.fields)
        if lasting:
            blocks.remember(data, head)
    return head.fields


def test_a_block_that_fills_the_table_is_not_remembered() -> None:
    blocks, encoder = HeaderBlocks(LIMITS), Encoder()
    first, second, third = (encoder.encode(REQUEST) for _ in range(3))
    assert first != second == third
    assert read(blocks, first) == REQUEST
    assert blocks.known(first) is None
    assert read(blocks, second) == REQUEST
    assert blocks.known(second) is not None
    assert read(blocks, third) == REQUEST


def test_the_same_bytes_mean_another_thing_on_another_table() -> None:
    blocks, encoder = HeaderBlocks(LIMITS), Encoder()
    read(blocks, encoder.encode([*REQUEST, (b"x", b"1")]))
    short = encoder.encode([*REQUEST, (b"x", b"1")])
    assert read(blocks, short)[-1] == (b"x", b"1")
    read(blocks, encoder.encode([*REQUEST, (b"y", b"2")]))  # which moves all entries
    assert blocks.known(short) is None


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_blocks(seed: int) -> None:
    """Against a decoder that remembers nothing: with few values, small tables, and sizes that change."""
    choose = random.Random(seed)
    blocks, encoder, reference = HeaderBlocks(replace(LIMITS, blocks=4)), Encoder(), Decoder()
    encoder.header_table_size = choose.choice((4096, 200, 120))
    for _ in range(300):
        if choose.random() < 0.05:
            encoder.header_table_size = choose.choice((0, 64, 120, 200, 4096))
        fields = REQUEST + [(b"x", choose.choice((b"1", b"2", b"3" * 40))) for _ in range(choose.randrange(3))]
        data = encoder.encode(fields, huffman=choose.random() < 0.5)
        assert read(blocks, data) == reference.decode(data, raw=True) == fields


def test_few_blocks_are_remembered() -> None:
    blocks = HeaderBlocks(replace(LIMITS, blocks=3, block=200, fields=6))
    many = [block([*REQUEST, (b"x", b"%d" % number)]) for number in range(10)]
    for each in many:
        read(blocks, each)
    assert sum(blocks.known(each) is not None for each in many) <= 3
    for more in ([(b"x", b"y" * 200)], [(b"x", b"y")] * 3):
        read(blocks, block([*REQUEST, *more]))
        assert blocks.known(block([*REQUEST, *more])) is None


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 256, 20_000])
def test_literals(size: int) -> None:
    name, value = b"n" * max(1, size), b"v" * size
    assert Decoder().decode(literal(name, value), raw=True) == [(name, value)]


@pytest.mark.parametrize("code", [200, 204, 206, 304, 400, 404, 405, 415, 500, 503])
def test_statuses(code: int) -> None:
    decoder = Decoder()
    assert decoder.decode(status(code), raw=True) == [(b":status", b"%d" % code)]
    assert not decoder.header_table.dynamic_entries
    assert FIELD_COST == 32
