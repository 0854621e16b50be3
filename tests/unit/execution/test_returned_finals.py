"""Instances with a thread whose engine returns the responses of a batch, and takes batches ahead of their turn."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from types import SimpleNamespace

import pytest
from pool_bench import CONFIG, Owner, answer, member, refused, until

from modserve.backends.api import EngineRequest, FinalResponse
from modserve.core.errors import Code
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import ParameterValue
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.execution.pool import InstancePool


class Returning:
    """Implements `backends.api.RequestInstance`. Executions go on only while they may."""

    max_ahead = 2

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.missing = 0
        """Responses that it forgets."""
        self.parameters: dict[str, ParameterValue] = {}
        """Of the second response."""

    def execute_requests(self, requests: Sequence[EngineRequest]) -> Sequence[FinalResponse]:
        assert self.go_on.wait(30)
        answers = [FinalResponse({"OUTPUT0": each.tensors["INPUT0"].array}) for each in requests]
        if self.parameters:
            answers[1] = FinalResponse(answers[1].outputs, self.parameters)
        return answers[self.missing :]

    def close(self) -> None: ...


class Bench:
    def __init__(self) -> None:
        self.engine = Returning()
        self.statistics = ModelStatistics()
        self.settled = 0
        owner = Owner(self._on_settled)
        loop = asyncio.get_running_loop()
        self.pool = InstancePool(ModelId("model", 3), CONFIG, [("model_0", self.engine)], self.statistics, owner, loop)
        self.instance = self.pool._instances[0]

    def _on_settled(self, count: int) -> None:
        self.settled += count

    def has_settled(self, count: int) -> bool:
        return self.settled == count

    def start(self, *members: Inflight) -> bool:
        """Whether a batch could be started."""
        slot = self.pool.reserve()
        if slot is None:
            return False
        self.statistics.pending += len(members)
        self.pool.run(slot, list(members), "full")
        return True


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.engine.go_on.set()
    made.pool.close()


async def test_responses_that_are_returned_reach_their_requests(bench: Bench) -> None:
    members = [member(1), member(2)]
    assert bench.start(*members)
    await until(lambda: bench.settled == 2)
    assert [answer(each) for each in members] == [[[1] * 4], [[2] * 4]]
    assert bench.statistics.success.count == 2
    assert not bench.instance.open


async def test_too_few_responses_fail_all_requests_of_the_batch(bench: Bench) -> None:
    bench.engine.missing = 1
    members = [member(1), member(2)]
    assert bench.start(*members)
    await until(lambda: bench.settled == 2)
    for each in members:
        code, message = refused(each)
        assert code is Code.INTERNAL
        assert "returned 1 responses for 2 requests" in message


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A microsecond passes between two looks at the clock, however busy the machine is."""
    ticks = itertools.count(1)
    clock = SimpleNamespace(monotonic_ns=lambda: next(ticks) * 1_000)
    for module in ("instance", "job"):
        monkeypatch.setattr(f"modserve.execution.{module}.time", clock)


@pytest.mark.usefixtures("steady_clock")
async def test_batches_wait_at_the_thread_while_executions_are_short(bench: Bench) -> None:
    bench.engine.go_on.clear()
    assert bench.start(member(0))
    assert not bench.start(member(1)), "nobody knows yet how long an execution takes"
    bench.engine.go_on.set()
    for count in range(1, 11):
        await until(partial(bench.has_settled, count))
        assert bench.start(member(count))
    await until(lambda: bench.settled == 11)
    bench.engine.go_on.clear()
    started = [each for each in [member(value) for value in range(20, 26)] if bench.start(each)]
    assert len(started) == 3, "one that runs, and two ahead"
    bench.engine.go_on.set()
    await until(lambda: bench.settled == 14)
    assert [answer(each) for each in started] == [[[value] * 4] for value in (20, 21, 22)]


@pytest.mark.parametrize("parameters", [{"file": "caf\udce9"}, {"caf\udce9": 1}, {"a": 1, "\ud800": "b"}])
async def test_a_parameter_that_is_no_unicode_fails_its_request_alone(
    bench: Bench, parameters: dict[str, ParameterValue]
) -> None:
    bench.engine.parameters = parameters
    members = [member(1), member(2), member(3)]
    assert bench.start(*members)
    await until(lambda: bench.has_settled(3))
    assert [answer(entry) for entry in members[::2]] == [[[1] * 4], [[3] * 4]]
    code, text = refused(members[1])
    assert code is Code.INTERNAL
    assert "responded with the parameter" in text
    assert text.endswith("which has a lone surrogate in its name or value: that is no character and cannot be sent")
