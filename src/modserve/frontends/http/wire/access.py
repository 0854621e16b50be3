"""The access log's view of one HTTP connection: its inferences, and what is refused before it is a request."""

import asyncio
import time

from modserve.core.errors import ModserveError
from modserve.core.requests import request_ids
from modserve.frontends import access as entries
from modserve.frontends.http.exchange import Note
from modserve.frontends.http.infer import InferCall
from modserve.frontends.listening import peer_of
from modserve.observability.access_log import AccessLog
from modserve.protocol import failures
from modserve.protocol.http import infer_response
from modserve.protocol.http.infer_response import Body
from modserve.protocol.http.request_head import RequestHead


class ConnectionLog:
    """A connection has one if the server logs requests. `rest.identified` logs what the application serves."""

    __slots__ = ("_access", "_began_ns", "_client", "_size", "_traceparent")

    def __init__(self, access: AccessLog) -> None:
        self._access = access
        self._client: object = None
        self._size = 0
        """Bytes of the body of the request at hand."""
        self._began_ns = 0
        self._traceparent = ""

    def connected(self, transport: asyncio.BaseTransport) -> None:
        self._client = peer_of(transport)

    def begin(self, head: RequestHead, size: int) -> None:
        """An inference, or another call, with a body of `size` bytes begins."""
        self._size = size
        self._traceparent = entries.traceparent_of(head.trace_headers)
        self._began_ns = time.monotonic_ns()

    def end(self, call: InferCall, outcome: Body | ModserveError) -> None:
        """The inference has its outcome; its request has an id from now on."""
        if not call.request_id:
            call.request_id = request_ids.make()
        if isinstance(outcome, ModserveError):
            self._add(call, failures.spelling(outcome).http, len(infer_response.encode_error(outcome)))
        else:
            self._add(call, 200, sum([len(part) for part in outcome.parts]))

    def abandon(self, call: InferCall) -> None:
        """The client has gone before the outcome."""
        self._add(call, entries.GONE, 0)

    def other(self, note: Note, path: str, status: int, sent: int, tenant: str) -> None:
        """A call other than an inference is over; `tenant` is empty where there is none."""
        inference, note.call = note.call, None
        what, counts = f"POST {path}", (status, self._size, sent)
        if inference is not None:
            timing = self._began_ns, self._traceparent
            entries.record(self._access, inference, self._client, what, *counts, note.count, *timing)
        else:
            entry = "HTTP", self._client, what, "", -1, *counts, 1, "", note.request_id
            self._access.record(*entry, self._began_ns, 0, None, self._traceparent, tenant)

    def refuse(self, status: int, size: int) -> None:
        """What has come is not served; the response has a body of `size` bytes."""
        now_ns = time.monotonic_ns()
        self._access.record("HTTP", self._client, "-", "", -1, status, 0, size, 1, "", "", now_ns, 0, None)

    def _add(self, call: InferCall, status: int, sent: int) -> None:
        counts = status, self._size, sent, 1
        entries.record(self._access, call, self._client, "infer", *counts, self._began_ns, self._traceparent)
