"""Incremental decoder of header blocks (RFC 7541), with its dynamic table.

Clients index repeated fields, so most fields of a request are found in the tables, already interpreted. Literals that a
client sends without indexing, in Huffman code, are cached field by field.

A block with too many or too long fields is still processed to its end, because it changes the dynamic table for later
blocks. Its further fields are dropped, without decoding unless they enter a table.
"""

from typing import Final, final

from .fields import FIELD_COST, HTTP_NAMES, FieldNames, HeaderField, Name
from .frames import COMPRESSION_ERROR, Http2Error
from .huffman import HuffmanError, decode

_LONG: Final = 16 * 1024
"""Encoded size in bytes above which a text fits no table of ours, in any coding: no symbol has more than 30 bits. Such
a text is not collected."""

_DIGITS: Final = 5
"""Maximum number of continuation bytes of an integer."""

_STATIC_FIELDS: Final = 61

_REMEMBERED: Final = 64
"""Number of cached names, and of cached literals in Huffman code, per connection; a full cache is cleared."""
_LONGEST_REMEMBERED: Final = 128
"""Encoded size in bytes of the longest cached entry."""

_GONE: Final = HeaderField(Name(b"", 0), b"")
_NO_FIELDS: Final[list[HeaderField]] = []


class IncompleteError(Exception):
    """A field that has not arrived completely."""


def unreadable(reason: str) -> Http2Error:
    # Without the received bytes, which may be long and secret.
    return Http2Error(COMPRESSION_ERROR, f"a header block cannot be read: {reason}")


@final
class DynamicTable:
    """The dynamic table of one direction of a connection (RFC 7541, section 2.3.2)."""

    def __init__(self, most: int, names: FieldNames = HTTP_NAMES) -> None:
        """`most`: maximum size of the table in bytes."""
        self.names = names
        self._static = names.static
        self._most = most
        self._room = most
        self._size = 0
        self._entries: list[HeaderField] = []
        """Entries, newest last; entries before `_first` have been evicted."""
        self._first = 0

    def field(self, number: int) -> HeaderField:
        """Find a field by its number. Raises `Http2Error`."""
        if 0 < number <= _STATIC_FIELDS:
            return self._static[number - 1]
        count = len(self._entries)
        index = count + _STATIC_FIELDS - number
        if self._first <= index < count:
            return self._entries[index]
        raise unreadable("it names a field that is in no table")

    def add(self, field: HeaderField) -> None:
        if field.size > self._room:
            self.clear()
            return
        self._entries.append(field)
        self._size += field.size
        if self._size > self._room:
            self._shrink()

    def clear(self) -> None:
        """Empty the table; adding a field larger than the table does so."""
        self._entries = []
        self._size = self._first = 0

    def resize(self, room: int) -> None:
        """Change the table's size. Raises `Http2Error`."""
        if room > self._most:
            raise unreadable(f"its table has more than {self._most} bytes")
        self._room = room
        self._shrink()

    def _shrink(self) -> None:
        entries = self._entries
        while self._size > self._room:
            self._size -= entries[self._first].size
            entries[self._first] = _GONE
            self._first += 1
        if self._first > _REMEMBERED:
            del entries[: self._first]
            self._first = 0


@final
class BlockDecoder:
    """Decoder of a connection's blocks, one after the other: `begin`, `feed` with each part, `end`.

    `_rest`: received bytes of an incomplete field. `_skipped`: bytes of a long text that are still to come; if the text
    is a field's name, its value follows.
    """

    def __init__(self, table: DynamicTable, most: int) -> None:
        """`most`: maximum size in bytes of the fields kept from a block."""
        self._table = table
        self._most = most
        self._names: dict[bytes, Name] = {}
        """Names by encoded text, including its length."""
        self._literals: dict[bytes, HeaderField] = {}
        """Literals by encoded bytes, except literals with a name from the dynamic table."""
        self._fields = _NO_FIELDS
        self.size = 0
        """Size of all fields of the block in bytes; dropped fields count in encoded form."""
        self.cut = False
        """True if fields of the block were dropped."""
        self._rest = b""
        self._skipped = 0
        self._value_follows = False
        self._indexed = False
        """True if the field of the value that follows enters the table."""

    def decode(self, block: bytes) -> list[HeaderField]:
        """Return the fields of a whole block. Raises `Http2Error`."""
        self.begin()
        self.feed(block)
        return self.end()

    def begin(self) -> None:
        self._fields = []
        self.size = 0
        self.cut = False

    def feed(self, data: bytes) -> None:
        """Read a part of the block. Raises `Http2Error`."""
        at = 0
        if self._skipped:
            at = min(self._skipped, len(data))
            self._skipped -= at
        if self._rest:
            data = self._rest + data
            self._rest = b""
        end = len(data)
        table = self._table
        try:
            while at < end:
                before = at
                if self._value_follows:
                    at = self._value(data, at)
                    continue
                first = data[at]
                if first < 0x80:
                    at = self._field(data, at, first)
                    continue
                number, at = (first & 0x7F, at + 1) if first < 0xFF else _integer(data, at, 0x7F)
                self._keep(table.field(number))
        except (IncompleteError, IndexError):
            self._rest = data[before:]

    def end(self) -> list[HeaderField]:
        """Return the fields of the block, which is complete. Raises `Http2Error`."""
        if self._rest or self._skipped or self._value_follows:
            raise unreadable("it ends within a field")
        fields, self._fields = self._fields, _NO_FIELDS
        return fields

    def _field(self, data: bytes, at: int, first: int) -> int:
        """Read the literal or table size update at `at`; return where it ends.

        Raises `IncompleteError` or IndexError, without side effects.
        """
        if first & 0xE0 == 0x20:
            if self.size:
                raise unreadable("a size of its table is behind a field")
            room, at = _integer(data, at, 0x1F)
            self._table.resize(room)
            return at
        before = at
        indexed = first & 0x40 != 0
        number, at = _integer(data, at, 0x3F if indexed else 0x0F)
        name: Name | None = None
        name_at, name_size, name_coded = at, 0, False
        if number:
            name = self._table.field(number).name
            name_size = len(name.text)
        else:
            name_size, name_coded, at = _text(data, at)
            if name_size > _LONG:
                return self._skip(data, at, name_size, indexed, name=True)
            at += name_size
        name_end = at
        size, coded, at = _text(data, at)  # raises if the name is incomplete
        if size > _LONG:
            return self._skip(data, at, size, indexed, name=False)
        end = at + size
        if end > len(data):
            raise IncompleteError
        if self.cut and not indexed:
            self.size += name_size + size + FIELD_COST
            return end
        key = b""
        if coded and not indexed and number <= _STATIC_FIELDS and end - before <= _LONGEST_REMEMBERED:
            key = data[before:end]
            known = self._literals.get(key)
            if known is not None:
                self._keep(known)
                return end
        if name is None:
            name = self._name(data[name_at:name_end], name_size, name_coded)
        field = HeaderField(name, _huffman_text(data[at:end]) if coded else data[at:end])
        if key:
            if len(self._literals) >= _REMEMBERED:
                self._literals.clear()
            self._literals[key] = field
        elif indexed:
            self._table.add(field)
        self._keep(field)
        return end

    def _name(self, data: bytes, size: int, coded: bool) -> Name:
        """Return the name in the last `size` bytes of `data`."""
        name = self._names.get(data)
        if name is None:
            text = data[len(data) - size :]
            name = self._table.names.name(_huffman_text(text) if coded else text)
            if size <= _LONGEST_REMEMBERED:
                if len(self._names) >= _REMEMBERED:
                    self._names.clear()
                self._names[data] = name
        return name

    def _value(self, data: bytes, at: int) -> int:
        """Skip the value of a field with an oversized name."""
        length, _, at = _text(data, at)
        if length > _LONG:
            return self._skip(data, at, length, self._indexed, name=False)
        if len(data) - at < length:
            raise IncompleteError
        self._count_skipped(length, self._indexed, name=False)
        return at + length

    def _skip(self, data: bytes, at: int, length: int, indexed: bool, name: bool) -> int:
        """Skip a text too long for any table."""
        self._count_skipped(length, indexed, name)
        here = min(length, len(data) - at)
        self._skipped = length - here
        return at + here

    def _count_skipped(self, length: int, indexed: bool, name: bool) -> None:
        self.cut = True
        self.size += length + (FIELD_COST if name or not self._value_follows else 0)
        self._value_follows, self._indexed = name, indexed
        if indexed and not name:
            self._table.clear()

    def _keep(self, field: HeaderField) -> None:
        self.size += field.size
        if self.size > self._most:
            self.cut = True
        if not self.cut:
            self._fields.append(field)


def _integer(data: bytes, at: int, most: int) -> tuple[int, int]:
    """Return the integer at `at` with the prefix mask `most` (RFC 7541, section 5.1), and its end."""
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
    """Return length, Huffman flag and beginning of the text with its header at `at`."""
    coded = data[at] & 0x80 != 0
    length, at = _integer(data, at, 0x7F)
    return length, coded, at


def _huffman_text(text: bytes) -> bytes:
    try:
        return decode(text)
    except HuffmanError as error:
        raise unreadable("a text is not in Huffman's code") from error
