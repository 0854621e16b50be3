"""Traces of requests that a model makes to answer another, as ensembles do."""

import json
from pathlib import Path
from typing import Any

from trace_builders import tracer

from modserve.core.errors import internal
from modserve.core.inflight import Inflight
from modserve.core.response import InferenceResponse, ResponseSink
from modserve.core.timing import ExecutionTiming
from modserve.core.version import ModelId
from modserve.observability.trace import Trace
from modserve.testing import RecordingSink, request


class Model:
    """Its requests are answered by hand."""

    def __init__(self, name: str) -> None:
        self.id = ModelId(name, 1)
        self.sink: ResponseSink | None = None

    def submit(self, asked: Any, sink: ResponseSink, now_ns: int) -> Inflight:
        self.sink = sink
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
    trace.submit(request(), RecordingSink(), 10)
    assert isinstance(ensemble.sink, Trace)
    sinks = [RecordingSink(), RecordingSink()]
    ensemble.sink.child(first).submit(request(), sinks[0], 20)  # type: ignore[arg-type]
    ensemble.sink.child(second).submit(request(), sinks[1], 30)  # type: ignore[arg-type]
    assert first.sink is not None
    assert second.sink is not None
    first.sink.respond(InferenceResponse("a", 1, {}), True)
    second.sink.fail(internal("broke"), True)
    assert [(len(sink.responses), len(sink.errors), sink.ended) for sink in sinks] == [(1, 0, 1), (0, 1, 1)]
    trace.respond(InferenceResponse("e", 1, {}), True)
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
    trace.submit(request(), RecordingSink(), 10)
    trace.child(step).submit(request(), RecordingSink(), 20)  # type: ignore[arg-type]
    trace.end()
    assert step.sink is not None
    step.sink.respond(InferenceResponse("a", 1, {}), True)
    found.close()
    assert records(tmp_path)[0] == {"e": (1, 0), "a": (2, 1)}
