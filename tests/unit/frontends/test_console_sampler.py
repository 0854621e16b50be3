"""One sampler for all pages, which runs only while one is open."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from puppet_server import PuppetLoader, server_over

from modserve.core.errors import Code, ModserveError, OverloadedError
from modserve.frontends.http.console.counters import CounterReader, Counters
from modserve.frontends.http.console.sampler import MOST_PAGES, MOST_WAITING, Page, Sampler
from modserve.server.local import LocalServer


class Stage:
    """A sampler whose seconds pass when the test lets them."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.readings = 0
        self.failure: Exception | None = None
        self.delays: list[float] = []
        self._seconds = 100.0
        self._ticks = asyncio.Semaphore(0)
        self._reader = CounterReader(server)
        self.sampler = Sampler(server, self._read, sleep=self._sleep, clock=lambda: self._seconds)

    async def _read(self) -> tuple[Counters, Mapping[str, int] | None]:
        self.readings += 1
        if self.failure is not None:
            raise self.failure
        return self._reader.read(), None

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        await self._ticks.acquire()
        self._seconds += seconds

    async def tick(self) -> None:
        """One more reading."""
        before = self.readings
        self._ticks.release()
        await self.until_read(before + 1)

    async def until_read(self, readings: int) -> None:
        for _ in range(100):
            if self.readings >= readings:
                break
            await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    return Stage(server)


async def next_event(page: Page) -> tuple[str, Any]:
    async with asyncio.timeout(10):
        name, data, *_ = (await page.next()).decode().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_nothing_runs_while_no_page_is_open(stage: Stage) -> None:
    assert not stage.sampler.running
    page = stage.sampler.open()
    assert (await next_event(page))[0] == "whole"
    await stage.tick()
    assert (await next_event(page))[0] == "changes"
    stage.sampler.close(page)
    assert not stage.sampler.running
    assert not stage.sampler.ready
    await asyncio.sleep(0)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "console"] == []
    assert stage.server.changes.listeners == 0
    assert stage.readings == 2


async def test_all_pages_share_one_reading_a_second(stage: Stage) -> None:
    first = stage.sampler.open()
    await next_event(first)
    second = stage.sampler.open()
    assert (await next_event(second))[0] == "whole", "at once, of the last reading"
    await stage.tick()
    assert (await next_event(first))[1] == (await next_event(second))[1]
    assert (stage.readings, stage.delays[0]) == (2, 1.0)
    stage.sampler.close(first)
    assert stage.sampler.running
    stage.sampler.close(second)
    assert not stage.sampler.running


async def test_a_browser_that_does_not_read_holds_little_and_then_gets_the_whole(stage: Stage) -> None:
    page = stage.sampler.open()
    await next_event(page)
    for _ in range(20 * MOST_WAITING):
        await stage.tick()
        assert page.waiting <= MOST_WAITING
    assert (await next_event(page))[0] == "whole"
    await stage.tick()
    assert (await next_event(page))[0] == "changes"
    stage.sampler.close(page)


async def test_one_page_too_many_is_refused(stage: Stage) -> None:
    pages = [stage.sampler.open() for _ in range(MOST_PAGES)]
    with pytest.raises(OverloadedError, match="64 pages of the console are open"):
        stage.sampler.open()
    stage.sampler.close(pages.pop())
    pages.append(stage.sampler.open())
    for page in pages:
        stage.sampler.close(page)
    assert not stage.sampler.running


@pytest.mark.parametrize("how", [LocalServer.stop_accepting, LocalServer.retire], ids=["stop", "retire"])
async def test_the_pages_end_when_the_server_stops(stage: Stage, how: Callable[[LocalServer], None]) -> None:
    page = stage.sampler.open()
    await next_event(page)
    how(stage.server)
    assert await next_event(page) == ("end", {"reason": "the server is stopping"})
    assert await page.next() == b""
    with pytest.raises(ModserveError) as refusal:
        stage.sampler.open()
    assert refusal.value.code is Code.UNAVAILABLE
    stage.sampler.close(page)


async def test_a_reading_that_fails_ends_the_pages_and_is_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    page = stage.sampler.open()
    await next_event(page)
    stage.failure = RuntimeError("broken")
    await stage.tick()
    assert (await next_event(page))[0] == "end"
    assert "the background task 'console' failed unexpectedly" in caplog.text
    stage.sampler.close(page)
    stage.failure = None
    page = stage.sampler.open()
    assert (await next_event(page))[0] == "whole", "the next one starts anew"
    stage.sampler.close(page)
