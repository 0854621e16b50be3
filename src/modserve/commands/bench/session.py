"""A benchmark session: a model on running servers, and prepared requests."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from modserve.core.errors import invalid
from modserve.core.runtime.clock import Clock

from ..destination import Destination
from ..remote_server import connect
from .inputs import DataOptions, SequenceLengths, Sequences, grpc_tag, http_tag, make
from .loops import ClosedLoop, LoadGenerator, OpenLoop
from .measures import LoadLevel
from .slots import RequestSlot, SlotFactory, SpreadSlots, spread
from .target import ServerStatistics, TargetModel, describe_all, slot_factory
from .text_measures import TextCounter


class Interrupt:
    """Ctrl-C or a termination signal, after which `sleep` raises InterruptedError."""

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
class BenchSession:
    model: TargetModel
    inputs: Sequence[str]
    """Descriptions of the inputs."""
    remarks: Sequence[str]
    """Assumptions about the data."""
    times: ServerStatistics
    slots: SlotFactory
    requests: int
    """Number of distinct requests, sent in turn."""
    seconds: float
    """Response time-out."""
    sequences: Sequences | None = None
    texts: TextCounter | None = None
    servers: int = 1

    def generator(self, load: LoadLevel, connections: int | None, poisson: bool, timers: Clock) -> LoadGenerator:
        """Create the load generator. `connections` defaults to the usual number."""
        how = self.slots, self.requests, self.seconds
        if not load.is_rate:
            return ClosedLoop(int(load.value), *how, sequences=self.sequences, texts=self.texts)
        most = connections or self._usual_connections(load.value)
        first = -(-_FIRST // self.servers) * self.servers
        return OpenLoop(
            load.value,
            *how,
            most=most,
            first=first,
            poisson=poisson,
            sequences=self.sequences,
            texts=self.texts,
            timers=timers,
        )

    def _usual_connections(self, rate: float) -> int:
        """Return the default number of connections, low enough that no sequence exceeds the server's idle time-out."""
        traits = self.model.sequences
        if traits is None:
            return CONNECTIONS
        return max(1, min(SEQUENCES, int(rate * traits.idle_seconds * _SHARE_OF_IDLE)))

    async def first_responses(self) -> None:
        """Send one request to each server as a test. Raises OSError, and INVALID_ARG with the server's message."""
        for _ in range(self.servers):
            await self._first_response()

    async def _first_response(self) -> None:
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        class FirstResponse:
            def on_response(self, slot: RequestSlot) -> None:
                """Ignore a response; the outcome is known at the end."""

            def on_done(self, slot: RequestSlot, error: str) -> None:
                slot.start = 0
                if not outcome.done():
                    outcome.set_result(error)

        [slot] = await self.slots.open(FirstResponse(), 1)
        slot.start = 1
        if self.sequences is not None:
            slot.send(*self.sequences.only())
        else:
            slot.send(0, b"" if self.texts is None else self.texts.tag())
        try:
            error = await asyncio.wait_for(outcome, self.seconds)
        except TimeoutError:
            error = f"no response within {self.seconds:g} s"
        finally:
            slot.close()
        if error:
            advice = _STREAMS_ADVICE if self.model.decoupled and error.startswith("404") else ""
            at = f" at {self.slots.url(slot)}" if isinstance(self.slots, SpreadSlots) else ""
            raise invalid(f"the first request{at} failed: {error}{advice}")


CONNECTIONS = 256
SEQUENCES = 4
"""Concurrent sequences in an open loop, as in perf_analyzer."""
_SHARE_OF_IDLE = 0.5
_FIRST = 8
"""Minimum number of connections at the start of an open loop, divided equally between the servers."""
_STREAMS_ADVICE = "; only modserve streams over HTTP: for other servers, use '--url grpc://HOST:PORT'"
_NO_LENGTHS = SequenceLengths()


@contextlib.contextmanager
def session(
    servers: Sequence[Destination],
    model: str,
    version: int | None,
    data: DataOptions,
    form: str = "",
    *,
    streaming: bool = False,
    lengths: SequenceLengths = _NO_LENGTHS,
) -> Iterator[BenchSession]:
    """Describe the model on all servers and prepare the requests.

    `form` is binary, json, or empty to follow the server.

    Raises UnreachableError, and INVALID_ARG.
    """
    server = servers[0]
    remotes = [connect(each) for each in servers]
    try:
        described = describe_all(remotes, model, version)
        inputs, remarks, streams = make(model, described.specs, described.batches, data)
        binary = described.binary if not form else form == "binary"
        factories = {
            str(each.address): slot_factory(each, described, inputs, binary=binary, streaming=streaming)
            for each in servers
        }
        sequences = None
        if described.decoupled:
            remarks.append(f"model '{model}' is decoupled: requests use streams, and end with their last response")
        if described.sequences is not None:
            tag = grpc_tag if server.address.over_grpc else http_tag
            made_up = data.file is None
            remarks.append(f"model '{model}' uses sequences: each client sends complete sequences, one after another")
            sequences = Sequences(tag, streams, lengths, made_up, described.sequences.text_ids)
        words = [f"{name} {tensor.datatype.name} {list(tensor.shape)}" for name, tensor in inputs[0].items()]
        times = ServerStatistics(remotes, model, version)
        slots = spread(factories)
        yield BenchSession(
            described, words, remarks, times, slots, len(inputs), server.seconds, sequences, servers=len(servers)
        )
    finally:
        for remote in remotes:
            remote.close()


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector: its pauses would count as latency."""
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
