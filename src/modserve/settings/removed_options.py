"""Options of earlier versions that are still accepted, with a warning that says why they were removed."""

from collections.abc import Mapping

REMOVED: Mapping[str, str] = {
    "grpc-engine": "it was removed, because there is only one gRPC server now (formerly called native)",
}
