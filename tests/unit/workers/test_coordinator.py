"""A change is made in all workers or in none, whatever becomes of one of them in the middle."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modserve.core.configuration.trace_settings import SpanSettings, TraceLevel, TraceSettings
from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.tensors.shared_memory import CudaRegion, SystemRegion
from modserve.workers import pickles
from modserve.workers.coordinator import Coordinator
from modserve.workers.identity import WorkerIdentity
from modserve.workers.journal import Journal, ServerChange
from modserve.workers.peers import PeerDiedError, PeerLostError, Peers

LOAD, UNLOAD = ServerChange("load_model", ("m",)), ServerChange("unload_model", ("m",))
REFUSAL = invalid("it does not fit")


class Worker:
    """Has what was done last, and undoes it like a real one. `fails` has the failures of changes that it refuses."""

    def __init__(self) -> None:
        self.has = UNLOAD
        self.fails: dict[str, Exception] = {}
        self.left = False
        self._numbers: dict[str, ServerChange] = {}

    def call(self, method: str, change: ServerChange = LOAD, number: str = "") -> None:
        if method == "leave":
            self.left = True
        elif method == "undo":
            if (before := self._numbers.pop(number, None)) is not None:
                self._make(before)
        else:
            before = self.has
            self._make(change)
            self._numbers[number] = before

    def _make(self, change: ServerChange) -> None:
        if change.method in self.fails:
            raise self.fails[change.method]
        self.has = change


class Workers(Peers):
    def __init__(self, identity: WorkerIdentity) -> None:
        super().__init__(identity)
        self.each = [Worker() for _ in range(identity.count)]

    async def call(self, index: int, method: str, *arguments: Any) -> None:
        self.each[index].call(method, *arguments)

    @property
    def have(self) -> Sequence[str]:
        return [worker.has.method.removesuffix("_model") for worker in self.each]

    @property
    def left(self) -> Sequence[bool]:
        return [worker.left for worker in self.each]


@pytest.fixture
def identity(tmp_path: Path) -> WorkerIdentity:
    return WorkerIdentity(1, 3, 0, tmp_path)


@pytest.fixture
def workers(identity: WorkerIdentity) -> Workers:
    return Workers(identity)


@pytest.fixture
async def coordinator(identity: WorkerIdentity, workers: Workers) -> AsyncIterator[Coordinator]:
    made = Coordinator(identity, workers)
    yield made
    made.close()


async def refusal(coordinator: Coordinator) -> ModserveError:
    with pytest.raises(ModserveError) as raised:
        await coordinator.change(LOAD)
    return raised.value


async def test_all_of_them(coordinator: Coordinator, workers: Workers, identity: WorkerIdentity) -> None:
    await coordinator.change(LOAD)
    assert workers.have == ["load"] * 3
    assert not identity.note.exists()


async def test_one_that_is_not_there_is_left_out(coordinator: Coordinator, workers: Workers) -> None:
    workers.each[0].fails["load_model"] = PeerLostError()
    await coordinator.change(LOAD)
    assert workers.have == ["unload", "load", "load"]


async def test_none_is_there(coordinator: Coordinator, workers: Workers) -> None:
    for worker in workers.each:
        worker.fails["load_model"] = PeerLostError()
    with pytest.raises(PeerLostError):
        await coordinator.change(LOAD)


async def test_the_first_refuses(coordinator: Coordinator, workers: Workers) -> None:
    workers.each[0].fails["load_model"] = REFUSAL
    assert await refusal(coordinator) is REFUSAL
    assert workers.have == ["unload"] * 3


async def test_the_last_refuses(coordinator: Coordinator, workers: Workers) -> None:
    workers.each[2].fails["load_model"] = REFUSAL
    error = await refusal(coordinator)
    assert error.code is Code.INVALID_ARG
    assert error.message == "it does not fit (refused by worker 2, done before by 2 of 3 workers, and undone)"
    assert workers.have == ["unload"] * 3
    assert workers.left == [False] * 3


async def test_one_dies_of_it(coordinator: Coordinator, workers: Workers) -> None:
    workers.each[1].fails["load_model"] = PeerDiedError()
    error = await refusal(coordinator)
    assert error.code is Code.UNAVAILABLE
    assert error.message == (
        "worker 1 died during this change and is being replaced "
        "(refused by worker 1, done before by 1 of 3 workers, and undone)"
    )
    assert workers.have == ["unload"] * 3


async def test_one_that_cannot_go_back_is_replaced(
    coordinator: Coordinator, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    workers.each[2].fails["load_model"] = REFUSAL
    workers.each[0].fails["unload_model"] = REFUSAL
    error = await refusal(coordinator)
    text = "done before by 2 of 3 workers, and undone, except in workers that are restarting: 0)"
    assert error.message.endswith(text)
    assert workers.have == ["load", "unload", "unload"]
    assert workers.left == [True, False, False]
    assert caplog.messages == ["worker 0 cannot undo load_model of model 'm' and is being replaced: it does not fit"]


async def test_the_worker_that_changes_all_dies_in_the_middle(
    coordinator: Coordinator, workers: Workers, identity: WorkerIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    """Worker 0 has done it, worker 2 has not; the one that has taken the place of worker 1 settles that."""
    identity.note.write_bytes(pickles.dumps(("17", LOAD)))
    workers.each[0].call("change", LOAD, "17")
    workers.each[2].call("change", LOAD, "16")
    async with coordinator.lock():
        assert workers.have == ["unload", "unload", "load"]
    assert not identity.note.exists()
    assert caplog.messages == ["a worker died in the middle of a change, which is now undone: load_model of model 'm'"]


async def test_a_note_that_is_not_complete_says_nothing(
    coordinator: Coordinator, workers: Workers, identity: WorkerIdentity
) -> None:
    identity.note.write_bytes(pickles.dumps(("17", LOAD))[:20])
    async with coordinator.lock():
        assert workers.have == ["unload"] * 3
    assert not identity.note.exists()


async def test_what_has_begun_is_brought_to_an_end(coordinator: Coordinator, workers: Workers) -> None:
    task = asyncio.ensure_future(coordinator.change(LOAD))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with coordinator.lock():
        assert workers.have == ["load"] * 3


def test_only_the_very_change_is_undone() -> None:
    journal = Journal(None)  # type: ignore[arg-type]

    def register(name: str) -> ServerChange:
        return ServerChange("register_region", (SystemRegion(name, "/key", 0, 1), b""))

    for number, name in (("1", "a"), ("2", "b")):
        journal.record(register(name), journal.before(register(name)), number)
    assert journal.undo(register("b"), "1") == []
    journal.record(register("c"), [], "")
    assert journal.undo(register("c"), "") == []


def test_regions_are_known_by_their_kind() -> None:
    journal = Journal(None)  # type: ignore[arg-type]
    system = ServerChange("register_region", (SystemRegion("r", "/key", 0, 1), b""))
    cuda = ServerChange("register_region", (CudaRegion("g", 0, 1), b"handle"))
    assert journal.before(system) == [ServerChange("unregister_region", (SystemRegion, "r", ""))]
    for change in (system, cuda):
        journal.record(change, [])
    every_system_region = ServerChange("unregister_region", (SystemRegion, ""))
    assert journal.before(every_system_region) == [system]
    journal.record(every_system_region, [system])
    assert journal.state() == [cuda]


@pytest.mark.parametrize(
    ("settings", "restored"),
    [
        (TraceSettings(rate=5, log_frequency=9), {"rate": 5, "count": -1, "log_frequency": 9}),
        (TraceSettings(rate=5, spans=SpanSettings()), {"rate": 5, "count": -1}),
        (TraceSettings(rate=5, count=0, spans=SpanSettings()), {"rate": 0, "count": -1}),
        (TraceSettings(rate=5, count=0), {"rate": 5, "count": 0, "log_frequency": 0, "level": TraceLevel.OFF}),
    ],
)
def test_the_trace_settings_that_a_change_has_replaced(settings: TraceSettings, restored: dict[str, Any]) -> None:
    settings = replace(settings, level=TraceLevel.TENSORS)
    tracer = SimpleNamespace(settings={"m": settings}.__getitem__)
    journal = Journal(SimpleNamespace(tracer=tracer))  # type: ignore[arg-type]
    [before] = journal.before(ServerChange("change_trace_settings", ({"rate": 7}, "m")))
    assert before == ServerChange("change_trace_settings", ({"level": TraceLevel.TENSORS, **restored}, "m"))


def test_a_routing_lasts_until_it_is_deleted_or_its_model_unloaded() -> None:
    journal = Journal(None)  # type: ignore[arg-type]
    documents: tuple[object, ...] = (None, {"split": {}}, {})
    nothing, first, second = (ServerChange("set_routing", ("m", document)) for document in documents)
    journal.record(LOAD, [])
    assert journal.before(first) == [nothing]
    journal.record(first, journal.before(first), "1")
    assert journal.state() == [LOAD, first]
    assert journal.before(second) == [first]
    journal.record(second, journal.before(second), "2")
    assert journal.undo(second, "2") == [first]
    journal.record(nothing, [])
    assert journal.state() == [LOAD]
    journal.record(first, [])
    journal.record(LOAD, [])
    assert journal.state() == [LOAD, first]
    assert journal.before(UNLOAD) == [LOAD, first]
    journal.record(UNLOAD, [])
    assert journal.state() == [UNLOAD]
