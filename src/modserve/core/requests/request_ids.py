"""Request ids for tracing across systems: X-Request-ID over HTTP, the metadata ``x-request-id`` over gRPC.

They differ from the protocol's ``id`` of a request, which is the client's alone and need not be unique. A client's id
is used if it is valid (`check`). Other ids are made when needed: when a line about the request is logged, or with
each request if so configured.
"""

import os
import re
from itertools import count
from typing import TYPE_CHECKING, Final

from .request import InferenceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER: Final = "x-request-id"

MOST: Final = 128
"""Maximum number of characters of an id."""

INVALID: Final = "\n"
"""Stand-in for a client's unusable id; `choose` replaces it."""

_VALID: Final = re.compile(r"[!-~]{1,128}")
_PREFIX: Final = os.urandom(5).hex() + "-"
_numbers: Final = count(1)


def make() -> str:
    """Return a new id: this process's prefix, and a number. On any thread."""
    return _PREFIX + hex(next(_numbers))[2:]


def check(value: str) -> str:
    """Check a client's id: printable ASCII without spaces; `INVALID` if it is anything else."""
    return value if _VALID.fullmatch(value) is not None else INVALID


def choose(value: str) -> str:
    """Return the result of `check`, or a new id in place of `INVALID`."""
    return make() if value == INVALID else value


def of(request: InferenceRequest) -> str:
    """Return the id of a request, making one if it has none."""
    if not request.request_id:
        request.request_id = make()
    return request.request_id


def list_ids(requests: "Iterable[InferenceRequest]") -> str:
    """Return the ids of the requests of a batch, for a line about all of them."""
    return join([of(request) for request in requests])


def join(ids: list[str], most: int = 8) -> str:
    """Join ids for a line about all of them, at most `most` in full."""
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(ids[:most]) + more
