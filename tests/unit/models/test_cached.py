"""Requests like one before are answered without the model."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from modserve.core import dtypes
from modserve.core.errors import ModserveError, internal, unavailable
from modserve.core.inflight import Inflight
from modserve.core.model_config import DynamicBatching
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse, ResponseSink
from modserve.core.statistics import FailureReason, ModelStatistics
from modserve.core.version import ModelId
from modserve.models.assembly import wrapped
from modserve.resources.response_cache import ResponseCache
from modserve.scheduling.scheduler import LoopClock
from modserve.testing import RecordingSink, config, request, tensor


class ByHand:
    """Implements `core.servable.Servable`: what is submitted waits for the test."""

    config_message = b""
    labels: Mapping[str, tuple[str, ...]] = {}
    unready_reason: str | None = None

    def __init__(self, **more: Any) -> None:
        self.id = ModelId("model", 1)
        self.config = config(cached=True, **more)
        self.statistics = ModelStatistics()
        self.asked: list[Inflight] = []
        self.refusal: ModserveError | None = None
        self.drained = self.closed = False

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(Inflight(request, sink, request.inputs, ("OUTPUT0",), 1, None, now_ns))
        return self.asked[-1]

    async def drain(self) -> None:
        self.drained = True

    async def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self, **more: Any) -> None:
        self.behind = ByHand(**more)
        self.cache = ResponseCache(1 << 20)
        self.clock = LoopClock(asyncio.get_running_loop())
        self.model = wrapped(self.behind, self.clock, self.cache)

    def ask(self, value: int, sink: RecordingSink | None = None, **more: Any) -> RecordingSink:
        found = sink or RecordingSink()
        self.model.submit(self.request(value, **more), found, time.monotonic_ns())
        return found

    @staticmethod
    def request(value: int, **more: Any) -> InferenceRequest:
        return request({"INPUT0": tensor(dtypes.INT32, (1, 4), value)}, **more)

    def answer(self, index: int = -1) -> None:
        """The model gives back what it got."""
        entry = self.behind.asked[index]
        entry.settle(InferenceResponse("model", 1, {"OUTPUT0": entry.inputs["INPUT0"]}, entry.request.id, {"p": 1}))

    @property
    def counts(self) -> dict[str, int]:
        statistics = self.model.statistics
        names = ("success", "queue", "cache_hit", "cache_miss")
        return {name: getattr(statistics, name).count for name in names} | {"inferences": statistics.inference_count}


def told(sink: RecordingSink) -> list[tuple[str, int]]:
    return [(each.id, int(each.outputs["OUTPUT0"].array[0, 0])) for each in sink.responses]


async def test_a_hit_has_its_own_id_and_asks_nobody() -> None:
    bench = Bench()
    first = bench.ask(7, id="first")
    bench.answer()
    second = bench.ask(7, id="second")
    assert told(first) == [("first", 7)]
    assert told(second) == []  # never before `submit` returns
    await asyncio.sleep(0)
    assert told(second) == [("second", 7)]
    assert (second.ended, second.responses[0].parameters) == (1, {"p": 1})
    assert len(bench.behind.asked) == 1
    assert bench.counts == {"success": 1, "queue": 1, "cache_hit": 1, "cache_miss": 1, "inferences": 0}
    assert sum(bench.model.statistics.request_histogram.buckets) == 1


async def test_other_requests_are_run() -> None:
    bench = Bench()
    bench.ask(7)
    bench.answer()
    bench.ask(8)
    bench.ask(7, outputs=("OUTPUT0",))
    bench.ask(7, parameters={"q": 1})
    assert len(bench.behind.asked) == 4


async def test_failures_are_not_kept() -> None:
    bench = Bench()
    failed = bench.ask(7)
    bench.behind.asked[0].settle(internal("broken"))
    bench.ask(7)
    assert (len(failed.errors), len(bench.behind.asked), len(bench.cache)) == (1, 2, 0)
    bench.behind.refusal = unavailable("full")
    with pytest.raises(ModserveError, match="full"):
        bench.ask(7)


async def test_a_hit_that_is_cancelled_before_it_is_told() -> None:
    bench = Bench()
    bench.ask(7)
    bench.answer()
    sink = RecordingSink()
    bench.model.submit(bench.request(7), sink, time.monotonic_ns()).cancel()
    await asyncio.sleep(0)
    assert (len(sink.errors), len(sink.responses)) == (1, 0)
    assert bench.model.statistics.failures[FailureReason.CANCELED] == 1
    assert bench.counts["cache_hit"] == 0


async def test_the_order_of_answers_is_kept_where_it_is_promised() -> None:
    bench = Bench(dynamic_batching=DynamicBatching(preserve_ordering=True))
    bench.ask(7)
    bench.answer()
    slow = bench.ask(8, id="slow")
    hit = bench.ask(7, id="hit")
    bench.behind.refusal = unavailable("full")
    with pytest.raises(ModserveError):
        bench.ask(9)
    await asyncio.sleep(0)
    assert told(hit) == []
    bench.answer()
    assert (told(slow), told(hit)) == ([("slow", 8)], [("hit", 7)])


async def test_a_model_that_is_unloaded_leaves_nothing() -> None:
    bench = Bench()
    late = bench.ask(8)
    bench.ask(7)
    bench.answer()
    await bench.model.drain()
    bench.behind.refusal = unavailable("stopping")
    with pytest.raises(ModserveError, match="stopping"):
        bench.ask(7)
    bench.answer(0)
    await bench.model.close()
    assert told(late) == [("", 8)]
    assert (bench.behind.drained, bench.behind.closed, len(bench.cache)) == (True, True, 0)


class Broken(ByHand):
    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if request.id == "broken":
            raise RuntimeError("a bug")
        return super().submit(request, sink, now_ns)


async def test_a_request_that_cannot_be_queued_holds_nobody_up() -> None:
    bench = Bench(dynamic_batching=DynamicBatching(preserve_ordering=True))
    bench.behind = Broken(dynamic_batching=bench.behind.config.dynamic_batching)
    bench.model = wrapped(bench.behind, bench.clock, bench.cache)
    with pytest.raises(RuntimeError):
        bench.ask(1, id="broken")
    sink = bench.ask(2, id="good")
    bench.answer()
    assert told(sink) == [("good", 2)]


async def test_an_answer_that_cannot_be_kept_is_given_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise MemoryError

    bench = Bench()
    monkeypatch.setattr(bench.cache, "put", broken)
    sink = bench.ask(7, id="a")
    bench.answer()
    assert told(sink) == [("a", 7)]
