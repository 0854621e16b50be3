"""The header blocks of gRPC over HTTP/2 (grpc/grpc, doc/PROTOCOL-HTTP2.md): requests understood, responses written."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote_from_bytes

from modserve.access.credentials import Credentials, of_headers
from modserve.core.requests import request_ids
from modserve.core.requests.origin import Origin, lines_of
from modserve.frontends.http2.block_decoder import Fields
from modserve.frontends.http2.headers import Head, MalformedError, block, literal, status

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
_CONTENT_TYPE: Final = b"\x0f\x10\x10application/grpc"
HEADERS: Final = status(200) + _CONTENT_TYPE
COMPRESSED: Final = {name: HEADERS + literal(b"grpc-encoding", name.encode()) for name in CODINGS}
TRAILERS: Final = literal(b"grpc-status", b"0")

_REQUEST_ID: Final = request_ids.HEADER.encode()
_ACCEPT: Final = literal(b"grpc-accept-encoding", ACCEPTED)
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {b"H": 3600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 1000, b"n": 1}
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
"""What a message has as it is: printable ASCII but the percent sign."""


class GrpcHead(Head):
    """What a request's header block says; `refusal` is the header block that answers what is no call that is served."""

    def __init__(
        self, fields: Fields, rpcs: Mapping[str, Rpc], codings: Sequence[str], most: int, size: int = -1
    ) -> None:
        """`codings`: those for responses, the best one first; `most`: bytes that a header list may have; `size`: as
        `Head` has it.
        """
        super().__init__(fields, size)
        self.rpc: Rpc | None = None
        """None for what is refused."""
        self.timeout_ns = -1
        """-1: none."""
        self.encoding = ""
        self.coding = ""
        """Of the responses."""
        self.refusal = b""
        self.request_id = ""
        """As `core.requests.request_ids` has it; empty if the client sent none."""
        self.refusal_status = UNKNOWN
        """What clients take from a refusal: one with no status but HTTP's is unknown to them."""
        self._origin: Origin | None = None
        self._credentials: Credentials | None = None
        self._metadata: tuple[tuple[str, str | bytes], ...] | None = None
        kind = accepted = b""
        for name, value in fields:
            if name == b"content-type":
                kind = value
            elif name == b"grpc-timeout":
                match = _TIMEOUT.fullmatch(value)
                if match is None:
                    raise MalformedError(f"{value!r} is not a grpc-timeout")
                self.timeout_ns = int(match[1]) * _UNITS[match[2]]
            elif name == _REQUEST_ID:
                self.request_id = request_ids.received(value.decode("latin-1"))
            elif name == b"grpc-encoding":
                self.encoding = value.decode("latin-1")
            elif name == b"grpc-accept-encoding":
                accepted = value
        if codings and accepted:
            accepts = accepted.decode("latin-1").replace(" ", "").split(",")
            self.coding = next((name for name in codings if name in accepts), "")
        self.refusal = self._judge(kind, rpcs, most)

    def _judge(self, kind: bytes, rpcs: Mapping[str, Rpc], most: int) -> bytes:
        if self.pseudo[b":method"] != b"POST":
            return status(405) + literal(b"allow", b"POST")
        if self.size > most:  # before the rest, of which there may be only a part
            self.refusal_status = RESOURCE_EXHAUSTED
            return refused(
                RESOURCE_EXHAUSTED, f"the call has {self.size} bytes of metadata, at most {most} are possible"
            )
        if not kind.startswith(b"application/grpc") or kind[16:17] not in (b"", b"+", b";"):
            return status(415)
        rpc = rpcs.get(self.pseudo[b":path"].decode("latin-1"))
        self.refusal_status = UNIMPLEMENTED
        if rpc is None:
            return refused(UNIMPLEMENTED, "Method not found!")
        if self.encoding not in _READ:
            text = f"grpc-encoding '{self.encoding}' is not supported; supported are {ACCEPTED.decode()}"
            return HEADERS + _ACCEPT + trailers(UNIMPLEMENTED, text)
        self.rpc = rpc
        return b""

    @property
    def credentials(self) -> Credentials:
        """What shows the caller."""
        if self._credentials is None:
            self._credentials = of_headers(self.fields)
        return self._credentials

    def origin(self, peer: object) -> Origin:
        """Origin, over a connection of this peer's; the same each time."""
        if self._origin is None:
            call = self.pseudo[b":path"].decode("latin-1") if self.rpc is None else self.rpc.method.name
            self._origin = Origin(peer, lines_of(self.fields), call)
        return self._origin

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        if self._metadata is None:
            self._metadata = tuple(_metadata(self.fields))
        return self._metadata


def _metadata(fields: Fields) -> list[tuple[str, str | bytes]]:
    """Names and values; what is binary is decoded, and left out if it cannot be."""
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
    """The header block of a response, which repeats the request's id."""
    return block + literal(_REQUEST_ID, request_id.encode())


def message_text(message: str) -> bytes:
    """A status's message as its header has it: all but printable ASCII percent-encoded."""
    return quote_from_bytes(message.encode(errors="replace"), _SAFE).encode()


def trailers(code: int, message: str = "", metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """The header block that ends a call."""
    fields = [(b"grpc-status", b"%d" % code)]
    if message:
        fields.append((b"grpc-message", message_text(message)))
    fields += [(name.encode(), value.encode()) for name, value in metadata]
    return block(fields)


def refused(code: int, message: str, metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """The header block of a call that ends without anything before."""
    return HEADERS + trailers(code, message, metadata)
