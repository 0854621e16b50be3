import asyncio
import logging
import re
import time
from typing import Any

import pytest

from modserve.observability import watchdog as watchdog_module
from modserve.observability.families import render
from modserve.observability.watchdog import PERIOD_S, Watchdog
from modserve.resources import garbage


def compute(seconds: float) -> None:
    """Hold the thread by computing for so much CPU time, however long that takes on a busy machine."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def beats(watchdog: Watchdog, number: int) -> None:
    while sum(watchdog.lag.buckets) < number:  # noqa: ASYNC110 - nothing else tells of beats
        await asyncio.sleep(PERIOD_S / 5)


async def test_a_callback_that_computes_is_named_and_measured(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog_module, "_PAUSE_NS", 0)  # a stall of the machine's must not hide the one ordered here
    monkeypatch.setattr(watchdog_module, "_ITS_OWN_DOING", 0.0)  # nor a busy machine make it look like its own doing
    with Watchdog(limit_ms=40) as watchdog:
        await beats(watchdog, 1)
        compute(0.3)
        await beats(watchdog, 2)
    ends: list[Any] = [r.args for r in caplog.records if r.getMessage().startswith("the event loop was held for")]
    assert ends, caplog.text
    lag_s, own_s, process_s = max(ends, key=lambda each: each[1])  # others are of the machine's stalls
    assert lag_s >= 0.24
    assert own_s >= 0.3
    assert process_s >= 0.3
    stacks: list[Any] = [r.args for r in caplog.records if "has been held" in r.getMessage()]
    assert sum("compute(0.3)" in stack for _, stack in stacks) == 1, caplog.text
    assert min(held_s for held_s, _ in stacks) > 0.039, "a loop that runs in time has no stack in the log"


async def test_a_loop_that_only_waits_is_not_blamed_for_the_machine(caplog: pytest.LogCaptureFixture) -> None:
    with Watchdog(limit_ms=40) as watchdog:
        await beats(watchdog, 1)
        caplog.clear()  # the start computes
        time.sleep(0.3)  # noqa: ASYNC251 - the loop stands still without computing, as if the process were stopped
        await beats(watchdog, 2)
    assert "the process did not run for" in caplog.text
    assert "the event loop was held" not in caplog.text


async def test_the_import_of_an_engine_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Watchdog(40, lambda since_ns: ["pytorch"]) as watchdog:
        await beats(watchdog, 1)
        caplog.clear()
        time.sleep(0.3)  # noqa: ASYNC251 - the loop stands still without computing, as if another thread had the lock
        await beats(watchdog, 2)
    assert re.search(r"the event loop waited 0\.\d+ s for the import of 'pytorch'", caplog.text)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_computing_on_the_loop_during_an_import_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog_module, "_ITS_OWN_DOING", 0.0)  # a busy machine must not hide it
    with Watchdog(40, lambda since_ns: ["pytorch"]) as watchdog:
        await beats(watchdog, 1)
        compute(0.3)
        await beats(watchdog, 2)
    assert "the event loop was held for" in caplog.text


class Garbage:
    """What only the collector frees, which takes a while."""

    def __init__(self, seconds: float) -> None:
        self.itself = self
        self.seconds = seconds

    def __del__(self) -> None:
        compute(self.seconds)


async def test_an_ordered_collection_of_garbage_is_no_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server orders one 5 s after it has unloaded a model. It takes a tenth of a second if much is imported."""
    monkeypatch.setattr(garbage, "freeze_uncollected", lambda: None)  # in a process of tests
    caplog.set_level(logging.INFO)
    with Watchdog(40, collected_ns=garbage.last_collection_ns) as watchdog:
        await beats(watchdog, 1)
        caplog.clear()
        Garbage(0.3)
        garbage.collect()
        await beats(watchdog, 2)
    assert re.search(r"the event loop waited \d+\.\d+ s for an ordered collection of garbage", caplog.text)
    assert "the event loop was held" not in caplog.text
    assert "the event loop has been held" not in caplog.text


async def test_computing_beside_an_ordered_collection_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog_module, "_ITS_OWN_DOING", 0.0)  # a busy machine must not hide it
    with Watchdog(40, collected_ns=lambda since_ns: 10_000_000) as watchdog:
        await beats(watchdog, 1)
        compute(0.3)
        await beats(watchdog, 2)
    assert "the event loop was held for" in caplog.text


async def test_without_a_limit_it_only_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with Watchdog(limit_ms=0) as watchdog:
        await beats(watchdog, 1)
        compute(0.15)
        await beats(watchdog, 2)
    assert not caplog.records
    assert watchdog.lag.total > 90_000_000


async def test_the_metrics_page_has_the_lag() -> None:
    watchdog = Watchdog(limit_ms=0)
    watchdog.lag.observe(1_500_000)
    watchdog.lag.observe(30_000_000_000)
    page = render([watchdog.collect]).decode()
    assert "# TYPE modserve_event_loop_lag_seconds histogram\n" in page
    assert 'modserve_event_loop_lag_seconds_bucket{le="0.001"} 0.0\n' in page
    assert 'modserve_event_loop_lag_seconds_bucket{le="0.002"} 1.0\n' in page
    assert 'modserve_event_loop_lag_seconds_bucket{le="5.0"} 1.0\n' in page
    assert 'modserve_event_loop_lag_seconds_bucket{le="+Inf"} 2.0\n' in page
    assert "modserve_event_loop_lag_seconds_count 2.0\n" in page
    assert "modserve_event_loop_lag_seconds_sum 30.0015\n" in page
