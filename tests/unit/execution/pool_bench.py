"""A pool whose engine's executions are ended by hand, and the requests it runs."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modserve.backends.api import ModelSource
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.execution.instance import Instance
from modserve.execution.pool import InstancePool
from modserve.testing import Execution, PuppetBackend, RecordingSink, config, instance_spec, request, tensor
from modserve.testing.builders import RecordedInflight

CONFIG = config()
SOURCE = ModelSource(CONFIG, 1, Path(), Path())


def member(value: int, batch_size: int = 1) -> Inflight:
    asked = request({"INPUT0": tensor(dtypes.INT32, (batch_size, 4), value)}, id=f"r{value}")
    now_ns = time.monotonic_ns()
    entry = RecordedInflight(asked, RecordingSink(), asked.inputs, ("OUTPUT0",), batch_size, None, now_ns)
    entry.queue_start_ns = now_ns
    return entry


def sink(entry: Inflight) -> RecordingSink:
    assert isinstance(entry.sink, RecordingSink)
    return entry.sink


def answer(entry: Inflight) -> Any:
    """The one answer a request got."""
    assert sink(entry).errors == []
    [response] = sink(entry).responses
    return response.outputs["OUTPUT0"].array.tolist()


def refused(entry: Inflight) -> tuple[Code, str]:
    assert sink(entry).responses == []
    [error] = sink(entry).errors
    return error.code, error.message


def copied(execution: Execution) -> dict[str, Array]:
    return {"OUTPUT0": execution.inputs["INPUT0"]}


async def until(what: Callable[[], object]) -> None:
    """Let the event loop turn until something is true."""
    async with asyncio.timeout(30):
        while not what():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)


@dataclass
class Owner:
    """Implements `execution.owner.PoolOwner`: what the owner of a pool does when it is told something."""

    on_settle: Callable[[int], None] = lambda count: None
    slot_free: Callable[[], None] = lambda: None
    batch_done: Callable[[list[Inflight]], None] = lambda members: None
    run_again: Callable[[Inflight], None] = lambda inflight: None
    mixes_rows: Callable[[], None] = lambda: None
    slot_lost: Callable[[int, ModserveError, bool], None] = lambda number, error, in_vain: None
    instance_left: Callable[[Instance], None] = lambda instance: None
    engine_left: Callable[[Callable[[], None], str], None] = lambda close, name: close()
    health_changed: Callable[[], None] = lambda: None


@dataclass
class Learner:
    """Implements `execution.owner.Learner`."""

    observe: Callable[[ExecutionTiming, Sequence[Inflight]], None] = lambda timing, members: None
    expect: Callable[[Sequence[Inflight]], int] = lambda members: 0


class Bench:
    """A pool of puppet instances, and what is told of its requests."""

    def __init__(
        self,
        instances: int,
        model: ModelConfig = CONFIG,
        *,
        by_request: bool = False,
        statistics: ModelStatistics | None = None,
    ) -> None:
        self.backend = PuppetBackend(by_request=by_request)
        opened = self.backend.open(SOURCE)
        engines = [(f"model_{index}", opened.instance(instance_spec(model))) for index in range(instances)]
        self.statistics = statistics or ModelStatistics()
        self.settled: list[int] = []
        self._changed = asyncio.Event()
        self.mixed = 0
        """How often the owner was told that batches mix rows."""
        self.owner = Owner(self._on_settled, self._changed.set, mixes_rows=self._on_mixed)
        self.learner = Learner()
        loop = asyncio.get_running_loop()
        self.pool = InstancePool(
            ModelId("model", 3), model, engines, self.statistics, self.owner, loop, learner=self.learner
        )

    def _on_settled(self, count: int) -> None:
        self.settled.append(count)
        self._changed.set()
        if self.pool.leaving:
            self.pool.release_leaving()

    def _on_mixed(self) -> None:
        self.mixed += 1

    def run(self, *members: Inflight) -> Execution:
        """Start a batch, and return its execution once an instance has begun it."""
        slot = self.pool.reserve()
        assert slot is not None
        self.statistics.pending += len(members)
        self.pool.run(slot, list(members), "full")
        return self.backend.next_execution()

    async def until_settled(self, batches: int) -> None:
        async with asyncio.timeout(30):
            while len(self.settled) < batches:
                await self._changed.wait()
                self._changed.clear()

    async def until_free(self) -> None:
        """Wait for the pool's only instance."""
        async with asyncio.timeout(30):
            while (slot := self.pool.reserve()) is None:
                self._changed.clear()
                await self._changed.wait()
        self.pool.release(slot)
