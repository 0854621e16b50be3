"""The reconciler, stepped by hand: a loader whose loads end when the test says so."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from modserve.core.errors import Code, ModserveError, internal, invalid
from modserve.core.inflight import Inflight
from modserve.core.lifecycle import IndexEntry, State
from modserve.core.request import InferenceRequest
from modserve.core.response import ResponseSink
from modserve.core.servable import ModelDirectory
from modserve.core.statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.repository.manager import ModelManager
from modserve.testing import config

READY, LOADING, UNLOADING, UNAVAILABLE = State.READY, State.LOADING, State.UNLOADING, State.UNAVAILABLE


class FakeServable:
    """A loaded version which is drained and closed when the test says so."""

    def __init__(self, model_id: ModelId) -> None:
        self.id = model_id
        self.config = config(model_id.name)
        self.config_message = b""
        self.statistics = ModelStatistics()
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.drained = asyncio.Event()
        self.log: list[str] = []
        self.fail_to_close = False

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        raise AssertionError("no test submits to it")

    async def drain(self) -> None:
        self.log.append("drain")
        await self.drained.wait()

    async def close(self) -> None:
        self.log.append("close")
        if self.fail_to_close:
            raise OSError("stuck")


class FakeLoader:
    """Loads end when the test says so, or at once if `patient` is off."""

    def __init__(self) -> None:
        self.patient = False
        self.unusable: dict[str, Exception] = {}
        self.failures: dict[ModelId, Exception] = {}
        self.loads: dict[ModelId, asyncio.Future[FakeServable]] = {}
        self.order: list[ModelId] = []
        self.servables: dict[ModelId, FakeServable] = {}

    async def wanted_versions(self, model: ModelDirectory) -> Sequence[int]:
        if model.name in self.unusable:
            raise self.unusable[model.name]
        return model.versions

    async def load(self, model: ModelDirectory, version: int) -> FakeServable:
        model_id = ModelId(model.name, version)
        self.order.append(model_id)
        if model_id in self.failures:
            raise self.failures[model_id]
        servable = self.servables[model_id] = FakeServable(model_id)
        if not self.patient:
            servable.drained.set()
            return servable
        self.loads[model_id] = asyncio.get_running_loop().create_future()
        return await self.loads[model_id]

    def finish(self, name: str, version: int) -> None:
        model_id = ModelId(name, version)
        self.loads[model_id].set_result(self.servables[model_id])


class Bench:
    def __init__(self, parallel_loads: int = 4) -> None:
        self.loader = FakeLoader()
        self.manager = ModelManager(self.loader, parallel_loads)

    async def reconcile(self, **wanted: tuple[int, ...]) -> None:
        await self.manager.reconcile(directories(wanted))

    def states(self) -> dict[tuple[str, int | None], State]:
        return {(entry.name, entry.version): entry.state for entry in self.manager.index()}

    def reasons(self) -> dict[tuple[str, int | None], str]:
        return {(entry.name, entry.version): entry.reason for entry in self.manager.index() if entry.reason}

    def refusal(self, name: str, version: int | None) -> tuple[Code, str]:
        with pytest.raises(ModserveError) as caught:
            self.manager.get(name, version)
        return caught.value.code, caught.value.message


def directories(wanted: dict[str, tuple[int, ...]]) -> dict[str, ModelDirectory]:
    return {name: ModelDirectory(name, Path(name), versions) for name, versions in wanted.items()}


async def turns(condition: Callable[[], bool]) -> None:
    """Let the event loop run until the condition holds."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("that never came about")


@pytest.fixture
def bench() -> Bench:
    return Bench()


# What is served


async def test_every_wanted_version_is_loaded(bench: Bench) -> None:
    await bench.reconcile(a=(1, 3), b=(2,))
    assert bench.states() == {("a", 1): READY, ("a", 3): READY, ("b", 2): READY}
    assert bench.reasons() == {}
    assert bench.manager.unready() == []
    assert bench.manager.names() == ["a", "b"]
    assert [servable.id for servable in bench.manager.ready_versions("a")] == [("a", 1), ("a", 3)]
    assert repr(bench.manager) == "ModelManager(3 versions of 2 models)"


async def test_the_latest_ready_version_answers(bench: Bench) -> None:
    await bench.reconcile(a=(9, 10))
    assert bench.manager.get("a", None).id == ("a", 10)
    assert bench.manager.get("a", 9).id == ("a", 9)
    await bench.reconcile(a=(9,))
    assert bench.manager.get("a", None).id == ("a", 9)


async def test_nothing_is_loaded_twice(bench: Bench) -> None:
    await bench.reconcile(a=(1,))
    await bench.reconcile(a=(1, 2))
    assert bench.loader.order == [("a", 1), ("a", 2)]


async def test_load_times_are_kept(bench: Bench) -> None:
    await bench.reconcile(a=(1,))
    [entry] = bench.manager.index()
    assert entry.load_ns > 0
    await bench.reconcile()
    assert bench.manager.index() == [IndexEntry("a", 1, UNAVAILABLE, "unloaded", entry.load_ns)]


# Step by step


async def test_states_while_loading(bench: Bench) -> None:
    bench.loader.patient = True
    task = asyncio.create_task(bench.reconcile(a=(1, 2)))
    await turns(lambda: len(bench.loader.loads) == 2)
    assert bench.states() == {("a", 1): LOADING, ("a", 2): LOADING}
    assert len(bench.manager.unready()) == 2
    assert bench.refusal("a", 2) == (Code.UNAVAILABLE, "Request for unknown model: 'a' version 2 is not at ready state")
    assert bench.refusal("a", None) == (Code.NOT_FOUND, "Request for unknown model: 'a' has no available versions")
    bench.loader.finish("a", 2)
    await turns(lambda: ("a", 2) in bench.states() and bench.states()["a", 2] is READY)
    assert bench.states()["a", 1] is LOADING
    assert bench.manager.get("a", None).id == ("a", 2)
    bench.loader.finish("a", 1)
    await task
    assert bench.manager.get("a", None).id == ("a", 2)
    assert bench.manager.unready() == []


async def test_states_while_unloading(bench: Bench) -> None:
    await bench.reconcile(a=(1, 2))
    servable = bench.loader.servables[ModelId("a", 2)]
    servable.drained.clear()
    task = asyncio.create_task(bench.reconcile(a=(1,)))
    await turns(lambda: servable.log == ["drain"])
    assert bench.states() == {("a", 1): READY, ("a", 2): UNLOADING}
    assert bench.manager.get("a", None).id == ("a", 1)
    assert bench.refusal("a", 2) == (Code.UNAVAILABLE, "Request for unknown model: 'a' version 2 is not at ready state")
    servable.drained.set()
    await task
    assert servable.log == ["drain", "close"]
    assert bench.states() == {("a", 1): READY, ("a", 2): UNAVAILABLE}
    assert bench.reasons() == {("a", 2): "unloaded"}


@pytest.mark.parametrize("parallel", [1, 2, 0])
async def test_no_more_than_so_many_load_at_once(parallel: int) -> None:
    bench = Bench(parallel)
    bench.loader.patient = True
    started = bench.loader.order

    def begun(count: int) -> Callable[[], bool]:
        return lambda: len(started) == count

    task = asyncio.create_task(bench.reconcile(a=(1, 2, 3), b=(1,)))
    for finished in range(4):
        expected = min(max(1, parallel) + finished, 4)
        await turns(begun(expected))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(started) == expected
        bench.loader.finish(*started[finished])
    await task
    assert set(bench.states().values()) == {READY}


async def test_unloaded_versions_do_not_hold_up_readiness_and_can_come_back(bench: Bench) -> None:
    await bench.reconcile(a=(1,), b=(1,))
    await bench.reconcile(b=(1,))
    assert bench.manager.unready() == []
    assert bench.refusal("a", None) == (Code.NOT_FOUND, "Request for unknown model: 'a' has no available versions")
    await bench.reconcile(a=(1,), b=(1,))
    assert bench.states() == {("a", 1): READY, ("b", 1): READY}
    assert bench.reasons() == {}


async def test_everything_is_unloaded_side_by_side(bench: Bench) -> None:
    await bench.reconcile(a=(1,), b=(1, 2))
    for servable in bench.loader.servables.values():
        servable.drained.clear()
    task = asyncio.create_task(bench.reconcile())
    await turns(lambda: all(servable.log == ["drain"] for servable in bench.loader.servables.values()))
    for servable in bench.loader.servables.values():
        servable.drained.set()
    await task
    assert set(bench.states().values()) == {UNAVAILABLE}
    assert set(bench.reasons().values()) == {"unloaded"}


# Failures


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (invalid("bad file"), "Invalid argument: bad file"),
        (internal("engine broke"), "Internal: engine broke"),
        (ValueError("unforeseen"), "Internal: failed to load model 'a' version 1: unforeseen"),
    ],
    ids=["ours", "internal", "foreign"],
)
async def test_a_version_that_fails_stops_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    bench.loader.failures[ModelId("a", 1)] = error
    await bench.reconcile(a=(1, 2), b=(1,))
    assert bench.states() == {("a", 1): UNAVAILABLE, ("a", 2): READY, ("b", 1): READY}
    assert bench.reasons() == {("a", 1): reason}
    assert [(entry.name, entry.version) for entry in bench.manager.unready()] == [("a", 1)]
    assert bench.manager.get("a", None).id == ("a", 2)
    assert bench.refusal("a", 1)[0] is Code.UNAVAILABLE
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert bool(record.exc_info) is not isinstance(error, ModserveError)  # a traceback for the unforeseen alone


async def test_a_failed_version_is_tried_again(bench: Bench) -> None:
    bench.loader.failures[ModelId("a", 1)] = invalid("bad file")
    await bench.reconcile(a=(1,))
    bench.loader.failures.clear()
    await bench.reconcile(a=(1,))
    assert (bench.states(), bench.reasons()) == ({("a", 1): READY}, {})


async def test_a_failed_version_that_is_no_longer_wanted_stays_as_it_is(bench: Bench) -> None:
    bench.loader.failures[ModelId("a", 1)] = invalid("bad file")
    await bench.reconcile(a=(1,))
    await bench.reconcile()
    assert bench.reasons() == {("a", 1): "Invalid argument: bad file"}


async def test_an_unusable_configuration_is_a_line_without_a_version(bench: Bench) -> None:
    bench.loader.unusable["a"] = invalid("no such field")
    await bench.reconcile(a=(1,), b=(1,))
    assert bench.manager.index() == [
        IndexEntry("a", None, UNAVAILABLE, "Invalid argument: no such field"),
        *[entry for entry in bench.manager.index() if entry.name == "b"],
    ]
    assert bench.states()["b", 1] is READY
    assert [entry.name for entry in bench.manager.unready()] == ["a"]
    assert bench.refusal("a", None) == (Code.NOT_FOUND, "Request for unknown model: 'a' has no available versions")
    assert bench.refusal("a", 1) == (Code.NOT_FOUND, "Request for unknown model: 'a' version 1 is not found")
    bench.loader.unusable.clear()
    await bench.reconcile(a=(1,), b=(1,))
    assert bench.manager.unready() == []


async def test_an_engine_that_can_not_close_stops_no_other_unload(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.reconcile(a=(1, 2), b=(1,))
    bench.loader.servables[ModelId("a", 1)].fail_to_close = True
    await bench.reconcile()
    assert set(bench.states().values()) == {UNAVAILABLE}
    assert set(bench.reasons().values()) == {"unloaded"}
    assert "model 'a', version 1: closing its engine failed" in caplog.text


async def test_refused_models_are_listed(bench: Bench) -> None:
    bench.manager.refuse("twice", "model appears in two or more repositories")
    await bench.reconcile(a=(1,))
    assert bench.reasons() == {("twice", None): "model appears in two or more repositories"}
    assert [entry.name for entry in bench.manager.unready()] == ["twice"]
    assert bench.refusal("twice", None)[1] == "Request for unknown model: 'twice' has no available versions"


# What is said of models that can not answer


@pytest.mark.parametrize(
    ("name", "version", "code", "message"),
    [
        ("x", None, Code.NOT_FOUND, "Request for unknown model: 'x' is not found"),
        ("x", 1, Code.NOT_FOUND, "Request for unknown model: 'x' is not found"),
        ("a", 7, Code.NOT_FOUND, "Request for unknown model: 'a' version 7 is not found"),
        ("broken", 1, Code.UNAVAILABLE, "Request for unknown model: 'broken' version 1 is not at ready state"),
        ("broken", None, Code.NOT_FOUND, "Request for unknown model: 'broken' has no available versions"),
    ],
    ids=["name", "name with version", "version", "not ready", "none ready"],
)
async def test_unknown_models(bench: Bench, name: str, version: int | None, code: Code, message: str) -> None:
    bench.loader.failures[ModelId("broken", 1)] = invalid("bad file")
    await bench.reconcile(a=(1,), broken=(1,))
    assert bench.refusal(name, version) == (code, message)


async def test_state(bench: Bench) -> None:
    bench.loader.failures[ModelId("broken", 3)] = invalid("bad file")
    bench.loader.unusable["unusable"] = invalid("no such field")
    await bench.reconcile(a=(1, 2), broken=(3,), unusable=(1,))
    await bench.reconcile(a=(1,), broken=(3,), unusable=(1,))
    state = bench.manager.state
    assert state("a", None).state is READY
    assert state("a", 2).reason == "unloaded"
    assert (state("broken", None).state, state("broken", None).reason) == (UNAVAILABLE, "Invalid argument: bad file")
    assert (state("unusable", None).state, state("unusable", None).reason) == (
        UNAVAILABLE,
        "Invalid argument: no such field",
    )
    for name, version in (("x", None), ("a", 7)):
        with pytest.raises(ModserveError, match="is not found"):
            state(name, version)


def test_an_unknown_model_has_no_ready_versions(bench: Bench) -> None:
    assert bench.manager.ready_versions("x") == []
    assert bench.manager.index() == []
