"""Rules for requests of browsers, which carry requests of any page to any server that their machine reaches.

Two things would make strangers' pages dangerous. A page may send what needs no preflight (Fetch standard), such as a
POST of plain text, to another origin: it cannot read the response, but what it has ordered is done. And a page may have
the name of its own host lead to the address of this server (DNS rebinding): then it even reads the responses, since
browsers take both for the same origin.

All is decided by `MARKS`, headers that pages can neither leave away nor make up. A client that sends none of them is no
browser, and these rules do not apply to it. Browsers send

- Origin with whatever is not a plain GET, or HEAD, of their own origin;
- Sec-Fetch-Site with every request whose address cannot have been rebound: to https, and to this machine by name;
- Accept-Language with every request. A page may change what it says, but not that it is there. Some clients that are no
  browsers send it, too: of those, node.js says so by Sec-Fetch-Mode without Sec-Fetch-Site.
"""

import ipaddress
import re
import socket
import threading
from collections.abc import Collection, Mapping

ANY = "*"
ORIGIN, SITE, MODE = b"origin", b"sec-fetch-site", b"sec-fetch-mode"
LANGUAGE, FORWARDED_HOST = b"accept-language", b"x-forwarded-host"
MARKS = frozenset({ORIGIN, SITE, MODE, LANGUAGE, FORWARDED_HOST})
"""Headers that are read besides Host."""

_READING = frozenset({b"GET", b"HEAD", b"OPTIONS"})
"""Methods by which nothing is ordered (RFC 9110, 9.2.1)."""
_OWN_SITES = frozenset({b"same-origin", b"none"})
"""Sec-Fetch-Site of a page of this origin, and of an address that a person typed. Other ports are other origins."""
_PRIVATE = ("localhost", "local", "internal", "svc", "home.arpa")
"""Ends of names that cannot be registered (RFC 6761, 6762 and 8375, ICANN's .internal, Kubernetes' services): the names
of strangers' pages never end so."""
_PORT = re.compile(r":[0-9]*$")
_machine = {socket.gethostname().lower()}
"""The names of this machine, as far as they are known."""
_MAX_SHOWN = 100


def learn_names() -> threading.Thread:
    """Ask for this machine's full name on a thread: that may take seconds without a name server."""
    asking = threading.Thread(target=lambda: _machine.add(socket.getfqdn().lower()), name="host name", daemon=True)
    asking.start()
    return asking


def name_refusal(host: bytes, marks: Mapping[bytes, bytes], allowed: Collection[str]) -> str:
    """Return why a request is refused that a page of another host may have sent under that host's name.

    Empty if it is served. `allowed` are names besides those of the machine.
    """
    if ANY in allowed or SITE in marks or (ORIGIN not in marks and (LANGUAGE not in marks or MODE in marks)):
        return ""
    name = _PORT.sub("", host.decode("latin-1").lower()).rstrip(".")
    if name in allowed or name in _machine or _is_private(name):
        return ""
    return (
        f"a browser used the host name '{_shorten(name)}', which may belong to another site: "
        f"--http-allow-host={_shorten(name)} allows it"
    )


def _is_private(name: str) -> bool:
    """True if no stranger can own the name: an address, a name without a dot, or one that cannot be registered."""
    if "." not in name or name.endswith(tuple(f".{end}" for end in _PRIVATE)):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def order_refusal(
    method: bytes,
    host: bytes,
    marks: Mapping[bytes, bytes],
    allowed: Collection[str],
    secure: bool,
    for_operators: bool = False,
) -> str:
    """Return why a page's order is refused; empty if it is allowed. `allowed` are origins, `secure` is for TLS.

    `for_operators`: no option allows other origins at this port.
    """
    if method in _READING or ANY in allowed:
        return ""
    origin, site = marks.get(ORIGIN), marks.get(SITE)
    if origin is None and site is None:
        return ""
    text = "" if origin is None else origin.decode("latin-1").lower()
    if text in allowed:
        return ""
    if site is None:
        hosts = [host, *marks.get(FORWARDED_HOST, b"").split(b",")]
        if any(_is_own(text, each.decode("latin-1").strip().lower(), secure) for each in hosts if each):
            return ""
    elif site in _OWN_SITES:
        return ""
    shown = _shorten(text)
    if for_operators:
        place = f"'{shown}'" if shown else "another site"
        return f"a page of {place} may not call the admin port"
    if not text:
        return "pages of other sites may not call this server; --http-cors-allow-origin=ORIGIN allows it"
    return f"a page of '{shown}' may not call this server; --http-cors-allow-origin={shown} allows it"


def _is_own(origin: str, host: str, secure: bool) -> bool:
    """True if the origin is that of `host`. A proxy may have changed the scheme."""
    scheme, _, authority = origin.partition("://")
    if scheme not in ("http", "https") or (secure and scheme != "https"):
        return False
    default = ":443" if scheme == "https" else ":80"
    return authority.removesuffix(default) == host.removesuffix(default)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
