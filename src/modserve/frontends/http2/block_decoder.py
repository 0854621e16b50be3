"""Header blocks decoded as they come (RFC 7541), and the table that they fill.

A block with more or longer fields than anybody reads is gone through to its end all the same: what it does to the table
counts for the blocks behind it. Its further fields are not kept, and what enters no table is not decoded either.
"""

from collections import deque
from typing import Final, TypeAlias

from hpack import __version__ as _version

from .frames import COMPRESSION_ERROR, Http2Error

try:
    from hpack.huffman_table import decode_huffman
    from hpack.table import HeaderTable

    _STATIC: Final = [(bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE]
    if len(_STATIC) != 61 or decode_huffman(bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff")) != b"www.example.com":
        raise ImportError("they behave differently")
except (ImportError, AttributeError, TypeError) as error:
    raise ImportError(
        f"hpack {_version} lacks what modserve uses of it, hpack.table.HeaderTable.STATIC_TABLE and "
        f"hpack.huffman_table.decode_huffman ({error}): pip install 'hpack>=4.0,<4.3'"
    ) from error

Fields: TypeAlias = list[tuple[bytes, bytes]]

FIELD_COST: Final = 32
"""What a field counts beside its bytes (RFC 7541, section 4.1; RFC 9113, section 6.5.2)."""

_LONG: Final = 16 * 1024
"""Bytes of a text, as it comes, that no table of ours has room for, whatever its coding: no symbol has more than 30
bits. It is not collected."""

_DIGITS: Final = 5
"""Bytes of a number behind its first."""


class IncompleteError(Exception):
    """The rest of a field has not come."""


def unreadable(reason: str) -> Http2Error:
    # Nothing of what was sent, which may be long, and secret.
    return Http2Error(COMPRESSION_ERROR, f"a header block cannot be read: {reason}")


class DynamicTable:
    """The dynamic table of one direction of a connection (RFC 7541, section 2.3.2)."""

    def __init__(self, most: int) -> None:
        """`most`: bytes that it may have at any time."""
        self._most = most
        self._room = most
        self._size = 0
        self._entries: deque[tuple[bytes, bytes]] = deque()
        self.changes = 0
        """How often it was another one afterwards."""

    def field(self, number: int) -> tuple[bytes, bytes]:
        """Raises `Http2Error`."""
        if 0 < number <= len(_STATIC):
            return _STATIC[number - 1]
        number -= len(_STATIC) + 1
        if 0 <= number < len(self._entries):
            return self._entries[number]
        raise unreadable("it names a field that is in no table")

    def add(self, name: bytes, value: bytes) -> None:
        size = len(name) + len(value) + FIELD_COST
        if size > self._room:
            self.clear()
            return
        self.changes += 1
        self._entries.appendleft((name, value))
        self._size += size
        self._shrink()

    def clear(self) -> None:
        """What a field does that is larger than the table."""
        self.changes += 1
        self._entries.clear()
        self._size = 0

    def resize(self, room: int) -> None:
        """Raises `Http2Error`."""
        if room > self._most:
            raise unreadable(f"its table has more than {self._most} bytes")
        if room != self._room:
            self.changes += 1
            self._room = room
            self._shrink()

    def _shrink(self) -> None:
        while self._size > self._room:
            name, value = self._entries.pop()
            self._size -= len(name) + len(value) + FIELD_COST


class BlockDecoder:
    """One block: `feed` it, and `end`.

    What has come of a field that is not complete is in `_rest`; `_skipped` bytes of a long text are still to come,
    behind which the field's value follows if the text is its name.
    """

    def __init__(self, table: DynamicTable, most: int) -> None:
        """`most`: bytes that the fields may have that are kept."""
        self._table = table
        self._most = most
        self.fields: Fields = []
        self.size = 0
        """Of all fields; of those that are not kept, as they come."""
        self.cut = False
        """There are more fields than `fields`."""
        self._begun = False
        self._rest = b""
        self._skipped = 0
        self._value_follows = False
        self._indexed = False
        """The field whose value follows enters the table."""

    def feed(self, data: bytes) -> None:
        """Raises `Http2Error`."""
        at = 0
        if self._skipped:
            at = min(self._skipped, len(data))
            self._skipped -= at
        if self._rest:
            data = self._rest + data
            self._rest = b""
        end = len(data)
        try:
            while at < end:
                before = at
                at = self._value(data, at) if self._value_follows else self._field(data, at)
        except (IncompleteError, IndexError):
            self._rest = data[before:]

    def end(self) -> None:
        """The block is complete. Raises `Http2Error`."""
        if self._rest or self._skipped or self._value_follows:
            raise unreadable("it ends within a field")

    def _field(self, data: bytes, at: int) -> int:
        """Read what begins at `at`; where it ends. Raises `IncompleteError` or IndexError, and has done nothing."""
        first = data[at]
        if first & 0x80:
            number, at = _integer(data, at, 0x7F)
            name, value = self._table.field(number)
            self._keep(name, value)
            return at
        if first & 0xE0 == 0x20:
            if self._begun:
                raise unreadable("a size of its table is behind a field")
            room, at = _integer(data, at, 0x1F)
            self._table.resize(room)
            return at
        indexed = first & 0x40 != 0
        number, at = _integer(data, at, 0x3F if indexed else 0x0F)
        name, name_coded = b"", False
        if number:
            name = self._table.field(number)[0]
        else:
            length, name_coded, at = _text(data, at)
            if length > _LONG:
                return self._skip(data, at, length, indexed, name=True)
            name = data[at : at + length]
            at += length
        length, coded, at = _text(data, at)  # which fails if the name is not complete
        if length > _LONG:
            return self._skip(data, at, length, indexed, name=False)
        value = data[at : at + length]
        if len(value) < length:
            raise IncompleteError
        if indexed or not self.cut:
            if name_coded:
                name = _huffman_text(name)
            if coded:
                value = _huffman_text(value)
        if indexed:
            self._table.add(name, value)
        self._keep(name, value)
        return at + length

    def _value(self, data: bytes, at: int) -> int:
        """The value of a field whose name was too long."""
        length, _, at = _text(data, at)
        if length > _LONG:
            return self._skip(data, at, length, self._indexed, name=False)
        if len(data) - at < length:
            raise IncompleteError
        self._passed(length, self._indexed, name=False)
        return at + length

    def _skip(self, data: bytes, at: int, length: int, indexed: bool, name: bool) -> int:
        """A text is left out that no table has room for."""
        self._passed(length, indexed, name)
        here = min(length, len(data) - at)
        self._skipped = length - here
        return at + here

    def _passed(self, length: int, indexed: bool, name: bool) -> None:
        self._begun = self.cut = True
        self.size += length + (FIELD_COST if name or not self._value_follows else 0)
        self._value_follows, self._indexed = name, indexed
        if indexed and not name:
            self._table.clear()

    def _keep(self, name: bytes, value: bytes) -> None:
        self._begun = True
        self.size += len(name) + len(value) + FIELD_COST
        if self.size > self._most:
            self.cut = True
        if not self.cut:
            self.fields.append((name, value))


def _integer(data: bytes, at: int, most: int) -> tuple[int, int]:
    """The number that begins at `at` and fills the bits of `most` first (RFC 7541, section 5.1), and where it ends."""
    number = data[at] & most
    at += 1
    if number < most:
        return number, at
    shift = 0
    while True:
        digit = data[at]
        at += 1
        number += (digit & 127) << shift
        if digit < 128:
            return number, at
        shift += 7
        if shift >= 7 * _DIGITS:
            raise unreadable("a number has no end")


def _text(data: bytes, at: int) -> tuple[int, bool, int]:
    """The length of the text whose head is at `at`, whether it is in Huffman's code, and where it begins."""
    coded = data[at] & 0x80 != 0
    length, at = _integer(data, at, 0x7F)
    return length, coded, at


def _huffman_text(text: bytes) -> bytes:
    try:
        return decode_huffman(text)
    except Exception as error:
        raise unreadable("a text is not in Huffman's code") from error
