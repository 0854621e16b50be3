"""A connection whose requests are logged. Others are of the class that this one adds to, and ask nothing about logs."""

import asyncio
import time

from modserve.core.errors import ModserveError
from modserve.core.requests import request_ids
from modserve.core.tensors.tensor import Buffer
from modserve.frontends import access as entries
from modserve.frontends.http.infer import InferCall
from modserve.observability.access_log import AccessLog
from modserve.protocol import failures
from modserve.protocol.http import infer_response
from modserve.protocol.http.infer_response import Body
from modserve.protocol.http.request_head import RequestHead

from .connection import Connection
from .context import HttpContext


class LoggedConnection(Connection):
    """Requests other than inferences are logged by `rest.identified`, where their responses are made."""

    def __init__(self, context: HttpContext, access: AccessLog) -> None:
        super().__init__(context)
        self._access = access
        self._client: object = None
        self._size = 0
        """Bytes of the body at hand."""
        self._began_ns = 0
        self._traceparent = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = transport.get_extra_info("peername")
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        call = self._call
        super().connection_lost(exc)
        if isinstance(call, InferCall):
            self._log(call, entries.GONE, self._size, 0)

    def _infer(self, head: RequestHead, body: Buffer, received_ns: int = 0) -> None:
        self._size = len(body)
        self._traceparent = entries.traceparent_of(head.trace_headers)
        self._began_ns = time.monotonic_ns()
        super()._infer(head, body, received_ns)

    def _respond(self, outcome: Body | ModserveError, request_id: str) -> None:
        call, size = self._call, self._size
        if not request_id:
            request_id = request_ids.make()
        if isinstance(call, InferCall):
            call.request_id = request_id
            if isinstance(outcome, ModserveError):
                self._log(call, failures.spelling(outcome).http, size, len(infer_response.encode_error(outcome)))
            else:
                sent = 0
                for part in outcome.parts:
                    sent += len(part)
                self._log(call, 200, size, sent)
        super()._respond(outcome, request_id)

    def _refuse(self, status: int, message: str, linger: bool = True) -> None:
        now_ns = time.monotonic_ns()
        size = len(infer_response.encode_message(message))
        self._access.record("HTTP", self._client, "-", "", -1, status, 0, size, 1, "", "", now_ns, 0, None)
        super()._refuse(status, message, linger)

    def _log(self, call: InferCall, status: int, received: int, sent: int) -> None:
        about = "infer", status, received, sent, 1, self._began_ns, self._traceparent
        entries.record(self._access, call, self._client, *about)
