"""HTTP content codings of requests and answers: gzip, and deflate, the zlib container (RFC 9110, section 8.4)."""

import zlib
from collections.abc import Iterable

from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.tensor import Buffer

ACCEPTED = "gzip, deflate"
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LEVEL = 6


class UnsupportedEncodingError(ModserveError):
    """A request body in a coding nobody here reads; its answer carries ``Accept-Encoding`` with those that are read."""

    def __init__(self) -> None:
        super().__init__(Code.UNSUPPORTED, "Unsupported compression type")


def decode(body: bytes, encoding: str, limit: int) -> bytes:
    """A request body as it was before its ``Content-Encoding``.

    Raises UNSUPPORTED for codings other than gzip, deflate and identity, and INVALID_ARG for a body that is not what it
    claims to be, or would become longer than `limit` bytes.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    bits = _WINDOW_BITS.get(name)
    if bits is None:
        raise UnsupportedEncodingError
    reader = zlib.decompressobj(bits)
    try:
        data = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise invalid(f"failed to decompress the request body, which is no {name} data: {error}") from None
    if len(data) > limit:
        raise invalid(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    if not reader.eof:
        raise invalid(f"failed to decompress the request body: the {name} data ends early")
    if reader.unused_data:
        raise invalid(f"failed to decompress the request body: {len(reader.unused_data)} bytes follow the {name} data")
    return data


def choose(accepted: str | None) -> str | None:
    """The coding for an answer by the request's ``Accept-Encoding``: the highest weight, the first listed of equals.

    None stands for identity, which is also the answer to what is not understood.
    """
    best, best_weight = None, 0.0
    for item in (accepted or "").split(","):
        name, _, parameter = item.partition(";")
        name = name.strip().lower()
        if name not in ("gzip", "deflate", "identity"):
            continue
        weight = _weight(parameter)
        if weight > best_weight:
            best, best_weight = name, weight
    return None if best == "identity" else best


def encode(parts: Iterable[Buffer], encoding: str) -> bytes:
    """The parts of an answer, joined and compressed."""
    writer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    return b"".join([*(writer.compress(part) for part in parts), writer.flush()])


def _weight(parameter: str) -> float:
    key, _, value = parameter.partition("=")
    if key.strip().lower() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
