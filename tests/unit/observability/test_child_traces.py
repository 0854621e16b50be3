"""Traces of requests that a model makes to answer another, as ensembles do."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trace_builders import tracer

from modserve.core.configuration.ensemble_config import EnsembleConfig, Step
from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.errors import internal
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, ResponseSink
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.runtime.clock import LoopClock
from modserve.core.servable import Servable, submit_traced
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.models.serving.cached import CachedModel
from modserve.models.serving.ensemble import EnsembleModel
from modserve.resources.response_cache import ResponseCache
from modserve.testing import FakeClock, RecordingSink, config, request, tensor


class Model:
    """Its requests are settled by hand."""

    def __init__(self, name: str) -> None:
        self.id = ModelId(name, 1)

    def submit(self, asked: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = Inflight(asked, sink, asked.inputs, (), 1, None, now_ns)
        inflight.queue_start_ns = now_ns
        inflight.timing = timing = ExecutionTiming()
        timing.compute_start_ns, timing.compute_end_ns = now_ns + 1, now_ns + 2
        return inflight


def records(path: Path) -> tuple[dict[str, tuple[int, int]], dict[int, list[str]]]:
    """Each model's trace with that of its parent, and the activities of each trace."""
    heads, activities = {}, dict[int, list[str]]()
    for record in json.loads((path / "trace.json").read_bytes()):
        if "model_name" in record:
            heads[record["model_name"]] = record["id"], record.get("parent_id", 0)
        for stamp in record.get("timestamps", ()):
            activities.setdefault(record["id"], []).append(stamp["name"])
    return heads, activities


def test_children_are_written_with_their_parent(tmp_path: Path) -> None:
    found = tracer(tmp_path)
    ensemble, first, second = Model("e"), Model("a"), Model("b")
    trace = found.sample(ensemble)  # type: ignore[arg-type]
    assert trace is not None
    parent = submit_traced(trace, ensemble, request(), RecordingSink(), 10)
    assert parent.trace is trace
    sinks = [RecordingSink(), RecordingSink()]
    good = submit_traced(parent.trace.child(first.id), first, request(), sinks[0], 20)
    bad = submit_traced(parent.trace.child(second.id), second, request(), sinks[1], 30)
    good.settle(InferenceResponse("a", 1, {}))
    bad.settle(internal("broke"))
    assert [(len(sink.responses), len(sink.errors), sink.ended) for sink in sinks] == [(1, 0, 1), (0, 1, 1)]
    parent.settle(InferenceResponse("e", 1, {}))
    assert parent.trace is None
    assert not (tmp_path / "trace.json").exists()
    trace.end()
    found.close()
    heads, activities = records(tmp_path)
    assert heads == {"e": (1, 0), "a": (2, 1), "b": (3, 1)}
    assert {"COMPUTE_START", "COMPUTE_END", "REQUEST_END"} <= set(activities[2])
    assert "REQUEST_START" in activities[1]
    assert "COMPUTE_START" not in activities[1]


def test_a_child_that_does_not_end_ends_with_its_parent(tmp_path: Path) -> None:
    found = tracer(tmp_path)
    ensemble, step = Model("e"), Model("a")
    trace = found.sample(ensemble)  # type: ignore[arg-type]
    assert trace is not None
    submit_traced(trace, ensemble, request(), RecordingSink(), 10)
    child = submit_traced(trace.child(step.id), step, request(), RecordingSink(), 20)
    trace.end()
    child.settle(InferenceResponse("a", 1, {}))
    found.close()
    assert records(tmp_path)[0] == {"e": (1, 0), "a": (2, 1)}


ORDERED = DynamicBatching(preserve_ordering=True)


class ByHand:
    """Implements `core.servable.Servable` and `Handle`: each request returns its input when the test says so."""

    config_message = b""
    unready_reason = None
    labels: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, name: str, **more: Any) -> None:
        self.id = ModelId(name, 1)
        self.config = config(name, max_batch_size=0, **more)
        self.statistics = ModelStatistics()
        self.waiting: list[Inflight] = []

    def submit(self, asked: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = Inflight(asked, sink, asked.inputs, ("OUTPUT0",), 0, None, now_ns)
        self.waiting.append(inflight)
        return inflight

    def finish(self) -> None:
        """Settle the request that came last."""
        inflight = self.waiting.pop()
        inflight.timing = timing = ExecutionTiming()
        timing.compute_start_ns = timing.compute_end_ns = 1
        inflight.settle(InferenceResponse(self.id.name, 1, {"OUTPUT0": inflight.inputs["INPUT0"]}))

    async def drain(self) -> None: ...

    async def close(self) -> None: ...


class Loan:
    """Implements `core.servable.Handle`."""

    def __init__(self, servable: Servable) -> None:
        self.servable = servable

    def release(self) -> None: ...


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_steps_that_are_cached_or_ordered_are_children(tmp_path: Path) -> None:
    """So are those of an ensemble that is both itself. The second request finds the response of the first step."""
    clock, full = FakeClock(), ResponseCache(0)
    on_loop = LoopClock(asyncio.get_running_loop())
    first, second = ByHand("a", dynamic_batching=ORDERED), ByHand("b", dynamic_batching=ORDERED)
    models = {"a": CachedModel(first, ResponseCache(1 << 20), on_loop), "b": CachedModel(second, full, on_loop)}
    steps = (
        Step("a", None, {"INPUT0": "INPUT0"}, {"OUTPUT0": "MID"}),
        Step("b", None, {"INPUT0": "MID"}, {"OUTPUT0": "OUTPUT0"}),
    )
    described = config("e", max_batch_size=0, dynamic_batching=ORDERED, ensemble=EnsembleConfig(steps))
    ensemble = EnsembleModel(ModelId("e", 1), described, b"", lambda name, version: Loan(models[name]), clock)
    front = CachedModel(ensemble, full, on_loop)
    found = tracer(tmp_path)
    for cached in (False, True):
        trace, sink = found.sample(front), RecordingSink()
        assert trace is not None
        asked = InferenceRequest("e", {"INPUT0": tensor(dtypes.INT32, (4,), 7)})
        submit_traced(trace, front, asked, sink, 10)
        clock.run()
        if not cached:
            first.finish()
        await turns()
        second.finish()
        assert sink.ended == 1
        trace.end()
    found.close()
    written = json.loads((tmp_path / "trace.json").read_bytes())
    heads = [(each["model_name"], each["id"], each.get("parent_id", 0)) for each in written if "model_name" in each]
    assert heads == [("e", 1, 0), ("a", 2, 1), ("b", 3, 1), ("e", 4, 0), ("a", 5, 4), ("b", 6, 4)]
    _, activities = records(tmp_path)
    assert all({"REQUEST_START", "REQUEST_END"} <= set(each) for each in activities.values())
    assert [id for id, each in activities.items() if "INFER_RESPONSE_COMPLETE" in each] == [1, 4]
    assert [id for id, each in activities.items() if "COMPUTE_START" in each] == [2, 3, 6]
