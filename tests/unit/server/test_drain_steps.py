"""The drain of a server: the order of its steps, who waits for what, and what is said of it."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

from modserve.server import DrainPhase
from modserve.server.drain import Drain, DrainTimes, stopping_line

LATE = 1e9
"""Seconds that no test waits for."""


class Stage:
    """A server and its ports. What is done to them is written down with the phase of the drain at that moment."""

    def __init__(self, notice: float = 0.0, grace: float = LATE, share: float = 1.0) -> None:
        self.done: list[tuple[str, DrainPhase]] = []
        self.counts: dict[str, int] = {"simple": 2}
        self.requests = asyncio.Event()
        """Set when no request is in flight."""
        self.calls = asyncio.Event()
        self.heard = asyncio.Event()
        self.farewell = 0.0
        self.replaced = False
        self.drain = Drain(self)
        self.drain.times = DrainTimes(notice, grace, share)
        self.drain.ports = Ports(self)

    def note(self, step: str) -> None:
        self.done.append((step, self.drain.phase))

    def give_notice(self) -> None:
        self.note("notice")

    def retire(self) -> None:
        self.note("retire")

    def stop_accepting(self) -> None:
        self.note("stop accepting")

    async def finish(self) -> None:
        self.note("finish")
        await self.requests.wait()
        self.counts.clear()

    def in_flight(self) -> dict[str, int]:
        return dict(self.counts)


class Ports:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def connections(self) -> Mapping[str, int]:
        return {"http": 3, "grpc": 0}

    async def retire(self, seconds: float, replaced: bool) -> None:
        self.stage.note("close")
        self.stage.replaced = replaced
        self.stage.farewell = seconds
        await self.stage.heard.wait()

    async def finish(self, end: float) -> None:
        self.stage.note("end calls")
        await self.stage.calls.wait()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_step_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage = Stage(notice=LATE)
    draining = asyncio.create_task(stage.drain.run())
    await turns()
    assert stage.done == [("notice", DrainPhase.NOTICE)]
    stage.drain.hurry()
    await turns()
    assert stage.done[1:] == [("retire", DrainPhase.CLOSING), ("close", DrainPhase.CLOSING)]
    assert stage.farewell == 5e8
    stage.heard.set()
    await turns()
    assert stage.done[3:] == [
        ("stop accepting", DrainPhase.FINISHING),
        ("end calls", DrainPhase.FINISHING),
        ("finish", DrainPhase.FINISHING),
    ]
    stage.requests.set()
    await turns()
    assert not draining.done()
    stage.calls.set()
    report = await draining
    assert (report.drained, report.in_flight) == (True, {})
    assert stage.drain.phase is DrainPhase.DRAINED
    assert [record.getMessage().partition(", after")[0] for record in caplog.records] == [
        "draining: not ready any more, and all requests are served for 1e+09 s; connections: 3 http, "
        "in flight: 2 of model 'simple'",
        "stopping: no new requests; those in flight have 1e+09 s: 2 of model 'simple'. "
        "A second SIGTERM or SIGINT (Ctrl-C) ends the server at once.",
        "new requests are refused; connections: 3 http, in flight: 2 of model 'simple'",
        "drained: all accepted requests are finished",
    ]


async def test_it_begins_once() -> None:
    stage = Stage()
    for event in (stage.heard, stage.requests, stage.calls):
        event.set()
    first, second = await asyncio.gather(stage.drain.run(), stage.drain.run())
    assert first is second
    assert await stage.drain.run(replaced=True) is first
    assert [step for step, _ in stage.done].count("close") == 1


async def test_a_caller_that_goes_does_not_end_it() -> None:
    stage = Stage()
    caller = asyncio.create_task(stage.drain.run())
    await turns()
    caller.cancel()
    await turns()
    assert caller.cancelled()
    for event in (stage.heard, stage.requests, stage.calls):
        event.set()
    assert (await stage.drain.run()).drained


async def test_the_time_is_too_short(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(grace=0.0)
    stage.heard.set()
    report = await stage.drain.run()
    assert (report.drained, report.in_flight) == (False, {"simple": 2})
    assert stage.farewell == 0.0
    assert stage.drain.phase is DrainPhase.FINISHING
    assert "not drained within 0 s: in flight are 2 of model 'simple'" in caplog.text


async def test_one_that_is_replaced_stays_ready() -> None:
    stage = Stage(notice=LATE, grace=1.0, share=0.25)
    for event in (stage.heard, stage.requests, stage.calls):
        event.set()
    assert (await stage.drain.run(replaced=True)).drained
    assert "notice" not in [step for step, _ in stage.done]
    assert (stage.farewell, stage.replaced) == (0.125, True)


async def test_one_that_is_replaced_waits_for_a_notice_that_was_given() -> None:
    stage = Stage(notice=LATE)
    stage.drain.give_notice()
    stage.drain.give_notice()
    draining = asyncio.create_task(stage.drain.run(replaced=True))
    await turns()
    assert stage.done == [("notice", DrainPhase.NOTICE)]
    stage.drain.hurry()
    for event in (stage.heard, stage.requests, stage.calls):
        event.set()
    assert (await draining).drained


async def test_a_library_has_no_ports() -> None:
    stage = Stage()
    stage.drain = Drain(stage)
    stage.requests.set()
    assert (await stage.drain.run()).drained


def test_nothing_in_flight() -> None:
    assert stopping_line({}, 30.0) == "stopping: no new requests, and none are in flight"
