"""Replay of recorded requests: at a pace, with limited concurrency, and in order within a sequence."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from modserve.client.errors import ClientError
from modserve.client.input_values import ClientCall
from modserve.client.transport import AsyncTransport
from modserve.recording.record import RequestRecord

from .record_index import RecordPlace, SequenceName
from .replay_report import Replayed

OnReplayed: TypeAlias = Callable[[RecordPlace, RequestRecord, Replayed], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """Pace of `rate` requests a second; 0: as fast as the responses arrive. `original`: the recorded intervals."""

    rate: float = 0.0
    original: bool = False

    def due_s(self, place: RecordPlace, number: int, first: RecordPlace) -> float:
        """Return the due time of request `number`, in seconds after the first one."""
        if self.original:
            return (place.at_us - first.at_us) / 1e6
        return number / self.rate if self.rate else 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """Target of the requests: the model and version of each record, unless set here."""

    model: str = ""
    version: int | None = None
    seconds: float = 60.0

    def call(self, record: RequestRecord) -> ClientCall:
        tensors = {name: each.content for name, each in record.inputs.items() if each.content is not None}
        return ClientCall(
            self.model or record.model,
            record.version if self.version is None else self.version,
            tensors,
            record.requested,
            record.id,
            record.parameters,
            self.seconds,
        )


async def replay(
    places: Sequence[RecordPlace],
    transport: AsyncTransport,
    target: Target,
    pace: Pace,
    concurrency: int,
    on_replayed: OnReplayed,
) -> None:
    """Replay the requests. Raises ClientError, wrapped in an ExceptionGroup, if no server responds."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    free = asyncio.Semaphore(concurrency)
    latest: dict[SequenceName, asyncio.Task[None]] = {}

    async def one(place: RecordPlace, former: "asyncio.Task[None] | None") -> None:
        try:
            if former is not None:  # it has begun before, so that it has a place among those at work
                await asyncio.wait((former,))
            record = await asyncio.to_thread(place.read)
            on_replayed(place, record, await _send(transport, target.call(record), record.decoupled))
        finally:
            free.release()

    async with asyncio.TaskGroup() as tasks:
        for number, place in enumerate(places):
            if (wait := begin + pace.due_s(place, number, places[0]) - loop.time()) > 0:
                await asyncio.sleep(wait)
            await free.acquire()
            former = None if place.sequence is None else latest.get(place.sequence)
            task = tasks.create_task(one(place, former))
            if place.sequence is not None:
                latest[place.sequence] = task


async def _send(transport: AsyncTransport, call: ClientCall, decoupled: bool) -> Replayed:
    replayed = Replayed()
    begin_ns = time.perf_counter_ns()
    try:
        if decoupled:
            async for result in transport.stream(call):
                replayed.results.append(result)
        else:
            replayed.results.append(await transport.infer(call))
    except ClientError as error:
        if error.status is None and not isinstance(error, TimeoutError):
            raise  # no server responds
        replayed.failure = error
    replayed.took_ns = time.perf_counter_ns() - begin_ns
    return replayed
