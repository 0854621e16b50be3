"""What the server's settings say about the gRPC front end."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """All but the address and the port."""
