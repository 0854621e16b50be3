"""Instances and their pool, on an event loop, with an engine whose executions are ended by hand."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
from pool_bench import CONFIG, SOURCE, Bench, Owner, answer, copied, member, refused, sink, until

from modserve.backends.api import BackendInstance, InstanceLostError
from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.statistics.model_statistics import FailureReason, ModelStatistics
from modserve.core.tensors.tensor import Array
from modserve.core.version import ModelId
from modserve.execution.instance import ThreadInstance
from modserve.execution.pool import InstancePool
from modserve.testing import Execution, instance_spec, puppets


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(instances=1)
    yield made
    made.pool.close()
    assert made.backend.open_instances == 0


async def test_each_member_gets_its_own_rows(bench: Bench) -> None:
    one, three = member(1), member(3, batch_size=3)
    execution = bench.run(one, three)
    assert execution.inputs["INPUT0"].tolist() == [[1] * 4, *[[3] * 4] * 3]
    assert execution.outputs == ("OUTPUT0",)
    assert sink(one).settled == 0
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert (answer(one), answer(three)) == ([[1] * 4], [[3] * 4] * 3)
    [response] = sink(one).responses
    assert (response.model_name, response.model_version, response.id) == ("model", 3, "r1")


async def test_statistics_of_a_success(bench: Bench) -> None:
    members = [member(1), member(2, batch_size=2)]
    execution = bench.run(*members)
    assert bench.statistics.pending == 0
    before_ms = int(time.time() * 1e3)
    execution.finish(copied(execution))
    await bench.until_settled(1)
    statistics = bench.statistics
    assert (statistics.execution_count, statistics.inference_count) == (1, 3)
    assert (statistics.success.count, statistics.queue.count, statistics.compute_infer.count) == (2, 2, 2)
    assert statistics.fail.count == 0
    assert list(statistics.batches) == [3]
    assert statistics.last_inference_ms >= before_ms
    assert bench.settled == [2]
    for entry in members:
        timing = entry.timing
        assert timing is not None
        stamps = [
            entry.request_start_ns,
            timing.compute_start_ns,
            timing.compute_input_end_ns,
            timing.compute_output_start_ns,
            timing.compute_end_ns,
            time.monotonic_ns(),
        ]
        assert stamps == sorted(stamps)


async def test_a_member_cancelled_while_executing_leaves_the_others_answered(bench: Bench) -> None:
    first, cancelled, last = member(1), member(2), member(3)
    execution = bench.run(first, cancelled, last)
    cancelled.cancel()
    assert refused(cancelled) == (Code.CANCELLED, "")
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert (answer(first), answer(last)) == ([[1] * 4], [[3] * 4])
    assert refused(cancelled) == (Code.CANCELLED, "")
    statistics = bench.statistics
    assert (statistics.success.count, statistics.inference_count, statistics.execution_count) == (2, 2, 1)
    assert (statistics.fail.count, statistics.failures[FailureReason.CANCELED]) == (1, 1)
    assert list(statistics.batches) == [3]
    assert bench.settled == [3]


async def test_all_members_cancelled(bench: Bench) -> None:
    members = [member(1), member(2)]
    execution = bench.run(*members)
    for entry in members:
        entry.cancel()
    execution.finish(copied(execution))
    await bench.until_settled(1)
    statistics = bench.statistics
    assert (statistics.success.count, statistics.fail.count, statistics.execution_count) == (0, 2, 1)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("engine broke"), (Code.INTERNAL, "model 'model', instance 'model_0': engine broke")),
        (invalid("not like this"), (Code.INVALID_ARG, "not like this")),
        (SystemExit(), (Code.INTERNAL, "model 'model', instance 'model_0': SystemExit")),
    ],
    ids=["foreign", "ours", "exit"],
)
async def test_an_engines_exception_fails_only_its_own_batch(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: BaseException, expected: tuple[Code, str]
) -> None:
    failing, good = member(1), member(3)
    bench.run(failing).fail(error)
    await bench.until_settled(1)
    assert refused(failing) == expected
    execution = bench.run(good)
    execution.finish(copied(execution))
    await bench.until_settled(2)
    assert answer(good) == [[3] * 4]
    statistics = bench.statistics
    assert (statistics.fail.count, statistics.success.count, statistics.execution_count) == (1, 1, 1)
    assert statistics.failures[FailureReason.BACKEND] == 1
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    if expected[0] is Code.INTERNAL:
        assert logged[0].exc_info is not None
        assert logged[0].exc_info[1] is error
    else:
        assert logged == []


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "model 'model' did not return output 'OUTPUT0'"),
        (
            {"OUTPUT0": np.zeros((1, 4), np.int32)},
            "output 'OUTPUT0' of model 'model' has shape [1,4], expected 2 in the first dimension, as in the inputs",
        ),
        (
            {"OUTPUT0": np.zeros((2, 4), np.int64)},
            "output 'OUTPUT0' of model 'model' is of type int64, but the model configuration says TYPE_INT32",
        ),
        (
            {"OUTPUT0": np.zeros((2, 4), object)},
            "output 'OUTPUT0' of model 'model' is of type object, but the model configuration says TYPE_INT32",
        ),
        (
            {"OUTPUT0": [[0] * 4] * 2},
            "output 'OUTPUT0' of model 'model' is an object of type list, expected an array",
        ),
        (
            {"OUTPUT0": np.int32(3)},
            "output 'OUTPUT0' of model 'model' is an object of type int32, expected an array",
        ),
        (
            {"OUTPUT0": np.array(3, np.int32)},
            "output 'OUTPUT0' of model 'model' has shape [], expected 2 in the first dimension, as in the inputs",
        ),
        ("OUTPUT0", "model 'model' returned an object of type str, expected a dict of arrays by name"),
        ([], "model 'model' returned an object of type list, expected a dict of arrays by name"),
    ],
    ids=["nothing", "too few rows", "type", "objects", "a list", "a number", "no rows", "a text", "no dict"],
)
async def test_wrong_outputs_fail_the_batch(bench: Bench, outputs: Any, message: str) -> None:
    members = [member(1), member(2)]
    bench.run(*members).finish(outputs)
    await bench.until_settled(1)
    assert [refused(entry) for entry in members] == [(Code.INTERNAL, message)] * 2


class Odd(np.ndarray[Any, Any]):
    """Lies about its shape."""

    @property  # type: ignore[misc]
    def shape(self) -> Any:
        return (-2, -4)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(8, dtype=np.int32).reshape(4, 2).T,
        np.arange(16, dtype=np.int32).reshape(2, 8)[:, ::2] // 2,
        np.arange(8, dtype=np.int32)[::-1].reshape(2, 4)[::-1, ::-1],
        np.arange(8, dtype=np.int32).reshape(2, 4).view(Odd),
        np.ma.masked_array(np.arange(8, dtype=np.int32).reshape(2, 4), mask=False),
    ],
    ids=["transposed", "with gaps", "backwards", "odd", "masked"],
)
async def test_arrays_of_any_layout_are_what_their_elements_are(bench: Bench, array: Any) -> None:
    members = [member(1), member(2)]
    bench.run(*members).finish({"OUTPUT0": array})
    await bench.until_settled(1)
    plain = np.asarray(array)
    assert [answer(entry) for entry in members] == [plain[:1].tolist(), plain[1:].tolist()]


async def test_masked_elements_are_not_sent(bench: Bench) -> None:
    entry = member(1)
    bench.run(entry).finish({"OUTPUT0": np.ma.masked_array(np.zeros((1, 4), np.int32), mask=True)})
    await bench.until_settled(1)
    text = "output 'OUTPUT0' of model 'model' has masked elements; array.filled(value) gives them a value"
    assert refused(entry) == (Code.INTERNAL, text)


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not a word")

    __repr__ = __str__


class _Half(ModserveError):
    def __init__(self) -> None:
        Exception.__init__(self)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (_Speechless(), "_Speechless"),
        (_Half(), "_Half"),
        (ModserveError("Internal", "told wrongly"), "told wrongly"),  # type: ignore[arg-type]
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (MemoryError(), "MemoryError"),
        (GeneratorExit("gone"), "gone"),
        (StopIteration(3), "3"),
    ],
    ids=["speechless", "half", "no code", "interrupt", "memory", "exit", "stop"],
)
async def test_whatever_an_engine_raises_is_its_requests_failure(bench: Bench, error: BaseException, text: str) -> None:
    failing, good = member(1), member(2)
    bench.run(failing).fail(error)
    await bench.until_settled(1)
    assert refused(failing) == (Code.INTERNAL, f"model 'model', instance 'model_0': {text}")
    execution = bench.run(good)
    execution.finish(copied(execution))
    await bench.until_settled(2)
    assert answer(good) == [[2] * 4]


async def test_a_slot_is_free_before_the_answers_are_out(bench: Bench) -> None:
    entry = member(1)
    seen: list[tuple[bool, bool]] = []
    bench.owner.slot_free = lambda: seen.append((repr(bench.pool).endswith("1 of 1 free)"), entry.settled))
    execution = bench.run(entry)
    assert bench.pool.reserve() is None
    execution.finish(copied(execution))
    await bench.until_settled(1)
    assert seen == [(True, False)]


async def test_instances_run_side_by_side_on_threads_of_their_own() -> None:
    bench = Bench(instances=2)
    one, two = member(1), member(2)
    first, second = bench.run(one), bench.run(two)
    assert bench.pool.reserve() is None
    assert {"instance-model_0", "instance-model_1"} <= {thread.name for thread in threading.enumerate()}
    for execution in (second, first):
        execution.finish(copied(execution))
    await bench.until_settled(2)
    assert (answer(one), answer(two)) == ([[1] * 4], [[2] * 4])
    bench.pool.close()


async def test_a_released_slot_is_the_next_to_be_reserved() -> None:
    bench = Bench(instances=2)
    slot = bench.pool.reserve()
    assert slot is not None
    bench.pool.release(slot)
    assert bench.pool.reserve() is slot
    bench.pool.close()


async def test_closing_waits_for_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(instances=1)
    [instance] = bench.pool._instances.values()
    assert isinstance(instance, ThreadInstance)
    loop, waits, join = asyncio.get_running_loop(), asyncio.Event(), instance._runner.join

    def tell_and_join() -> None:
        loop.call_soon_threadsafe(waits.set)
        join()

    monkeypatch.setattr(instance._runner, "join", tell_and_join)
    entry = member(1)
    execution = bench.run(entry)
    closing = asyncio.create_task(asyncio.to_thread(bench.pool.close))
    await waits.wait()
    assert bench.backend.open_instances == 1
    execution.finish(copied(execution))
    await closing
    await bench.until_settled(1)
    assert answer(entry) == [[1] * 4]
    assert bench.backend.open_instances == 0


class _Stubborn:
    """An engine's instance that fails to close."""

    def __init__(self, closed: list[str], name: str) -> None:
        self._closed = closed
        self._name = name

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        raise AssertionError("no test runs it")

    def close(self) -> None:
        self._closed.append(self._name)
        raise OSError(f"{self._name} can not close")


async def test_an_instance_that_can_not_close_leaves_no_other_open() -> None:
    closed: list[str] = []
    engines: list[tuple[str, BackendInstance]] = [(name, _Stubborn(closed, name)) for name in ("a", "b")]
    loop = asyncio.get_running_loop()
    pool = InstancePool(ModelId("model", 1), CONFIG, engines, ModelStatistics(), Owner(), loop)
    with pytest.raises(OSError, match="can not close"):
        pool.close()
    assert closed == ["a", "b"]


async def test_a_pool_that_can_not_be_made_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="start"):
        Bench(instances=2)
    monkeypatch.undo()
    [thread] = started
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()


def test_a_batch_that_ends_after_the_event_loop() -> None:
    loop = asyncio.new_event_loop()

    async def start() -> tuple[Bench, Execution]:
        bench = Bench(instances=1)
        return bench, bench.run(member(1))

    bench, execution = loop.run_until_complete(start())
    loop.close()
    execution.finish(copied(execution))
    bench.pool.close()
    assert bench.settled == []


# Instances are added and removed


async def test_one_that_is_removed_finishes_what_it_has() -> None:
    bench = Bench(instances=2)
    left: list[str] = []
    bench.owner.instance_left = lambda instance: left.append(instance.name)
    entries = [member(1), member(2)]
    executions = [bench.run(entry) for entry in entries]
    [first] = [number for number, instance in bench.pool._instances.items() if instance.name == "model_0"]
    bench.pool.change((), [first])
    assert (bench.pool.count, bench.statistics.instances, left) == (1, 1, [])
    for execution in executions:
        execution.finish(copied(execution))
    await bench.until_settled(2)
    assert [answer(entry) for entry in entries] == [[[1] * 4], [[2] * 4]]
    assert left == ["model_0"]
    slot = bench.pool.reserve()
    assert slot is not None
    assert slot.name == "model_1"
    assert bench.pool.reserve() is None
    bench.pool.release(slot)
    assert not bench.pool.awaited


async def test_one_that_is_added_takes_nothing_before() -> None:
    bench = Bench(instances=1)
    made = bench.backend.open(SOURCE).instance(instance_spec(CONFIG))
    instance = bench.pool.new_instance("model_1", made)
    assert bench.pool.reserve() is not None
    assert bench.pool.reserve() is None
    bench.pool.change([instance], ())
    assert bench.pool.reserve() is instance
    assert bench.statistics.instances == 2


async def test_one_that_is_added_where_none_is_left_ends_the_trouble() -> None:
    bench = Bench(instances=1)
    told: list[bool] = []
    bench.owner.health_changed = lambda: told.append(bench.pool.trouble is None)
    bench.run(member(1)).fail(InstanceLostError("gone"))
    await bench.until_settled(1)
    assert told == [False]
    made = bench.backend.open(SOURCE).instance(instance_spec(CONFIG))
    bench.pool.change([bench.pool.new_instance("model_1", made)], [0])
    assert told == [False, True]
    assert bench.pool.reserve() is not None


async def test_one_that_is_dismissed_is_to_be_closed() -> None:
    bench = Bench(instances=1)
    left: list[str] = []
    bench.owner.instance_left = lambda instance: left.append(instance.name)
    made = bench.backend.open(SOURCE).instance(instance_spec(CONFIG))
    bench.pool.dismiss(bench.pool.new_instance("model_1", made))
    assert (left, bench.pool.count) == (["model_1"], 1)
    assert [name for name, _ in bench.pool.executors] == ["model_0"]


async def test_one_that_is_lost_while_it_leaves_fails_its_own_request_alone() -> None:
    bench = Bench(instances=1)
    left: list[str] = []
    bench.owner.instance_left = lambda instance: left.append(instance.name)
    entry = member(1)
    execution = bench.run(entry)
    made = bench.backend.open(SOURCE).instance(instance_spec(CONFIG))
    bench.pool.change([bench.pool.new_instance("model_1", made)], [0])
    execution.fail(InstanceLostError("it died"))
    await bench.until_settled(1)
    assert refused(entry)[0] is Code.UNAVAILABLE
    await until(lambda: left == ["model_0"])
    assert (bench.pool.count, bench.pool.trouble, bench.statistics.instances_lost) == (1, None, 0)


@pytest.mark.parametrize(("first", "expected"), [(False, [0, 1, 2, 0]), (True, [0, 0, 0, 0])])
async def test_free_instances_take_turns_unless_the_first_one_is_better(
    first: bool, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puppets._Puppet, "prefers_first", first, raising=False)
    bench = Bench(instances=3)
    numbers = []
    for count in range(1, 5):
        slot = bench.pool.reserve()
        assert slot is not None
        numbers.append(slot.number)
        bench.statistics.pending += 1
        bench.pool.run(slot, [member(count)], "full")
        execution = await asyncio.to_thread(bench.backend.next_execution)
        execution.finish(copied(execution))
        await bench.until_settled(count)
    assert numbers == expected
    bench.pool.close()
