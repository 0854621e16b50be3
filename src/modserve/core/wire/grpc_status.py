"""The names of gRPC's status codes (grpc/doc/statuscodes.md), each at the place of its number."""

from typing import Final

NAMES: Final = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)


def name_of(number: int) -> str:
    """Return the name of a code; the number itself for a code unknown in gRPC."""
    return NAMES[number] if 0 <= number < len(NAMES) else str(number)
