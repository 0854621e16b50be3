"""Head of an HTTP request."""

from dataclasses import dataclass

from modserve.core.requests.origin import Lines
from modserve.core.requests.trace_context import TraceHeaders
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.http.deadlines import Timeouts


@dataclass(init=False, slots=True)
class RequestHead:
    """Checked content of a request head; `BodyFraming` handles the length of the body.

    An inference has a `model`; another call that bypasses the application has a `route`, and a `model` if its path
    names one. Neither needs the first five fields, except for a route's target, unless callers need keys: then the
    application refuses unauthorized callers, and gets the headers from `raw`. Other requests have only these fields, as
    the application reads the rest itself.
    """

    method: bytes
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    as_sent: list[tuple[str, str]]
    keep_alive: bool
    old: bool  # HTTP/1.0: the client must be told that the connection stays open
    cors: bytes  # header lines for the response
    model: str
    model_version: int | None
    version_label: str  # instead of a number
    header_length: bytes | None  # of the JSON before binary data, as sent
    content_encoding: bytes | None
    response_encoding: str | None  # content coding chosen for the response
    forwarded: Forwarded  # headers that become parameters of the request
    timeouts: Timeouts  # headers with the client's time limits
    trace_headers: TraceHeaders | None  # the client's span
    route: bytes  # path of a call that the port runs itself
    request_id: str  # see `core.requests.request_ids`; empty if the client sent none
    accept: str  # of a call with a `route`
    report_format: str  # requested format of a report of the server's load; empty for none
    credentials: tuple[tuple[bytes, bytes], ...]  # headers that identify the caller, if callers need keys
    origin: Lines  # headers about the client that the logs use
    raw: bytes  # unparsed head, in place of its headers
    renamed: bool  # called by a platform's name; the first five fields are set, too

    def __init__(
        self,
        method: bytes = b"POST",
        target: bytes = b"",
        version: str = "1.1",
        headers: list[tuple[bytes, bytes]] | None = None,
        as_sent: list[tuple[str, str]] | None = None,
        keep_alive: bool = True,
        old: bool = False,
        cors: bytes = b"",
        model: str = "",
        model_version: int | None = None,
        version_label: str = "",
        header_length: bytes | None = None,
        content_encoding: bytes | None = None,
        response_encoding: str | None = None,
        forwarded: Forwarded = (),
        timeouts: Timeouts = (),
        trace_headers: TraceHeaders | None = None,
        request_id: str = "",
        route: bytes = b"",
        report_format: str = "",
        accept: str = "",
        credentials: tuple[tuple[bytes, bytes], ...] = (),
        origin: Lines = (),
    ) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers if headers is not None else []
        self.as_sent = as_sent if as_sent is not None else []
        self.keep_alive = keep_alive
        self.old = old
        self.cors = cors
        self.model = model
        self.model_version = model_version
        self.version_label = version_label
        self.header_length = header_length
        self.content_encoding = content_encoding
        self.response_encoding = response_encoding
        self.forwarded = forwarded
        self.timeouts = timeouts
        self.trace_headers = trace_headers
        self.request_id = request_id
        self.route = route
        self.accept = accept
        self.report_format = report_format
        self.credentials = credentials
        self.origin = origin
        self.raw = b""
        self.renamed = False
