"""Services that the calls of a port share."""

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, final

from modserve.core.requests.memory import MemoryBudget
from modserve.frontends.http2.limits import ConnectionLimits
from modserve.frontends.http2.stream import Stream

from .deadlines import Deadlines
from .dispatch import Dispatcher
from .heads import TRAILERS, GrpcHead

if TYPE_CHECKING:
    from modserve.observability.access_log import AccessLog

_OPEN: Final = 8 * 1024
"""Bytes that a call counts for while it waits for its client, or streams."""

_METADATA: Final = 8
"""Bytes that its metadata take, for each that they count in a header list."""


class UnaryPath(ABC):
    """Fast path of unary inferences, without a task, where that is possible."""

    @abstractmethod
    def start(self, client: Stream, message: bytes) -> bool:
        """Serve the `ServerCall`; False if that takes a task, and nothing has been done."""


@final
class CallServices:
    """The shared services of one port."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        unary: UnaryPath,
        limits: ConnectionLimits,
        max_message: int,
        access: "AccessLog | None",
    ) -> None:
        """`max_message`: bytes that a message may have, 0: any number; `access`: where calls are logged, if at all."""
        self.loop = loop
        self.deadlines = Deadlines(loop)
        self.dispatcher = dispatcher
        self.unary = unary
        self.memory: MemoryBudget = dispatcher.server.memory
        self.limits = limits
        self.max_message = max_message
        self.access = access
        self.load = b""
        """Trailer with the server's load for every call; empty if there is none."""
        self.trailers = TRAILERS
        """The header block that ends a call well, with `load`."""

    def report_load(self, block: bytes) -> None:
        """Set the load that trailers report from now on."""
        self.load = block
        self.trailers = TRAILERS + block


def open_cost(head: GrpcHead) -> int:
    """Return the bytes of the server's memory that an open call takes besides its messages."""
    return _OPEN + _METADATA * head.size
