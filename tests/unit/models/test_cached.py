"""Requests like one before are answered without the model."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from modserve.core.configuration.model_config import DynamicBatching, ModelLimits
from modserve.core.errors import ModserveError, internal, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, ResponseSink
from modserve.core.runtime.clock import LoopClock
from modserve.core.statistics.model_statistics import FailureReason, ModelStatistics
from modserve.core.tenants import Tenant
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.models.loading.assembly import wrap
from modserve.models.serving.cached import CachedModel
from modserve.resources.response_cache import ResponseCache
from modserve.testing import FakeClock, RecordingSink, config, request, tensor


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


class SlowCache(ResponseCache):
    """Tells what it has when the test says so."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.looking: list[asyncio.Future[InferenceResponse | None]] = []

    def get(self, owner: object, key: bytes) -> InferenceResponse | None:
        return None

    def fetch(self, owner: object, key: bytes) -> "asyncio.Future[InferenceResponse | None] | None":
        self.looking.append(asyncio.get_running_loop().create_future())
        return self.looking[-1]


class Bench:
    def __init__(self, cache: ResponseCache | None = None, **more: Any) -> None:
        self.inner = ByHand(**more)
        self.cache = ResponseCache(1 << 20) if cache is None else cache
        self.clock = LoopClock(asyncio.get_running_loop())
        self.model = wrap(self.inner, self.clock, self.cache)

    def ask(self, value: int, sink: RecordingSink | None = None, **more: Any) -> RecordingSink:
        found = sink or RecordingSink()
        self.submit(value, found, **more)
        return found

    def submit(self, value: int, sink: RecordingSink, **more: Any) -> Inflight:
        return self.model.submit(self.request(value, **more), sink, time.monotonic_ns())

    @staticmethod
    def request(value: int, **more: Any) -> InferenceRequest:
        return request({"INPUT0": tensor(dtypes.INT32, (1, 4), value)}, **more)

    def answer(self, index: int = -1) -> None:
        """The model gives back what it got."""
        entry = self.inner.asked[index]
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
    assert len(bench.inner.asked) == 1
    assert bench.counts == {"success": 1, "queue": 1, "cache_hit": 1, "cache_miss": 1, "inferences": 0}
    assert sum(bench.model.statistics.request_histogram.buckets) == 1


async def test_other_requests_are_run() -> None:
    bench = Bench()
    bench.ask(7)
    bench.answer()
    bench.ask(8)
    bench.ask(7, outputs=("OUTPUT0",))
    bench.ask(7, parameters={"q": 1})
    assert len(bench.inner.asked) == 4


async def test_failures_are_not_kept() -> None:
    bench = Bench()
    failed = bench.ask(7)
    bench.inner.asked[0].settle(internal("broken"))
    bench.ask(7)
    assert (len(failed.errors), len(bench.inner.asked), len(bench.cache)) == (1, 2, 0)
    bench.inner.refusal = unavailable("full")
    with pytest.raises(ModserveError, match="full"):
        bench.ask(8)


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
    bench.inner.refusal = unavailable("full")
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
    bench.inner.refusal = unavailable("stopping")
    with pytest.raises(ModserveError, match="stopping"):
        bench.ask(7)
    bench.answer(0)
    await bench.model.close()
    assert told(late) == [("", 8)]
    assert (bench.inner.drained, bench.inner.closed, len(bench.cache)) == (True, True, 0)


class Broken(ByHand):
    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if request.id == "broken":
            raise RuntimeError("a bug")
        return super().submit(request, sink, now_ns)


async def test_a_request_that_cannot_be_queued_holds_nobody_up() -> None:
    bench = Bench(dynamic_batching=DynamicBatching(preserve_ordering=True))
    bench.inner = Broken(dynamic_batching=bench.inner.config.dynamic_batching)
    bench.model = wrap(bench.inner, bench.clock, bench.cache)
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


# Requests that are alike and under way


async def test_alike_and_at_the_same_time_is_computed_once() -> None:
    bench = Bench()
    sinks = [bench.ask(7, id=str(number)) for number in range(5)]
    assert len(bench.inner.asked) == 1
    assert isinstance(bench.model, CachedModel)
    assert (bench.model.outstanding, bench.model.busy) == (4, True)
    bench.answer()
    assert [told(sink) for sink in sinks] == [[(str(number), 7)] for number in range(5)]
    assert bench.counts == {"success": 4, "queue": 4, "cache_hit": 4, "cache_miss": 1, "inferences": 0}
    assert (bench.model.outstanding, bench.model.busy) == (0, False)


async def test_requests_that_wait_in_another_way_run_by_themselves() -> None:
    bench = Bench()
    bench.ask(7)
    bench.ask(7, parameters={"priority": 1})
    bench.ask(7, timeout_ns=5)
    bench.ask(8)
    assert len(bench.inner.asked) == 4


async def test_the_first_one_is_cancelled_and_the_second_runs_for_all() -> None:
    bench = Bench()
    first = RecordingSink()
    inflight = bench.submit(7, first)
    others = [bench.ask(7, id=id) for id in "ab"]
    inflight.cancel()
    assert (len(first.errors), len(bench.inner.asked)) == (1, 2)
    bench.answer()
    assert [told(sink) for sink in others] == [[("a", 7)], [("b", 7)]]
    assert bench.counts["cache_miss"] == bench.counts["cache_hit"] == 1


async def test_the_first_one_fails_and_each_of_the_others_runs() -> None:
    bench = Bench()
    first = bench.ask(7)
    others = [bench.ask(7, id=id) for id in "abc"]
    bench.inner.asked[0].settle(internal("broken"))
    assert [len(sink.errors) for sink in (first, *others)] == [1, 0, 0, 0]
    assert len(bench.inner.asked) == 4
    for index in (1, 3):
        bench.answer(index)
    bench.inner.asked[2].settle(internal("broken"))
    assert [told(sink) for sink in others] == [[("a", 7)], [], [("c", 7)]]
    assert [len(sink.errors) for sink in others] == [0, 1, 0]


async def test_the_first_one_fails_and_the_queue_is_full() -> None:
    bench = Bench()
    bench.ask(7)
    others = [bench.ask(7) for _ in range(3)]
    bench.inner.refusal = unavailable("full")
    bench.inner.asked[0].settle(internal("broken"))
    assert [sink.errors[0].message for sink in others] == ["full"] * 3
    bench.inner.refusal = None
    bench.ask(7)
    assert len(bench.inner.asked) == 2  # nothing is left of what failed


async def test_one_that_waits_is_cancelled() -> None:
    bench = Bench()
    first = bench.ask(7)
    gone, stays = RecordingSink(), RecordingSink()
    inflight = bench.submit(7, gone)
    bench.submit(7, stays)
    inflight.cancel()
    assert len(gone.errors) == 1
    bench.answer()
    assert (len(told(first)), len(told(gone)), len(told(stays))) == (1, 0, 1)
    assert bench.model.statistics.failures[FailureReason.CANCELED] == 1


async def test_one_that_waits_and_then_runs_is_cancelled() -> None:
    bench = Bench()
    inflight = bench.submit(7, RecordingSink())
    second = RecordingSink()
    waiting = bench.submit(7, second)
    third = bench.ask(7)
    inflight.cancel()
    waiting.cancel()
    assert bench.inner.asked[1].cancelled
    bench.answer()
    assert (len(second.errors), len(second.responses), len(told(third))) == (1, 0, 1)


async def test_one_that_waits_has_a_deadline_of_its_own() -> None:
    clock = FakeClock()
    bench = Bench()
    bench.model = CachedModel(bench.inner, bench.cache, clock)
    first = bench.ask(7)
    impatient = bench.ask(7, deadline_ns=clock.now_ns() + 5)
    patient = bench.ask(7, deadline_ns=clock.now_ns() + 50)
    clock.advance(6)
    assert [error.message for error in impatient.errors] == ["Request timeout expired"]
    bench.answer()
    clock.advance(100)
    assert (len(told(first)), len(told(patient)), len(impatient.errors)) == (1, 1, 1)


async def test_the_trace_goes_with_the_request_that_runs() -> None:
    bench = Bench()
    first = bench.submit(7, RecordingSink())
    second = bench.submit(7, RecordingSink())
    second.callers = (ModelId("caller", 1),)
    first.cancel()
    assert bench.inner.asked[1].callers == (ModelId("caller", 1),)


# A cache that takes its time


async def test_a_lookup_that_finds_it() -> None:
    cache = SlowCache()
    bench = Bench(cache)
    sinks = [bench.ask(7, id=id) for id in "ab"]
    assert (len(cache.looking), len(bench.inner.asked)) == (1, 0)
    outputs = {"OUTPUT0": tensor(dtypes.INT32, (1, 4), 9)}
    cache.looking[0].set_result(InferenceResponse("model", 1, outputs))
    await asyncio.sleep(0)
    assert [told(sink) for sink in sinks] == [[("a", 9)], [("b", 9)]]
    assert (len(bench.inner.asked), bench.counts["cache_hit"]) == (0, 2)


async def test_a_lookup_that_finds_nothing() -> None:
    cache = SlowCache()
    bench = Bench(cache)
    sinks = [bench.ask(7, id=id) for id in "ab"]
    cache.looking[0].set_result(None)
    await asyncio.sleep(0)
    assert len(bench.inner.asked) == 1
    bench.answer()
    assert [told(sink) for sink in sinks] == [[("a", 7)], [("b", 7)]]
    assert (bench.counts["cache_hit"], bench.counts["cache_miss"], len(cache)) == (1, 1, 1)


async def test_a_lookup_whose_only_client_has_gone() -> None:
    cache = SlowCache()
    bench = Bench(cache)
    bench.submit(7, RecordingSink()).cancel()
    cache.looking[0].set_result(None)
    await asyncio.sleep(0)
    assert bench.inner.asked == []
    bench.ask(7)
    assert len(cache.looking) == 2


async def test_a_request_that_the_model_refuses_after_a_lookup() -> None:
    cache = SlowCache()
    bench = Bench(cache)
    sinks = [bench.ask(7) for _ in range(2)]
    bench.inner.refusal = unavailable("full")
    cache.looking[0].set_result(None)
    await asyncio.sleep(0)
    assert [sink.errors[0].message for sink in sinks] == ["full"] * 2


async def test_a_model_that_is_replaced_runs_what_is_being_looked_for() -> None:
    cache = SlowCache()
    bench = Bench(cache)
    sink = bench.ask(7)
    draining = asyncio.ensure_future(bench.model.drain())
    await asyncio.sleep(0)
    assert not bench.inner.drained
    cache.looking[0].set_result(None)
    await draining
    assert (bench.inner.drained, len(bench.inner.asked)) == (True, 1)
    bench.answer()
    assert (len(told(sink)), len(cache)) == (1, 0)


async def test_what_still_waits_at_the_close_fails() -> None:
    bench = Bench(SlowCache())
    sink = bench.ask(7)
    await bench.model.close()
    assert [error.message for error in sink.errors] == ["model 'model' was unloaded before the request ran"]


async def test_a_tenant_has_responses_of_its_own() -> None:
    bench = Bench()
    bench.ask(7, tenant=Tenant("a"))
    bench.answer()
    bench.ask(7, tenant=Tenant("b"))
    bench.ask(7)
    assert len(bench.inner.asked) == 3
    bench.ask(7, tenant=Tenant("a"))
    assert len(bench.inner.asked) == 3


async def test_requests_of_two_tenants_under_way_do_not_wait_for_each_other() -> None:
    bench = Bench()
    bench.ask(7, tenant=Tenant("a"))
    bench.ask(7, tenant=Tenant("b"))
    assert len(bench.inner.asked) == 2


async def test_tenants_share_responses_if_the_model_says_so() -> None:
    bench = Bench(limits=ModelLimits(share_cache=True))
    first = bench.ask(7, tenant=Tenant("a"))
    bench.answer()
    second = bench.ask(7, tenant=Tenant("b"))
    await asyncio.sleep(0)
    assert len(bench.inner.asked) == 1
    assert told(first) == told(second)
