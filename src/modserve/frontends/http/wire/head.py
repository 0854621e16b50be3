"""Heads of requests, and the rules that they must follow to be served (RFC 9112)."""

import re
from collections.abc import Collection
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from modserve.frontends import browsers
from modserve.settings import HttpSettings

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
"""RFC 3986, 3.2.2 and 3.2.3; empty for a target without an authority."""

# A longer version may be none at all; the application says so.
_CALL = re.compile(
    rb"/v2/models/([^/?#]+)(?:/versions/(?:([0-9]{1,18})|([a-z][a-z0-9_-]*)))?"
    rb"/(infer|infer_stream|generate|generate_stream)(?:\?|\Z)"
)
_BINARY = re.compile(rb"/v2/models/[^/?#]+(?:/versions/(?:[0-9]+|[a-z][a-z0-9_-]*))?/infer(?:_stream)?(?:\?|\Z)")
_FORBIDDEN = re.compile(rb"[\x00-\x1f\x7f\\]|%[01][0-9A-Fa-f]|%7[Ff]|%5[Cc]|/(?:\.|%2[Ee]){1,2}(?=/|\Z)")
"""Parts of a path that two readers may understand differently: control characters, backslashes, and dot segments."""
REQUEST_LINE = re.compile(rb"(GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH) (/[!\"$-~]*) HTTP/(1\.[01])")
"""Request lines as most clients write them."""
_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)

Named: TypeAlias = tuple[str, int | None, str]
"""A model, and its version or that one's label, by which a path names it."""
_NO_MODEL: Named = ("", None, "")

_VERSIONS = ("1.1", "1.0")

_LONGEST_NUMBER = 20
"""Digits of a Content-Length."""

_MAX_SHOWN = 100
"""Characters of a client's header that a refusal repeats."""


class RefusedRequestError(Exception):
    """Refusal of a request by `status` and `message`; the connection cannot go on after it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestLine:
    """A request line that has been checked, and the call that it asks for.

    `direct`: the port runs that by itself. `binary`: the body may be JSON of the length that a header states, followed
    by binary data. `renamed`: it may be a platform's name for a call. Raises RefusedRequestError.
    """

    __slots__ = (
        "binary",
        "direct",
        "method",
        "model",
        "model_version",
        "old",
        "renamed",
        "route",
        "target",
        "version",
        "version_label",
    )

    def __init__(self, method: bytes, target: bytes, version: str, inferences: bool, routes: Collection[bytes]) -> None:
        check_path(target)
        if version not in _VERSIONS:
            text = f"HTTP/{version} is not supported on this port, only HTTP/1.1 and HTTP/1.0 are"
            raise RefusedRequestError(505, text)
        if method == b"CONNECT":
            # What follows would not be a body but another protocol, none of which may be taken for a request.
            raise RefusedRequestError(501, "the method CONNECT is not supported: this server is not a proxy")
        named, self.route = match_call(target, inferences, routes) if method == b"POST" else (None, b"")
        self.method = method
        self.target = target
        self.version = version
        self.old = version == "1.0"
        self.direct = named is not None
        self.model, self.model_version, self.version_label = _NO_MODEL if named is None else named
        self.renamed = False
        self.binary = _BINARY.match(target) is not None


class HeadLines:
    """Target and header lines of a head."""

    __slots__ = ("as_sent", "headers", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        """Headers with names in lower case; no trailers."""
        self.as_sent: list[tuple[str, str]] = []
        """Headers with names as sent, if any are forwarded."""

    def without_upgrade(self, method: bytes, version: str) -> bytes:
        """Return the head, as if it had not asked for another protocol."""
        lines = [b"%b %b HTTP/%b" % (method, self.target, version.encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"


def check_host(hosts: list[bytes], old: bool) -> None:
    """Check Host by RFC 9112, 3.2: HTTP/1.1 needs exactly one; several, or one that is no host, are never allowed."""
    if len(hosts) > 1 or (not hosts and not old):
        raise RefusedRequestError(400, f"a request needs exactly one Host header, this one has {len(hosts)}")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        raise RefusedRequestError(400, f"the Host header is not a host and port: '{_shorten(hosts[0])}'")


def check_browser(method: bytes, host: bytes, marks: dict[bytes, bytes], options: HttpSettings) -> None:
    """Refuse what a stranger's page has a browser send."""
    secure = options.use_ssl or options.use_ssl_mutual
    origins = options.cors_allow_origin
    refusal = browsers.order_refusal(method, host, marks, origins, secure, options.for_operators)
    if not refusal and not secure:  # with TLS, a browser has compared the name with the certificate
        refusal = browsers.name_refusal(host, marks, options.allow_host | {options.address})
    if refusal:
        raise RefusedRequestError(403, refusal)


def length_of(value: bytes) -> int:
    digits = value.rstrip(b" \t").lstrip(b"0")
    if len(digits) > _LONGEST_NUMBER:
        raise RefusedRequestError(400, f"the Content-Length is not a length: '{_shorten(value)}'")
    return int(digits or b"0")


def check_transfer_encoding(value: bytes, old: bool, chunked: bool) -> None:
    """Check Transfer-Encoding by RFC 9112, 6.1; `chunked` by an earlier line."""
    if old:
        raise RefusedRequestError(400, "a request of HTTP/1.0 cannot have a Transfer-Encoding")
    if chunked or value.lower() != b"chunked":
        raise RefusedRequestError(501, f"the Transfer-Encoding '{_shorten(value)}' is not supported, only 'chunked' is")


def _shorten(value: bytes) -> str:
    text = value[: _MAX_SHOWN + 1].decode("latin-1")
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def check_path(target: bytes) -> None:
    """Refuse a path that routes and permissions could read differently. Raises RefusedRequestError."""
    path = target.partition(b"?")[0]
    match = _FORBIDDEN.search(path)
    if match is not None:
        raise RefusedRequestError(
            400,
            f"the path has '{_shorten(match[0])}' at byte {match.start()}: control characters, backslashes and the "
            "segments '.' and '..' are not permitted, encoded or not",
        )


def without_origin(target: bytes) -> bytes:
    """Return the target without scheme and authority, which a client may send as well (RFC 9112, 3.2.2)."""
    match = _ORIGIN.match(target)
    if match is None:
        return target
    rest = target[match.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def match_call(target: bytes, inferences: bool, routes: Collection[bytes]) -> tuple[Named | None, bytes]:
    """Return the model of a call that bypasses the application, and the path of one that is no inference.

    None for a call of the application's.
    """
    match = _CALL.match(target)
    if match is None:
        path = target.partition(b"?")[0]
        return (_NO_MODEL, path) if path in routes else (None, b"")
    route = b"" if match[4] == b"infer" else target[: match.end(4)]
    if not (inferences if not route else b"/v2/models/{model}/" + match[4] in routes):
        return None, b""
    name = unquote_to_bytes(match[1]).decode(errors="replace")
    return (name, int(match[2]) if match[2] else None, match[3].decode() if match[3] else ""), route
