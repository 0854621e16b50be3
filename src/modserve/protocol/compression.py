"""HTTP content codings of requests and responses: gzip, and deflate, the zlib container (RFC 9110, section 8.4)."""

import zlib
from collections.abc import Callable, Iterable

from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.tensors.tensor import Buffer
from modserve.protocol.accept import weights

ACCEPTED = "gzip, deflate"
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LEVEL = 6
_FIRST = 1024 * 1024
"""Bytes that are inflated before more memory is reserved."""
_CHUNK = 64 * 1024
_PIECE = 256 * 1024
"""Inflated bytes of one call: zlib copies its result with the interpreter's lock held, when the event loop has to wait.
"""
_LEAST_CHUNK = 64
_MOST_MEMBERS = 100_000
"""Per body. Even an empty member costs time."""
_MEMBER = b"\x1f\x8b"
"""Magic number of a gzip member; a file is a series of members (RFC 1952, section 2.2)."""


class UnsupportedEncodingError(ModserveError):
    """Request body in an unsupported coding; the response lists the supported ones in ``Accept-Encoding``."""

    def __init__(self) -> None:
        super().__init__(Code.UNSUPPORTED, "Unsupported compression type")


class Inflater:
    """Decompresses a request body step by step, as the result may be a thousand times as long."""

    def __init__(self, body: bytes, name: str, limit: int, too_long: Callable[[], ModserveError] | None = None) -> None:
        """Set up inflating. `too_long`: the error for a body longer than `limit`, if it is not the one of HTTP."""
        self._rest = memoryview(body)
        self._name = name
        self._limit = limit
        self._too_long = too_long
        self._reader = zlib.decompressobj(_WINDOW_BITS[name])
        self._parts: list[bytes] = []
        self._size = 0
        self._members = 1
        self._chunk = _CHUNK

    def read(self, most: int) -> bytes | None:
        """Return the whole body, if it has at most `most` bytes; None for more, of which as many have been inflated.

        Raises INVALID_ARG for a body that is not what it claims to be, or becomes longer than the limit.
        """
        limit = min(most, self._limit)
        while self._size <= limit and not (self._reader.eof and not self._next_member()):
            chunk = self._rest[: self._chunk]
            try:
                part = self._reader.decompress(chunk, min(limit + 1 - self._size, _PIECE))
            except zlib.error as error:
                text = f"failed to decompress the request body, which is not {self._name} data: {error}"
                raise invalid(text) from None
            tail = self._reader.unused_data if self._reader.eof else self._reader.unconsumed_tail
            size = len(chunk) - len(tail)
            self._rest = self._rest[size:]
            # zlib copies what follows a member: feed it little where members are short.
            self._chunk = max(_LEAST_CHUNK, min(_CHUNK, 4 * size if self._reader.eof else 2 * self._chunk))
            if part:
                self._size += len(part)
                self._parts.append(part)
            elif not self._rest and not self._reader.eof:
                break
        if self._size > self._limit:
            if self._too_long is not None:
                raise self._too_long()
            raise invalid(
                f"Decompressed data size exceeds the maximum allowed value of {self._limit} bytes. "
                "Use --http-max-input-size to increase the limit."
            )
        if self._size > limit:
            return None
        if not self._reader.eof:
            raise invalid(f"failed to decompress the request body: the {self._name} data ends early")
        if unused := len(self._rest):
            raise invalid(f"failed to decompress the request body: {unused} bytes follow the {self._name} data")
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _next_member(self) -> bool:
        """Start the next gzip member; False if there is none."""
        if self._name != "gzip" or self._rest[:2] != _MEMBER:
            return False
        self._members += 1
        if self._members > _MOST_MEMBERS:
            raise invalid(f"failed to decompress the request body: it has more than {_MOST_MEMBERS} gzip members")
        self._reader = zlib.decompressobj(_WINDOW_BITS[self._name])
        return True

    def read_all(self, take: Callable[[int], None] = lambda size: None) -> bytes:
        """Return the whole body. `take` is called with the bytes that come next, before they are inflated.

        Raises as `read` does.
        """
        most = max(self._size, _FIRST)
        take(most)
        while (whole := self.read(most)) is None:
            more = min(3 * most, self._limit + 1)
            take(more)
            most += more
        return whole


def begin(body: bytes, encoding: str, limit: int) -> bytes | Inflater:
    """Return a request body, or the `Inflater` for its ``Content-Encoding``, of at most `limit` bytes.

    Raises UNSUPPORTED for codings other than gzip, deflate and identity.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _WINDOW_BITS:
        raise UnsupportedEncodingError
    return Inflater(body, name, limit)


def decode(body: bytes, encoding: str, limit: int) -> bytes:
    """Decode a request body from its ``Content-Encoding``. Raises as `begin` and `Inflater.read` do."""
    begun = begin(body, encoding, limit)
    return begun.read_all() if isinstance(begun, Inflater) else begun


def choose(accepted: str | None) -> str | None:
    """Choose a response's coding by the request's ``Accept-Encoding``: the highest weight, the first of equals.

    None stands for identity, which is also the response to what is not understood.
    """
    best, best_weight = None, 0.0
    for name, weight in weights(accepted).items() if accepted else ():
        if weight > best_weight and name in ("gzip", "deflate", "identity"):
            best, best_weight = name, weight
    return None if best == "identity" else best


def encode(parts: Iterable[Buffer], encoding: str) -> bytes:
    """Join and compress the parts of a response."""
    writer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    return b"".join([*(writer.compress(part) for part in parts), writer.flush()])
