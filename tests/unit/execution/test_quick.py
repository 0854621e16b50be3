"""When batches run on the event loop's own thread: rules on what executions took, and the pool that follows them."""

import asyncio
import threading
from collections.abc import Mapping

import numpy as np
import pytest

from modserve.core import dtypes
from modserve.core.errors import Code
from modserve.core.model_config import ModelConfig, TensorSpec
from modserve.core.statistics import ModelStatistics
from modserve.core.tensor import Array
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool
from modserve.execution.quick import QuickRule, could_be_quick
from modserve.testing import RecordingSink, config, inflight

QUICK, SLOW = 20_000, 5_000_000


def observe(rule: QuickRule, ns: int, times: int) -> None:
    for _ in range(times):
        rule.observe(ns)


def test_a_model_is_watched_before_it_counts_as_quick() -> None:
    rule = QuickRule()
    observe(rule, QUICK, 15)
    assert not rule.quick
    rule.observe(QUICK)
    assert rule.quick


def test_one_quick_execution_among_those_that_waited_for_the_interpreter_is_enough() -> None:
    rule = QuickRule()
    observe(rule, SLOW, 15)
    rule.observe(QUICK)
    assert rule.quick


def test_a_slow_model_stays_on_threads() -> None:
    rule = QuickRule()
    observe(rule, SLOW, 10_000)
    assert not rule.quick


def test_what_turns_slow_goes_back_to_threads_for_a_while() -> None:
    rule = QuickRule()
    observe(rule, QUICK, 16)
    observe(rule, SLOW, 16)
    assert not rule.quick
    observe(rule, QUICK, 1024 + 15)
    assert not rule.quick
    rule.observe(QUICK)
    assert rule.quick


def test_a_single_slow_execution_changes_nothing() -> None:
    rule = QuickRule()
    observe(rule, QUICK, 16)
    observe(rule, QUICK, 100)
    rule.observe(SLOW)
    observe(rule, QUICK, 100)
    assert rule.quick


@pytest.mark.parametrize(
    ("spec", "max_batch_size", "expected"),
    [
        (TensorSpec("I", dtypes.INT32, (16,)), 8, True),
        (TensorSpec("I", dtypes.FP32, (64, 64)), 4, True),
        (TensorSpec("I", dtypes.FP32, (64, 64)), 5, False),
        (TensorSpec("I", dtypes.FP32, (3, 224, 224)), 0, False),
        (TensorSpec("I", dtypes.INT32, (-1,)), 8, False),
        (TensorSpec("I", dtypes.BYTES, (1,)), 8, False),
        (TensorSpec("I", dtypes.INT32, ()), 0, True),
    ],
    ids=["small", "just small", "too large a batch", "image", "variable", "strings", "scalar"],
)
def test_only_small_inputs_of_fixed_size_qualify(spec: TensorSpec, max_batch_size: int, expected: bool) -> None:
    assert could_be_quick(config(inputs=(spec,), max_batch_size=max_batch_size)) is expected


class Doubling:
    """Notes the threads it runs on."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        self.threads.append(threading.get_ident())
        if int(inputs["INPUT0"].flat[0]) < 0:
            raise ValueError("negative")
        return {"OUTPUT0": inputs["INPUT0"] * 2}

    def close(self) -> None:
        pass


class Pool:
    """A pool of one instance, whose rule says quick from the start."""

    def __init__(self, model: ModelConfig) -> None:
        self.engine = Doubling()
        self.rule = QuickRule()
        self.rule.quick = True
        self.statistics = ModelStatistics()
        self.settled: list[int] = []
        self.freed = 0
        self.pool = InstancePool(
            ModelId("model", 1),
            model,
            [("model_0", self.engine)],
            self.statistics,
            self.settled.append,
            asyncio.get_running_loop(),
            self.rule,
        )
        self.pool.on_free = self.free

    def free(self) -> None:
        self.freed += 1

    def run(self, sizes: list[int]) -> list[RecordingSink]:
        sinks = [RecordingSink() for _ in sizes]
        slot = self.pool.reserve()
        assert slot is not None
        members = [inflight(size, sink=sink) for size, sink in zip(sizes, sinks, strict=True)]
        self.statistics.pending += len(members)
        self.pool.run(slot, members, "full")
        return sinks


async def test_a_quick_batch_is_answered_at_once_and_frees_its_slot() -> None:
    pool = Pool(config())
    sinks = pool.run([1, 2])
    assert [sink.responses[0].outputs["OUTPUT0"].array.tolist() for sink in sinks] == [[[2] * 4], [[2] * 4] * 2]
    assert pool.engine.threads == [threading.get_ident()]
    assert pool.settled == [2]
    assert (pool.statistics.pending, pool.statistics.inference_count, pool.statistics.execution_count) == (0, 3, 1)
    assert pool.freed == 0, "the scheduler that called goes on by itself"
    assert pool.pool.reserve() is not None
    await asyncio.to_thread(pool.pool.close)


async def test_a_quick_batch_that_fails_fails_its_own_requests() -> None:
    pool = Pool(config())
    sink = RecordingSink()
    slot = pool.pool.reserve()
    assert slot is not None
    member = inflight(1, sink=sink)
    member.inputs["INPUT0"].array[:] = np.int32(-1)
    pool.statistics.pending += 1
    pool.pool.run(slot, [member], "full")
    assert [error.code for error in sink.errors] == [Code.INTERNAL]
    assert [len(each.responses) for each in pool.run([1])] == [1]
    await asyncio.to_thread(pool.pool.close)
