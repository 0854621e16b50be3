"""What the gRPC connections of a port share: the table of calls, and the server's limits."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from modserve.frontends.http2.decoding import Fields
from modserve.frontends.http2.headers import Head
from modserve.frontends.http2.limits import LIMITS, ConnectionLimits
from modserve.frontends.http2.site import Policies, Site
from modserve.frontends.http2.stream import Stream

from .deadlines import Deadlines
from .dispatch import Dispatcher
from .heads import GrpcHead
from .native_call import NativeCall
from .rpc import Rpc

if TYPE_CHECKING:
    from modserve.core.requests.memory import MemoryBudget
    from modserve.frontends.http2.sending import Sending
    from modserve.observability.access_log import AccessLog


class GrpcSite(Site):
    """Calls are served by `dispatcher`, by their row in `rpcs`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        policies: Policies,
        dispatcher: Dispatcher,
        rpcs: Mapping[str, Rpc],
        memory: "MemoryBudget",
        *,
        max_message: int = 0,
        codings: Sequence[str] = (),
        access: "AccessLog | None" = None,
        limits: ConnectionLimits = LIMITS,
    ) -> None:
        """`max_message`: bytes that a message may have, 0: any number; `codings`: of responses, the best first.

        `access`: where calls are logged, if they are.
        """
        super().__init__(loop, policies, limits)
        self.dispatcher = dispatcher
        self.statuses = dispatcher.statuses
        self.memory = memory
        self.max_message = max_message
        self.access = access
        self.deadlines = Deadlines(loop)
        self._rpcs = rpcs
        self._codings = codings

    def understand(self, fields: Fields, size: int) -> Head:
        return GrpcHead(fields, self._rpcs, self._codings, self.limits.header_list, size)

    def count_unsent(self, change: int) -> None:
        if change > 0:
            self.memory.force(change)
        else:
            self.memory.give_back(-change)

    def open(self, connection: "Sending", number: int, head: Head, window: int, room: int) -> Stream:
        return NativeCall(self, connection, number, cast(GrpcHead, head), window, room)
