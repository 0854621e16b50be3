"""Header blocks as the clients of `traffic_heads` encode them, and the frames of calls."""

import random
from collections.abc import Sequence

from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

from modserve.commands.bench.http2 import GrpcMessage, frame
from traffic_heads import GrpcClient
from traffic_replay import Call

Field = tuple[str, bytes, bytes]
"""A sign of `traffic_heads`, a name and a value."""

_STATIC = HeaderTable.STATIC_TABLE
_STATIC_FIELDS = {field: number for number, field in reversed(list(enumerate(_STATIC, 1)))}
_STATIC_NAMES = {name: number for number, (name, _) in reversed(list(enumerate(_STATIC, 1)))}
_SIGNS = {"+": (6, 0x40), "-": (4, 0x00), "!": (4, 0x10)}
"""Bits that a name's index has, and those before it."""
_TABLE_BYTES, _FIELD_BYTES = 4096, 32
_HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
_HEADERS, _WINDOW = 1, 8
_END_HEADERS = 4


class Encoder:
    """An encoder with a dynamic table, which writes each field as its sign says."""

    def __init__(self, client: GrpcClient) -> None:
        self.client = client
        self.table: list[tuple[bytes, bytes]] = []
        """The newest first."""
        self._bytes = 0

    def block(self, fields: Sequence[Field]) -> bytes:
        return b"".join(self._field(*field) for field in fields)

    def _field(self, sign: str, name: bytes, value: bytes) -> bytes:
        field = name, value
        index = _STATIC_FIELDS.get(field, 0)
        if not index and sign == "+" and field in self.table:
            index = len(_STATIC) + 1 + self.table.index(field)
        if index:
            return self._integer(index, 7, 0x80)
        bits, first = _SIGNS[sign]
        index = self._name(name) if self.client.names else 0
        if sign == "+":
            self._add(field)
        written = self._integer(index, bits, first)
        return written + (b"" if index else self._string(name)) + self._string(value)

    def _name(self, name: bytes) -> int:
        known = [each for each, _ in self.table]
        return _STATIC_NAMES.get(name, 0) or (len(_STATIC) + 1 + known.index(name) if name in known else 0)

    def _add(self, field: tuple[bytes, bytes]) -> None:
        self.table.insert(0, field)
        self._bytes += sum(map(len, field)) + _FIELD_BYTES
        while self._bytes > _TABLE_BYTES:
            self._bytes -= sum(map(len, self.table.pop())) + _FIELD_BYTES

    def _string(self, text: bytes) -> bytes:
        packed = _HUFFMAN.encode(text) if self.client.huffman else text
        shorter = len(packed) < len(text)
        return self._integer(len(packed if shorter else text), 7, 0x80 * shorter) + (packed if shorter else text)

    def _integer(self, number: int, bits: int, first: int) -> bytes:
        written = encode_integer(number, bits)
        written[0] |= first
        return bytes(written)


def fields(client: GrpcClient, path: str, host: str, timeout: str, metadata: Sequence[tuple[str, str]]) -> list[Field]:
    """Of a call; without `timeout`, it has no deadline."""
    found = []
    for line in client.fields.split(" | "):
        name, _, value = line[1:].partition(" ")
        text = value.format(path=path, host=host, timeout=timeout)
        if text:
            found.append((line[0], name.encode(), text.encode()))
    found += [(client.metadata, name.encode(), value.encode()) for name, value in metadata]
    if client.shuffled:
        pseudo = [each for each in found if each[1].startswith(b":")]
        found = pseudo + random.sample(found[len(pseudo) :], len(found) - len(pseudo))
    return found


def blocks(client: GrpcClient, calls: Sequence[Sequence[Field]]) -> tuple[list[bytes], list[bytes]]:
    """Those that a connection begins with, and those that may follow again and again.

    Where the table is another each time, these are the first ones: they refer to nothing older than themselves.
    """
    encoder = Encoder(client)
    first = [encoder.block(call) for call in calls]
    before = list(encoder.table)
    again = [encoder.block(call) for call in calls]
    return first, again if encoder.table == before else first


def call_frames(client: GrpcClient, block: bytes, message: bytes) -> Call:
    """What a client sends for a call."""
    body = GrpcMessage.of(message)
    written = bytearray(frame(_HEADERS, _END_HEADERS, 0, block))
    places = [5]
    if client.windows:
        places.append(len(written) + 5)
        written += frame(_WINDOW, 0, 0, (5).to_bytes(4, "big"))
    places.append(len(written) + 5)
    written += body.short + bytes(4) + body.body
    if client.windows:
        written += frame(_WINDOW, 0, 0, (0xC3).to_bytes(4, "big"))
    return written, tuple(places)
