"""How a failure is told beside its message: statuses and headers over HTTP, codes and metadata over gRPC."""

from collections.abc import Mapping
from types import MappingProxyType

from modserve.core.errors import ModserveError, OverloadedError
from modserve.core.memory import MemoryExhaustedError

from .compression import ACCEPTED, UnsupportedEncodingError
from .status import STATUS, Spelling

TOO_MANY = Spelling(429, 8)
"""Too Many Requests, RESOURCE_EXHAUSTED."""
NO_MEMORY = Spelling(503, 8)
"""Service Unavailable, RESOURCE_EXHAUSTED."""
_NONE: Mapping[str, str] = MappingProxyType({})


def spelling(error: ModserveError) -> Spelling:
    """Its status over HTTP and its code over gRPC."""
    if isinstance(error, MemoryExhaustedError):
        return NO_MEMORY
    return TOO_MANY if isinstance(error, OverloadedError) and error.too_many else STATUS[error.code]


def headers(error: ModserveError) -> Mapping[str, str]:
    """The headers of its answer over HTTP.

    Retry-After (RFC 9110, section 10.2.3) counts whole seconds; it is rounded up.
    """
    if isinstance(error, OverloadedError) and error.retry_after_ns:
        return {"Retry-After": str(-(-error.retry_after_ns // 10**9))}
    return {"Accept-Encoding": ACCEPTED} if isinstance(error, UnsupportedEncodingError) else _NONE


def trailers(error: ModserveError) -> tuple[tuple[str, str], ...]:
    """The trailing metadata of its answer over gRPC: when clients that retry by themselves do so (gRFC A6)."""
    if isinstance(error, OverloadedError) and error.retry_after_ns:
        return (("grpc-retry-pushback-ms", str(-(-error.retry_after_ns // 10**6))),)
    return ()
