"""Requests on their way to a worker process, of which only what it is sent is there."""

from typing import Any, cast

import pytest
from local_models import FakeRequest, engine

from modserve import testing
from modserve.backends.api import ModelSource
from modserve.backends.python.instance import WorkerInstance
from modserve.backends.python.interpreter import Interpreter
from modserve.backends.python.options import BackendOptions
from modserve.backends.python.process import WorkerProcess
from modserve.backends.python.worker.records import Descriptions, Record, read_records
from modserve.backends.python.worker.wire import MessageKind, RecordReader
from modserve.core.tensors import dtypes


class Worker:
    """Stands in for `WorkerProcess`: keeps what it is sent."""

    def __init__(self) -> None:
        self.takers: dict[int, Any] = {}
        self.descriptions = Descriptions(dtypes.BY_NAME.__getitem__)
        self.arena = self
        self.sent: list[bytes] = []

    def place(self, elements: Any, size: int) -> None:
        raise AssertionError("small tensors go inline")

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)


def sent(**members: Any) -> Record:
    """A request with these members, as the worker gets it."""
    worker = Worker()
    source = ModelSource(testing.config("m"), 1, cast(Any, None), cast(Any, None))
    instance = WorkerInstance(
        cast(WorkerProcess, worker), source, cast(BackendOptions, None), cast(Interpreter, None), None
    )
    instance.start_requests(engine(FakeRequest(1.5, **members)), lambda finals: None)
    [data] = worker.sent
    reader = RecordReader()
    reader.room()[: len(data)] = data
    ((kind, count, inline_at, body),) = reader.take_in(len(data))
    assert (kind, count) == (MessageKind.EXECUTE, 1)
    [record] = read_records(body, count, inline_at, Descriptions(), lambda location: None)
    return record


NOTHING = {"parameters": {}, "correlation_id": 0, "flags": 0, "timeout": 0, "priority": 0}


@pytest.mark.parametrize(
    ("members", "extras"),
    [
        ({}, {}),
        ({"parameters": {"a": 1, "priority": 2}, "priority": 2}, {**NOTHING, "parameters": {"a": 1}, "priority": 2}),
        ({"timeout_ns": 5_000_000}, {**NOTHING, "timeout": 5000}),
        ({"trace_context": "00-1-2-01"}, {**NOTHING, "trace": "00-1-2-01"}),
    ],
    ids=["nothing", "parameters", "a timeout", "a trace"],
)
def test_rare_members_of_a_request_come_along(members: dict[str, Any], extras: dict[str, Any]) -> None:
    assert sent(**members).extras == extras


def test_a_request_comes_with_its_tensors() -> None:
    record = sent(id="seven")
    assert (record.id, record.description.outputs) == ("seven", ("OUT",))
    assert record.description.tensors == (("IN", "FP32", (1,), 4),)
    assert [bytes(each) for each in record.elements] == [b"\0\0\xc0\x3f"]
