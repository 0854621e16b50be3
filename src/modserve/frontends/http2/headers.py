"""Heads of requests, from their fields; and header blocks, written without the dynamic table (RFC 7541)."""

from typing import Final, TypeAlias

from .fields import CONTENT_LENGTH, METHOD, PATH, PLAIN, SCHEME, WRONG, HeaderField

Pairs: TypeAlias = list[tuple[bytes, bytes]]
"""Names and values."""

_DIGITS: Final = 18
"""Digits of a content-length: it is less than 2^62."""
_STATUS: Final = {200: b"\x88", 204: b"\x89", 206: b"\x8a", 304: b"\x8b", 400: b"\x8c", 404: b"\x8d", 500: b"\x8e"}


class MalformedError(Exception):
    """A request that is none (RFC 9113, section 8.1.1): its stream ends with PROTOCOL_ERROR."""


class Head:
    """The header block of a request, understood."""

    def __init__(self, fields: list[HeaderField], size: int) -> None:
        """`size`: bytes of the whole list, of which `fields` may be the beginning. Raises `MalformedError`."""
        self.fields = fields
        self.size = size
        self.length = -1
        """Bytes that the request's DATA must have; -1: any number."""
        method = scheme = path = b""
        seen = 0
        for field in fields:
            kind = field.kind
            if kind == PLAIN:
                seen |= PLAIN
            elif kind < PLAIN:
                if seen >= PLAIN or seen & kind:
                    raise MalformedError(f"the field {field.name.text!r} is duplicate, or after other fields")
                seen |= kind
                if kind == PATH:
                    path = field.value
                elif kind == METHOD:
                    method = field.value
                elif kind == SCHEME:
                    scheme = field.value
            else:
                seen |= PLAIN
                self.take(kind, field)
        self.method = method
        self.path = path
        if not (method and scheme and path):
            raise MalformedError("the request has no :method, :scheme or :path")

    def take(self, kind: int, field: HeaderField) -> None:
        """Understand a field that means something to HTTP/2 or, in a subclass, to a protocol above it.

        Raises `MalformedError`.
        """
        if kind == WRONG:
            raise MalformedError(f"no request has the field {field.name.text!r} with this value, or at all")
        if kind == CONTENT_LENGTH:
            value = field.value
            if self.length >= 0 or not value.isdigit() or len(value) > _DIGITS:
                raise MalformedError("the request has a content-length that is not a number of bytes, or two of them")
            self.length = int(value)

    @property
    def pairs(self) -> Pairs:
        return [field.pair for field in self.fields]


def has_pseudo(fields: list[HeaderField]) -> bool:
    """True if there are pseudo-header fields, which trailers cannot have."""
    return any(field.name.text[:1] == b":" for field in fields)


def _integer(value: int, bits: int, first: int = 0) -> bytes:
    """Encode a number (RFC 7541, section 5.1)."""
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
    """Encode a field that enters no table, as it is (RFC 7541, section 6.2.2)."""
    return b"\0" + _integer(len(name), 7) + name + _integer(len(value), 7) + value


def status(code: int) -> bytes:
    """Return the field with which a response begins."""
    # The name is number 8 of the static table.
    return _STATUS.get(code) or b"\x08" + _integer(3, 7) + b"%d" % code


def block(fields: Pairs) -> bytes:
    return b"".join([literal(name, value) for name, value in fields])
