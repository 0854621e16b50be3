"""A gRPC call that is logged. Others are of the class that this one adds to, and ask nothing about logs.

The requests of a ``ModelStreamInfer`` are logged one by one, by `stream`; the call itself is if it fails.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from modserve.core.tensor import Buffer
from modserve.frontends import access as entries
from modserve.frontends.call import Call
from modserve.frontends.http2.headers import Head
from modserve.frontends.http2.stream import Stream
from modserve.observability.access_log import AccessLog

from . import heads
from .heads import GrpcHead
from .native_call import NativeCall
from .native_site import GrpcSite
from .rpc import Response
from .writing import size_of

if TYPE_CHECKING:
    from modserve.frontends.http2.sending import Sending


class LoggedSite(GrpcSite):
    """A port whose calls are logged in `access`."""

    access: AccessLog

    def open(self, connection: "Sending", number: int, head: Head, window: int, room: int) -> Stream:
        return LoggedCall(self, connection, number, cast(GrpcHead, head), window, room)


class LoggedCall(NativeCall):
    """Counts what comes and goes, and logs the call when it is over."""

    __slots__ = (
        "_access",
        "_began_ns",
        "_beginning",
        "_client",
        "_logged",
        "_received",
        "_responses",
        "_sent",
        "_served",
        "_status",
    )

    def __init__(self, site: LoggedSite, connection: "Sending", number: int, head: GrpcHead, window: int, room: int):
        self._access: AccessLog = site.access
        self._began_ns = time.monotonic_ns()
        self._beginning = False
        """Until it is known which inference it is."""
        self._logged = False
        self._received = self._sent = self._responses = 0
        self._status = -1
        self._served: Call | None = None
        super().__init__(site, connection, number, head, window, room)
        transport = connection.transport
        self._client: object = None if transport is None else transport.get_extra_info("peername")

    def message_received(self, message: bytes, consumed: int, held: int) -> None:
        self._received += len(message)
        super().message_received(message, consumed, held)

    def begin(self) -> None:
        self._beginning = True
        super().begin()
        self._beginning = False
        if self._logged:
            self._log()

    def respond(self, parts: list[Buffer], size: int) -> None:
        self._sent += size
        self._responses += 1
        self._status = heads.OK
        self.identify()
        super().respond(parts, size)

    async def write(self, message: Response) -> None:
        self._sent += size_of(message)
        self._responses += 1
        await super().write(message)

    def end(self, status: int, message: str, metadata: Sequence[tuple[str, str]] = ()) -> None:
        if not self.over and self.final is None:
            self._status = status
        super().end(status, message, metadata)

    def serving(self, call: Call) -> None:
        self.identify()
        super().serving(call)
        self._served = call

    def lost(self) -> None:
        if self._status < 0 or self.final is None:
            self._status = heads.CANCELLED
        super().lost()

    def _settle(self) -> None:
        if not self._logged:
            self._logged = True
            if not self._beginning:
                self._log()
        super()._settle()

    def _log(self) -> None:
        rpc, status = self.rpc, self._status
        call: Call | None = self._served if self._plain is None else self._plain
        self._served = None
        if rpc is None:
            name = self.call_head.pseudo[b":path"].decode("latin-1")
            status = heads.UNIMPLEMENTED
        else:
            name = rpc.method.name
        if name == "ModelStreamInfer" and status in (heads.OK, heads.CANCELLED):
            return
        if status < 0:
            status = heads.OK
        traceparent = entries.traceparent_in(self.call_head.metadata)
        if call is not None:
            call.request_id = self.request_id
            counts = status, self._received, self._sent, 1
            entries.record(self._access, call, self._client, name, *counts, self._began_ns, traceparent)
            return
        entry = "gRPC", self._client, name, "", -1, status, self._received, self._sent, self._responses
        self._access.record(*entry, "", self.request_id, self._began_ns, 0, None, traceparent)
