"""Access-log entries of one HTTP connection: its inferences, and refused input that is not yet a request."""

import time

from modserve.core.errors import ModserveError
from modserve.core.requests import request_ids
from modserve.core.requests.origin import Origin
from modserve.frontends import access as entries
from modserve.frontends.http.exchange import RequestInfo
from modserve.frontends.http.infer import InferCall
from modserve.observability.access_log import AccessLog
from modserve.protocol import failures
from modserve.protocol.http import infer_response
from modserve.protocol.http.infer_response import Body


class ConnectionLog:
    """Log of one connection, if the server logs requests. `rest.identified` logs requests of the application."""

    __slots__ = ("_access", "_began_ns", "_size")

    def __init__(self, access: AccessLog) -> None:
        self._access = access
        self._size = 0
        """Size of the current request's body in bytes."""
        self._began_ns = 0

    def begin(self, size: int) -> None:
        """Begin an inference or another call with a body of `size` bytes."""
        self._size = size
        self._began_ns = time.monotonic_ns()

    def end(self, call: InferCall, outcome: Body | ModserveError) -> None:
        """Log an inference with its outcome; its request gets an id now."""
        if not call.request_id:
            call.request_id = request_ids.make()
        if isinstance(outcome, ModserveError):
            self._add(call, failures.spelling(outcome).http, len(infer_response.encode_error(outcome)))
        else:
            self._add(call, 200, sum([len(part) for part in outcome.parts]))

    def abandon(self, call: InferCall) -> None:
        """Log an inference after its client disconnected before the outcome."""
        self._add(call, entries.GONE, 0)

    def other(self, note: RequestInfo, path: str, status: int, sent: int, tenant: str) -> None:
        """Log a finished call other than an inference; `tenant` is empty if there is none."""
        inference, note.call = note.call, None
        what, counts = f"POST {path}", (status, self._size, sent)
        if inference is not None:
            entries.record(self._access, inference, what, *counts, note.count, self._began_ns)
        else:
            entry = "HTTP", note.origin, what, "", -1, *counts, 1, "", note.request_id
            self._access.record(*entry, self._began_ns, 0, None, "", tenant)

    def refuse(self, origin: Origin, status: int, size: int) -> None:
        """Log a refused request; the response has a body of `size` bytes."""
        now_ns = time.monotonic_ns()
        self._access.record("HTTP", origin, "-", "", -1, status, 0, size, 1, "", "", now_ns, 0, None)

    def _add(self, call: InferCall, status: int, sent: int) -> None:
        counts = status, self._size, sent, 1
        entries.record(self._access, call, "infer", *counts, self._began_ns)
