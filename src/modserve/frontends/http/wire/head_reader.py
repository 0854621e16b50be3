"""Parses request heads in one pass. httptools takes 8.8 µs instead of 3.6 for a head from Envoy with a tracer
(`benchmarks/codec_shortcuts.py`).

`HeadReader.scan` parses complete heads in the form that most clients and proxies write. Most headers are irrelevant
here; the scan visits each of their bytes once and copies nothing. The length and first letter of a name show whether it
may be relevant. Anything unusual, from a fold to an upgrade, goes to httptools, which also provides the error messages.
`HeadReader.understand` evaluates the headers of either parser.

Values that clients repeat are cached one by one: request lines, hosts and accepted codings.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, TypeVar

from mypy_extensions import i64, mypyc_attr

from modserve.access import credentials
from modserve.core.requests import request_ids, trace_context
from modserve.core.requests.origin import Lines, cut
from modserve.frontends import browsers
from modserve.protocol import compression, header_forwarding
from modserve.protocol.http import deadlines, infer_request
from modserve.protocol.http.request_head import RequestHead
from modserve.settings import HttpSettings

from .head import (
    REQUEST_LINE,
    HeadLines,
    RefusedRequestError,
    RequestLine,
    check_browser,
    check_host,
    check_transfer_encoding,
    length_of,
)
from .reports import FORMAT_HEADER, ON_REQUEST

if TYPE_CHECKING:
    from .platform_paths import PlatformPaths

ValueT = TypeVar("ValueT")

MAX_HEAD: Final = 64 * 1024
"""Maximum size of a head in bytes, and of the framing of a chunked body: chunk extensions and trailers."""

_REMEMBERED: Final = 1024
"""Size of each cache of values; a full cache is cleared."""
_LONGEST: Final = 512
"""Length in bytes of the longest cached value."""

_TAB, _LF, _CR, _SPACE, _ZERO, _NINE, _COLON = 9, 10, 13, 32, 48, 57, 58
_NAME: Final = bytes(chr(byte).isalnum() or byte in b"!#$%&'*+-.^_`|~" for byte in range(128)) + bytes(128)
"""1 for each byte allowed in header names (RFC 9110, 5.6.2)."""
_VALUE: Final = bytes(byte == _TAB or (byte >= _SPACE and byte != 127) for byte in range(256))
"""1 for each byte allowed in header values (RFC 9110, 5.5)."""
_LONGEST_NAME: Final = 63
"""Length in bytes of the longest relevant header name."""
_MOST_DIGITS: Final = 18

_HOST, _LENGTH, _CODING, _CONNECTION, _UNUSUAL, _EXPECT, _HEADER_LENGTH, _CONTENT_ENCODING, _REQUEST_ID = range(1, 10)
_ACCEPT_ENCODING, _ACCEPT, _TIMEOUT, _MARK, _TRACE, _ORIGIN, _CREDENTIAL, _REPORT = range(10, 18)

_KINDS: Final = {
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"connection": _CONNECTION,
    b"proxy-connection": _UNUSUAL,
    b"upgrade": _UNUSUAL,
    b"expect": _EXPECT,
    infer_request.HEADER_LENGTH.encode(): _HEADER_LENGTH,
    b"content-encoding": _CONTENT_ENCODING,
    request_ids.HEADER.encode(): _REQUEST_ID,
    b"accept-encoding": _ACCEPT_ENCODING,
    b"accept": _ACCEPT,
    **dict.fromkeys(deadlines.RAW_HEADERS, _TIMEOUT),
    **dict.fromkeys(browsers.MARKS, _MARK),
}
"""Headers that are always relevant."""


class HeadFields:
    """Meaning of one head's headers.

    A scan also sets `line`, `end`, `keep_alive` and `lines`: the request line, the end of the head, and on request all
    headers.
    """

    __slots__ = (
        "accept",
        "accept_encoding",
        "chunked",
        "content_encoding",
        "credentials",
        "end",
        "expecting",
        "header_length",
        "hosts",
        "keep_alive",
        "length",
        "line",
        "lines",
        "marks",
        "origin",
        "report_format",
        "request_id",
        "timeouts",
        "trace",
    )

    def __init__(self, line: RequestLine, lines: HeadLines | None) -> None:
        self.line = line
        self.lines = lines
        self.end = 0
        self.keep_alive = True
        self.length = 0
        """Size of the body in bytes; 0 for a chunked body, and without one."""
        self.chunked = False
        self.expecting = False  # the client sent "Expect: 100-continue" (RFC 9110, 10.1.1)
        self.hosts: list[bytes] = []
        self.header_length: bytes | None = None
        self.content_encoding: bytes | None = None
        self.request_id: bytes | None = None
        self.accept_encoding: bytes | None = None
        self.accept: bytes | None = None
        self.report_format: bytes | None = None
        self.timeouts: deadlines.Timeouts = ()
        self.marks: dict[bytes, bytes] | None = None
        self.trace: dict[bytes, bytes] | None = None
        self.origin: Lines = ()
        self.credentials: credentials.Credentials = ()

    @property
    def limited(self) -> bool:
        """True if the body counts against the JSON limit: always, unless a header states the JSON part's length."""
        return self.header_length is None or not self.line.binary

    def add(self, kind: int, name: bytes, value: bytes) -> None:
        """Record a relevant header. Raises RefusedRequestError.

        Of a repeated single-valued header, the last line counts.
        """
        if kind == _HOST:
            self.hosts.append(value)
        elif kind == _LENGTH:
            self.length = length_of(value)
        elif kind == _HEADER_LENGTH:
            self.header_length = value
        elif kind == _ACCEPT_ENCODING:
            self.accept_encoding = _join(self.accept_encoding, value)
        elif kind == _ACCEPT:
            self.accept = _join(self.accept, value)
        elif kind == _REQUEST_ID:
            self.request_id = value
        elif kind == _TIMEOUT:
            self.timeouts += ((name.decode("latin-1"), value.decode("latin-1")),)
        elif kind == _TRACE:
            if self.trace is None:
                self.trace = {}
            trace_context.add(self.trace, name, value)
            self.origin += ((name, cut(name, value)),)
        elif kind == _ORIGIN:
            self.origin += ((name, cut(name, value)),)
        elif kind == _CREDENTIAL:
            self.credentials += ((name, value),)
        elif kind == _MARK:
            if self.marks is None:
                self.marks = {}
            self.marks[name] = value
        elif kind == _CONTENT_ENCODING:
            self.content_encoding = value
        elif kind == _EXPECT:
            self.expecting = value.lower() == b"100-continue" and not self.line.old
        elif kind == _CODING:
            check_transfer_encoding(value, self.line.old, self.chunked)
            self.chunked = True
        elif kind == _REPORT and self.report_format is None:
            self.report_format = value


@mypyc_attr(allow_interpreted_subclasses=True)
class HeadReader:
    """Parser of the request heads of one port.

    `traced`: heads have trace headers. `keyed`: heads have callers' credentials. Without `inferences`, no request is
    treated as one. `routes`: paths, or templates with a model name, of other calls that bypass the application.
    `platform`: alternative paths of calls. `origins`: headers about the client for the logs.
    """

    def __init__(
        self,
        options: HttpSettings,
        traced: bool = False,
        inferences: bool = True,
        routes: Collection[bytes] = (),
        keyed: bool = False,
        platform: "PlatformPaths | None" = None,
        origins: frozenset[bytes] = frozenset(),
    ) -> None:
        self.platform = platform
        self._options = options
        self._inferences = inferences
        self._routes = routes
        self.keyed = keyed
        self._restriction = options.restrictions.get("inference")
        self._whole = options.header_pattern is not None or self._restriction is not None
        """True if all headers are needed with each request."""
        kinds = {**_KINDS, **dict.fromkeys(origins, _ORIGIN)}
        if traced:
            kinds |= dict.fromkeys(trace_context.NAMES, _TRACE)
        if keyed:
            kinds |= dict.fromkeys(credentials.HEADERS, _CREDENTIAL)
        if options.orca == ON_REQUEST:
            kinds[FORMAT_HEADER] = _REPORT
        self._kinds = {spelling: (kind, name) for name, kind in kinds.items() for spelling in (name, name.title())}
        """Relevant headers, by the spellings of most clients."""
        maybe = bytearray(32 * (_LONGEST_NAME + 1))
        for name in kinds:
            maybe[32 * len(name) + name[0] % 32] = 1
        self._maybe = bytes(maybe)
        """1 where a header name with this length and first letter may be relevant."""
        self._lines: dict[bytes, RequestLine] = {}
        self._hosts: dict[bytes, bool] = {}
        self._encodings: dict[bytes, str] = {}

    def scan(self, data: bytes, start: int, whole: bool = False) -> HeadFields | None:
        """Parse a head that begins at `start`; None for an incomplete one, and for one that needs httptools.

        All headers are included with `whole`, and for requests to the application or a platform's path.
        """
        first: i64 = start
        size: i64 = min(len(data), first + MAX_HEAD)
        at: i64 = first
        while at < size and data[at] != _CR:
            at += 1
        if at + 2 >= size or data[at + 1] != _LF:
            return None
        line = self._line(data[first:at])
        if line is None:
            return None
        lines: HeadLines | None = None
        if whole or self._whole or not line.direct:
            lines = HeadLines()
            lines.target = line.target
        fields = HeadFields(line, lines)
        maybe = self._maybe
        sized = closing = staying = False
        at += 2
        while data[at] != _CR:
            begin: i64 = at
            while _NAME[data[at]]:
                at += 1
                if at >= size:
                    return None
            length: i64 = at - begin
            if length == 0 or data[at] != _COLON:
                return None
            at += 1
            while at < size and (data[at] == _SPACE or data[at] == _TAB):
                at += 1
            value: i64 = at
            while at < size and _VALUE[data[at]]:
                at += 1
            if at + 2 >= size or data[at] != _CR or data[at + 1] != _LF:
                return None
            if lines is not None:
                self._add_line(lines, data[begin : begin + length], data[value:at])
            if length <= _LONGEST_NAME and maybe[length * 32 + data[begin] % 32]:
                kind, name = self._kind(data[begin : begin + length])
                if kind == _LENGTH:
                    number: i64 = 0
                    if sized or value == at or at - value > _MOST_DIGITS:
                        return None
                    while value < at:
                        digit: i64 = data[value]
                        if digit < _ZERO or digit > _NINE:
                            return None
                        number = number * 10 + digit - _ZERO
                        value += 1
                    fields.length, sized = number, True
                elif kind == _CONNECTION:
                    option = data[value:at].lower()
                    if option == b"close":
                        closing = True
                    elif option == b"keep-alive":
                        staying = True
                    else:
                        return None
                elif kind in (_CODING, _UNUSUAL):
                    return None
                elif kind:
                    fields.add(kind, name, data[value:at])
            at += 2
        if at + 1 >= size or data[at + 1] != _LF:
            return None
        fields.end = at + 2
        fields.keep_alive = staying if line.old else not closing
        return fields

    def _kind(self, name: bytes) -> tuple[int, bytes]:
        """Return a header's kind and its name in lower case; kind 0 if it is irrelevant."""
        known = self._kinds.get(name)
        return known if known is not None else self._kinds.get(name.lower(), _NO_KIND)

    def _add_line(self, lines: HeadLines, name: bytes, value: bytes) -> None:
        lines.headers.append((name.lower(), value))
        if self._options.header_pattern is not None:
            lines.as_sent.append((name.decode("latin-1"), value.decode("latin-1")))

    def _line(self, text: bytes) -> RequestLine | None:
        """Return a request line in the usual form; None for another form or a refused one."""
        known = self._lines.get(text)
        if known is not None:
            return known
        match = REQUEST_LINE.fullmatch(text)
        if match is None:
            return None
        try:
            line = self.request_line(match[1], match[2], match[3].decode())
        except RefusedRequestError:
            return None
        if self.platform is not None and self.platform.has(line.target):
            line.direct, line.renamed = False, True
        _keep(self._lines, text, line)
        return line

    def request_line(self, method: bytes, target: bytes, version: str) -> RequestLine:
        """Parse a request line. Raises RefusedRequestError."""
        return RequestLine(method, target, version, self._inferences, self._routes)

    def fields_of(self, line: RequestLine, lines: HeadLines) -> HeadFields:
        """Return the meaning of a head parsed by httptools. Raises RefusedRequestError."""
        fields = HeadFields(line, lines)
        for name, value in lines.headers:
            kind = self._kind(name)[0]
            if kind:
                fields.add(kind, name, value)
        return fields

    def understand(self, fields: HeadFields, keep_alive: bool, block: bytes) -> RequestHead:
        """Check a head and return its meaning. `block`: header lines for the response.

        Raises RefusedRequestError.
        """
        line, lines, hosts = fields.line, fields.lines, fields.hosts
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            check_host(hosts, line.old)
            if hosts:
                _keep(self._hosts, hosts[0], True)
        if fields.marks is not None:
            check_browser(line.method, hosts[0] if hosts else b"", fields.marks, self._options)
        report_format = "" if fields.report_format is None else fields.report_format.decode("latin-1")
        headers = None if lines is None else lines.headers
        as_sent = None if lines is None else lines.as_sent
        restriction = self._restriction
        if not line.direct or (restriction is not None and not restriction.granted(headers or ())):
            head = RequestHead(line.method, line.target, line.version, headers, as_sent, keep_alive, line.old, block)
            head.report_format = report_format
            return head
        kept, route, trace, sent_id = self.keyed, line.route, fields.trace, fields.request_id
        return RequestHead(
            method=line.method,
            target=line.target if kept or route else b"",
            version=line.version,
            headers=headers if kept else None,
            as_sent=as_sent if kept else None,
            keep_alive=keep_alive,
            old=line.old,
            cors=block,
            model=line.model,
            model_version=line.model_version,
            version_label=line.version_label,
            header_length=fields.header_length,
            content_encoding=fields.content_encoding,
            response_encoding=self._encoding(fields.accept_encoding),
            forwarded=() if as_sent is None else header_forwarding.matching(self._options.header_pattern, as_sent),
            timeouts=fields.timeouts,
            trace_headers=trace_context.of_values(trace) if trace is not None else None,
            request_id="" if sent_id is None else request_ids.check(sent_id.decode("latin-1").strip()),
            route=route,
            report_format=report_format,
            accept=fields.accept.decode("latin-1") if route and fields.accept is not None else "",
            credentials=fields.credentials,
            origin=fields.origin,
        )

    def _encoding(self, accepted: bytes | None) -> str | None:
        """Return the content coding for the response."""
        if accepted is None:
            return None
        known = self._encodings.get(accepted)
        if known is None:
            known = compression.choose(accepted.decode("latin-1")) or ""
            _keep(self._encodings, accepted, known)
        return known or None

    def complete(self, head: RequestHead) -> None:
        """Complete a `keyed` head for the application."""
        fields = self.scan(head.raw, 0, whole=True) if head.raw else None
        if fields is not None and fields.lines is not None:
            head.headers = fields.lines.headers


_NO_KIND: Final = (0, b"")


def _join(before: bytes | None, value: bytes) -> bytes:
    return value if before is None else before + b", " + value


def _keep(memory: dict[bytes, ValueT], key: bytes, value: ValueT) -> None:
    if len(key) <= _LONGEST:
        if len(memory) >= _REMEMBERED:
            memory.clear()
        memory[key] = value
