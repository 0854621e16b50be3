"""Lenient Base64 decoder: line breaks, both alphabets of RFC 4648, padding optional."""

import base64
import re
from io import BytesIO
from typing import Final

_PIECE: Final = 256 * 1024
"""Characters decoded in one go, which holds the interpreter."""
_SPACE: Final = b" \t\r\n"
_ONE_ALPHABET: Final = bytes.maketrans(b"-_", b"+/")
_FOREIGN: Final = re.compile(rb"[^A-Za-z0-9+/\-_= \t\r\n]")


def decode(text: str | bytes | memoryview) -> bytes:
    """Decode a text. Raises ValueError with the position of the fault."""
    view = memoryview(text.encode("utf-8", "replace") if isinstance(text, str) else text)
    content = BytesIO()
    rest = b""
    padding = 0
    for start in range(0, len(view), _PIECE):
        piece = bytes(view[start : start + _PIECE])
        if (foreign := _FOREIGN.search(piece)) is not None:
            raise ValueError(f"byte 0x{foreign[0][0]:02x} at position {start + foreign.start()} is not of Base64")
        piece = piece.translate(_ONE_ALPHABET, _SPACE)
        piece, pad, behind = piece.partition(b"=")
        if (padding and piece) or behind.strip(b"="):
            raise ValueError(f"there is text behind the padding, before position {min(start + _PIECE, len(view))}")
        padding += len(pad) + len(behind)
        rest += piece
        whole = len(rest) - len(rest) % 4
        content.write(base64.b64decode(rest[:whole]))
        rest = rest[whole:]
    if len(rest) == 1 or padding > 2:
        raise ValueError(f"it is cut: it ends with {len(rest)} of four characters and {padding} of padding")
    content.write(base64.b64decode(rest + b"=" * (-len(rest) % 4)))
    return content.getvalue()
