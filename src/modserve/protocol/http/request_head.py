"""Head of an HTTP request: the request line and the headers."""

from dataclasses import dataclass

from modserve.core.requests.origin import Lines
from modserve.core.requests.trace_context import TraceHeaders
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.http.deadlines import Timeouts


@dataclass(init=False, slots=True)
class RequestHead:
    """Validated content of a request head. `BodyFraming` has the length of the body.

    - An inference has a `model`.
    - Another call that bypasses the application has a `route`, and a `model` if its path names one.
    - A call of the application has only `method` to `cors` and `report_format`. The application reads the rest itself.

    The first two kinds omit `target`, `headers` and `as_sent`, but a call with a `route` has a `target`. If callers
    need keys, both kinds have these fields, because the application answers unauthorized callers. `raw` may replace the
    headers.
    """

    method: bytes
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    as_sent: list[tuple[str, str]]  # headers with names as sent, if any are forwarded
    keep_alive: bool
    old: bool  # HTTP/1.0: the response must say that the connection stays open
    cors: bytes  # CORS header lines for the response
    model: str
    model_version: int | None
    version_label: str  # in place of a version number
    header_length: bytes | None  # Inference-Header-Content-Length, as sent
    content_encoding: bytes | None
    response_encoding: str | None  # content coding chosen for the response
    forwarded: Forwarded  # headers to forward as request parameters
    timeouts: Timeouts  # time limits from the client's headers
    trace_headers: TraceHeaders | None  # trace context of the client's span
    route: bytes  # path of a call that the port serves without the application
    request_id: str  # empty if the client sent none
    accept: str  # header Accept; only for calls with a `route`
    report_format: str  # format of the load report that the client wants; empty for none
    credentials: tuple[tuple[bytes, bytes], ...]  # headers with keys, if callers need keys
    origin: Lines  # headers about the client, for logs
    raw: bytes  # unparsed head; may replace `headers` if callers need keys
    renamed: bool  # the path was a platform's name for a call; the first five fields are set

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
