"""A call of gRPC's own library that is logged; the requests of a ``ModelStreamInfer`` are, one by one, by `stream`."""

import time
from collections.abc import Callable, Sequence

from modserve.frontends import access as entries
from modserve.frontends.call import Call
from modserve.observability.access_log import AccessLog

from .dispatch import Dispatcher
from .heads import CANCELLED, OK
from .rpc import Refusal, Response, Rpc, RpcCall
from .writing import size_of


class LoggedRpc:
    """Implements `RpcCall` by another one, counts what comes and goes, and logs the call when it is over."""

    def __init__(self, call: RpcCall, access: AccessLog, name: str) -> None:
        self._call = call
        self._access = access
        self._name = name
        self._began_ns = time.monotonic_ns()
        self._received = self._sent = self._responses = 0
        self._status = CANCELLED
        self._inference: Call | None = None

    async def unary(self, dispatcher: Dispatcher, rpc: Rpc) -> Response:
        """Serve the call, if it has one response."""
        try:
            response = await dispatcher.unary(rpc, self)
            if self._status == CANCELLED:
                self._status, self._responses, self._sent = OK, 1, size_of(response)
            return response
        finally:
            self._log()

    async def stream(self, dispatcher: Dispatcher, rpc: Rpc) -> Refusal | None:
        """Serve the call, if it writes its responses itself."""
        try:
            refusal = await dispatcher.stream(rpc, self)
            self._status = OK if refusal is None else refusal.status
            return refusal
        finally:
            if self._name != "ModelStreamInfer" or self._status not in (OK, CANCELLED):
                self._log()

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        return self._call.metadata

    @property
    def deadline_ns(self) -> int:
        return self._call.deadline_ns

    @property
    def peer(self) -> object:
        return self._call.peer

    @property
    def request_id(self) -> str:
        return self._call.request_id

    def identify(self) -> str:
        return self._call.identify()

    def serving(self, call: Call) -> None:
        self._inference = call
        self._call.serving(call)

    async def read(self) -> bytes | None:
        data = await self._call.read()
        self._received += len(data or b"")
        return data

    async def write(self, message: Response) -> None:
        self._sent += size_of(message)
        self._responses += 1
        await self._call.write(message)

    def set_trailers(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self._call.set_trailers(trailers)

    async def refuse(self, refusal: Refusal) -> bytes:
        self._status = refusal.status
        return await self._call.refuse(refusal)

    def on_end(self, callback: Callable[[], None]) -> None:
        self._call.on_end(callback)

    def _log(self) -> None:
        counts = self._status, self._received, self._sent
        call, self._inference = self._inference, None
        traceparent = entries.traceparent_in(self.metadata)
        if call is not None:
            entries.record(self._access, call, self.peer, self._name, *counts, 1, self._began_ns, traceparent)
            return
        entry = "gRPC", self.peer, self._name, "", -1, *counts, self._responses, "", self.request_id
        self._access.record(*entry, self._began_ns, 0, None, traceparent)
