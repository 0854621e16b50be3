"""Headers that become parameters of an inference request (protocol: parameters extension, forwarded headers)."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from modserve.core.errors import invalid
from modserve.core.requests.request import InferenceRequest

Forwarded: TypeAlias = tuple[tuple[str, str], ...]
"""Names, each once, and values."""

_RESERVED = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)


def matching(pattern: re.Pattern[str] | None, headers: Iterable[tuple[str, str]]) -> Forwarded:
    """Return the headers with names that contain the pattern. Repeated ones become one value, joined by commas."""
    if pattern is None:
        return ()
    values: dict[str, str] = {}
    for name, value in headers:
        if pattern.search(name):
            values[name] = f"{values[name]}, {value}" if name in values else value
    return tuple(values.items())


def from_metadata(pattern: re.Pattern[str] | None, metadata: Iterable[tuple[str, str | bytes]] | None) -> Forwarded:
    """Return the `matching` gRPC metadata. Binary values (keys that end in ``-bin``) are not text and are left out."""
    if pattern is None:
        return ()
    return matching(pattern, [(key, value) for key, value in metadata or () if isinstance(value, str)])


def with_headers(request: InferenceRequest, forwarded: Forwarded) -> InferenceRequest:
    """Return `request` with the headers among its parameters; a header replaces a parameter of its name.

    Raises INVALID_ARG for names of the protocol's own.
    """
    if not forwarded:
        return request
    for name, _ in forwarded:
        if name in _RESERVED or name.startswith("triton_"):
            raise invalid(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    return replace(request, parameters={**request.parameters, **dict(forwarded)})
