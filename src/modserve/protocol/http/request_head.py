"""What the head of an HTTP request says."""

from dataclasses import dataclass, field
from typing import Final

from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.http.deadlines import Timeouts


@dataclass(slots=True)
class RequestHead:
    """What a head says that has been checked; how long the body is, is left to `Framing`.

    `model` is named for an inference that goes around the application, which needs none of the first five fields. Other
    requests have only these, as the application reads the rest by itself. Requests share heads, so nobody changes one
    (making a frozen one takes a microsecond longer).
    """

    method: Final[bytes] = b"POST"
    target: Final[bytes] = b""
    version: Final[str] = "1.1"
    headers: Final[list[tuple[bytes, bytes]]] = field(default_factory=list)
    as_sent: Final[list[tuple[str, str]]] = field(default_factory=list)
    keep_alive: Final[bool] = True
    old: Final[bool] = False  # HTTP/1.0, whose clients must be told that the connection stays open
    cors: Final[bytes] = b""  # header lines for the response
    model: Final[str] = ""
    model_version: Final[int | None] = None
    header_length: Final[bytes | None] = None  # of the JSON before binary data, as sent
    content_encoding: Final[bytes | None] = None
    response_encoding: Final[str | None] = None  # the content coding chosen for the response
    forwarded: Final[Forwarded] = ()  # headers that become parameters of the request
    timeouts: Final[Timeouts] = ()  # headers that say how long the client waits
    traceparent: Final[bytes | None] = None  # the client's span (W3C Trace Context)
