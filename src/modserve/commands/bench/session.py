"""A model of a server that runs, with the requests that are sent to it: what every measurement begins with."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from modserve.core.errors import invalid

from ..access import Access
from ..remote import Remote, connect
from .inputs import Wishes, make
from .loops import ClosedLoop, Driver, OpenLoop
from .measures import Load
from .slots import Slot, SlotFactory
from .target import Described, ServerCounts, describe, slots_for


class Interruption:
    """Ctrl-C, or the end that the system wants, from now on: whoever sleeps is woken by an InterruptedError."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._event.set)

    @property
    def happened(self) -> bool:
        return self._event.is_set()

    async def sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return
        raise InterruptedError


@dataclass(frozen=True, slots=True)
class Session:
    model: Described
    inputs: Sequence[str]
    """Each input in words."""
    remarks: Sequence[str]
    """What was assumed about the data."""
    times: ServerCounts
    slots: SlotFactory
    requests: int
    """How many different ones are sent in turns."""
    seconds: float
    """How long a response may take."""

    def driver(self, load: Load, connections: int, poisson: bool) -> Driver:
        if not load.is_rate:
            return ClosedLoop(int(load.value), self.slots, self.requests, self.seconds)
        return OpenLoop(load.value, self.slots, self.requests, self.seconds, most=connections, poisson=poisson)

    async def first_response(self) -> None:
        """One request ahead: whether the model takes it. Raises OSError, and INVALID_ARG with the server's words."""
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        class First:
            def done(self, slot: Slot, error: str) -> None:
                slot.start = 0
                if not outcome.done():
                    outcome.set_result(error)

        [slot] = await self.slots.open(First(), 1)
        slot.start = 1
        slot.send(0)
        try:
            error = await asyncio.wait_for(outcome, self.seconds)
        except TimeoutError:
            error = f"no response within {self.seconds:g} s"
        finally:
            slot.close()
        if error:
            raise invalid(f"the first request failed: {error}")


@contextlib.contextmanager
def session(access: Access, model: str, version: int | None, wishes: Wishes, form: str = "") -> Iterator[Session]:
    """Looks at the model and prepares the requests. `form` is binary, json, or empty for what the server can.

    Raises UnreachableError, and INVALID_ARG.
    """
    remote: Remote = connect(access)
    try:
        described = describe(remote, model, version)
        inputs, remarks = make(model, described.specs, described.batches, wishes)
        binary = described.binary if not form else form == "binary"
        slots = slots_for(access, described, inputs, binary)
        words = [f"{name} {tensor.datatype.name} {list(tensor.shape)}" for name, tensor in inputs[0].items()]
        times = ServerCounts(remote, model, version)
        yield Session(described, words, remarks, times, slots, len(inputs), access.seconds)
    finally:
        remote.close()


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """The garbage collector rests: a collection would be a pause of the client's own."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
