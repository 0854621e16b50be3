"""The reconciler, stepped by hand: a loader whose loads end when the test says so."""

import asyncio
import dataclasses
from collections.abc import Callable

import pytest
from fake_loader import FakeLoader, FakeStore, turns

from modserve.core.errors import Code, ModserveError, internal, invalid
from modserve.core.lifecycle import IndexEntry, LifecycleState, VersionState
from modserve.core.loading import Blueprint, Listing, UnreadableModelError
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.version import ModelId
from modserve.repository.manager import ModelManager
from modserve.repository.table import ModelTable
from modserve.testing import RecordingSink

READY, LOADING, UNLOADING, UNAVAILABLE = (
    LifecycleState.READY,
    LifecycleState.LOADING,
    LifecycleState.UNLOADING,
    LifecycleState.UNAVAILABLE,
)


class Bench:
    def __init__(self, parallel_loads: int = 4, retries: int = 0) -> None:
        self.loader = FakeLoader()
        self.store = FakeStore()
        self.table = ModelTable()
        self.watched: list[tuple[str, int, str]] = []
        self.manager = ModelManager(self.table, self.loader, parallel_loads, retries, self)

    def begins(self, name: str, version: int) -> None:
        self.watched.append((name, version, "begins"))

    def ends(self, name: str, version: int, failed: bool) -> None:
        self.watched.append((name, version, "fails" if failed else "ready"))

    async def blueprints(self, **versions: tuple[int, ...]) -> dict[str, Blueprint]:
        return await self.manager.inspect(self.store.listing(name, *each) for name, each in versions.items())

    async def reconcile(self, **versions: tuple[int, ...]) -> None:
        await self.manager.reconcile(await self.blueprints(**versions))

    async def update(self, name: str, *versions: int, mark: object = None, together: bool = True) -> str:
        """Request these versions of a model, made from files like `mark`; what the caller hears, or nothing."""
        failures = await self.apply(self.store.listing(name, *versions, mark=mark), together=together)
        return failures[name].message if failures else ""

    async def apply(self, listing: Listing, *, together: bool = False) -> dict[str, ModserveError]:
        return await self.manager.update(await self.manager.inspect([listing]), together=together)

    def states(self) -> dict[tuple[str, int | None], LifecycleState]:
        return {(entry.name, entry.version): entry.state for entry in self.table.index()}

    def reasons(self) -> dict[tuple[str, int | None], str]:
        return {(entry.name, entry.version): entry.reason for entry in self.table.index() if entry.reason}

    def refusal(self, name: str, version: int | None) -> tuple[Code, str]:
        with pytest.raises(ModserveError) as caught:
            self.table.get(name, version)
        return caught.value.code, caught.value.message


@pytest.fixture
def bench() -> Bench:
    return Bench()


# What is served


async def test_every_wanted_version_is_loaded(bench: Bench) -> None:
    await bench.reconcile(a=(1, 3), b=(2,))
    assert bench.states() == {("a", 1): READY, ("a", 3): READY, ("b", 2): READY}
    assert bench.reasons() == {}
    assert bench.table.unready() == []
    assert bench.table.names() == ["a", "b"]
    assert [servable.id for servable in bench.table.ready_versions("a")] == [("a", 1), ("a", 3)]
    assert repr(bench.manager) == "ModelManager(ModelTable(3 versions of 2 models))"


async def test_the_latest_ready_version_answers(bench: Bench) -> None:
    await bench.reconcile(a=(9, 10))
    assert bench.table.get("a", None).id == ("a", 10)
    assert bench.table.get("a", 9).id == ("a", 9)
    await bench.reconcile(a=(9,))
    assert bench.table.get("a", None).id == ("a", 9)


async def test_a_version_that_the_policy_leaves_out_says_so(bench: Bench) -> None:
    found = await bench.blueprints(a=(1, 2))
    await bench.manager.reconcile({"a": dataclasses.replace(found["a"], versions=(2,))})
    assert "version 1 in the model's folder is not served: version_policy selects 2" in bench.refusal("a", 1)[1]
    assert "version_policy" not in bench.refusal("a", 3)[1]


async def test_nothing_is_loaded_twice(bench: Bench) -> None:
    await bench.reconcile(a=(1,))
    await bench.reconcile(a=(1, 2))
    assert bench.loader.order == [("a", 1), ("a", 2)]


async def test_load_times_are_kept(bench: Bench) -> None:
    await bench.reconcile(a=(1,))
    [entry] = bench.table.index()
    assert entry.load_ns == bench.table.get("a", 1).statistics.load_ns > 0
    await bench.reconcile()
    assert bench.table.index() == [IndexEntry("a", 1, UNAVAILABLE, "unloaded", entry.load_ns)]


# Step by step


async def test_states_while_loading(bench: Bench) -> None:
    bench.loader.patient = True
    task = asyncio.create_task(bench.reconcile(a=(1, 2)))
    await turns(lambda: len(bench.loader.loads) == 2)
    assert bench.states() == {("a", 1): LOADING, ("a", 2): LOADING}
    assert len(bench.table.unready()) == 2
    assert bench.refusal("a", 2) == (
        Code.UNAVAILABLE,
        "model 'a' version 2 is not at ready state: it is still loading",
    )
    assert bench.refusal("a", None) == (
        Code.UNAVAILABLE,
        "model 'a' has no available versions: it is still loading",
    )
    bench.loader.finish("a", 2)
    await turns(lambda: ("a", 2) in bench.states() and bench.states()["a", 2] is READY)
    assert bench.states()["a", 1] is LOADING
    assert bench.table.get("a", None).id == ("a", 2)
    bench.loader.finish("a", 1)
    await task
    assert bench.table.get("a", None).id == ("a", 2)
    assert bench.table.unready() == []


async def test_a_model_is_loading_from_the_moment_it_is_wanted(bench: Bench) -> None:
    still = "it is still loading"
    bench.table.expect(None)
    code, message = bench.refusal("a", None)
    assert code is Code.UNAVAILABLE
    assert message.startswith("model 'a' is not found: the server is starting and has not scanned")
    with pytest.raises(ModserveError) as caught:
        bench.table.state("a", None)
    assert caught.value.code is Code.UNAVAILABLE
    bench.table.expect(["a", "b"])
    assert bench.refusal("x", None)[0] is Code.NOT_FOUND
    for version in (None, 1, 7):
        code, message = bench.refusal("a", version)
        assert (code, message.endswith(still)) == (Code.UNAVAILABLE, True)
        assert bench.table.state("a", version) == VersionState(LOADING)
    bench.loader.patient = True
    bench.loader.unusable["b"] = invalid("no such field")
    task = asyncio.create_task(bench.reconcile(a=(1,), b=(1,)))
    await bench.loader.begun("a", 1)
    assert bench.states() == {("a", 1): LOADING, ("b", None): UNAVAILABLE}
    assert bench.refusal("a", 7) == (
        Code.UNAVAILABLE,
        f"model 'a' version 7 is not at ready state: {still}",
    )
    # `b` is done for, while `a` is still being loaded.
    assert bench.refusal("b", None)[0] is Code.NOT_FOUND
    bench.loader.finish("a", 1)
    await task
    assert bench.refusal("a", 7) == (Code.NOT_FOUND, "Request for unknown model: 'a' version 7 is not found")


async def test_a_name_that_is_spelt_alike(bench: Bench) -> None:
    await bench.reconcile(resnet=(1,))
    text = "Request for unknown model: 'resnett' is not found; did you mean 'resnet'?"
    assert bench.refusal("resnett", None) == (Code.NOT_FOUND, text)


async def test_a_reason_is_cut_where_it_becomes_too_long(bench: Bench) -> None:
    bench.loader.unusable["a"] = invalid("x" * 5000)
    await bench.reconcile(a=(1,))
    message = bench.refusal("a", None)[1]
    assert len(message) < 1100
    assert message.endswith("xxx…")


async def test_states_while_unloading(bench: Bench) -> None:
    await bench.reconcile(a=(1, 2))
    servable = bench.loader.servables[ModelId("a", 2)]
    servable.drained.clear()
    task = asyncio.create_task(bench.reconcile(a=(1,)))
    await turns(lambda: servable.log == ["drain"])
    assert bench.states() == {("a", 1): READY, ("a", 2): UNLOADING}
    assert bench.table.get("a", None).id == ("a", 1)
    assert bench.refusal("a", 2) == (Code.UNAVAILABLE, "Request for unknown model: 'a' version 2 is not at ready state")
    servable.drained.set()
    await task
    assert servable.log == ["drain", "close"]
    assert bench.states() == {("a", 1): READY, ("a", 2): UNAVAILABLE}
    assert bench.reasons() == {("a", 2): "unloaded"}


async def test_what_is_being_unloaded_answers_while_it_has_open_sequences(bench: Bench) -> None:
    await bench.reconcile(a=(1, 2))
    servable = bench.loader.servables[ModelId("a", 2)]
    servable.drained.clear()
    assert bench.table.finishing("a", None) is None
    servable.open_sequences = 1
    assert bench.table.finishing("a", None) is servable
    task = asyncio.create_task(bench.reconcile(a=()))
    await turns(lambda: servable.log == ["drain"])
    assert bench.states()["a", 2] == UNLOADING
    assert [bench.table.get("a", version) for version in (None, 2)] == [servable, servable]
    assert bench.refusal("a", 1)[0] is Code.UNAVAILABLE
    servable.open_sequences = 0
    assert bench.refusal("a", 2)[0] is Code.UNAVAILABLE
    servable.drained.set()
    await task
    assert [bench.table.finishing(name, None) for name in ("a", "nosuch")] == [None, None]


async def test_sequences_go_on_while_others_of_the_version_are_closed(bench: Bench) -> None:
    await bench.reconcile(a=(1,))
    first = bench.loader.servables[ModelId("a", 1)]
    first.drained.clear()
    first.open_sequences = 1
    unloading = [asyncio.create_task(bench.reconcile(a=()))]
    await turns(lambda: first.log == ["drain"])
    await bench.manager.update(await bench.blueprints(a=(1,)))
    second = bench.loader.servables[ModelId("a", 1)]
    second.drained.clear()
    assert second is not first
    unloading.append(asyncio.create_task(bench.reconcile(a=())))
    await turns(lambda: "drain" in second.log)
    assert bench.table.finishing("a", 1) is first
    second.drained.set()
    await turns(lambda: "close" in second.log)
    assert bench.table.finishing("a", 1) is first
    first.drained.set()
    await asyncio.gather(*unloading)
    assert bench.table.finishing("a", 1) is None


def asked(**parameters: ParameterValue) -> InferenceRequest:
    return InferenceRequest("a", {}, parameters=parameters)


ON, START = {"sequence_id": 7}, {"sequence_id": 7, "sequence_start": True}


@pytest.mark.parametrize(
    ("old", "new", "parameters", "taken"),
    [
        ({7}, set(), ON, "old"),
        ({7}, {7}, ON, "new"),
        ({8}, set(), ON, "new"),
        ({7}, set(), START, "new"),
        ({7}, set(), {}, "new"),
        ({7}, set(), {"sequence_id": 7.5}, "new"),
    ],
    ids=["goes on", "goes on anew", "unknown", "begins", "none", "nonsense"],
)
@pytest.mark.parametrize("replaced_by", [1, 2], ids=["same version", "next version"])
async def test_sequences_go_on_where_they_have_begun(
    bench: Bench, old: set[int], new: set[int], parameters: dict[str, ParameterValue], taken: str, replaced_by: int
) -> None:
    await bench.update("a", 1)
    before = bench.loader.servables[ModelId("a", 1)]
    before.drained.clear()
    before.sequences, before.open_sequences = set(old), len(old)
    await bench.update("a", replaced_by, mark="new")
    after = bench.loader.servables[ModelId("a", replaced_by)]
    after.sequences = set(new)
    front = bench.table.get("a", None)
    assert (front.id, front.config) == (after.id, after.config)
    assert bench.table.keepers() == [before]
    front.submit(asked(**parameters), RecordingSink(), 0)
    assert (len(before.submitted), len(after.submitted)) == ((1, 0) if taken == "old" else (0, 1))
    assert before.sequences == (set() if parameters == START else old)
    before.open_sequences = 0
    assert bench.table.get("a", None) is after


async def test_a_version_asked_for_by_number_has_its_own_sequences_only(bench: Bench) -> None:
    await bench.update("a", 1, 2)
    gone, kept = (bench.loader.servables[ModelId("a", version)] for version in (1, 2))
    gone.drained.clear()
    gone.sequences, gone.open_sequences = {7}, 1
    await bench.update("a", 2)
    assert bench.table.get("a", 1) is gone
    assert bench.table.get("a", 2) is kept


async def test_what_has_replaced_another_is_borrowed_itself(bench: Bench) -> None:
    await bench.update("a", 1)
    old = bench.loader.servables[ModelId("a", 1)]
    old.drained.clear()
    old.open_sequences = 1
    await bench.update("a", 1, mark="new")
    new = bench.loader.servables[ModelId("a", 1)]
    handle = bench.table.borrow("a", None)
    handle.servable.submit(asked(), RecordingSink(), 0)
    assert len(new.submitted) == 1
    await bench.manager.unload("a", dependents=False)
    for _ in range(10):
        await asyncio.sleep(0)
    assert new.log == []
    handle.release()
    await turns(lambda: new.log == ["drain", "close"])
    assert old.log == ["drain"]


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
    assert bench.table.unready() == []
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
    assert [(entry.name, entry.version) for entry in bench.table.unready()] == [("a", 1)]
    assert bench.table.get("a", None).id == ("a", 2)
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
    assert bench.table.index() == [
        IndexEntry("a", None, UNAVAILABLE, "Invalid argument: no such field"),
        *[entry for entry in bench.table.index() if entry.name == "b"],
    ]
    assert bench.states()["b", 1] is READY
    assert [entry.name for entry in bench.table.unready()] == ["a"]
    assert bench.refusal("a", None) == (
        Code.NOT_FOUND,
        "Request for unknown model: 'a' has no available versions: Invalid argument: no such field",
    )
    assert bench.refusal("a", 1) == (
        Code.NOT_FOUND,
        "Request for unknown model: 'a' version 1 is not found: Invalid argument: no such field",
    )
    bench.loader.unusable.clear()
    await bench.reconcile(a=(1,), b=(1,))
    assert bench.table.unready() == []


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
    bench.table.refuse("twice", "model appears in two or more repositories")
    await bench.reconcile(a=(1,))
    assert bench.reasons() == {("twice", None): "model appears in two or more repositories"}
    assert [entry.name for entry in bench.table.unready()] == ["twice"]
    assert bench.refusal("twice", None)[1] == (
        "Request for unknown model: 'twice' has no available versions: model appears in two or more repositories"
    )


# What is said of models that can not answer


@pytest.mark.parametrize(
    ("name", "version", "code", "message"),
    [
        ("x", None, Code.NOT_FOUND, "Request for unknown model: 'x' is not found"),
        ("x", 1, Code.NOT_FOUND, "Request for unknown model: 'x' is not found"),
        ("a", 7, Code.NOT_FOUND, "Request for unknown model: 'a' version 7 is not found"),
        (
            "broken",
            1,
            Code.UNAVAILABLE,
            "Request for unknown model: 'broken' version 1 is not at ready state: Invalid argument: bad file",
        ),
        (
            "broken",
            None,
            Code.NOT_FOUND,
            "Request for unknown model: 'broken' has no available versions: version 1 is at UNAVAILABLE state: "
            "Invalid argument: bad file;",
        ),
    ],
    ids=["name", "name with version", "version", "not ready", "none ready"],
)
async def test_unknown_models(bench: Bench, name: str, version: int | None, code: Code, message: str) -> None:
    bench.loader.failures[ModelId("broken", 1)] = invalid(
        "bad file\n\nAt:\n  /models/broken/1/model.py(3): initialize\n"
    )
    await bench.reconcile(a=(1,), broken=(1,))
    assert bench.refusal(name, version) == (code, message)


async def test_state(bench: Bench) -> None:
    bench.loader.failures[ModelId("broken", 3)] = invalid("bad file")
    bench.loader.unusable["unusable"] = invalid("no such field")
    await bench.reconcile(a=(1, 2), broken=(3,), unusable=(1,))
    await bench.reconcile(a=(1,), broken=(3,), unusable=(1,))
    state = bench.table.state
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
    assert bench.table.ready_versions("x") == []
    assert bench.table.index() == []


# Loading again


async def test_what_has_not_changed_is_left_alone(bench: Bench) -> None:
    assert [await bench.update("a", 1, 2, mark="x") for _ in range(2)] == ["", ""]
    assert bench.loader.order == [("a", 1), ("a", 2)]


async def test_only_the_version_that_has_changed_is_loaded_again(bench: Bench) -> None:
    listing = dataclasses.replace(bench.store.listing("a", 1, 2), marks={1: "x", 2: "x"})
    await bench.apply(listing)
    await bench.apply(dataclasses.replace(listing, marks={1: "x", 2: "y"}))
    assert bench.loader.order == [("a", 1), ("a", 2), ("a", 2)]


async def test_the_old_serves_until_the_new_is_ready_and_finishes(bench: Bench) -> None:
    await bench.update("a", 1)
    old = bench.loader.servables[ModelId("a", 1)]
    old.drained.clear()
    bench.loader.patient = True
    task = asyncio.create_task(bench.update("a", 1, mark="new"))
    await turns(lambda: len(bench.loader.loads) == 1)
    assert bench.table.get("a", None) is old
    assert bench.states() == {("a", 1): READY}
    assert old.log == []
    bench.loader.finish("a", 1)
    assert await task == ""
    new = bench.loader.servables[ModelId("a", 1)]
    assert bench.table.get("a", None) is new
    assert bench.table.get("a", 1) is not old
    await turns(lambda: old.log == ["drain"])
    old.drained.set()
    await turns(lambda: old.log == ["drain", "close"])
    assert bench.states() == {("a", 1): READY}
    assert new.log == []


async def test_the_old_serves_on_if_the_new_fails(bench: Bench) -> None:
    await bench.update("a", 1)
    old = bench.table.get("a", 1)
    bench.loader.failures[ModelId("a", 1)] = internal("broken")
    text = "load failed for model 'a': version 1 is at UNAVAILABLE state: Internal: broken;\n"
    assert await bench.update("a", 1, mark="new") == text
    assert bench.table.get("a", None) is old
    assert bench.states() == {("a", 1): READY}
    assert bench.reasons() == {
        ("a", 1): "version 1 is served as before, because it failed to load: Internal: broken",
    }
    assert bench.table.unready() == []
    bench.loader.failures.clear()
    assert await bench.update("a", 1, mark="new") == ""
    assert bench.reasons() == {}
    assert bench.table.get("a", None) is not old


@pytest.mark.parametrize("together", [True, False])
async def test_no_version_is_taken_when_one_fails_beside_one_that_is_served(bench: Bench, together: bool) -> None:
    await bench.update("a", 1)
    bench.loader.failures[ModelId("a", 3)] = invalid("bad")
    text = "load failed for model 'a': version 3 is at UNAVAILABLE state: Invalid argument: bad;\n"
    assert await bench.update("a", 2, 3, together=together) == text
    assert bench.states() == {("a", 1): READY, ("a", 2): UNAVAILABLE, ("a", 3): UNAVAILABLE}
    assert bench.table.get("a", None).id == ("a", 1)
    await turns(lambda: bench.loader.servables[ModelId("a", 2)].log == ["drain", "close"])


async def test_every_version_that_fails_is_told(bench: Bench) -> None:
    bench.loader.failures = {ModelId("a", 2): invalid("bad"), ModelId("a", 1): internal("broken")}
    assert await bench.update("a", 1, 2, 3) == (
        "load failed for model 'a': version 1 is at UNAVAILABLE state: Internal: broken;\n"
        "version 2 is at UNAVAILABLE state: Invalid argument: bad;\n"
    )
    assert bench.states()["a", 3] is UNAVAILABLE


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            UnreadableModelError(Code.INVALID_ARG, "no such field"),
            "failed to load 'a', failed to poll from model repository: no such field",
        ),
        (invalid("no version"), "load failed for model 'a': no version\n"),
    ],
    ids=["unreadable", "unusable"],
)
async def test_a_configuration_that_can_not_be_used(bench: Bench, error: ModserveError, text: str) -> None:
    bench.loader.unusable["a"] = error
    assert await bench.update("a", 1) == text
    assert bench.table.index() == [], "who asked for it has been told"
    del bench.loader.unusable["a"]
    await bench.update("a", 1)
    bench.loader.unusable["a"] = error
    assert await bench.update("a", 1, mark="new") == text
    assert bench.states() == {("a", 1): READY}
    assert bench.reasons() == {("a", 1): error.reason}
    assert bench.table.unready() == []


async def test_failures_of_versions_that_are_gone_are_forgotten(bench: Bench) -> None:
    bench.loader.failures[ModelId("a", 2)] = invalid("bad")
    await bench.update("a", 1, 2, together=False)
    await bench.update("a", 1)
    assert bench.states() == {("a", 1): READY}


@pytest.mark.parametrize(("retries", "fine"), [(0, False), (1, False), (2, True)])
async def test_retries(retries: int, fine: bool) -> None:
    bench = Bench(retries=retries)
    bench.loader.failing = 2
    assert (await bench.update("a", 1) == "") is fine
    assert len(bench.loader.order) == min(retries + 1, 3)


# Unloading


async def test_unloading_returns_while_requests_run(bench: Bench) -> None:
    await bench.update("a", 1)
    servable = bench.loader.servables[ModelId("a", 1)]
    servable.drained.clear()
    await bench.manager.unload("a", dependents=False)
    assert bench.states() == {("a", 1): UNLOADING}
    assert bench.table.unready() == []
    assert bench.refusal("a", None)[0] is Code.NOT_FOUND
    assert bench.loader.forgotten == ["a"]
    servable.drained.set()
    await turns(lambda: bench.states() == {("a", 1): UNAVAILABLE})
    assert bench.reasons() == {("a", 1): "unloaded"}
    assert bench.table.unready() == []


@pytest.mark.parametrize("failure", ["load", "configuration"])
async def test_unloading_forgets_a_replacement_that_failed(bench: Bench, failure: str) -> None:
    await bench.update("a", 1)
    if failure == "configuration":
        bench.loader.unusable["a"] = invalid("bad")
    bench.loader.failures[ModelId("a", 1)] = internal("broken")
    assert await bench.update("a", 1, mark="new")
    assert bench.reasons()
    await bench.manager.unload("a", dependents=False)
    assert bench.table.unready() == []
    await turns(lambda: bench.states() == {("a", 1): UNAVAILABLE})
    assert bench.reasons() == {("a", 1): "unloaded"}
    assert bench.table.unready() == []


async def test_unloading_does_not_forget_a_first_load_that_failed(bench: Bench) -> None:
    bench.loader.failures[ModelId("a", 1)] = invalid("bad")
    await bench.update("a", 1)
    bench.table.refuse("b", "not there")
    for name in ("a", "b"):
        await bench.manager.unload(name, dependents=False)
    assert bench.reasons() == {("a", 1): "Invalid argument: bad", ("b", None): "not there"}
    assert len(bench.table.unready()) == 2


async def test_a_mistake_in_a_configuration_that_came_with_the_call(bench: Bench) -> None:
    """Is the caller's, and that in a file is not."""
    bench.loader.unusable["a"] = UnreadableModelError(Code.INVALID_ARG, "no such field")
    for config, code in (("{}", Code.INVALID_ARG), (None, Code.INTERNAL)):
        failures = await bench.apply(bench.store.listing("a", 1, config=config), together=True)
        assert failures["a"].code is code
        assert failures["a"].message == "failed to load 'a', failed to poll from model repository: no such field"


async def test_loading_what_is_still_being_unloaded(bench: Bench) -> None:
    await bench.update("a", 1)
    old = bench.loader.servables[ModelId("a", 1)]
    old.drained.clear()
    await bench.manager.unload("a", dependents=True)
    assert await bench.update("a", 1) == ""
    assert bench.table.get("a", 1) is not old
    old.drained.set()
    await turns(lambda: old.log == ["drain", "close"])
    assert bench.states() == {("a", 1): READY}


async def test_unloading_an_unknown_model_is_nothing(bench: Bench) -> None:
    await bench.manager.unload("x", dependents=False)
    assert bench.table.index() == []


async def test_one_thing_is_done_at_a_time_with_a_model(bench: Bench) -> None:
    bench.loader.patient = True
    loading = asyncio.create_task(bench.update("a", 1))
    await turns(lambda: len(bench.loader.loads) == 1)
    unloading = asyncio.create_task(bench.manager.unload("a", dependents=False))
    again = asyncio.create_task(bench.update("a", 1))
    other = asyncio.create_task(bench.update("b", 1))
    await turns(lambda: ModelId("b", 1) in bench.loader.loads)
    assert bench.loader.order == [("a", 1), ("b", 1)]
    bench.loader.servables[ModelId("a", 1)].drained.set()
    bench.loader.finish("a", 1)
    await turns(lambda: len(bench.loader.order) == 3)
    assert (loading.done(), unloading.done(), again.done()) == (True, True, False)
    for name in ("a", "b"):
        bench.loader.finish(name, 1)
    assert [await task for task in (loading, again, other)] == ["", "", ""]
    assert bench.states() == {("a", 1): READY, ("b", 1): READY}


async def test_a_cancelled_load_leaves_nothing_half_done(bench: Bench) -> None:
    bench.loader.patient = True
    loading = asyncio.create_task(bench.update("a", 1, 2))
    await turns(lambda: len(bench.loader.loads) == 2)
    bench.loader.finish("a", 2)
    await turns(lambda: bench.loader.loads[ModelId("a", 2)].done())
    loading.cancel()
    await asyncio.wait((loading,))
    assert loading.cancelled()
    assert bench.states() == {("a", 1): UNAVAILABLE, ("a", 2): UNAVAILABLE}
    assert set(bench.reasons().values()) == {"the load was cancelled"}
    assert sorted(bench.watched) == [("a", 1, "begins"), ("a", 1, "fails"), ("a", 2, "begins"), ("a", 2, "ready")]
    bench.loader.patient = False
    assert await bench.update("a", 1, 2) == ""
    assert bench.states() == {("a", 1): READY, ("a", 2): READY}


async def test_loads_are_watched_from_the_beginning() -> None:
    """Those that wait for others, too, and a version that is READY while it is loaded again."""
    bench = Bench(parallel_loads=1)
    bench.loader.failures[ModelId("a", 2)] = invalid("bad")
    bench.loader.patient = True
    loading = asyncio.create_task(bench.update("a", 1, 2, together=False))
    await bench.loader.begun("a", 1)
    assert bench.watched == [("a", 1, "begins"), ("a", 2, "begins")]
    bench.loader.finish("a", 1)
    await loading
    assert bench.watched[2:] == [("a", 1, "ready"), ("a", 2, "fails")]
    bench.watched.clear()
    bench.loader.patient = False
    assert await bench.update("a", 1, mark="new") == ""
    assert bench.watched == [("a", 1, "begins"), ("a", 1, "ready")]


# Leases


async def test_every_version_has_a_lease_until_it_is_unloaded(bench: Bench) -> None:
    await bench.update("a", 1, 2)
    assert bench.store.leases == 2
    first = bench.loader.servables[ModelId("a", 1)]
    first.drained.clear()
    await bench.update("a", 2)
    await turns(lambda: first.log == ["drain"])
    assert bench.store.leases == 2
    first.drained.set()
    await turns(lambda: bench.store.leases == 1)
    await bench.update("a", 2, mark="new")
    await turns(lambda: bench.store.leases == 1)
    await bench.reconcile()
    assert bench.store.leases == 0


async def test_a_failed_load_leaves_no_lease(bench: Bench) -> None:
    bench.loader.failures[ModelId("a", 1)] = invalid("bad")
    await bench.update("a", 1, 2)
    await turns(lambda: bench.store.leases == 0)


async def test_a_cancelled_load_leaves_no_lease(bench: Bench) -> None:
    bench.loader.patient = True
    loading = asyncio.create_task(bench.update("a", 1))
    await bench.loader.begun("a", 1)
    assert bench.store.leases == 1
    loading.cancel()
    await asyncio.wait((loading,))
    assert bench.store.leases == 0


async def test_what_a_repository_raises_is_the_failure_of_the_version(bench: Bench) -> None:
    bench.store.failures = [OSError("bucket gone"), invalid("no permission")]
    assert await bench.update("a", 1, 2) == (
        "load failed for model 'a': version 1 is at UNAVAILABLE state: Invalid argument: no permission;\n"
        "version 2 is at UNAVAILABLE state: Internal: failed to load model 'a' version 2: bucket gone;\n"
    )
    assert await bench.update("a", 1) == ""


# Health


async def test_a_version_that_is_not_healthy_is_not_ready(bench: Bench) -> None:
    await bench.reconcile(a=(1, 2))
    servable = bench.loader.servables[ModelId("a", 2)]
    servable.unready_reason = "1 of 2 instances is lost"
    assert [bench.table.is_ready("a", version) for version in (None, 1, 2)] == [False, True, False]
    assert bench.table.get("a", None) is servable
    assert [(entry.version, entry.reason) for entry in bench.table.unready()] == [(2, "1 of 2 instances is lost")]
    assert bench.states() == {("a", 1): READY, ("a", 2): READY}
    servable.unready_reason = None
    assert (bench.table.is_ready("a", None), bench.table.unready()) == (True, [])


async def test_changes_are_told(bench: Bench) -> None:
    seen: list[dict[tuple[str, int | None], LifecycleState]] = []
    with bench.table.changes.listening(lambda: seen.append(bench.states())):
        await bench.update("a", 1)
        await bench.manager.unload("a", dependents=False)
        await turns(lambda: bench.states() == {("a", 1): UNAVAILABLE})
    states = [each["a", 1] for each in seen]
    assert list(dict.fromkeys(states)) == [LOADING, READY, UNLOADING, UNAVAILABLE]


async def test_nothing_is_kept_of_names_that_were_only_tried(bench: Bench) -> None:
    for number in range(3):
        bench.loader.failures[ModelId(f"m{number}", 1)] = invalid("bad file")
        assert await bench.update(f"m{number}", 1)
    assert bench.table.locks.busy == set()


async def test_the_oldest_models_that_are_unloaded_are_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modserve.repository.table.MOST_REMEMBERED", 3)
    for number in range(6):
        await bench.update(f"m{number}", 1)
        if number:
            await bench.manager.unload(f"m{number}", dependents=False)
            await turns(lambda number=number: bench.states()[f"m{number}", 1] is UNAVAILABLE)  # type: ignore[misc]
    assert bench.table.names() == ["m0", "m4", "m5"]


async def test_updates_of_the_same_models_run_in_the_order_of_the_calls(bench: Bench) -> None:
    bench.loader.needed = {"e": {"a": frozenset({None}), "b": frozenset({None})}}
    await bench.update("a", 1)
    bench.loader.patient = True
    calls = [asyncio.create_task(bench.update(name, 1)) for name in ("b", "e")]
    await bench.loader.begun("b", 1)
    calls.append(asyncio.create_task(bench.update("a", 1, mark="new")))  # which is free, but `e` was first
    for _ in range(10):
        await asyncio.sleep(0)
    assert bench.loader.order == [("a", 1), ("b", 1)]
    bench.loader.finish("b", 1)
    await turns(lambda: len(bench.loader.order) == 3)
    assert bench.loader.order[-1] == ("e", 1)
    bench.loader.finish("e", 1)
    await turns(lambda: len(bench.loader.order) == 4)
    bench.loader.finish("a", 1)
    await turns(lambda: len(bench.loader.order) == 5)
    bench.loader.finish("e", 1)
    assert [await call for call in calls] == ["", "", ""]
    assert bench.loader.order[3:] == [("a", 1), ("e", 1)]
    assert bench.table.locks.busy == set()
