"""Header fields, interpreted when first read: the meaning of the name, and whether requests may have the field.

Fields of the tables (RFC 7541, section 2.3) are checked once, however often a client refers to them.
"""

from collections.abc import Mapping
from typing import Final, final

from hpack import __version__ as _version

try:
    from hpack.table import HeaderTable

    _STATIC: Final = [(bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE]

    from . import huffman

    if len(_STATIC) != 61 or huffman.decode(bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff")) != b"www.example.com":
        raise ImportError("they differ")
except (ImportError, AttributeError, LookupError, TypeError, ValueError) as error:
    raise ImportError(
        f"hpack {_version} lacks what modserve uses of it, hpack.table.HeaderTable.STATIC_TABLE and "
        f"hpack.huffman_constants ({error}): pip install 'hpack>=4.0,<4.3'"
    ) from error

FIELD_COST: Final = 32
"""Cost of a field besides its bytes (RFC 7541, section 4.1; RFC 9113, section 6.5.2)."""

# Kinds of fields. The pseudo-header fields of a request line are bits; other kinds are larger.
METHOD: Final = 1
SCHEME: Final = 2
PATH: Final = 4
AUTHORITY: Final = 8
PLAIN: Final = 16
WRONG: Final = 17
"""A request with such a field is malformed (RFC 9113, section 8.1.1)."""
CONTENT_LENGTH: Final = 18
_TE: Final = 19
OWN: Final = 32
"""The first kind for names that belong to a protocol above HTTP/2."""

_KINDS: Final = {
    b":method": METHOD,
    b":scheme": SCHEME,
    b":path": PATH,
    b":authority": AUTHORITY,
    b"content-length": CONTENT_LENGTH,
    b"te": _TE,
    b"connection": WRONG,
    b"keep-alive": WRONG,
    b"proxy-connection": WRONG,
    b"transfer-encoding": WRONG,
    b"upgrade": WRONG,
}
_NAME: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
_ZERO: Final = 0
_LF: Final = 10
_CR: Final = 13


@final
class Name:
    """A field name and its kind."""

    __slots__ = ("kind", "text")

    def __init__(self, text: bytes, kind: int) -> None:
        self.text = text
        self.kind = kind


@final
class HeaderField:
    """A header field with its kind: that of the name, or `WRONG` for a value that requests must not have.

    `meaning`: the value as interpreted by the protocol above HTTP/2, which then need not do so again.
    """

    __slots__ = ("kind", "meaning", "name", "size", "value")

    def __init__(self, name: Name, value: bytes) -> None:
        self.name = name
        self.value = value
        self.meaning: object = None
        self.size = len(name.text) + len(value) + FIELD_COST
        kind = name.kind
        if kind == _TE:
            kind = PLAIN if value == b"trailers" else WRONG
        elif kind >= PLAIN and (_LF in value or _CR in value or _ZERO in value):
            kind = WRONG
        self.kind = kind

    @property
    def pair(self) -> tuple[bytes, bytes]:
        return self.name.text, self.value


@final
class FieldNames:
    """Names with a meaning for a port, and the static table with their kinds."""

    def __init__(self, own: Mapping[bytes, int]) -> None:
        """`own`: names with a meaning for the protocol above HTTP/2, with kinds from `OWN` on."""
        self._kinds = {**_KINDS, **own}
        self.static = [HeaderField(self.name(name), value) for name, value in _STATIC]

    def name(self, text: bytes) -> Name:
        kind = self._kinds.get(text, 0)
        if not kind:
            kind = WRONG if not text or text.translate(None, _NAME) else PLAIN
        return Name(text, kind)


HTTP_NAMES: Final = FieldNames({})
"""Fields of HTTP/2 itself."""
