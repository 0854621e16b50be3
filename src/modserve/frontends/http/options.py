"""What the server's settings say about the HTTP front end."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """All but the address and the port."""

    max_json: int = 64 * 1024 * 1024
    """The longest JSON accepted in a request, in bytes; binary tensor data is not limited."""
