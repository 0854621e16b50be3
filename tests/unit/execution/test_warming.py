"""An instance that is made anew runs the samples of its model before it takes requests."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest
from pool_bench import CONFIG, SOURCE, Owner, answer, copied, member, refused, until

from modserve.backends.api import Executor, InstanceLostError
from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.response import ResponseSink
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool
from modserve.execution.warming import Sample
from modserve.testing import Execution, FakeClock, PuppetBackend, instance_spec, request, tensor

S = 1_000_000_000
LOST = "model 'model', instance 'model_0' was lost"


def sampled(sink: ResponseSink) -> list[Inflight]:
    inputs = {"INPUT0": tensor(dtypes.INT32, (1, 4), 77)}
    return [Signature(CONFIG).accept(request(inputs), sink, 0)]


class Bench:
    """A pool of one instance, which has just been lost; what makes another one ends at once."""

    def __init__(self, *, made_up: bool = False) -> None:
        self.clock = FakeClock()
        self.backend = PuppetBackend()
        self.model = self.backend.open(SOURCE)
        self.statistics = ModelStatistics()
        self.samples: list[Sample] | ModserveError = [Sample("w", 2, sampled, made_up)]
        self.asked = 0
        spec = instance_spec(CONFIG)
        self.pool = InstancePool(
            ModelId("model", 3),
            CONFIG,
            [(spec.name, self.model.instance(spec))],
            self.statistics,
            Owner(),
            asyncio.get_running_loop(),
            make=self._make,
            clock=self.clock,
            make_samples=self._make_samples,
        )

    def _make(self, number: int, close: Callable[[], None]) -> "Future[Executor]":
        close()
        attempt: Future[Executor] = Future()
        attempt.set_result(self.model.instance(instance_spec(CONFIG, index=number)))
        return attempt

    def _make_samples(self) -> "Future[Sequence[Sample]]":
        self.asked += 1
        made: Future[Sequence[Sample]] = Future()
        if isinstance(self.samples, ModserveError):
            made.set_exception(self.samples)
        else:
            made.set_result(self.samples)
        return made

    def start(self, value: int) -> tuple[Inflight, Execution]:
        slot = self.pool.reserve()
        assert slot is not None
        entry = member(value)
        self.statistics.pending += 1
        self.pool.run(slot, [entry], "full")
        return entry, self.backend.next_execution()

    async def lose(self) -> None:
        entry, execution = self.start(1)
        execution.fail(InstanceLostError("killed"))
        await until(lambda: entry.settled)
        assert refused(entry) == (Code.UNAVAILABLE, f"{LOST}: killed")

    async def execution(self) -> Execution:
        """The next execution, while the event loop turns."""
        return await asyncio.to_thread(self.backend.next_execution)

    def close(self) -> None:
        self.pool.close()
        assert self.backend.open_instances == 0


async def test_it_takes_requests_when_it_is_warm() -> None:
    bench = Bench()
    await bench.lose()
    bench.clock.advance(S)
    for _ in range(2):
        execution = await bench.execution()
        assert execution.inputs["INPUT0"].tolist() == [[77] * 4]
        assert bench.pool.reserve() is None
        assert bench.pool.trouble is not None
        execution.finish(copied(execution))
    await until(lambda: bench.statistics.instance_restarts)
    assert bench.pool.trouble is None
    entry, execution = bench.start(2)
    execution.finish(copied(execution))
    await until(lambda: entry.settled)
    assert answer(entry) == [[2] * 4]
    assert (bench.statistics.inference_count, bench.statistics.instances_lost, bench.asked) == (1, 0, 1)
    bench.close()


@pytest.mark.parametrize("error", [invalid("no"), InstanceLostError("no")], ids=["refused", "lost"])
async def test_one_that_fails_is_closed_and_tried_again_later(error: ModserveError) -> None:
    bench = Bench()
    await bench.lose()
    bench.clock.advance(S)
    (await bench.execution()).fail(error)
    await until(lambda: bench.pool.trouble is not None and "warm-up" in bench.pool.trouble.message)
    assert bench.pool.trouble is not None
    assert bench.pool.trouble.message.startswith(f"{LOST} and cannot be replaced: ")
    assert "warm-up sample 'w' failed: " in bench.pool.trouble.message
    bench.clock.advance(2 * S)
    for _ in range(2):
        execution = await bench.execution()
        execution.finish(copied(execution))
    await until(lambda: bench.pool.trouble is None)
    assert bench.backend.open_instances == 1
    bench.close()


async def test_samples_that_cannot_be_made_are_a_failed_attempt() -> None:
    bench = Bench()
    await bench.lose()
    samples, bench.samples = bench.samples, invalid("there is no file 'data'")
    bench.clock.advance(S)
    await until(lambda: bench.pool.trouble is not None and "no file" in bench.pool.trouble.message)
    bench.samples = samples
    bench.clock.advance(2 * S)
    for _ in range(2):
        execution = await bench.execution()
        execution.finish(copied(execution))
    await until(lambda: bench.pool.trouble is None)
    bench.close()


async def test_data_that_is_made_up_does_not_keep_it_from_serving() -> None:
    bench = Bench(made_up=True)
    await bench.lose()
    bench.clock.advance(S)
    (await bench.execution()).fail(invalid("no"))
    await until(lambda: bench.pool.trouble is None)
    bench.close()


async def test_data_that_is_made_up_and_kills_an_instance_is_not_run_again() -> None:
    bench = Bench(made_up=True)
    await bench.lose()
    bench.clock.advance(S)
    (await bench.execution()).fail(InstanceLostError("no"))
    await until(lambda: bench.pool.trouble is not None and "warm-up" in bench.pool.trouble.message)
    bench.clock.advance(2 * S)
    await until(lambda: bench.pool.trouble is None)
    assert bench.asked == 1
    bench.close()


async def test_a_pool_that_closes_meanwhile_closes_the_instance() -> None:
    bench = Bench()
    bench.samples = [Sample("w", 1, sampled)]  # of a second execution nobody would tell the end
    await bench.lose()
    bench.clock.advance(S)
    execution = await bench.execution()
    closing = asyncio.create_task(asyncio.to_thread(bench.pool.close))
    execution.finish(copied(execution))
    await closing
    assert bench.backend.open_instances == 0
