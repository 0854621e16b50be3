"""HTTP/2 as clients may send it: to a connection on a transport that only keeps what is written, and header blocks."""

import random
import sys
import zlib
from pathlib import Path
from typing import TypeAlias

from hpack import Decoder
from hpack.exceptions import HPACKError

from modserve.core.errors import Code, ModserveError
from modserve.frontends.grpc.heads import NAMES, GrpcHead
from modserve.frontends.http2.block_decoder import BlockDecoder, DynamicTable
from modserve.frontends.http2.fields import HeaderField
from modserve.frontends.http2.frames import INTERNAL_ERROR, PREFACE, SETTINGS, Http2Error, frame
from modserve.frontends.http2.headers import Head, MalformedError
from modserve.frontends.http2.limits import LIMITS

sys.path.append(str(Path(__file__).parents[1]))
from http2_client import EchoPort, Loop, Wire

_GREETING = PREFACE + frame(SETTINGS, 0, 0)
_MOST_PARTS = 20

_Outcome: TypeAlias = tuple[int | None, bytes, list[tuple[int, bytes, bool]]]
"""How the connection ended, if it did; and of each stream its number, its body, and whether that was whole."""


class _Port(EchoPort):
    """Its heads are understood as those of calls."""

    def understand(self, fields: list[HeaderField], size: int) -> Head:
        head = GrpcHead(fields, size, {}, (), self.limits.header_list)
        assert head.refusal, "a call is accepted of which there is none"
        assert all(isinstance(name, str) for name, _ in head.metadata)
        return head


class _Deaf(_Port):
    """Its streams never answer, so that it does not matter how many bytes come at a time."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.answers = False


def connection(data: bytes) -> None:
    """What comes behind the preface and the first SETTINGS. It means the same in whichever parts it comes."""
    _heard(_Port(Loop()), [data])
    whole = _heard(_Deaf(Loop()), [data])
    in_parts = _heard(_Deaf(Loop()), _parts(data))
    # A client that goes away may be gone before the rest of its bytes has come, or was read.
    assert None in (in_parts, whole) or in_parts == whole, "it depends on the parts in which bytes come"
    if whole is not None and whole[0] is not None:
        raise ModserveError(Code.INVALID_ARG, whole[1].decode(errors="replace"))


def _parts(data: bytes) -> list[bytes]:
    choose = random.Random(zlib.crc32(data))
    cuts = sorted(choose.randrange(len(data) + 1) for _ in range(choose.randrange(_MOST_PARTS)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _heard(port: _Port, parts: list[bytes]) -> _Outcome | None:
    """None if the connection was closed because the client went away."""
    loop = port.loop
    assert isinstance(loop, Loop)
    wire = Wire(port, loop, greet=False)
    for part in (_GREETING, *parts):
        if not wire.transport.closed:
            wire.send(part)
    error = wire.error()
    assert error is None or error[0] != INTERNAL_ERROR, error
    assert error is None or error[1], "it does not say what was wrong"
    streams = [(each.number, each.body, "end" in each.log) for each in port.streams]
    closed = wire.transport.closed
    # Time passes: whatever waits is dropped, and nothing remains.
    for _ in range(3):
        wire.pass_time(1_000, 100)
    wire.connection.connection_lost(None)
    assert not wire.connection.streams
    assert port.idle.is_set()
    return None if closed and error is None else (*(error or (None, b"")), streams)


def header_blocks(data: bytes) -> None:
    """Blocks of one connection, each behind its length in two bytes: as the library alone would read them.

    Raises INVALID_ARG for one that ends the connection, or that is no request.
    """
    decoder, alone = BlockDecoder(DynamicTable(LIMITS.table, NAMES), LIMITS.decoded), Decoder(1 << 30)
    alone.max_allowed_table_size = LIMITS.table
    malformed = ""
    while data:
        end = 2 + int.from_bytes(data[:2], "big")
        block, data = data[2:end], data[end:]
        try:
            expected = [(bytes(name), bytes(value)) for name, value in alone.decode(block, raw=True)]
        except (HPACKError, IndexError, ValueError):
            expected = None
        try:
            fields = decoder.decode(block)
        except Http2Error as error:
            assert expected is None, "only the library can read it"
            raise ModserveError(Code.INVALID_ARG, error.message) from None
        if expected is None:
            # A text that is in no table, behind the fields that are kept, is not decoded, so that nobody refuses it.
            assert decoder.cut, "only the library refuses it"
            return
        assert [field.pair for field in fields] == expected[: len(fields)]
        assert decoder.cut == (len(fields) < len(expected)) == (decoder.size > LIMITS.decoded)
        try:
            GrpcHead(fields, decoder.size, {}, (), LIMITS.header_list)
        except MalformedError as error:
            malformed = str(error) or "malformed"
    if malformed:
        raise ModserveError(Code.INVALID_ARG, malformed)
