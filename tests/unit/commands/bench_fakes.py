"""A server that exists only in numbers: slots and generators on a clock that the test turns."""

import asyncio
import copy
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hpack import Decoder, Encoder

from http2_client import Transport
from modserve.commands.bench.grpc import GrpcSlot, SharedConnection
from modserve.commands.bench.http2 import GrpcMessage, Http2ClientConnection, frame
from modserve.commands.bench.loops import OpenLoop
from modserve.commands.bench.measures import LoadLevel, MeasurementWindow
from modserve.commands.bench.profiler import MeasurementRules, Profiler
from modserve.commands.bench.slots import Endpoint, RequestSlot, ResponseListener, SlotFactory
from modserve.commands.destination import address
from modserve.commands.status_report import VersionUsage

MS = 1_000_000


def window(
    milliseconds: Sequence[float], seconds: float = 1.0, errors: dict[str, int] | None = None, waiting: int = 0
) -> MeasurementWindow:
    latencies = array("q", [round(value * MS) for value in milliseconds])
    return MeasurementWindow(seconds, latencies, Counter(errors or {}), waiting=waiting)


@dataclass
class FakeGenerator:
    """Each second brings the window that `windows` says, the last one for ever."""

    load: LoadLevel
    windows: Callable[[int], MeasurementWindow]
    log: list[str] = field(default_factory=list)
    number: int = 0
    elapsed: float = 0.0

    async def start(self) -> None:
        self.log.append("start")

    def take_window(self) -> MeasurementWindow:
        if self.elapsed < 0.1:
            return window([])
        self.elapsed = 0.0
        self.number += 1
        return copy.deepcopy(self.windows(self.number - 1))

    async def stop(self, patience: float) -> int:
        self.log.append("stop")
        return 0


def profiler(
    rules: MeasurementRules,
    generators: Callable[[], FakeGenerator | None],
    log: list[str] | None = None,
    interrupt_after: int | None = None,
) -> Profiler:
    """Time passes for the generator that runs; `interrupt_after` so many windows, somebody presses Ctrl-C."""
    seen: list[MeasurementWindow] = []

    async def sleep(seconds: float) -> None:
        generator = generators()
        if interrupt_after is not None and len(seen) >= interrupt_after:
            raise InterruptedError
        if generator is not None:
            generator.elapsed = seconds

    async def times() -> VersionUsage | None:
        return VersionUsage(requests=len(seen) * 10, total_ns=len(seen) * 10 * MS)

    def on_window(load: LoadLevel, windows: Sequence[MeasurementWindow]) -> None:
        seen.append(windows[-1])
        if log is not None:
            log.append(f"{load}: {len(windows)}")

    return Profiler(rules, times, on_window, sleep)


class FakeSlot:
    def __init__(self, owner: ResponseListener) -> None:
        self.start = 0
        self.sent: list[int] = []
        self.tags: list[bytes] = []
        self.owner = owner
        self.closed = False

    def send(self, index: int, tag: bytes = b"") -> None:
        self.sent.append(index)
        self.tags.append(tag)

    def respond(self, error: str = "") -> None:
        self.owner.on_done(self, error)

    def abort(self, why: str) -> None:
        self.respond(why)

    def close(self) -> None:
        self.closed = True


class Factory:
    def __init__(self) -> None:
        self.slots: list[FakeSlot] = []

    async def open(self, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        new = [FakeSlot(owner) for _ in range(count)]
        self.slots += new
        return new


class FakeTimers:
    """A clock that remembers the last moment at which it is to call."""

    def __init__(self) -> None:
        self.moment = 0
        self.callback: Callable[[], None] = lambda: None

    def now_ns(self) -> int:
        return self.moment

    def call_soon(self, callback: Callable[[], None]) -> None:
        raise AssertionError

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> asyncio.Handle:
        self.moment, self.callback = when_ns, callback
        return asyncio.get_running_loop().call_soon(lambda: None)


def open_loop(factory: SlotFactory, rate: float, most: int, **more: Any) -> tuple[OpenLoop, FakeTimers]:
    timers = FakeTimers()
    return OpenLoop(rate, factory, 1, 60, most=most, first=1, timers=timers, **more), timers


FIELDS = [(":method", "POST"), (":path", "/p"), ("te", "trailers")]
S = TypeVar("S", bound=GrpcSlot)


class Http2End(Generic[S]):
    """The server's end of a connection with one slot."""

    def __init__(
        self,
        make: Callable[[SharedConnection, ResponseListener], S],
        owner: ResponseListener,
        *messages: bytes,
        settings: bytes = b"",
    ) -> None:
        shared = SharedConnection(Endpoint(address("h:1")), FIELDS, [GrpcMessage.of(message) for message in messages])
        self.connection = shared.connection = Http2ClientConnection(FIELDS)
        self.transport = Transport(self.connection)
        self.connection.connection_made(self.transport)
        self.slot = make(shared, owner)
        self.encoder, self.decoder = Encoder(), Decoder()
        self.connection.data_received(frame(4, 0, 0, settings))
        self.frames(skip=24)

    def frames(self, skip: int = 0) -> list[tuple[int, int, int, bytes]]:
        """What came since the last look: kind, flags, stream and payload."""
        data, self.transport.written = b"".join(self.transport.written)[skip:], []
        frames = []
        while data:
            length = int.from_bytes(data[:3], "big")
            frames.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + length]))
            data = data[9 + length :]
        return frames
