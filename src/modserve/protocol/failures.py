"""Failure details besides the message: statuses and headers over HTTP, codes and metadata over gRPC."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from modserve.core.errors import Code, ModserveError, OverloadedError, PermissionDeniedError, UnauthenticatedError
from modserve.core.requests.memory import MemoryExhaustedError
from modserve.protocol.compression import ACCEPTED, UnsupportedEncodingError


@dataclass(frozen=True, slots=True)
class Spelling:
    """A code as an HTTP status, and as the number and name of a gRPC status (grpc/grpc, doc/statuscodes.md)."""

    http: int
    grpc: int
    grpc_name: str


STATUS = {
    Code.UNKNOWN: Spelling(400, 2, "UNKNOWN"),
    Code.INTERNAL: Spelling(500, 13, "INTERNAL"),
    Code.NOT_FOUND: Spelling(404, 5, "NOT_FOUND"),
    Code.INVALID_ARG: Spelling(400, 3, "INVALID_ARGUMENT"),
    Code.UNAVAILABLE: Spelling(503, 14, "UNAVAILABLE"),
    Code.UNSUPPORTED: Spelling(501, 12, "UNIMPLEMENTED"),
    Code.ALREADY_EXISTS: Spelling(400, 6, "ALREADY_EXISTS"),
    Code.CANCELLED: Spelling(400, 1, "CANCELLED"),
}

NO_MODEL_MEMORY = Spelling(507, 8, "RESOURCE_EXHAUSTED")
TOO_MANY = Spelling(429, 8, "RESOURCE_EXHAUSTED")
NO_MEMORY = Spelling(503, 8, "RESOURCE_EXHAUSTED")
DEADLINE = Spelling(503, 4, "DEADLINE_EXCEEDED")
UNAUTHENTICATED = Spelling(401, 16, "UNAUTHENTICATED")
PERMISSION_DENIED = Spelling(403, 7, "PERMISSION_DENIED")

_MOST_BYTES = 4096
_MOST_ESCAPED = 2048
"""Bytes of a message. gRPC sends all but printable ASCII as three characters a byte, and its clients refuse more than
8 KiB of them."""


class DeadlinePassedError(ModserveError):
    """The client's own deadline passed while its request waited, which gRPC has a status for."""

    def __init__(self) -> None:
        super().__init__(Code.UNAVAILABLE, "Deadline Exceeded")

    def __reduce__(self) -> tuple[type["DeadlinePassedError"], tuple[()]]:
        return type(self), ()


class NoModelMemoryError(ModserveError):
    """Lack of memory for a model or its work, reported to a platform that can unload others."""


_NO_MEMORY_TEXT = re.compile(
    r"out ?of ?memory|\bOOM\b|MemoryError|(Failed|failed|unable) to allocate|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUD\w+_STATUS_NOT_INITIALIZED|No space left on device|no memory for model|--model-memory-limit allows",
    re.IGNORECASE,
)
"""Texts of memory failures from engines, the system and the server."""


def is_memory_failure(error: ModserveError) -> bool:
    """True if a load or an inference has failed for lack of memory, as far as its message tells."""
    return isinstance(error, MemoryExhaustedError) or _NO_MEMORY_TEXT.search(error.message) is not None


def spelling(error: ModserveError) -> Spelling:
    """Return the error's HTTP status and gRPC code."""
    if isinstance(error, DeadlinePassedError):
        return DEADLINE
    if isinstance(error, MemoryExhaustedError):
        return NO_MEMORY
    if isinstance(error, UnauthenticatedError):
        return UNAUTHENTICATED
    if isinstance(error, NoModelMemoryError):
        return NO_MODEL_MEMORY
    if isinstance(error, PermissionDeniedError):
        return PERMISSION_DENIED
    return TOO_MANY if isinstance(error, OverloadedError) and error.too_many else STATUS[error.code]


def grpc_name(error: ModserveError) -> str:
    return spelling(error).grpc_name


def headers(error: ModserveError) -> Mapping[str, str]:
    """Return the headers of its response over HTTP.

    Retry-After (RFC 9110, section 10.2.3) counts whole seconds; it is rounded up.
    """
    if isinstance(error, OverloadedError) and error.retry_after_ns:
        return {"Retry-After": str(-(-error.retry_after_ns // 10**9))}
    if isinstance(error, UnauthenticatedError | PermissionDeniedError):
        return {"WWW-Authenticate": error.challenge}
    return {"Accept-Encoding": ACCEPTED} if isinstance(error, UnsupportedEncodingError) else {}


def trailers(error: ModserveError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata of its response over gRPC: when clients that retry by themselves do so (gRFC A6)."""
    if isinstance(error, OverloadedError) and error.retry_after_ns:
        return (("grpc-retry-pushback-ms", str(-(-error.retry_after_ns // 10**6))),)
    return ()


def public_message(error: ModserveError) -> str:
    """Return the message as clients get it: at most 4 KiB of UTF-8, or 2 KiB where it is not printable ASCII alone.

    Messages repeat what the client sent, which may be megabytes. Of longer ones the middle is left out.
    """
    message = error.message
    if len(message) <= _MOST_ESCAPED // 4:  # no character takes more than 4 bytes
        return message
    most = _MOST_BYTES if message.isascii() and message.isprintable() else _MOST_ESCAPED
    if len(message) <= most and len(message.encode()) <= most:
        return message
    note = f" [... {len(message)} characters in all ...] "
    end = most // 4
    first, last = message[: most - end], message[-end:]
    start = first.encode()[: most - end - len(note)].decode(errors="ignore")
    return start + note + last.encode()[-end:].decode(errors="ignore")
