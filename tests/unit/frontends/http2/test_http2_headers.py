"""Header blocks of a connection that differ: what is remembered of one field never changes what another means."""

import random

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman

from modserve.frontends.http2 import block_decoder, huffman
from modserve.frontends.http2.block_decoder import BlockDecoder, DynamicTable
from modserve.frontends.http2.fields import FIELD_COST
from modserve.frontends.http2.headers import Head, MalformedError, Pairs, literal, status
from modserve.frontends.http2.limits import LIMITS

REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"b")]


def decoder() -> BlockDecoder:
    return BlockDecoder(DynamicTable(LIMITS.table), LIMITS.decoded)


def read(by: BlockDecoder, data: bytes) -> Pairs:
    return [field.pair for field in by.decode(data)]


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_blocks(seed: int) -> None:
    """Against a decoder that remembers nothing: with few and many values, small tables, and sizes that change."""
    choose = random.Random(seed)
    ours, encoder, reference = decoder(), Encoder(), Decoder()
    encoder.header_table_size = choose.choice((4096, 200, 120))
    for number in range(300):
        if choose.random() < 0.05:
            encoder.header_table_size = choose.choice((0, 64, 120, 200, 4096))
        values = (b"1", b"2", b"3" * 40, b"%d" % number, b"~{%d}" % number)
        fields: Pairs = REQUEST + [
            (choose.choice((b"x", b"te", b"x-%d" % number)), choose.choice(values)) for _ in range(choose.randrange(4))
        ]
        sent = [NeverIndexedHeaderTuple(*each) if choose.random() < 0.4 else each for each in fields]
        data = encoder.encode(sent, huffman=choose.random() < 0.5)
        assert read(ours, data) == reference.decode(data, raw=True) == fields


def test_a_literal_that_names_the_dynamic_table_means_what_the_table_says() -> None:
    ours, encoder, reference = decoder(), Encoder(), Decoder()
    for name in (b"a", b"b", b"c"):
        first = encoder.encode([(name, b"1")])
        second = b"\x1f\x2f\x81\x1f"  # the newest entry's name, and "a" in Huffman's code
        assert read(ours, first + second) == reference.decode(first + second, raw=True) == [(name, b"1"), (name, b"a")]


def test_what_is_remembered_of_literals_is_bounded() -> None:
    ours, encoder = decoder(), Encoder()
    many = [[NeverIndexedHeaderTuple(b"name-%d" % number, b"value-%d" % number)] for number in range(200)]
    for fields in many:
        assert read(ours, encoder.encode(fields)) == fields
        assert 0 < len(ours._literals) <= block_decoder._REMEMBERED
        assert 0 < len(ours._names) <= block_decoder._REMEMBERED
    names, literals = set(ours._names), set(ours._literals)
    long = [NeverIndexedHeaderTuple(b"n" * 300, b"v" * 300)]
    assert read(ours, encoder.encode(long)) == long
    assert (names, literals) == (set(ours._names), set(ours._literals))


def test_entries_that_leave_the_table_are_let_go_of() -> None:
    table = DynamicTable(LIMITS.table)
    ours, encoder = BlockDecoder(table, LIMITS.decoded), Encoder()
    for number in range(1_000):
        ours.decode(encoder.encode([(b"x", b"%d" % number * 100)]))
        assert sum(len(each.value) for each in table._entries) <= LIMITS.table
        assert len(table._entries) <= 2 * block_decoder._REMEMBERED


CODED = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@pytest.mark.parametrize("seed", range(10))
def test_texts_in_huffmans_code(seed: int) -> None:
    """As another decoder reads them, whole, cut, changed, and with other padding."""
    choose = random.Random(seed)
    for _ in range(300):
        symbols = b"0123456789abcdef-" if choose.random() < 0.5 else bytes(range(256))
        text = bytes(choose.choices(symbols, k=choose.randrange(60)))
        coded = CODED.encode(text)
        assert huffman.decode(coded) == text
        changed = bytearray(coded)
        for _ in range(choose.randrange(3)):
            changed[choose.randrange(len(changed) + 1) :][:1] = choose.choice((b"", b"\xff", b"\xfe", b"\0"))
        changed += bytes(choose.choices((255, 254, 63, 0), k=choose.randrange(4)))
        compare(bytes(changed))


def compare(coded: bytes) -> None:
    try:
        expected = decode_huffman(coded)
    except Exception:
        with pytest.raises(huffman.HuffmanError):
            huffman.decode(coded)
    else:
        assert huffman.decode(coded) == expected


def test_each_symbol_and_every_padding_of_it() -> None:
    for symbol in range(256):
        coded = CODED.encode(bytes((symbol,)))
        assert huffman.decode(coded) == bytes((symbol,))
        for more in (b"\xff", b"\xff\xff", b"\xff" * 4, b"\0", b"\x7f"):
            compare(coded + more)
        for bit in range(8):
            compare(coded[:-1] + bytes((coded[-1] ^ 1 << bit,)))


def head(*more: tuple[bytes, bytes], first: Pairs = REQUEST) -> Head:
    fields = decoder().decode(b"".join([literal(*each) for each in (*first, *more)]))
    return Head(fields, sum(field.size for field in fields))


def test_a_head() -> None:
    read = head((b"te", b"trailers"), (b"content-length", b"17"), (b"x", b"y"))
    assert (read.method, read.path, read.length) == (b"POST", b"/a", 17)
    assert read.pairs == [*REQUEST, (b"te", b"trailers"), (b"content-length", b"17"), (b"x", b"y")]
    assert head().length == -1


MALFORMED: dict[str, Pairs] = {
    "no path": [*REQUEST[:2], *REQUEST[3:]],
    "an empty method": [(b":method", b""), *REQUEST[1:]],
    "a path twice": [*REQUEST, REQUEST[2]],
    "an unknown pseudo field": [*REQUEST, (b":x", b"y")],
    "the status of a response": [*REQUEST, (b":status", b"200")],
    "a pseudo field behind another": [*REQUEST[:3], (b"x", b"y"), REQUEST[3]],
    "a pseudo field behind one that is known": [*REQUEST[:3], (b"content-length", b"1"), REQUEST[3]],
    "another te": [*REQUEST, (b"te", b"gzip")],
    "a field of connections": [*REQUEST, (b"connection", b"close")],
    "an upper-case name": [*REQUEST, (b"X", b"y")],
    "an empty name": [*REQUEST, (b"", b"y")],
    "a zero": [*REQUEST, (b"x", b"a\0")],
    "a line feed": [*REQUEST, (b"x", b"\na")],
    "a carriage return": [*REQUEST, (b"content-type", b"a\rb")],
    "a length that is no number": [*REQUEST, (b"content-length", b"-1")],
    "a length of 19 digits": [*REQUEST, (b"content-length", b"1" * 19)],
    "two lengths": [*REQUEST, (b"content-length", b"0"), (b"content-length", b"0")],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests(name: str) -> None:
    with pytest.raises(MalformedError):
        head(first=MALFORMED[name])


@pytest.mark.parametrize("name", ["another te", "a zero", "an upper-case name"])
def test_a_wrong_field_is_as_wrong_from_the_table(name: str) -> None:
    ours, encoder = decoder(), Encoder()
    for _ in range(3):
        fields = ours.decode(encoder.encode(MALFORMED[name]))
        with pytest.raises(MalformedError):
            Head(fields, 0)
    fields = ours.decode(encoder.encode([*REQUEST, (b"te", b"trailers")]))  # the name of a field that is wrong
    assert Head(fields, 0).pairs[-1] == (b"te", b"trailers")


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
