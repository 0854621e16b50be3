"""A loaded model: requests go in, answers come out, and it knows when all are settled."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sinks import keep, sink_of

from modserve.backends.api import BackendInstance, Executor, InstanceLostError, ModelSource
from modserve.core.configuration.model_config import Admission, DynamicBatching, ModelConfig, ModelLimits, QueuePolicy
from modserve.core.configuration.sequence_config import OldestStrategy, SequenceBatching
from modserve.core.errors import Code, ModserveError, OverloadedError, invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.response import Outcome
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.runtime.clock import LoopClock
from modserve.core.statistics.model_statistics import FailureReason
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.models.loading.assembly import assemble_model
from modserve.models.serving.model import Model
from modserve.models.serving.opened_model import OpenedModel
from modserve.testing import Execution, PuppetBackend, RecordingSink, config, instance_spec, request, tensor

BATCHING = DynamicBatching(preferred_batch_sizes=(8,))


class Bench:
    def __init__(self, given: ModelConfig, instances: int = 1) -> None:
        self.backend = PuppetBackend()
        engine = self.backend.open(ModelSource(given, 1, Path(), Path()))
        made = [(f"model_{index}", engine.instance(instance_spec(given))) for index in range(instances)]
        self.model = assemble_model(
            ModelId("model", 1), OpenedModel(given, b"", engine, made, False), LoopClock(asyncio.get_running_loop())
        )

    def submit(self, *values: int, **more: Any) -> list[Inflight]:
        """One request a value, all in one turn of the event loop."""
        now_ns = time.monotonic_ns()
        asked = [request({"INPUT0": tensor(dtypes.INT32, (1, 4), value)}, **more) for value in values]
        return [keep(self.model.submit(each, sink := RecordingSink(), now_ns), sink) for each in asked]

    async def execution(self) -> Execution:
        """The next execution, once the event loop has had its turns."""
        return await asyncio.to_thread(self.backend.next_execution)

    async def finish(self) -> list[int]:
        """End the next execution; the values that were in it."""
        execution = await self.execution()
        array = execution.inputs["INPUT0"]
        execution.finish({"OUTPUT0": array})
        found: list[int] = array[:, 0].tolist()
        return found


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    made = Bench(getattr(request, "param", None) or config(dynamic_batching=BATCHING))
    yield made
    await made.model.close()
    assert (made.backend.open_models, made.backend.open_instances) == (0, 0)


def outcome(entry: Inflight) -> int | Code:
    """The value a request got back, or the code of its failure."""
    sink = sink_of(entry)
    assert sink.settled == 1
    if sink.errors:
        return sink.errors[0].code
    value: int = sink.responses[0].outputs["OUTPUT0"].array[0, 0]
    return value


unbatched = pytest.mark.parametrize("bench", [config()], indirect=True, ids=["no batching"])


async def test_requests_of_one_turn_share_a_batch(bench: Bench) -> None:
    entries = bench.submit(1, 2, 3)
    assert await bench.finish() == [1, 2, 3]
    await bench.model.drain()
    assert [outcome(entry) for entry in entries] == [1, 2, 3]
    assert bench.model.statistics.execution_count == 1


@pytest.mark.parametrize(
    "bench", [config(dynamic_batching=replace(BATCHING, separate_by=("adapter",)))], indirect=True, ids=["by adapter"]
)
async def test_requests_with_other_parameters_run_apart(bench: Bench) -> None:
    given = ((1, "a"), (2, "b"), (3, "a"), (4, None), (5, 1), (6, True), (7, 1.0), (8, 1))
    for value, adapter in given:
        bench.submit(value, parameters={"adapter": adapter} if adapter else {}, id=str(value))
    assert [await bench.finish() for _ in range(6)] == [[1, 3], [2], [4], [5, 8], [6], [7]]
    await bench.model.drain()


@unbatched
async def test_without_dynamic_batching_each_runs_alone(bench: Bench) -> None:
    entries = bench.submit(1, 2, 3)
    assert [await bench.finish() for _ in entries] == [[1], [2], [3]]
    await bench.model.drain()
    assert [outcome(entry) for entry in entries] == [1, 2, 3]
    assert bench.model.statistics.execution_count == 3


async def test_pending_counts_those_that_wait(bench: Bench) -> None:
    bench.submit(1)
    execution = await bench.execution()
    assert bench.model.statistics.pending == 0
    waiting = bench.submit(2, 3)
    assert bench.model.statistics.pending == 2
    waiting[0].cancel()
    assert bench.model.statistics.pending == 1
    execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
    assert await bench.finish() == [3]
    await bench.model.drain()
    assert bench.model.statistics.pending == 0


async def test_a_wrong_request_is_refused_and_not_counted(bench: Bench) -> None:
    sink = RecordingSink()
    with pytest.raises(ModserveError, match="expected 1 inputs but got 0"):
        bench.model.submit(request({}), sink, 0)
    assert sink.settled == 0
    statistics = bench.model.statistics
    assert (statistics.fail.count, statistics.pending) == (0, 0)


@pytest.mark.parametrize(
    "bench",
    [config(dynamic_batching=DynamicBatching((8,), default_policy=QueuePolicy(max_queue_size=1)))],
    indirect=True,
    ids=["queue of one"],
)
async def test_a_full_queue_counts_as_rejected(bench: Bench) -> None:
    bench.submit(1, 2)  # the first need not wait: the instance is free
    with pytest.raises(ModserveError, match="Exceeds maximum queue size"):
        bench.submit(3)
    statistics = bench.model.statistics
    assert (statistics.fail.count, statistics.failures[FailureReason.REJECTED]) == (1, 1)
    assert statistics.pending == 1
    assert [await bench.finish(), await bench.finish()] == [[1], [2]]
    await bench.model.drain()


async def test_a_deadline_that_has_passed_counts_as_rejected(bench: Bench) -> None:
    [entry] = bench.submit(1, deadline_ns=1)
    await bench.model.drain()
    assert outcome(entry) is Code.UNAVAILABLE
    assert bench.model.statistics.failures[FailureReason.REJECTED] == 1


@pytest.mark.parametrize(
    "bench",
    [config(dynamic_batching=DynamicBatching((8,), default_policy=QueuePolicy(default_timeout_ns=1)))],
    indirect=True,
    ids=["timeout of 1 ns"],
)
async def test_the_queues_timeout_is_the_configurations(bench: Bench) -> None:
    [entry] = bench.submit(1)
    await bench.model.drain()
    assert outcome(entry) is Code.UNAVAILABLE


@pytest.mark.parametrize(
    "bench",
    [
        config(dynamic_batching=BATCHING),
        config(sequence_batching=SequenceBatching()),
        config(sequence_batching=SequenceBatching(strategy=OldestStrategy())),
    ],
    indirect=True,
    ids=["dynamic", "direct", "oldest"],
)
async def test_the_timeout_parameter_bounds_the_waiting_alone(bench: Bench) -> None:
    before_ns = time.monotonic_ns()
    parameters = {"sequence_id": 1, "sequence_start": True}
    [entry] = bench.submit(1, parameters=parameters, timeout_ns=60 * 10**9)
    assert entry.deadline_ns == 0
    assert before_ns + 60 * 10**9 <= entry.queue_limit_ns <= time.monotonic_ns() + 60 * 10**9
    assert await bench.finish() == [1]


async def test_one_cancelled_while_waiting_and_one_while_executing(bench: Bench) -> None:
    running = bench.submit(1, 2)
    execution = await bench.execution()
    waiting = bench.submit(3, 4)
    running[0].cancel()
    waiting[0].cancel()
    execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
    assert await bench.finish() == [4]
    await bench.model.drain()
    assert [outcome(entry) for entry in (*running, *waiting)] == [Code.CANCELLED, 2, Code.CANCELLED, 4]
    statistics = bench.model.statistics
    assert statistics.failures[FailureReason.CANCELED] == statistics.fail.count == 2
    assert (statistics.success.count, statistics.inference_count, statistics.execution_count) == (2, 2, 2)


async def test_a_failed_execution_fails_only_its_own_requests(bench: Bench) -> None:
    failing = bench.submit(1, 2)
    execution = await bench.execution()
    good = bench.submit(3)
    execution.fail(ValueError("engine broke"))
    for _ in failing:  # one by one
        (await bench.execution()).fail(ValueError("engine broke"))
    assert await bench.finish() == [3]
    await bench.model.drain()
    assert [outcome(entry) for entry in (*failing, *good)] == [Code.INTERNAL, Code.INTERNAL, 3]
    assert bench.model.statistics.failures[FailureReason.BACKEND] == 2


# What goes wrong beside a request


ORDERED = replace(BATCHING, preserve_ordering=True, separate_by=("adapter",))


@pytest.mark.parametrize("bench", [config(dynamic_batching=ORDERED)], indirect=True, ids=["ordered"])
async def test_a_parameter_that_is_no_value_is_refused_and_holds_nobody_up(bench: Bench) -> None:
    parameters: Any = {"adapter": [1]}
    with pytest.raises(ModserveError) as caught:
        bench.submit(1, parameters=parameters, id="a")
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARG,
        "[request id: a] parameter 'adapter' of a request to model 'model' is of type list, expected a string, a "
        "number or a boolean",
    )
    entries = bench.submit(2)
    assert await bench.finish() == [2]
    await bench.model.drain()
    assert outcome(entries[0]) == 2


@pytest.mark.parametrize("bench", [config(dynamic_batching=ORDERED)], indirect=True, ids=["ordered"])
@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt()], ids=["error", "interrupt"])
async def test_a_request_that_cannot_be_queued_holds_nobody_up(
    bench: Bench, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(inflight: Inflight) -> None:
        raise error

    inner: Any = bench.model
    with monkeypatch.context() as patched:
        patched.setattr(inner._servable, "_enqueue", broken)
        with pytest.raises(type(error)):
            bench.submit(1)
    entries = bench.submit(2)
    assert await bench.finish() == [2]
    await bench.model.drain()
    assert outcome(entries[0]) == 2
    assert bench.model.statistics.failures[FailureReason.REJECTED] == 1


class RaisingSink(RecordingSink):
    def settle(self, outcome: Outcome, final: bool) -> None:
        raise RuntimeError("the sink broke")


@pytest.mark.parametrize(
    "bench",
    [config(dynamic_batching=BATCHING), config(dynamic_batching=ORDERED)],
    indirect=True,
    ids=["any", "ordered"],
)
async def test_a_model_whose_sinks_raise_can_be_drained(bench: Bench) -> None:
    now_ns = time.monotonic_ns()
    rows = [(1, 0, RaisingSink()), (2, 1, RaisingSink()), (3, 1, RecordingSink())]
    asked = [request({"INPUT0": tensor(dtypes.INT32, (1, 4), value)}, deadline_ns=late) for value, late, _ in rows]
    waiting = [
        keep(bench.model.submit(each, sink, now_ns), sink) for each, (_, _, sink) in zip(asked, rows, strict=True)
    ]
    [entry] = bench.submit(4)
    waiting[0].cancel()
    assert await bench.finish() == [4]
    async with asyncio.timeout(30):
        await bench.model.drain()
    assert outcome(waiting[2]) is Code.UNAVAILABLE
    assert outcome(entry) == 4
    assert bench.model.statistics.pending == 0


# Draining and closing


async def test_an_idle_model_drains_at_once(bench: Bench) -> None:
    with pytest.raises(StopIteration):  # in one step, which waits for nothing
        bench.model.drain().send(None)


async def test_drain_finishes_what_was_accepted_and_takes_nothing_new(bench: Bench) -> None:
    running = bench.submit(1)
    execution = await bench.execution()
    waiting = bench.submit(2)
    draining = asyncio.create_task(bench.model.drain())
    await asyncio.sleep(0)
    with pytest.raises(ModserveError, match="Server is stopping") as caught:
        bench.submit(3)
    assert caught.value.code is Code.UNAVAILABLE
    execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
    second = await bench.execution()
    assert not draining.done()
    second.finish({"OUTPUT0": second.inputs["INPUT0"]})
    await draining
    assert [outcome(entry) for entry in (*running, *waiting)] == [1, 2]


async def test_cancelling_what_is_left_ends_a_drain(bench: Bench) -> None:
    bench.submit(1)
    execution = await bench.execution()
    [waiting] = bench.submit(2)
    draining = asyncio.create_task(bench.model.drain())
    execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
    waiting.cancel()
    await draining
    assert bench.model.statistics.success.count == 1


async def test_close_fails_what_waits_and_finishes_what_runs() -> None:
    bench = Bench(config(dynamic_batching=BATCHING))
    [running] = bench.submit(1)
    execution = await bench.execution()
    [waiting] = bench.submit(2)
    closing = asyncio.create_task(bench.model.close())
    await asyncio.sleep(0)
    assert [error.message for error in sink_of(waiting).errors] == ["model 'model' was unloaded before the request ran"]
    execution.finish({"OUTPUT0": np.ones((1, 4), np.int32)})
    await closing
    assert (bench.backend.open_models, bench.backend.open_instances) == (0, 0)
    await bench.model.drain()
    assert [outcome(running), outcome(waiting)] == [1, Code.UNAVAILABLE]
    with pytest.raises(ModserveError, match="Server is stopping"):
        bench.submit(3)


class _StubbornInstance:
    def execute(self, inputs: Any, outputs: tuple[str, ...]) -> Any:
        raise AssertionError("no test runs it")

    def close(self) -> None:
        raise OSError("stuck")


async def test_the_engine_is_closed_though_an_instance_can_not_be() -> None:
    backend = PuppetBackend()
    given = config()
    engine = backend.open(ModelSource(given, 1, Path(), Path()))
    instances: list[tuple[str, BackendInstance]] = [("model_0", _StubbornInstance())]
    opened = OpenedModel(given, b"", engine, instances, False)
    model = assemble_model(ModelId("model", 1), opened, LoopClock(asyncio.get_running_loop()))
    with pytest.raises(OSError, match="stuck"):
        await model.close()
    assert backend.open_models == 0


async def test_outputs_that_were_not_asked_for_are_not_asked_of_the_engine() -> None:
    spec = config().outputs[0]
    other = type(spec)("OUTPUT1", spec.datatype, spec.dims)
    bench = Bench(config(outputs=(spec, other)))
    bench.submit(1, outputs=("OUTPUT1",))
    execution = await bench.execution()
    assert execution.outputs == ("OUTPUT1",)
    execution.finish({"OUTPUT1": execution.inputs["INPUT0"]})
    await bench.model.drain()
    await bench.model.close()


# Deadlines and predictions


@pytest.mark.parametrize(
    "bench", [config(admission=Admission(by_deadline=True, too_many=True))], indirect=True, ids=["admission"]
)
async def test_admission_learns_from_executions(bench: Bench) -> None:
    bench.submit(1)
    assert await bench.finish() == [1]
    bench.submit(2)
    execution = await bench.execution()
    timing = ExecutionTiming(1, "single")
    timing.compute_end_ns = 3_600 * 10**9
    model = bench.model
    assert isinstance(model, Model)
    assert model.pool.learner is not None
    model.pool.learner.observe(timing, [])
    bench.submit(3)
    with pytest.raises(OverloadedError, match=r"predicted .* ms in the queue and .* ms of execution, allowed"):
        bench.submit(4, deadline_ns=time.monotonic_ns() + 60 * 10**9)
    assert bench.model.statistics.failures[FailureReason.REJECTED] == 1
    execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
    assert await bench.finish() == [3]
    await bench.model.drain()


class LosingBench(Bench):
    """Its instances are made anew when the test says so, or are not."""

    def __init__(self, given: ModelConfig) -> None:
        self.attempts: list[Future[Executor]] = []
        self.health = 0
        self.backend = PuppetBackend()
        self.opened = self.backend.open(ModelSource(given, 1, Path(), Path()))
        self.spec = instance_spec(given)
        opened = OpenedModel(
            given,
            b"",
            self.opened,
            [("model_0", self.opened.instance(self.spec))],
            False,
            make=self._make,
            on_health=self._on_health,
        )
        self.model = assemble_model(ModelId("model", 1), opened, LoopClock(asyncio.get_running_loop()))

    def _make(self, number: int, close: Callable[[], None]) -> "Future[Executor]":
        close()
        self.attempts.append(Future())
        return self.attempts[-1]

    def _on_health(self) -> None:
        self.health += 1

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not what():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)


async def test_requests_to_a_model_without_an_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modserve.execution.revival.FIRST_WAIT_NS", 1_000_000)
    bench = LosingBench(config(max_batch_size=1))
    runs, waits = bench.submit(1, 2)
    (await bench.execution()).fail(InstanceLostError("killed"))
    await bench.until(lambda: runs.settled)
    assert outcome(runs) is Code.UNAVAILABLE
    reason = "Unavailable: model 'model', instance 'model_0' was lost: killed"
    assert (bench.model.unready_reason, bench.health) == (reason, 1)
    with pytest.raises(ModserveError, match="was lost: killed") as caught:  # at once
        bench.submit(3)
    assert caught.value.code is Code.UNAVAILABLE
    assert not waits.settled  # for the first attempt
    await bench.until(lambda: bench.attempts)
    bench.attempts[0].set_exception(invalid("no such device"))
    await bench.until(lambda: waits.settled)
    assert outcome(waits) is Code.UNAVAILABLE  # it is not the client's fault
    text = "model 'model', instance 'model_0' was lost and cannot be replaced: no such device"
    assert bench.model.unready_reason == f"Unavailable: {text}"
    await bench.until(lambda: len(bench.attempts) == 2)
    bench.attempts[1].set_result(bench.opened.instance(bench.spec))
    await bench.until(lambda: bench.model.unready_reason is None)
    [again] = bench.submit(4)
    assert await bench.finish() == [4]
    await bench.until(lambda: again.settled)
    assert outcome(again) == 4
    await bench.model.drain()
    await bench.model.close()
    assert (bench.backend.open_models, bench.backend.open_instances) == (0, 0)


async def test_what_waits_runs_on_the_instance_that_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modserve.execution.revival.FIRST_WAIT_NS", 1_000_000)
    bench = LosingBench(config(max_batch_size=1))
    _, waits = bench.submit(1, 2)
    (await bench.execution()).fail(InstanceLostError("killed"))
    await bench.until(lambda: bench.attempts)
    bench.attempts[0].set_result(bench.opened.instance(bench.spec))
    assert await bench.finish() == [2]
    await bench.until(lambda: waits.settled)
    assert outcome(waits) == 2
    await bench.model.close()


async def test_closing_a_model_without_an_instance() -> None:
    bench = LosingBench(config(max_batch_size=1))
    _, waits = bench.submit(1, 2)
    (await bench.execution()).fail(InstanceLostError("killed"))
    await bench.until(lambda: bench.model.unready_reason)
    await bench.model.close()
    assert outcome(waits) is Code.UNAVAILABLE
    assert (bench.backend.open_models, bench.backend.open_instances) == (0, 0)


@pytest.mark.parametrize(
    "bench", [config(limits=ModelLimits(max_accepted_requests=2), dynamic_batching=BATCHING)], indirect=True
)
async def test_a_model_takes_so_many_requests_and_no_more(bench: Bench) -> None:
    first, _ = bench.submit(1, 2)
    with pytest.raises(OverloadedError, match="has 2 requests that are not over, and takes 2 at most") as caught:
        bench.submit(3)
    assert not caught.value.too_many
    first.cancel()
    bench.submit(4)
    await bench.finish()
