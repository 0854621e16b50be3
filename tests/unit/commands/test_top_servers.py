"""``modserve top`` for several servers, on a clock of the test's own."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import cast

import pytest
from test_top import page

from modserve.commands.destination import Destination, address
from modserve.commands.errors import UnreachableError
from modserve.commands.syntax import UsageError
from modserve.commands.top.figures import TopSnapshot, from_metrics
from modserve.commands.top.frame import Frame, text_lines
from modserve.commands.top.source import RESOLVE_SECONDS, SeveralFrames, SnapshotSource, metrics_pages

PLACES = [Destination(address(f"http://s{index}:1")) for index in range(3)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Source:
    """A server with 10 requests a second; `read_trouble` says what happens instead, and `held` lets nobody read."""

    remark = ""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.read_trouble: Exception | None = None
        self.held: threading.Event | None = None
        self.closed = False

    def read(self) -> TopSnapshot:
        if self.held is not None:
            assert self.held.wait(30)
        if self.read_trouble is not None:
            raise self.read_trouble
        at = self._clock.now
        return from_metrics(page(10 * at, 10 * at, 5 * at, 1e4 * at, 10 * at), at)

    def close(self) -> None:
        self.closed = True


class Servers:
    def __init__(self, places: Sequence[Destination] = PLACES) -> None:
        self.clock = Clock()
        self.places: Sequence[Destination] | Exception = places
        self.sources: dict[str, Source] = {}

    def open(self, place: Destination) -> SnapshotSource:
        made = self.sources[place.address.host] = self.sources.get(place.address.host) or Source(self.clock)
        return cast(SnapshotSource, made)

    def resolve(self) -> Sequence[Destination]:
        if isinstance(self.places, Exception):
            raise self.places
        return self.places

    def wait(self, futures: "Iterable[Future[TopSnapshot]]", seconds: float) -> object:
        """For all but those that nobody lets read, however slow this machine is."""
        held = sum(source.held is not None for source in self.sources.values())
        futures = list(futures)
        while sum(future.done() for future in futures) < len(futures) - held:
            wait([future for future in futures if not future.done()], 0.01)
        return None

    def frames(
        self, most: int, before: Callable[[int], None] = lambda number: None, changing: bool = False
    ) -> list[Frame]:
        made = SeveralFrames(
            self.resolve,
            self.open,
            1.0,
            most,
            changing=changing,
            sleep=self.clock.sleep,
            clock=self.clock,
            wait=self.wait,
        )
        shown: list[Frame] = []
        before(0)
        for frame in made:
            shown.append(frame)
            before(len(shown))
        for source in self.sources.values():
            if source.held is not None:
                source.held.set()
        made.close()
        return shown


def test_a_row_for_each_and_their_sum() -> None:
    frame = Servers().frames(2)[-1]
    assert [(line.url, line.state, line.figures and line.figures.per_second) for line in frame.servers] == [
        *((f"http://s{index}:1", "ready", 10) for index in range(3)),
        ("3 servers", "3 ready", 30),
    ]
    [row] = frame.rows
    assert (row.model, row.state, row.per_second, row.waiting, row.batch) == ("a", "READY", 30, 12, 2)
    assert row.mean == pytest.approx(1e-3)
    assert (frame.snapshot.in_flight, frame.snapshot.ready, list(frame.history)) == (15, True, [30, 30])
    lines = list(text_lines(frame))
    assert " 3 servers, ready, 30.0 requests/s, 15 in flight" in lines[0]
    assert lines[1].split()[:3] == ["server", "state", "req/s"]


def test_one_that_is_dead_for_a_while() -> None:
    servers = Servers()

    def before(number: int) -> None:
        if servers.sources:
            error = UnreachableError("cannot reach a server at http://s1:1: Connection refused")
            servers.sources["s1"].read_trouble = error if number == 1 else None

    first, second, third, fourth = servers.frames(4, before)
    assert [line.state for line in first.servers] == ["ready", "ready", "ready", "3 ready"]
    assert [line.state for line in second.servers] == ["ready", "Connection refused", "ready", "2 ready"]
    assert second.rows[0].per_second == 20
    assert [line.state for line in third.servers][1] == "ready"
    assert fourth.rows[0].per_second == 30


def test_one_that_is_frozen_holds_nobody() -> None:
    servers = Servers()

    def before(number: int) -> None:
        if number == 1:
            servers.sources["s2"].held = threading.Event()

    *_, last = servers.frames(4, before)
    assert [line.state for line in last.servers] == ["ready", "ready", "no response for 2 s", "2 ready"]
    assert last.rows[0].per_second == 20


def test_a_name_with_other_servers_after_a_while() -> None:
    servers = Servers(PLACES[:2])

    def before(number: int) -> None:
        if number == 2:
            servers.places = PLACES[1:]

    shown = servers.frames(int(RESOLVE_SECONDS) + 5, before, changing=True)
    assert [line.url for line in shown[3].servers][:-1] == ["http://s0:1", "http://s1:1"]
    assert [line.url for line in shown[-1].servers][:-1] == ["http://s1:1", "http://s2:1"]
    assert [source.closed for source in servers.sources.values()] == [True] * 3
    assert shown[-1].rows[0].per_second == 20


def test_a_name_that_is_gone_keeps_its_servers() -> None:
    servers = Servers()

    def before(number: int) -> None:
        servers.places = UnreachableError("the name 'svc' has no address") if number else PLACES

    last = servers.frames(int(RESOLVE_SECONDS) + 5, before, changing=True)[-1]
    assert last.remark == "the name 'svc' has no address; these are the servers of before"
    assert len(last.servers) == 4


def test_no_server_at_the_start() -> None:
    servers = Servers()
    for place in PLACES:
        servers.open(place)
        servers.sources[place.address.host].read_trouble = UnreachableError("no response within 10 s")
    with pytest.raises(UnreachableError, match="none of 3 servers responds; http://s0:1: no response within 10 s"):
        servers.frames(1)


def test_metrics_pages() -> None:
    urls = [str(place.address) for place in PLACES]
    assert metrics_pages(PLACES, "") == dict.fromkeys(urls, "")
    one = metrics_pages(PLACES, "http://any:9/m")
    assert list(one.values()) == [f"http://s{index}:9/m" for index in range(3)]
    assert list(metrics_pages(PLACES, "a:1,b:2,c:3").values()) == ["http://a:1", "http://b:2", "http://c:3"]
    with pytest.raises(UsageError, match="one for each of 3 servers, got: 2"):
        metrics_pages(PLACES, "a:1,b:2")
