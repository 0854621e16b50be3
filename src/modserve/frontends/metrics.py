"""What the metrics port serves: a port of its own, which can be kept inside where the others are open to clients."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from modserve.frontends.http.wire.context import Message
from modserve.frontends.offload import on_thread
from modserve.protocol import compression
from modserve.protocol.accept import weights
from modserve.protocol.restricted import METRICS_PAGE

_WHERE = b"The metrics of this server are at /metrics, for Prometheus.\n"
_OPENMETRICS = "application/openmetrics-text"


class OpenMetrics(NamedTuple):
    """The page in the format of OpenMetrics, for clients that take it."""

    render: Callable[[], Awaitable[bytes]]
    content_type: str
    preferred: Callable[[], bool]
    """Whether it has more to show than the usual one. Then clients that take either get it."""


def takes_openmetrics(accept: str, preferred: bool) -> bool:
    """By a request's Accept header. Prometheus names both formats, this one first.

    The names of Triton's counters are not those that OpenMetrics has for counters: it says nothing of their kind, which
    clients that take both would lose for nothing.
    """
    by_type = weights(accept)
    own, usual = by_type.get(_OPENMETRICS, 0.0), max(by_type.get("text/plain", 0.0), by_type.get("*/*", 0.0))
    return own > 0 and (usual == 0 or (preferred and own >= usual))


class MetricsApplication:
    """Serves what `render` gives at ``/metrics``; ``/`` says so, and other paths are empty, as in Triton.

    So are other methods, whose callers nobody may know: OPTIONS needs no key.
    """

    def __init__(
        self,
        render: Callable[[], bytes | Awaitable[bytes]],
        content_type: str,
        openmetrics: OpenMetrics | None = None,
    ) -> None:
        self._render = render
        self._content_type = content_type.encode()
        self._openmetrics = openmetrics

    async def __call__(self, scope: Message, receive: object, send: Callable[[Message], Awaitable[None]]) -> None:
        reads = scope["method"] in ("GET", "HEAD")
        body, kind = _WHERE if scope["path"] == "/" else b"", self._content_type
        if scope["path"] == METRICS_PAGE and reads:
            other = self._openmetrics
            if other is not None and takes_openmetrics(_header(scope, b"accept"), other.preferred()):
                body, kind = await other.render(), other.content_type.encode()
            else:
                rendered = self._render()
                body = rendered if isinstance(rendered, bytes) else await rendered
        headers = [(b"content-type", kind), (b"vary", b"accept, accept-encoding")]
        encoding = compression.choose(_header(scope, b"accept-encoding")) if body else None
        if encoding is not None:
            # The page of a hundred models is a megabyte of text that hardly differs from line to line.
            body = await on_thread(compression.encode, [body], encoding)
            headers.append((b"content-encoding", encoding.encode()))
        headers.append((b"content-length", b"%d" % len(body)))
        if not reads:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": 200 if reads else 405, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _header(scope: Message, name: bytes) -> str:
    return b", ".join(value for header, value in scope["headers"] if header == name).decode("latin-1")
