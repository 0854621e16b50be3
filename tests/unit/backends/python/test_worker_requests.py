"""Requests as a worker process gets them."""

from typing import Any

import pytest
from local_models import FakeRequest, engine

from modserve.backends.python.instance import execute_frame
from modserve.backends.python.worker.records import Descriptions, Record, read_records
from modserve.backends.python.worker.wire import Location, MessageKind, RecordReader


def nowhere(elements: Any, size: int) -> Location:
    raise AssertionError("small tensors go inline")


def sent(**members: Any) -> Record:
    """A request with these members, as the worker reads it."""
    data = execute_frame(engine(FakeRequest(1.5, **members)), [7], Descriptions(), nowhere)
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
    assert (record.number, record.id, record.description.outputs) == (7, "seven", ("OUT",))
    assert record.description.tensors == (("IN", "FP32", (1,), 4),)
    assert [bytes(each) for each in record.elements] == [b"\0\0\xc0\x3f"]
