"""Protection against hostile web pages: a browser sends requests of any page to any server in reach of its machine.

A page can attack in two ways. Without a preflight (Fetch standard), it may send requests such as a POST of plain text
to another origin: it cannot read the response, but the call is carried out. And it may point its own host name at the
address of this server (DNS rebinding): then it can even read the responses, because the browser sees one origin.

The decision rests on `MARKS`, headers that pages can neither omit nor forge. A client that sends none of them is not a
browser, and these rules do not apply to it. Browsers send

- Origin with every request except a plain GET or HEAD to their own origin;
- Sec-Fetch-Site with every request to an address that cannot be rebound: https, and this machine by name;
- Accept-Language with every request. A page may change its value, but cannot remove it. Some other clients send it,
  too; among them, node.js is recognised by Sec-Fetch-Mode without Sec-Fetch-Site.
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
"""Headers that are evaluated besides Host."""

_READING = frozenset({b"GET", b"HEAD", b"OPTIONS"})
"""Methods that change nothing (RFC 9110, 9.2.1)."""
_OWN_SITES = frozenset({b"same-origin", b"none"})
"""Sec-Fetch-Site of a page of this origin, and of an address typed by a user. Other ports are other origins."""
_PRIVATE = ("localhost", "local", "internal", "svc", "home.arpa")
"""Suffixes of names that cannot be registered (RFC 6761, 6762 and 8375, ICANN's .internal, Kubernetes' services), and
so cannot belong to another site."""
_PORT = re.compile(r":[0-9]*$")
_machine = {socket.gethostname().lower()}
"""Known names of this machine."""
_MAX_SHOWN = 100


def learn_names() -> threading.Thread:
    """Look up this machine's full name on a thread: without a name server, that may take seconds."""
    asking = threading.Thread(target=lambda: _machine.add(socket.getfqdn().lower()), name="host name", daemon=True)
    asking.start()
    return asking


def name_refusal(host: bytes, marks: Mapping[bytes, bytes], allowed: Collection[str]) -> str:
    """Return why a request is refused that may come from a page of another site under that site's host name.

    Empty if the request is allowed. `allowed`: host names besides the machine's own.
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
    """True if no other site can own the name: an address, a name without a dot, or one that cannot be registered."""
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
    """Return why a page's state-changing request is refused; empty if it is allowed.

    `allowed`: permitted origins. `secure`: the port uses TLS. `for_operators`: no option allows other origins here.
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
    """True if the origin matches `host`. The scheme may differ behind a proxy."""
    scheme, _, authority = origin.partition("://")
    if scheme not in ("http", "https") or (secure and scheme != "https"):
        return False
    default = ":443" if scheme == "https" else ":80"
    return authority.removesuffix(default) == host.removesuffix(default)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
