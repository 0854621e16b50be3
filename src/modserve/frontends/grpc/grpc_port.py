"""Shared state of a port's gRPC connections: the table of calls, and the server's limits."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from modserve.frontends.http2.fields import HeaderField
from modserve.frontends.http2.headers import Head
from modserve.frontends.http2.limits import LIMITS, ConnectionLimits
from modserve.frontends.http2.policies import Policies
from modserve.frontends.http2.port import Http2Port
from modserve.frontends.http2.stream import Stream, StreamSender

from .call_services import CallServices
from .dispatch import Dispatcher
from .heads import NAMES, GrpcHead
from .rpc import Rpc
from .server_call import ServerCall
from .unary import UnaryInferences

if TYPE_CHECKING:
    from modserve.observability.access_log import AccessLog


class GrpcPort(Http2Port):
    """gRPC port with calls by their row in `rpcs`, which `dispatcher` serves."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        policies: Policies,
        dispatcher: Dispatcher,
        rpcs: Mapping[str, Rpc],
        *,
        max_message: int = 0,
        codings: Sequence[str] = (),
        access: "AccessLog | None" = None,
        limits: ConnectionLimits = LIMITS,
    ) -> None:
        """`max_message`: bytes that a message may have, 0: any number; `codings`: of responses, the best first.

        `access`: where calls are logged, if they are.
        """
        super().__init__(loop, policies, limits, names=NAMES)
        self._memory = dispatcher.server.memory
        unary = UnaryInferences(dispatcher)
        self._services = CallServices(loop, dispatcher, unary, limits, max_message, access)
        self.deadlines = self._services.deadlines
        self._rpcs = rpcs
        self._codings = codings

    def report_load(self, block: bytes) -> None:
        """Set the server load that the trailers of calls report from now on."""
        self._services.report_load(block)

    def understand(self, fields: list[HeaderField], size: int) -> Head:
        return GrpcHead(fields, size, self._rpcs, self._codings, self.limits.header_list)

    def count_unsent(self, change: int) -> None:
        if change > 0:
            self._memory.force(change)
        else:
            self._memory.give_back(-change)

    def open(self, connection: StreamSender, number: int, head: Head, window: int, room: int) -> Stream:
        return ServerCall(self._services, connection, number, cast(GrpcHead, head), window, room)
