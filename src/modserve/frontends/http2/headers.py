"""Header blocks: decoded or known by their bytes, and written without the dynamic table (RFC 7541).

A block whose bytes came before is known as long as the connection's dynamic table is what it was then: decoding the
same bytes on the same table gives the same fields. So a block is remembered only if decoding it left the table alone,
and all are forgotten as soon as one changes it. Clients that name their headers by the table send the same few bytes
from their second or third call on.
"""

from typing import Final

from .block_decoder import FIELD_COST, BlockDecoder, DynamicTable, Fields
from .limits import ConnectionLimits

_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_NEEDED: Final = (b":method", b":scheme", b":path")
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_DIGITS: Final = 18
"""Of a content-length: less than 2^62."""
_NAME: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_STATUS: Final = {200: b"\x88", 204: b"\x89", 206: b"\x8a", 304: b"\x8b", 400: b"\x8c", 404: b"\x8d", 500: b"\x8e"}


class MalformedError(Exception):
    """A request that is none (RFC 9113, section 8.1.1): its stream ends with PROTOCOL_ERROR."""


class Head:
    """The header block of a request, understood: the same one for all requests whose block is the same."""

    def __init__(self, fields: Fields, size: int = -1) -> None:
        """`size`: bytes of the whole list, where `fields` are only its beginning. Raises `MalformedError`."""
        self.fields = fields
        self.pseudo = pseudo_fields(fields)
        self.size = sum([len(name) + len(value) + FIELD_COST for name, value in fields]) if size < 0 else size
        self.length = content_length(fields)
        """Bytes that the request's DATA must have; -1: any number."""


def pseudo_fields(fields: Fields) -> dict[bytes, bytes]:
    """The fields that stand for a request line. Raises `MalformedError` for what no request may have."""
    pseudo: dict[bytes, bytes] = {}
    regular = False
    for name, value in fields:
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO:
                raise MalformedError(f"the field {name!r} is duplicate, unknown, or after other fields")
            pseudo[name] = value
            continue
        regular = True
        if not name or not _NAME.issuperset(name):
            raise MalformedError(f"{name!r} is not a field name")
        if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            raise MalformedError(f"HTTP/2 has no field {name!r}")
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise MalformedError(f"the field {name!r} has a line break or a zero in its value")
    for name in _NEEDED:
        if not pseudo.get(name):
            raise MalformedError(f"the request has no {name.decode()}")
    return pseudo


def content_length(fields: Fields) -> int:
    """-1 without the field. Raises `MalformedError` for one that is no number, and for two (RFC 9110, section 8.6)."""
    values = [value for name, value in fields if name == b"content-length"]
    if not values:
        return -1
    if len(values) > 1 or not values[0].isdigit() or len(values[0]) > _DIGITS:
        raise MalformedError("the request has a content-length that is not a number of bytes, or two of them")
    return int(values[0])


def has_pseudo(fields: Fields) -> bool:
    """Whether there are fields that trailers cannot have."""
    return any(name[:1] == b":" for name, _ in fields)


class HeaderBlocks:
    """The header blocks of one connection.

    Without what it remembers, a unary inference takes 1.4 times the CPU time (`benchmarks/wire_shortcuts.py`).
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._known: dict[bytes, Head] = {}
        self._known_at = 0
        """The table's `changes` when they were what they are."""
        self._table = DynamicTable(limits.table)

    def known(self, block: bytes) -> Head | None:
        return self._known.get(block)

    def begin(self) -> BlockDecoder:
        """A block that comes in parts; `finish` is called when it has ended."""
        return BlockDecoder(self._table, self._limits.decoded)

    def finish(self, decoder: BlockDecoder) -> bool:
        """Whether the table is what it was. Raises `Http2Error`."""
        decoder.end()
        if self._known_at == self._table.changes:
            return True
        self._known_at = self._table.changes
        self._known.clear()
        return False

    def decode(self, block: bytes) -> tuple[BlockDecoder, bool]:
        """The fields, and whether the block may be remembered. Raises `Http2Error`."""
        decoder = self.begin()
        decoder.feed(block)
        lasting = self.finish(decoder)
        return decoder, lasting and len(block) <= self._limits.block and len(decoder.fields) <= self._limits.fields

    def remember(self, block: bytes, head: Head) -> None:
        if len(self._known) >= self._limits.blocks:
            self._known.clear()
        self._known[block] = head


def _integer(value: int, bits: int, first: int = 0) -> bytes:
    """RFC 7541, section 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((first | value,))
    encoded = bytearray((first | most,))
    value -= most
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def literal(name: bytes, value: bytes) -> bytes:
    """A field that enters no table, as it is (RFC 7541, section 6.2.2)."""
    return b"\0" + _integer(len(name), 7) + name + _integer(len(value), 7) + value


def status(code: int) -> bytes:
    """The field with which a response begins."""
    # The name is number 8 of the static table.
    return _STATUS.get(code) or b"\x08" + _integer(3, 7) + b"%d" % code


def block(fields: Fields) -> bytes:
    return b"".join([literal(name, value) for name, value in fields])
