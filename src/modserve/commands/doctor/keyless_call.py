"""HTTP call without a key, to learn about a server from its response."""

import re
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple

from modserve.client.address import CONNECT_SECONDS, Access, Address
from modserve.client.http_sync import UnixConnection

from ..errors import UnreachableError

_LARGEST = 65_536
_NO_ID = {"X-Request-ID": "doctor has none"}
"""Invalid id, because of its spaces: the process that responds makes one."""
_OWN_ID = re.compile(r"([0-9a-f]{10})-[0-9a-f]+")
"""An id that a server has made. It begins with the name of its process."""


class StatusText(NamedTuple):
    """Response. `software` names the gateways it passed, `process` the one that made it; empty if unknown."""

    status: int
    text: str
    software: str = ""
    process: str = ""


def ask(address: Address, method: str, path: str) -> StatusText:
    """Make a call and return the response. It reveals nothing, so certificates are not checked.

    Raises UnreachableError.
    """
    place = address.host, address.port
    connection: HTTPConnection
    if address.socket:
        connection = UnixConnection(address.socket, CONNECT_SECONDS)
    elif address.secure:
        context = Access(insecure=True).context()
        connection = HTTPSConnection(*place, timeout=CONNECT_SECONDS, context=context)
    else:
        connection = HTTPConnection(*place, timeout=CONNECT_SECONDS)
    try:
        body = b"{}" if method == "POST" else None
        headers = _NO_ID | ({"Content-Type": "application/json"} if body else {})
        connection.request(method, f"{address.prefix}{path}", body, headers)
        response = connection.getresponse()
        text = response.read(_LARGEST).decode(errors="replace")
        own = _OWN_ID.fullmatch(response.headers.get("X-Request-ID", ""))
        software = response.headers.get("Via") or response.headers.get("Server") or ""
        return StatusText(response.status, text, software[:100], own[1] if own else "")
    except (OSError, HTTPException) as error:
        raise UnreachableError(f"cannot reach {address}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        connection.close()
