"""Copies of requests."""

import mmap
from collections.abc import Callable
from typing import Any

import pytest
from routed_versions import Stage, Version

from modserve.core.errors import internal, invalid, unavailable
from modserve.core.requests.request import InferenceRequest
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.routing import shadow as module
from modserve.routing.reading import read
from modserve.routing.shadow import ShadowTraffic
from modserve.testing import RecordingSink, request

SIZE = 4 * 4 + 4 * 4
"""Bytes of a request and its response."""


class Shadowed(Stage):
    """Version 1 responds, and version 2 is the shadow."""

    def __init__(self, limit: int = 0, *versions: Version, **members: Any) -> None:
        shadow = {"version": 2, "share": 1, **members}
        super().__init__({"split": {"1": 1}, "shadow": shadow}, *versions, limit=limit)
        self.soon: list[Callable[[], None]] = []
        rule = read({"split": {"1": 1}, "shadow": shadow}).shadow
        assert rule is not None
        self.shadow_traffic = self.router.shadow_traffic = ShadowTraffic(
            rule, self.memory, self.soon.append, self.aside
        )
        self.asides: list[tuple[Callable[[], str], Callable[[str], None]]] = []

    def aside(self, compare: Callable[[], str], done: Callable[[str], None]) -> None:
        self.asides.append((compare, done))

    def ask(self, sent: InferenceRequest | None = None, value: Any = 1.0) -> RecordingSink:
        """A request to which version 1 responds."""
        sink = RecordingSink()
        self.front.submit(sent or request(model="m"), sink, 0)
        self.versions[1].respond(value)
        return sink

    def turn(self) -> None:
        soon, self.soon[:] = list(self.soon), []
        for callback in soon:
            callback()

    @property
    def outcomes(self) -> dict[str, int]:
        return {outcome: count for outcome, count in self.shadow_traffic.outcomes.items() if count}


def test_a_copy_is_made_when_the_client_has_its_response() -> None:
    stage = Shadowed()
    sink = RecordingSink()
    stage.front.submit(request(model="m", id="a", deadline_ns=5), sink, 0)
    stage.turn()
    assert stage.taken_by == {1: 1, 2: 0}
    stage.versions[1].respond()
    assert (sink.ended, stage.taken_by) == (1, {1: 1, 2: 0})
    stage.turn()
    (copy,) = stage.versions[2].requests
    assert (copy.id, copy.version, copy.inputs) == ("a", 2, stage.versions[1].requests[0].inputs)
    assert copy.deadline_ns > 5
    assert (stage.shadow_traffic.in_flight, stage.memory.held) == (1, SIZE)
    stage.versions[2].respond()
    assert (stage.outcomes, stage.shadow_traffic.in_flight, stage.memory.held) == ({"same": 1}, 0, 0)


def test_differences_are_counted_and_shown() -> None:
    stage = Shadowed(tolerance=0.1)
    for value in (1.05, 2.0):
        stage.ask()
        stage.turn()
        stage.versions[2].respond(value)
    assert stage.outcomes == {"same": 1, "different": 1}
    text = "output 'OUTPUT0' differs in 4 of 4 elements, by up to 0.5 of their size"
    assert stage.shadow_traffic.report()["last_difference"] == text


def test_failures_and_refusals() -> None:
    stage = Shadowed()
    stage.ask()
    stage.turn()
    stage.versions[2].respond(internal("broken"))
    stage.versions[2].refusal = unavailable("full")
    stage.ask()
    stage.turn()
    stage.versions[2].refusal = invalid("no such input")
    stage.ask()
    stage.turn()
    assert stage.outcomes == {"failed": 2, "dropped": 1}
    assert stage.shadow_traffic.report()["last_failure"] == "no such input"
    assert (stage.shadow_traffic.in_flight, stage.memory.held) == (0, 0)


def test_a_request_that_failed_is_not_copied() -> None:
    stage = Shadowed()
    sink = stage.ask(value=internal("no"))
    assert (sink.errors[0].message, stage.soon, stage.outcomes) == ("no", [], {})


def test_only_so_many_are_in_flight() -> None:
    stage = Shadowed(max_in_flight=2)
    for _ in range(5):
        stage.ask()
    assert (stage.shadow_traffic.in_flight, stage.outcomes) == (2, {"dropped": 3})
    stage.turn()
    stage.versions[2].respond()
    stage.ask()
    assert (stage.shadow_traffic.in_flight, stage.outcomes) == (2, {"dropped": 3, "same": 1})


def test_only_what_fits_the_memory() -> None:
    stage = Shadowed(2 * SIZE - 1)
    stage.ask()
    stage.ask()
    assert (stage.outcomes, stage.memory.held, stage.memory.refused) == ({"dropped": 1}, SIZE, 0)


def test_a_share_is_sampled() -> None:
    stage = Shadowed(share=0.25)
    for _ in range(100):
        stage.ask()
        stage.turn()
        if stage.versions[2].waiting:
            stage.versions[2].respond()
    assert stage.taken_by == {1: 100, 2: 25}


def test_a_shadow_that_is_not_ready_gets_none() -> None:
    stage = Shadowed()
    stage.front = stage.routed(1)
    stage.ask()
    assert (stage.soon, stage.outcomes) == ([], {})


def test_requests_of_sequences_are_not_copied() -> None:
    stage = Shadowed()
    stage.ask(request(model="m", parameters={"sequence_id": 3}))
    assert stage.soon == []


def test_what_is_in_shared_memory_is_not_copied() -> None:
    stage = Shadowed()
    with mmap.mmap(-1, 16) as region:
        view = memoryview(region)
        inputs = {"INPUT0": Tensor.from_raw(dtypes.INT32, (1, 4), view)}
        stage.ask(InferenceRequest("m", inputs))
        assert (stage.soon, stage.outcomes) == ([], {"dropped": 1})
        stage.versions[1].requests.clear()
        inputs.clear()
        view.release()


def test_long_responses_are_compared_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Shadowed()
    monkeypatch.setattr(module, "_SHORT", 8)
    stage.ask()
    stage.turn()
    stage.versions[2].respond()
    assert (stage.outcomes, stage.memory.held) == ({}, SIZE + 16)
    ((compare, done),) = stage.asides
    done(compare())
    assert (stage.outcomes, stage.memory.held) == ({"same": 1}, 0)
