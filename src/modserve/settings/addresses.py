"""The addresses in options: hosts, Unix sockets, and where operators call."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator

from modserve.core.runtime import unix_socket

from .options import option

_ADMIN = re.compile(r"(?P<host>|\[[0-9A-Fa-f:.]+\]|[^\s/?#,@:\[\]]+):(?P<port>[0-9]{1,5})")


def _address(text: str) -> str:
    """The help does not say that it may also be a socket that the process has inherited."""
    unix_socket.check(text)
    return text


def _admin_address(text: str) -> str:
    if not text or unix_socket.is_socket(text):
        return _address(text)
    match = _ADMIN.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"'{text}' is not an address; expected HOST:PORT, :PORT or unix:PATH")
    return text


Address = Annotated[str, AfterValidator(_address)]
AdminAddress = Annotated[str, AfterValidator(_admin_address)]
ADMIN: Any = option(
    "",
    "Address for operators, HOST:PORT, :PORT or unix:PATH, that serves all that HTTP serves, and metrics. The other "
    "ports then do not load models, list the repository, change routings or settings, or have pages for browsers.",
    default_in_words="none",
)
METRICS: Any = option(
    "",
    "Address that the metrics port listens on; unix:PATH for a Unix socket. With --admin-address there is such a port "
    "only if this or --metrics-port is set.",
    default_in_words="that of HTTP; 127.0.0.1 if that is a Unix socket",
)
