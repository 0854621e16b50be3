"""The id of a gRPC call, which is that of its request: from the client's metadata, or made when somebody needs it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from modserve.core import request_ids

from . import heads
from .collecting import Collecting

if TYPE_CHECKING:
    from modserve.frontends.call import Call


class IdentifiedCall(Collecting):
    """A part of `rpc.RpcCall`; a subclass sets what it has when it is made."""

    __slots__ = ("callbacks", "inference", "request_id")

    callbacks: list[Callable[[], None]] | None
    """What is called when it is over."""
    inference: "Call | None"
    """The inference that a call of ``ModelInfer`` is, unless that is a plain one."""
    request_id: str

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        return self.call_head.metadata

    def on_end(self, callback: Callable[[], None]) -> None:
        if self.over:
            callback()
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    @property
    def peer(self) -> object:
        transport = self.connection.transport
        return None if transport is None else transport.get_extra_info("peername")

    def identify(self) -> str:
        if not self.request_id:
            call = self.inference
            self.request_id = request_ids.make() if call is None else call.identify()
        return self.request_id

    def serving(self, call: "Call") -> None:
        self.inference = call
        call.request_id = self.request_id

    def send_head(self, coding: str) -> None:
        block = heads.COMPRESSED[coding] if coding else heads.HEADERS
        self.send_headers(heads.with_id(block, self.request_id) if self.request_id else block)

    def own_metadata(self) -> tuple[tuple[str, str], ...]:
        """For the status of a call whose head has not been sent."""
        return ((request_ids.HEADER, self.request_id),) if self.request_id and not self.headers_sent else ()
