"""A change is made in all workers or in none, whatever becomes of one of them in the middle."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import orjson
import pytest

from modserve.workers import private
from modserve.workers.changing import Changing, text_of
from modserve.workers.client import Headers, PeerDiedError, PeerGoneError, Reply
from modserve.workers.fleet import Fleet
from modserve.workers.journal import Change, Journal, Subject, http_subject
from modserve.workers.place import Place

LOAD, UNLOAD = "/v2/repository/models/m/load", "/v2/repository/models/m/unload"
REFUSED = Reply(400, {}, b'{"error":"it does not fit"}')


class Worker:
    """Has what was done last, and undoes it like a real one. `fails` has the responses to targets that it refuses."""

    def __init__(self) -> None:
        self.has = UNLOAD
        self.fails: dict[str, Reply | PeerGoneError] = {}
        self.left = False
        self._numbers: dict[str, str] = {}

    def post(self, target: str, headers: dict[str, str]) -> Reply:
        number = headers.get(private.CHANGE, "")
        if target == private.LEAVE:
            self.left = True
        elif target.startswith(private.UNDO):
            before = self._numbers.pop(number, None)
            return Reply(200, {}, orjson.dumps(private.coded([Change(before, b"")] if before else [])))
        elif (failure := self.fails.get(target)) is not None:
            if isinstance(failure, PeerGoneError):
                raise failure
            return failure
        else:
            self._numbers[number], self.has = self.has, target
        return Reply(200, {}, b"{}")


class Workers(Fleet):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.each = [Worker() for _ in range(place.count)]

    async def call(self, index: int, method: str, target: str, body: bytes = b"", headers: Headers = ()) -> Reply:
        return self.each[index].post(target, dict(headers))

    @property
    def have(self) -> Sequence[str]:
        return [worker.has.rpartition("/")[2] for worker in self.each]

    @property
    def left(self) -> Sequence[bool]:
        return [worker.left for worker in self.each]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(1, 3, 0, tmp_path)


@pytest.fixture
def workers(place: Place) -> Workers:
    return Workers(place)


@pytest.fixture
async def changing(place: Place, workers: Workers) -> AsyncIterator[Changing]:
    made = Changing(place, workers)
    yield made
    made.close()


async def test_all_of_them(changing: Changing, workers: Workers, place: Place) -> None:
    assert (await changing.change(LOAD, b"")).ok
    assert workers.have == ["load"] * 3
    assert not place.note.exists()


async def test_one_that_is_not_there_is_left_out(changing: Changing, workers: Workers) -> None:
    workers.each[0].fails[LOAD] = PeerGoneError()
    assert (await changing.change(LOAD, b"")).ok
    assert workers.have == ["unload", "load", "load"]


async def test_none_is_there(changing: Changing, workers: Workers) -> None:
    for worker in workers.each:
        worker.fails[LOAD] = PeerGoneError()
    with pytest.raises(PeerGoneError):
        await changing.change(LOAD, b"")


async def test_the_first_refuses(changing: Changing, workers: Workers) -> None:
    workers.each[0].fails[LOAD] = REFUSED
    assert await changing.change(LOAD, b"") == REFUSED
    assert workers.have == ["unload"] * 3


async def test_the_last_refuses(changing: Changing, workers: Workers) -> None:
    workers.each[2].fails[LOAD] = REFUSED
    reply = await changing.change(LOAD, b"")
    assert reply.status == 400
    assert text_of(reply) == ("it does not fit (refused by worker 2, done before by 2 of 3 workers, and undone)")
    assert workers.have == ["unload"] * 3
    assert workers.left == [False] * 3


@pytest.mark.parametrize(
    ("target", "headers"), [(LOAD, {}), ("/rpc/Load", {private.CODE: "UNAVAILABLE"})], ids=["HTTP", "gRPC"]
)
async def test_one_dies_of_it(changing: Changing, workers: Workers, target: str, headers: dict[str, str]) -> None:
    workers.each[1].fails[target] = PeerDiedError()
    reply = await changing.change(target, b"")
    assert (reply.status, reply.headers) == (503, headers)
    assert text_of(reply) == (
        "worker 1 has died while it did this, and another takes its place "
        "(refused by worker 1, done before by 1 of 3 workers, and undone)"
    )
    assert workers.have == ["unload"] * 3


async def test_one_that_cannot_go_back_is_replaced(
    changing: Changing, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    workers.each[2].fails[LOAD] = REFUSED
    workers.each[0].fails[UNLOAD] = REFUSED
    reply = await changing.change(LOAD, b"")
    assert text_of(reply).endswith("done before by 2 of 3 workers, and undone, but for workers that start anew: 0)")
    assert workers.have == ["load", "unload", "unload"]
    assert workers.left == [True, False, False]
    assert caplog.messages == [f"worker 0 cannot undo {LOAD}, and is replaced: it does not fit"]


async def test_the_worker_that_changes_all_dies_in_the_middle(
    changing: Changing, workers: Workers, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Worker 0 has done it, worker 2 has not; the one that has taken the place of worker 1 settles that."""
    place.note.write_bytes(orjson.dumps(["17", *private.coded([Change(LOAD, b"")])]))
    workers.each[0].post(LOAD, {private.CHANGE: "17"})
    workers.each[2].post(LOAD, {private.CHANGE: "16"})
    async with changing.locked():
        assert workers.have == ["unload", "unload", "load"]
    assert not place.note.exists()
    assert caplog.messages == [f"a worker has died in the middle of a change, which is undone: {LOAD}"]


async def test_a_note_that_is_not_complete_says_nothing(changing: Changing, workers: Workers, place: Place) -> None:
    place.note.write_bytes(b'["17", ["/v2')
    async with changing.locked():
        assert workers.have == ["unload"] * 3
    assert not place.note.exists()


async def test_what_has_begun_is_brought_to_an_end(changing: Changing, workers: Workers) -> None:
    task = asyncio.ensure_future(changing.change(LOAD, b""))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with changing.locked():
        assert workers.have == ["load"] * 3


def test_only_the_very_change_is_undone() -> None:
    journal, region = Journal(None), "/v2/systemsharedmemory/region/{}/register"  # type: ignore[arg-type]
    for number, name in (("1", "a"), ("2", "b")):
        subject = http_subject(region.format(name))
        assert subject is not None
        journal.record(subject, Change(region.format(name), b""), journal.before(subject), number)
    assert journal.undo(Subject("system", "b", "register"), "1") == []
    journal.record(Subject("system", "c", "register"), Change(region.format("c"), b""), [], "")
    assert journal.undo(Subject("system", "c", "register"), "") == []


def test_a_routing_lasts_until_it_is_deleted_or_its_model_unloaded() -> None:
    journal = Journal(None)  # type: ignore[arg-type]
    path, load, unload = "/v2/models/m/routing", Subject("model", "m", "load"), Subject("model", "m", "unload")
    routing = Subject("routing", "m", "")
    nothing, first, second = Change(path, b"null"), Change(path, b'{"split": {}}'), Change(path, b"{}")
    loaded = Change("/v2/repository/models/m/load", b"")
    journal.record(load, loaded, [])
    assert journal.before(routing) == [nothing]
    journal.record(routing, first, journal.before(routing), "1")
    assert journal.state() == [loaded, first]
    assert journal.before(routing) == [first]
    journal.record(routing, second, journal.before(routing), "2")
    assert journal.undo(routing, "2") == [first]
    journal.record(routing, nothing, [])
    assert journal.state() == [loaded]
    journal.record(routing, first, [])
    journal.record(load, loaded, [])
    assert journal.state() == [loaded, first]
    assert journal.before(unload) == [loaded, first]
    unloaded = Change("/v2/repository/models/m/unload", b"")
    journal.record(unload, unloaded, [])
    assert journal.state() == [unloaded]
