"""What the head of a request says, and what it must say for the request to be served (RFC 9112)."""

import re
from collections.abc import Collection
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from modserve.access.credentials import of_headers
from modserve.core.requests import request_ids, trace_context
from modserve.core.requests.origin import lines_of
from modserve.frontends import browsers
from modserve.protocol import compression, header_forwarding
from modserve.protocol.http import deadlines, infer_request
from modserve.protocol.http.request_head import RequestHead
from modserve.settings import HttpSettings

from .reports import FORMAT_HEADER, ON_REQUEST

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
_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)

Named: TypeAlias = tuple[str, int | None, str]
"""A model, and its version or that one's label, by which a path names it."""
_NO_MODEL: Named = ("", None, "")

_VERSIONS = ("1.1", "1.0")
_HEADER_LENGTH = infer_request.HEADER_LENGTH.encode()
_REQUEST_ID = request_ids.HEADER.encode()
_SINGLE = frozenset({_HEADER_LENGTH, b"content-encoding", _REQUEST_ID})
"""Headers of which the last line counts."""

_LONGEST_NUMBER = 20
"""Digits of a Content-Length."""

_MAX_SHOWN = 100
"""Characters of a client's header that a refusal repeats."""


class RefusedRequestError(Exception):
    """The response is `status` with `message`, and the connection cannot go on after it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HeadLines:
    """A head as the parser reports it."""

    __slots__ = ("as_sent", "headers", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        """With names in lower case; no trailers."""
        self.as_sent: list[tuple[str, str]] = []
        """The same with names as sent, if any are forwarded."""

    def without_upgrade(self, method: bytes, version: str) -> bytes:
        """The head, as if it had not asked for another protocol."""
        lines = [b"%b %b HTTP/%b" % (method, self.target, version.encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"


class BodyFraming(NamedTuple):
    """How the body comes. `length` is 0 for one in chunks, and for none."""

    length: int
    expecting: bool  # the client waits for leave to send it (RFC 9110, 10.1.1)
    limited: bool  # it counts against the limit on JSON: all bodies do, unless a header states the length of their JSON


def read_head(
    lines: HeadLines,
    method: bytes,
    version: str,
    keep_alive: bool,
    cors: bytes,
    options: HttpSettings,
    traced: bool,
    inferences: bool,
    routes: Collection[bytes] = (),
    keyed: bool = False,
    origins: frozenset[bytes] = frozenset(),
) -> tuple[RequestHead, BodyFraming]:
    """Check a head and understand it, with the headers of traces if they are `traced`. Raises RefusedRequestError.

    Without `inferences`, it is none of an inference, whatever its target is. `routes` are the paths of other calls that
    go around the application, or its templates where they name models. `keyed`: callers need keys. `origins`: the
    headers about the client that the logs want.
    """
    check_path(lines.target)
    if version not in _VERSIONS:
        raise RefusedRequestError(505, f"HTTP/{version} is not supported on this port, only HTTP/1.1 and HTTP/1.0 are")
    if method == b"CONNECT":
        # What follows would not be a body but another protocol, none of which may be taken for a request.
        raise RefusedRequestError(501, "the method CONNECT is not supported: this server is not a proxy")
    old = version == "1.0"
    length, chunked, expecting = 0, False, False
    hosts: list[bytes] = []
    accepted: list[str] = []
    timeouts: list[tuple[str, str]] = []
    single: dict[bytes, bytes] = {}
    trace: dict[bytes, bytes] = {}
    marks: dict[bytes, bytes] = {}
    for name, value in lines.headers:
        if name == b"content-length":
            length = _length(value)
        elif name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            _check_transfer_encoding(value, old, chunked)
            chunked = True
        elif name == b"accept-encoding":
            accepted.append(value.decode("latin-1"))
        elif name == b"expect":
            expecting = value.lower() == b"100-continue" and not old
        elif name in _SINGLE:
            single[name] = value
        elif traced and name in trace_context.NAMES:
            trace_context.add(trace, name, value)
        elif name in deadlines.RAW_HEADERS:
            timeouts.append((name.decode(), value.decode("latin-1")))
        elif name in browsers.MARKS:
            marks[name] = value
    _check_host(hosts, old)
    if marks:
        _check_browser(method, hosts[0] if hosts else b"", marks, options)
    report_format = ""
    if options.orca == ON_REQUEST:
        report_format = next((value.decode("latin-1") for name, value in lines.headers if name == FORMAT_HEADER), "")
    header_length = single.get(_HEADER_LENGTH)
    framing = BodyFraming(length, expecting, header_length is None or not may_be_binary(lines.target))
    named, route = match_call(lines.target, inferences, routes) if method == b"POST" else (None, b"")
    restriction = options.restrictions.get("inference")
    if named is None or (restriction is not None and not restriction.granted(lines.headers)):
        head = RequestHead(method, lines.target, version, lines.headers, lines.as_sent, keep_alive, old, cors)
        head.report_format = report_format
    else:
        head = RequestHead(
            method=method,
            target=lines.target if keyed or route else b"",
            version=version,
            headers=lines.headers if keyed else None,
            as_sent=lines.as_sent if keyed else None,
            keep_alive=keep_alive,
            old=old,
            cors=cors,
            model=named[0],
            model_version=named[1],
            version_label=named[2],
            header_length=header_length,
            content_encoding=single.get(b"content-encoding"),
            response_encoding=compression.choose(", ".join(accepted)),
            forwarded=header_forwarding.matching(options.header_pattern, lines.as_sent),
            timeouts=tuple(sorted(timeouts)),  # heads are remembered whatever the order of their lines is
            trace_headers=trace_context.of_values(trace) if trace else None,
            request_id=_request_id(single.get(_REQUEST_ID)),
            route=route,
            report_format=report_format,
            accept=_accept(lines.headers) if route else "",
            credentials=of_headers(lines.headers) if keyed else (),
            origin=lines_of(lines.headers, origins) if origins else (),
        )
    return head, framing


def _accept(headers: list[tuple[bytes, bytes]]) -> str:
    return ", ".join([value.decode("latin-1") for name, value in headers if name == b"accept"])


def _request_id(value: bytes | None) -> str:
    """Empty if there is none."""
    return "" if value is None else request_ids.received(value.decode("latin-1").strip())


def _check_host(hosts: list[bytes], old: bool) -> None:
    """RFC 9112, 3.2: a request of HTTP/1.1 has one Host; no request has several, or one that is no host."""
    if len(hosts) > 1 or (not hosts and not old):
        raise RefusedRequestError(400, f"a request needs exactly one Host header, this one has {len(hosts)}")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        raise RefusedRequestError(400, f"the Host header is not a host and port: '{_shown(hosts[0])}'")


def _check_browser(method: bytes, host: bytes, marks: dict[bytes, bytes], options: HttpSettings) -> None:
    """Refuse what a stranger's page has a browser send."""
    secure = options.use_ssl or options.use_ssl_mutual
    origins = options.cors_allow_origin
    refusal = browsers.order_refusal(method, host, marks, origins, secure, options.for_operators)
    if not refusal and not secure:  # with TLS, a browser has compared the name with the certificate
        refusal = browsers.name_refusal(host, marks, options.allow_host | {options.address})
    if refusal:
        raise RefusedRequestError(403, refusal)


def _length(value: bytes) -> int:
    digits = value.rstrip(b" \t").lstrip(b"0")
    if len(digits) > _LONGEST_NUMBER:
        raise RefusedRequestError(400, f"the Content-Length is not a length: '{_shown(value)}'")
    return int(digits or b"0")


def _check_transfer_encoding(value: bytes, old: bool, chunked: bool) -> None:
    """RFC 9112, 6.1; `chunked` by an earlier line."""
    if old:
        raise RefusedRequestError(400, "a request of HTTP/1.0 cannot have a Transfer-Encoding")
    if chunked or value.lower() != b"chunked":
        raise RefusedRequestError(501, f"the Transfer-Encoding '{_shown(value)}' is not supported, only 'chunked' is")


def _shown(value: bytes) -> str:
    text = value[: _MAX_SHOWN + 1].decode("latin-1")
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def check_path(target: bytes) -> None:
    """Refuse a path that routes and permissions could read differently. Raises RefusedRequestError."""
    path = target.partition(b"?")[0]
    match = _FORBIDDEN.search(path)
    if match is not None:
        raise RefusedRequestError(
            400,
            f"the path has '{_shown(match[0])}' at byte {match.start()}: control characters, backslashes and the "
            "segments '.' and '..' are not permitted, encoded or not",
        )


def may_be_binary(target: bytes) -> bool:
    """Whether the body may be JSON of the length that a header states, followed by binary data."""
    return _BINARY.match(target) is not None


def without_origin(target: bytes) -> bytes:
    """The target without scheme and authority, which a client may send as well (RFC 9112, 3.2.2)."""
    match = _ORIGIN.match(target)
    if match is None:
        return target
    rest = target[match.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def match_call(target: bytes, inferences: bool, routes: Collection[bytes]) -> tuple[Named | None, bytes]:
    """The model of a call that goes around the application, and the path of one that is no inference.

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
