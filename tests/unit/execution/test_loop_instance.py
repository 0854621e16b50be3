"""Instances on the event loop, with an engine whose executions the test ends."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pool_bench import CONFIG, Owner, answer, member, refused, sink, until

from modserve.backends.api import (
    BatchDone,
    EngineRequest,
    FinalResponse,
    InstanceHandle,
    InstanceLostError,
    RequestsDone,
)
from modserve.core.configuration.model_config import DynamicBatching, ModelConfig
from modserve.core.errors import Code, internal
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool
from modserve.testing import config


class OnLoop:
    """What is the same for both kinds."""

    def __init__(self, max_in_flight: int = 1) -> None:
        self.max_in_flight = max_in_flight
        self.calls: list[str] = []

    def attach(self, handle: InstanceHandle) -> None:
        self.handle = handle
        self.calls.append("attach")

    def detach(self) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.calls.append("detach")

    def close(self) -> None:
        self.calls.append("close")


class Merged(OnLoop):
    """Keeps what is started."""

    def __init__(self, max_in_flight: int = 1, at_once: Callable[[BatchDone], None] | None = None) -> None:
        super().__init__(max_in_flight)
        self.started: list[tuple[Mapping[str, Array], BatchDone]] = []
        self.at_once = at_once

    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        assert outputs == ("OUTPUT0",)
        self.started.append((inputs, done))
        if self.at_once is not None:
            self.at_once(done)

    def finish(self, number: int) -> None:
        inputs, done = self.started[number]
        done({"OUTPUT0": inputs["INPUT0"] * 2})


class ByRequest(OnLoop):
    """Keeps what is started."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[tuple[Sequence[EngineRequest], RequestsDone]] = []

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        self.started.append((requests, done))


class Bench:
    def __init__(self, engine: Any, model: ModelConfig = CONFIG) -> None:
        self.engine = engine
        self.freed = 0
        self.settled = 0
        self.statistics = ModelStatistics()
        loop = asyncio.get_running_loop()
        self.pool = InstancePool(
            ModelId("model", 3),
            model,
            [("model_0", engine)],
            self.statistics,
            Owner(self._on_settled, self._on_free),
            loop,
        )

    def _on_free(self) -> None:
        self.freed += 1

    def _on_settled(self, count: int) -> None:
        self.settled += count

    def run(self, *members: Any) -> None:
        slot = self.pool.reserve()
        assert slot is not None
        self.statistics.pending += len(members)
        self.pool.run(slot, list(members), "full")


@pytest.fixture
async def benches() -> AsyncIterator[list[Bench]]:
    """Benches to close."""
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.pool.close()
        assert bench.engine.calls == ["attach", "detach", "close"]
        assert bench.statistics.pending == 0


@pytest.fixture
async def bench(benches: list[Bench]) -> Bench:
    benches.append(Bench(Merged()))
    return benches[-1]


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_merged_batch_without_a_thread(bench: Bench) -> None:
    before = threading.active_count()
    one, two = member(1), member(2)
    bench.run(one, two)
    assert bench.engine.started[0][0]["INPUT0"].tolist() == [[1] * 4, [2] * 4]
    assert bench.pool.reserve() is None
    bench.engine.finish(0)
    assert (answer(one), answer(two)) == ([[2] * 4], [[4] * 4])  # in the same turn of the event loop
    assert (bench.freed, bench.settled, bench.statistics.execution_count) == (1, 2, 1)
    assert threading.active_count() == before


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A microsecond passes between two looks at the clock, however busy the machine is."""
    ticks = itertools.count(1)
    clock = SimpleNamespace(monotonic_ns=lambda: next(ticks) * 1_000)
    monkeypatch.setattr("modserve.execution.loop_instance.time", clock)
    monkeypatch.setattr("modserve.execution.job.time", clock)


@pytest.mark.usefixtures("steady_clock")
async def test_short_executions_are_sent_ahead_of_their_turn(benches: list[Bench]) -> None:
    engine = Merged()
    engine.max_ahead = 2  # type: ignore[attr-defined]
    bench = Bench(engine)
    benches.append(bench)

    def under_way() -> int:
        """How many executions the instance takes at a time; they are ended again."""
        begun = len(engine.started)
        while (slot := bench.pool.reserve()) is not None:
            bench.statistics.pending += 1
            bench.pool.run(slot, [member(1)], "full")
        for number in range(begun, len(engine.started)):
            engine.finish(number)
        return len(engine.started) - begun

    assert under_way() == 1  # nobody knows yet how long they take
    for _ in range(10):
        latest = under_way()
    assert latest == 3
    instance = bench.pool._instances[0]
    instance.typical_ns = 5_000_000
    assert under_way() == 3  # those places were free already
    assert under_way() <= 2


@pytest.mark.usefixtures("steady_clock")
async def test_what_waits_inside_the_engine_is_not_counted_as_its_work(benches: list[Bench]) -> None:
    engine = Merged()
    engine.max_ahead = 1  # type: ignore[attr-defined]
    bench = Bench(engine)
    benches.append(bench)
    for number in range(10):
        bench.run(member(number))
        engine.finish(number)
    one, two = member(1), member(2)
    bench.run(one)
    bench.run(two)
    first, second = one.timing, two.timing
    assert first is not None
    assert second is not None
    begun = second.compute_start_ns
    engine.finish(10)
    assert second.compute_start_ns == first.compute_end_ns > begun
    engine.finish(11)


@pytest.mark.usefixtures("steady_clock")
async def test_nothing_is_sent_ahead_where_waiting_makes_batches_larger(benches: list[Bench]) -> None:
    engine = Merged()
    engine.max_ahead = 2  # type: ignore[attr-defined]
    bench = Bench(engine, config("model", dynamic_batching=DynamicBatching()))
    benches.append(bench)
    for number in range(10):
        bench.run(member(number))
        engine.finish(number)
    assert bench.pool.reserve() is not None
    assert bench.pool.reserve() is None


async def test_executions_end_in_any_order(benches: list[Bench]) -> None:
    bench = Bench(Merged(max_in_flight=2))
    benches.append(bench)
    one, two = member(1), member(2)
    bench.run(one)
    bench.run(two)
    assert bench.pool.reserve() is None
    bench.engine.finish(1)
    assert answer(two) == [[4] * 4]
    assert sink(one).settled == 0
    bench.engine.finish(0)
    assert answer(one) == [[2] * 4]


async def test_done_from_another_thread(bench: Bench) -> None:
    one = member(1)
    bench.run(one)
    await asyncio.to_thread(bench.engine.finish, 0)
    await turn()
    assert answer(one) == [[2] * 4]


async def test_the_first_end_counts(bench: Bench) -> None:
    one = member(1)
    bench.run(one)
    bench.engine.finish(0)
    bench.engine.started[0][1](RuntimeError("late"))
    assert answer(one) == [[2] * 4]
    assert bench.freed == 1


@pytest.mark.parametrize("raised", [False, True])
async def test_what_is_said_inside_start_comes_after_it(benches: list[Bench], raised: bool) -> None:
    def at_once(done: BatchDone) -> None:
        if raised:
            raise RuntimeError("refused")
        done(RuntimeError("refused"))

    bench = Bench(Merged(at_once=at_once))
    benches.append(bench)
    one = member(1)
    bench.run(one)
    assert sink(one).settled == 0
    await turn()
    assert refused(one) == (Code.INTERNAL, "model 'model', instance 'model_0': refused")


async def test_a_refused_batch_runs_one_by_one(bench: Bench) -> None:
    one, two = member(1), member(2)
    bench.run(one, two)
    bench.engine.started[0][1](internal("index out of range"))
    assert bench.engine.started[1][0]["INPUT0"].tolist() == [[1] * 4]
    assert len(bench.engine.started) == 2  # the other one waits for its turn
    bench.engine.finish(1)
    bench.engine.started[2][1](internal("index out of range"))
    assert answer(one) == [[2] * 4]
    assert refused(two)[0] is Code.INTERNAL
    assert bench.pool.reserve() is not None


@pytest.mark.parametrize("outputs", [{}, None, [1]], ids=["missing", "nothing", "no mapping"])
async def test_outputs_that_are_none(bench: Bench, outputs: Any) -> None:
    one = member(1)
    bench.run(one)
    bench.engine.started[0][1](outputs)
    assert refused(one)[0] is Code.INTERNAL


async def test_large_tensors_are_merged_and_taken_on_a_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modserve.execution.loop_instance.LARGE_BYTES", 16)
    one, two = member(1), member(2)
    bench.run(one, two)
    assert bench.engine.started == []
    await until(lambda: bench.engine.started)
    bench.engine.finish(0)
    await until(lambda: bench.settled)
    assert (answer(one), answer(two)) == ([[2] * 4], [[4] * 4])


async def test_an_instance_that_is_lost_fails_what_is_under_way(
    benches: list[Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(Merged(max_in_flight=2))
    benches.append(bench)
    one, two = member(1), member(2)
    bench.run(one)
    bench.run(two)
    bench.engine.handle.lost(InstanceLostError("killed by signal 9"))
    text = "model 'model', instance 'model_0' was lost: killed by signal 9"
    assert refused(one) == refused(two) == (Code.UNAVAILABLE, text)
    assert bench.engine.calls == ["attach", "detach"]
    assert bench.pool.reserve() is None
    assert bench.pool.trouble is not None
    assert bench.statistics.instances_lost == 1
    bench.engine.finish(0)  # nobody listens any more
    bench.engine.handle.lost(InstanceLostError("again"))
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        f"{text}; it will not be replaced"
    ]


async def test_requests_one_by_one(benches: list[Bench]) -> None:
    bench = Bench(ByRequest(), config(decoupled=True))
    benches.append(bench)
    one, two = member(1), member(2)
    bench.run(one, two)
    [(requests, done)] = bench.engine.started
    assert [request.id for request in requests] == ["r1", "r2"]
    assert requests[0].respond({"OUTPUT0": np.zeros((1, 4), np.int32)}, wait=False)
    assert len(sink(one).responses) == 1
    done(None)
    assert bench.freed == 1  # though both are still open
    requests[0].complete()
    requests[1].fail(internal("no"), wait=False)
    assert refused(two) == (Code.INTERNAL, "no")
    assert (sink(one).ended, bench.settled) == (1, 2)


def final(value: int, rows: int = 1) -> FinalResponse:
    return FinalResponse({"OUTPUT0": np.full((rows, 4), value, np.int32)}, {"of": value})


async def test_all_final_responses_at_once(benches: list[Bench]) -> None:
    bench = Bench(ByRequest())
    benches.append(bench)
    one, two = member(1), member(2)
    bench.run(one, two)
    [(requests, done)] = bench.engine.started
    done([final(3), final(4)])
    assert (answer(one), answer(two)) == ([[3] * 4], [[4] * 4])
    assert [sink(each).responses[0].parameters for each in (one, two)] == [{"of": 3}, {"of": 4}]
    assert (bench.freed, bench.settled, bench.statistics.execution_count) == (1, 2, 1)
    assert bench.statistics.success.count == 2
    with pytest.raises(RuntimeError, match="final response"):
        requests[0].respond({}, wait=False)
    del requests
    bench.engine.started.clear()
    assert sink(one).settled == 1


async def test_a_response_that_is_no_good_among_those(benches: list[Bench]) -> None:
    bench = Bench(ByRequest())
    benches.append(bench)
    one, two = member(1), member(2)
    bench.run(one, two)
    bench.engine.started[0][1]([final(3, rows=2), final(4)])
    assert refused(one)[0] is Code.INTERNAL
    assert answer(two) == [[4] * 4]
    assert (bench.settled, bench.statistics.success.count, bench.statistics.fail.count) == (2, 1, 1)


async def test_too_few_responses(benches: list[Bench]) -> None:
    bench = Bench(ByRequest())
    benches.append(bench)
    one, two = member(1), member(2)
    bench.run(one, two)
    bench.engine.started[0][1]([final(3)])
    text = "model 'model', instance 'model_0' returned 1 responses for 2 requests"
    assert refused(one) == refused(two) == (Code.INTERNAL, text)


async def test_a_cancelled_request_among_those(benches: list[Bench]) -> None:
    bench = Bench(ByRequest())
    benches.append(bench)
    one, two = member(1), member(2)
    bench.run(one, two)
    one.cancel()
    bench.engine.started[0][1]([final(3), final(4)])
    assert answer(two) == [[4] * 4]
    assert sink(one).settled == 1
    assert (bench.settled, bench.statistics.success.count) == (2, 1)


async def test_reports_keep_their_order_across_threads(benches: list[Bench]) -> None:
    bench = Bench(ByRequest(), config(decoupled=True))
    benches.append(bench)
    one = member(1)
    bench.run(one)
    [(requests, done)] = bench.engine.started
    output = {"OUTPUT0": np.zeros((1, 4), np.int32)}
    thread = threading.Thread(target=requests[0].respond, args=(output,), kwargs={"wait": False})
    thread.start()
    thread.join()  # what the thread has said waits for the event loop's next turn
    requests[0].complete()
    done(None)
    await turn()
    assert (len(sink(one).responses), sink(one).ended) == (1, 1)
    bench.engine.started.clear()


async def test_open_requests_of_a_lost_instance_fail(benches: list[Bench]) -> None:
    bench = Bench(ByRequest(), config(decoupled=True))
    benches.append(bench)
    one, two = member(1), member(2)
    bench.run(one)
    bench.engine.started[0][1](None)
    bench.run(two)
    bench.engine.handle.lost(InstanceLostError("gone"))
    text = "model 'model', instance 'model_0' was lost: gone"
    assert refused(one) == refused(two) == (Code.UNAVAILABLE, text)
    assert bench.settled == 2
    for requests, _ in bench.engine.started:
        for request in requests:
            request.complete()


async def test_an_engine_that_cannot_be_attached() -> None:
    class Broken(Merged):
        def attach(self, handle: InstanceHandle) -> None:
            raise OSError("too many open files")

    with pytest.raises(OSError, match="too many open files"):
        Bench(Broken())


async def test_closing_on_another_thread_detaches_on_the_loop() -> None:
    bench = Bench(Merged())
    one = member(1)
    bench.run(one)
    await asyncio.to_thread(bench.pool.close)
    assert bench.engine.calls == ["attach", "detach", "close"]
    assert refused(one)[0] is Code.UNAVAILABLE


async def test_models_with_sequences_and_engines_that_reuse_outputs_run_one_at_a_time(benches: list[Bench]) -> None:
    engine = Merged(max_in_flight=4)
    engine.reuses_outputs = True  # type: ignore[attr-defined]
    bench = Bench(engine)
    benches.append(bench)
    bench.run(member(1))
    assert bench.pool.reserve() is None
    engine.finish(0)
    assert dtypes.INT32.size == 4
