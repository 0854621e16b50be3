"""Requests of sequences on their way to the replica that has them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import numpy as np
import pytest
from puppet_server import ECHO, PuppetServable, echo

from modserve.core.errors import Code, ModserveError, invalid, not_found, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome, ResponseSink
from modserve.core.requests.sequence import SequenceKey, membership
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.ray import sequences
from modserve.ray.sequences import NearSender, SequenceRoutes, SessionModel
from modserve.ray.sessions import candidates, direct, owner, session_id
from modserve.server.local import LocalServer
from modserve.testing import RecordingSink, request
from modserve.workers import inference, pickles


class FakeSender:
    """Implements `SequenceSender`: the test says when each request gets its response."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.outcomes: asyncio.Queue[InferenceResponse | ModserveError] = asyncio.Queue()
        self.arrived = asyncio.Event()

    async def send(self, session: str, data: bytes) -> AsyncIterator[tuple[bool, bytes]]:
        _, message = pickles.loads(data)
        self.sent.append((session, inference.read_request(message, 0).id))
        self.arrived.set()
        outcome = await self.outcomes.get()
        if isinstance(outcome, ModserveError):
            if outcome.code is Code.UNAVAILABLE:
                raise outcome
            yield True, inference.write_failure(outcome)
        else:
            yield True, pickles.dumps(inference.write_response(outcome))

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


# Where they stay


class KeptSequences(PuppetServable):
    """Implements `SequenceKeeper`: a sequence that has begun goes on until the test is over."""

    def __init__(self) -> None:
        super().__init__(ModelId("echo", 1), ECHO, echo)
        self.open: set[SequenceKey] = set()

    @property
    def open_sequences(self) -> int:
        return len(self.open)

    def has_sequence(self, key: SequenceKey) -> bool:
        return key in self.open

    def abandon_sequence(self, key: SequenceKey) -> None: ...

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        member = membership(request)
        if not (member.start or member.key in self.open):
            raise invalid("must specify the START flag")
        self.open.add(member.key)
        return super().submit(request, sink, now_ns)


class OwnServer:
    """A server with one model."""

    def __init__(self) -> None:
        self.servable = KeptSequences()

    def model(self, name: str, version: int | None) -> KeptSequences:
        if name != "echo":
            raise not_found(f"Request for unknown model: '{name}'")
        return self.servable


class FakeReplicas:
    """Servers by the names of their replicas. Implements `SequenceSender`, and `HolderSearch` for all of them."""

    def __init__(self, *names: str) -> None:
        self.servers = {name: OwnServer() for name in names}
        self.lost = ""

    async def holder(self, model: str, version: int | None, key: SequenceKey) -> str:
        holders = [name for name, each in self.servers.items() if sequences.holds(as_local(each), model, version, key)]
        return self.lost or next(iter(holders), "")

    async def send(self, session: str, data: bytes) -> AsyncIterator[tuple[bool, bytes]]:
        if self.lost and session.endswith(self.lost):
            raise unavailable("the replica that has the sequence has ended: start the sequence again")
        [name] = candidates(session, "", self.servers)
        async for outcome in sequences.receive(as_local(self.servers[name]), data, self, self):
            yield outcome

    async def call(self, id: int, **parameters: Any) -> Outcome:
        sink = AwaitedSink()
        content = texts(sequence_id=id, **parameters)
        SequenceRoutes(self).forward(session_id("echo", id), content, sink, 0)
        await sink.over.wait()
        return sink.errors[0] if sink.errors else sink.responses[0]

    @property
    def places(self) -> dict[str, int]:
        return {name: len(each.servable.submitted) for name, each in self.servers.items()}


def as_local(server: OwnServer) -> LocalServer:
    return cast(LocalServer, server)


MOVED = next(
    id
    for id in range(1, 1000)
    if (owner(session_id("echo", id), "ab"), owner(session_id("echo", id), "abc")) == ("a", "c")
)
"""A sequence that begins in `a`, and that `c` would have if it had been there before."""


async def test_a_sequence_stays_where_it_began_when_there_are_more_replicas() -> None:
    replicas = FakeReplicas("a", "b")
    assert isinstance(await replicas.call(MOVED, sequence_start=True), InferenceResponse)
    replicas.servers["c"] = OwnServer()
    assert isinstance(await replicas.call(MOVED), InferenceResponse)
    assert isinstance(await replicas.call(MOVED, sequence_end=True), InferenceResponse)
    assert replicas.places == {"a": 3, "b": 0, "c": 0}
    await replicas.call(MOVED, sequence_start=True)
    await replicas.call(MOVED)
    assert replicas.places == {"a": 3, "b": 0, "c": 2}


async def test_a_sequence_that_nobody_has_is_refused_by_its_owner() -> None:
    replicas = FakeReplicas("a", "b", "c")
    outcome = await replicas.call(MOVED)
    assert isinstance(outcome, ModserveError)
    assert "START" in outcome.message
    assert replicas.places == {"a": 0, "b": 0, "c": 0}


async def test_a_sequence_whose_replica_ends_meanwhile_says_so() -> None:
    replicas = FakeReplicas("a", "b", "c")
    replicas.lost = "gone"
    outcome = await replicas.call(MOVED)
    assert isinstance(outcome, ModserveError)
    assert (outcome.code, "start the sequence again" in outcome.message) == (Code.UNAVAILABLE, True)


async def test_models_that_are_not_there_hold_nothing() -> None:
    assert not sequences.holds(as_local(OwnServer()), "nosuch", None, 5)


class Calls:
    """Implements `SequenceSender`; says where a call has been."""

    def __init__(self, place: bytes) -> None:
        self.place = place

    async def send(self, session: str, data: bytes) -> AsyncIterator[tuple[bool, bytes]]:
        yield True, self.place + data

    async def own(self, data: bytes) -> AsyncIterator[tuple[bool, bytes]]:
        yield True, self.place + data


@pytest.mark.parametrize(
    ("replicas", "session", "place"),
    [
        ("abc", session_id("echo", MOVED), b"far"),
        ("ab", session_id("echo", MOVED), b"near"),
        ("", session_id("echo", MOVED), b"far"),
        ("abc", direct("a"), b"near"),
        ("abc", direct("b"), b"far"),
    ],
)
async def test_a_replica_does_not_call_itself(replicas: str, session: str, place: bytes) -> None:
    """It is `a`. As long as it does not know the others, Ray decides."""
    near, far = Calls(b"near"), Calls(b"far")
    sender = NearSender("a", lambda: replicas, near.own, far)
    assert [content async for _, content in sender.send(session, b"")] == [place]
