"""Requests of sequences on their way to the replica that has them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from puppet_server import ECHO, PuppetServable, echo

from modserve.core.errors import Code, ModserveError, invalid, unavailable
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.ray.sequences import SequenceRoutes, SessionModel
from modserve.ray.sessions import session_id
from modserve.testing import RecordingSink, request
from modserve.workers import inference, values


class FakeSender:
    """Implements `SequenceSender`: the test says when each request gets its response."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.outcomes: asyncio.Queue[InferenceResponse | ModserveError] = asyncio.Queue()
        self.arrived = asyncio.Event()

    async def send(self, session: str, data: bytes) -> AsyncIterator[tuple[bool, bytes]]:
        _, message = values.loads(data)
        self.sent.append((session, inference.read_request(message, 0).id))
        self.arrived.set()
        outcome = await self.outcomes.get()
        if isinstance(outcome, ModserveError):
            if outcome.code is Code.UNAVAILABLE:
                raise outcome
            yield True, inference.write_failure(outcome)
        else:
            yield True, values.dumps(inference.write_response(outcome))

    async def comes(self, count: int) -> None:
        while len(self.sent) < count:
            self.arrived.clear()
            await self.arrived.wait()


class AwaitedSink(RecordingSink):
    """It says when the request is over."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    def settle(self, outcome: Outcome, final: bool) -> None:
        super().settle(outcome, final)
        if final:
            self.over.set()


def response(value: int) -> InferenceResponse:
    tensor = Tensor.from_raw(dtypes.BY_NAME["INT32"], (1,), value.to_bytes(4, "little"))
    return InferenceResponse("m", 1, {"OUT": tensor}, "", {})


async def test_requests_of_a_session_are_sent_one_after_the_other() -> None:
    sender = FakeSender()
    routes = SequenceRoutes(sender)
    sinks = [RecordingSink() for _ in range(3)]
    routes.forward("s", request(id="1"), sinks[0], 0)
    routes.forward("s", request(id="2"), sinks[1], 0)
    routes.forward("other", request(id="3"), sinks[2], 0)
    await sender.comes(2)
    assert sorted(sender.sent) == [("other", "3"), ("s", "1")]
    sender.outcomes.put_nowait(response(1))
    sender.outcomes.put_nowait(response(2))
    await sender.comes(3)
    assert sender.sent[2] == ("s", "2")


async def test_failures_come_back_and_the_next_request_is_sent() -> None:
    sender = FakeSender()
    routes = SequenceRoutes(sender)
    sinks = [AwaitedSink() for _ in range(3)]
    lost = unavailable("the replica that has the sequence has ended: start the sequence again")
    outcomes: list[InferenceResponse | ModserveError] = [lost, invalid("no start"), response(7)]
    for sink, outcome in zip(sinks, outcomes, strict=True):
        sender.outcomes.put_nowait(outcome)
        routes.forward("s", request(), sink, 0)
    await sinks[2].over.wait()
    assert [each.errors[0].message for each in sinks[:2]] == [lost.message, "no start"]
    assert sinks[2].responses[0].outputs["OUT"].array.tolist() == [7]


async def test_a_cancelled_request_lets_the_next_one_go() -> None:
    sender = FakeSender()
    routes = SequenceRoutes(sender)
    first = routes.forward("s", request(id="1"), RecordingSink(), 0)
    routes.forward("s", request(id="2"), RecordingSink(), 0)
    await sender.comes(1)
    first.cancel()
    await sender.comes(2)
    assert sender.sent[1] == ("s", "2")
    sender.outcomes.put_nowait(response(1))


@pytest.fixture
def servable() -> PuppetServable:
    made = PuppetServable(ModelId("echo", 1), ECHO, echo)
    made.automatic = False
    return made


def texts(**parameters: Any) -> InferenceRequest:
    return request({"IN": Tensor.from_array(np.array([b"a"], object))}, "echo", parameters=parameters)


def test_without_routes_only_requests_outside_of_sequences_are_taken(servable: PuppetServable) -> None:
    model = SessionModel(servable, None)
    model.submit(texts(), RecordingSink(), 0)
    assert len(servable.submitted) == 1
    with pytest.raises(ModserveError, match="HAProxy mode sends them to any replica"):
        model.submit(texts(sequence_id=5, sequence_start=True), RecordingSink(), 0)
    assert len(servable.submitted) == 1


async def test_requests_of_sequences_are_forwarded_and_others_are_not(servable: PuppetServable) -> None:
    sender = FakeSender()
    model = SessionModel(servable, SequenceRoutes(sender))
    model.submit(texts(sequence_id=0), RecordingSink(), 0)
    assert len(servable.submitted) == 1
    sink = AwaitedSink()
    model.submit(texts(sequence_id=5), sink, 0)
    sender.outcomes.put_nowait(invalid("no start"))
    await sink.over.wait()
    assert [session for session, _ in sender.sent] == [session_id("echo", 5)]
    assert len(servable.submitted) == 1
