"""The header blocks of gRPC over HTTP/2 (grpc/grpc, doc/PROTOCOL-HTTP2.md): requests understood, responses written."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Final, cast
from urllib.parse import quote_from_bytes

from modserve.access import credentials
from modserve.access.credentials import Credentials
from modserve.core.requests import request_ids
from modserve.core.requests.origin import Origin, lines_of
from modserve.frontends.http2.fields import OWN, FieldNames, HeaderField
from modserve.frontends.http2.headers import Head, MalformedError, Pairs, block, literal, status

from .rpc import Rpc

CODINGS: Final = ("gzip", "deflate")
_READ: Final = frozenset(("", "identity", *CODINGS))
ACCEPTED: Final = b"identity, deflate, gzip"

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

# content-type is number 31 of the static table, in a literal that enters none (RFC 7541, section 6.2.2).
_TYPE: Final = b"application/grpc"
_CONTENT_TYPE: Final = b"\x0f\x10\x10" + _TYPE
HEADERS: Final = status(200) + _CONTENT_TYPE
COMPRESSED: Final = {name: HEADERS + literal(b"grpc-encoding", name.encode()) for name in CODINGS}
TRAILERS: Final = literal(b"grpc-status", b"0")

_REQUEST_ID: Final = request_ids.HEADER.encode()
_ACCEPT: Final = literal(b"grpc-accept-encoding", ACCEPTED)
_DIGITS: Final = 8
_UNITS: Final = {b"H": 3600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 1000, b"n": 1}

# Kinds of fields.
_CONTENT_TYPE_FIELD: Final = OWN
_TIMEOUT: Final = OWN + 1
_ENCODING: Final = OWN + 2
_ACCEPTED_ENCODINGS: Final = OWN + 3
_REQUEST_ID_FIELD: Final = OWN + 4
_CREDENTIAL: Final = OWN + 5
NAMES: Final = FieldNames(
    {
        b"content-type": _CONTENT_TYPE_FIELD,
        b"grpc-timeout": _TIMEOUT,
        b"grpc-encoding": _ENCODING,
        b"grpc-accept-encoding": _ACCEPTED_ENCODINGS,
        _REQUEST_ID: _REQUEST_ID_FIELD,
        **dict.fromkeys(credentials.HEADERS, _CREDENTIAL),
    }
)
_NOT_METADATA: Final = frozenset(
    (
        b"te",
        b"content-type",
        b"content-length",
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
        b"grpc-message-type",
    )
)
_SAFE: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Characters that a message contains as they are: printable ASCII except the percent sign."""


class GrpcHead(Head):
    """The header block of a request, decoded. `refusal` is the header block that answers a call that is not served."""

    def __init__(
        self, fields: list[HeaderField], size: int, rpcs: Mapping[str, Rpc], codings: Sequence[str], most: int
    ) -> None:
        """Decode a header block. `size`: as in `Head`; `codings`: of responses, the best one first; `most`: bytes that
        a header list may have.
        """
        self.rpc: Rpc | None = None
        """Row of the call; None if it is refused."""
        self.timeout_ns = -1
        """-1: none."""
        self.encoding = ""
        self.request_id = ""
        """Id that the client sent (`core.requests.request_ids`); empty if it sent none."""
        self.credentials: Credentials = ()
        """Credentials of the caller."""
        self.refusal = b""
        self.refusal_status = UNKNOWN
        """gRPC status that clients take from the refusal: UNKNOWN if it has no status but HTTP's."""
        self._type = self._accepted = b""
        self._origin: Origin | None = None
        super().__init__(fields, size)
        self.coding = self._choose_coding(codings) if codings and self._accepted else ""
        """Coding of the responses."""
        rpc = rpcs.get(self.path.decode("latin-1"))
        known = rpc is not None and self.method == b"POST" and self._type == _TYPE
        if known and size <= most and self.encoding in _READ:
            self.rpc = rpc
        else:
            self._judge(rpc, most)

    def take(self, kind: int, field: HeaderField) -> None:
        value = field.value
        if kind == _TIMEOUT:
            if field.meaning is None:
                field.meaning = _timeout_ns(value)
            self.timeout_ns = cast(int, field.meaning)
        elif kind == _CONTENT_TYPE_FIELD:
            self._type = value
        elif kind == _REQUEST_ID_FIELD:
            if field.meaning is None:
                field.meaning = request_ids.check(value.decode("latin-1"))
            self.request_id = cast(str, field.meaning)
        elif kind == _ACCEPTED_ENCODINGS:
            self._accepted = value
        elif kind == _ENCODING:
            self.encoding = value.decode("latin-1")
        elif kind == _CREDENTIAL:
            self.credentials = (*self.credentials, field.pair)
        else:
            super().take(kind, field)

    def _choose_coding(self, codings: Sequence[str]) -> str:
        accepts = self._accepted.decode("latin-1").replace(" ", "").split(",")
        return next((name for name in codings if name in accepts), "")

    def _judge(self, rpc: Rpc | None, most: int) -> None:
        """Set `rpc`, or the refusal."""
        kind = self._type
        if self.method != b"POST":
            self.refusal = status(405) + literal(b"allow", b"POST")
        elif self.size > most:  # before the rest, of which there may be only a part
            self.refusal_status = RESOURCE_EXHAUSTED
            text = f"the call has {self.size} bytes of metadata, at most {most} are possible"
            self.refusal = encode_refusal(RESOURCE_EXHAUSTED, text)
        elif not kind.startswith(_TYPE) or kind[16:17] not in (b"", b"+", b";"):
            self.refusal = status(415)
        elif rpc is None:
            self.refusal_status = UNIMPLEMENTED
            self.refusal = encode_refusal(UNIMPLEMENTED, "Method not found!")
        elif self.encoding not in _READ:
            self.refusal_status = UNIMPLEMENTED
            text = f"grpc-encoding '{self.encoding}' is not supported; supported are {ACCEPTED.decode()}"
            self.refusal = HEADERS + _ACCEPT + trailers(UNIMPLEMENTED, text)
        else:
            self.rpc = rpc

    def origin(self, peer: object) -> Origin:
        """Return the origin, over a connection of this peer's; the same each time."""
        if self._origin is None:
            call = self.path.decode("latin-1") if self.rpc is None else self.rpc.method.name
            self._origin = Origin(peer, lines_of(self.pairs), call)
        return self._origin

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return tuple(_metadata(self.pairs))


def _timeout_ns(value: bytes) -> int:
    """Parse a time-out. Raises `MalformedError`."""
    digits, unit = value[:-1], _UNITS.get(value[-1:], 0)
    if not unit or not digits.isdigit() or len(digits) > _DIGITS:
        raise MalformedError(f"{value!r} is not a grpc-timeout")
    return int(digits) * unit


def _metadata(fields: Pairs) -> list[tuple[str, str | bytes]]:
    """Return names and values; binary values are decoded, and left out if they cannot be."""
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name[:1] == b":" or name in _NOT_METADATA:
            continue
        key = name.decode("latin-1")
        if not key.endswith("-bin"):
            metadata.append((key, value.decode("latin-1")))
            continue
        for part in value.split(b","):
            try:
                metadata.append((key, base64.b64decode(part.strip() + b"=" * (-len(part.strip()) % 4), validate=True)))
            except binascii.Error:
                continue
    return metadata


def with_id(block: bytes, request_id: str) -> bytes:
    """Return the header block of a response, with the request's id."""
    return block + literal(_REQUEST_ID, request_id.encode())


def message_text(message: str) -> bytes:
    """Encode a status's message for its header: all but printable ASCII percent-encoded."""
    return quote_from_bytes(message.encode(errors="replace"), _SAFE).encode()


def trailers(code: int, message: str = "", metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return the header block that ends a call."""
    fields = [(b"grpc-status", b"%d" % code)]
    if message:
        fields.append((b"grpc-message", message_text(message)))
    fields += [(name.encode(), value.encode()) for name, value in metadata]
    return block(fields)


def encode_refusal(code: int, message: str, metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return the header block of a call that ends without anything before."""
    return HEADERS + trailers(code, message, metadata)
