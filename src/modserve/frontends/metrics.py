"""Calls of the metrics port, a port of its own that can stay internal while the others are open to clients."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from modserve.core.statistics.summary import FINE_QUERY
from modserve.frontends.http.probes import Report
from modserve.frontends.http.wire.context import Message
from modserve.frontends.offload import on_thread
from modserve.protocol import compression
from modserve.protocol.accept import weights
from modserve.protocol.http.infer_response import encode_message
from modserve.protocol.json.json_text import MIME_JSON
from modserve.protocol.restricted import METRICS_PAGE

PATHS = frozenset({METRICS_PAGE, f"{METRICS_PAGE}/"})
_METHODS = frozenset({"GET", "HEAD"})
_OPENMETRICS = "application/openmetrics-text"


class OpenMetrics(NamedTuple):
    """The page in the format of OpenMetrics, for clients that take it."""

    render: Callable[[], Awaitable[bytes]]
    content_type: str
    preferred: Callable[[], bool]
    """True if this page has more to show than the usual one; clients that take either then get it."""


def takes_openmetrics(accept: str, preferred: bool) -> bool:
    """Return True if a request's Accept header asks for OpenMetrics. Prometheus names both formats, this one first.

    Triton's counters do not have the names that OpenMetrics requires of counters, so it gives them no type. Clients
    that take both formats would lose the type for nothing.
    """
    by_type = weights(accept)
    own, usual = by_type.get(_OPENMETRICS, 0.0), max(by_type.get("text/plain", 0.0), by_type.get("*/*", 0.0))
    return own > 0 and (usual == 0 or (preferred and own >= usual))


class MetricsApplication:
    """Application with the page of `render` at `PATHS`, and `health` by path; other paths are 404, unlike Triton's.

    `fine` makes the page with the sketches of durations, for the query `FINE_QUERY`. `elsewhere` names the ports of the
    server's other calls. Probes that have no certificate for mutual TLS ask here for health.
    """

    def __init__(
        self,
        render: Callable[[], bytes | Awaitable[bytes]],
        content_type: str,
        openmetrics: OpenMetrics | None = None,
        fine: Callable[[], Awaitable[bytes]] | None = None,
        elsewhere: Callable[[], str] = str,
        health: Mapping[str, Callable[[], Awaitable[Report]]] = {},
    ) -> None:
        self._render = render
        self._content_type = content_type.encode()
        self._openmetrics = openmetrics
        self._fine = fine
        self._elsewhere = elsewhere
        self._health = health

    async def __call__(self, scope: Message, receive: object, send: Callable[[Message], Awaitable[None]]) -> None:
        path, health = scope["path"], self._health.get(scope["path"])
        if path not in PATHS and health is None:
            text = f"Not Found: this port serves only /metrics, for Prometheus{self._elsewhere()}"
            await _refuse(send, 404, text)
            return
        if scope["method"] not in _METHODS:
            text = f"Method Not Allowed: {path.rstrip('/')} takes GET and HEAD"
            await _refuse(send, 405, text, (b"allow", b"GET, HEAD"))
            return
        if health is not None:
            status, content = await health()
            await _respond(send, status, json.dumps(content).encode(), [(b"content-type", MIME_JSON.encode())])
            return
        other, kind = self._openmetrics, self._content_type
        if self._fine is not None and FINE_QUERY in scope["query_string"].decode("latin-1").split("&"):
            body = await self._fine()
        elif other is not None and takes_openmetrics(_header(scope, b"accept"), other.preferred()):
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
        await _respond(send, 200, body, headers)


async def _refuse(
    send: Callable[[Message], Awaitable[None]], status: int, text: str, *headers: tuple[bytes, bytes]
) -> None:
    await _respond(send, status, encode_message(text), [(b"content-type", MIME_JSON.encode()), *headers])


async def _respond(
    send: Callable[[Message], Awaitable[None]], status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _header(scope: Message, name: bytes) -> str:
    return b", ".join(value for header, value in scope["headers"] if header == name).decode("latin-1")
