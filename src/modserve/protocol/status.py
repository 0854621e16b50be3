"""The one table that spells the core's error codes on both wires (Triton's, HTTP server and gRPC server)."""

from dataclasses import dataclass

from modserve.core.errors import Code

MIME_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Spelling:
    """A code as an HTTP status, and as the number of a gRPC status."""

    http: int
    grpc: int


STATUS = {
    Code.UNKNOWN: Spelling(400, 2),
    Code.INTERNAL: Spelling(500, 13),
    Code.NOT_FOUND: Spelling(404, 5),
    Code.INVALID_ARG: Spelling(400, 3),
    Code.UNAVAILABLE: Spelling(503, 14),
    Code.UNSUPPORTED: Spelling(501, 12),
    Code.ALREADY_EXISTS: Spelling(400, 6),
    Code.CANCELLED: Spelling(400, 1),
}
