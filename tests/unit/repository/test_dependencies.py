"""Models that are made of others: the rules, and the reconciler, stepped by hand."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_loader import FakeLoader, FakeStore, turns

from modserve.core.errors import ModserveError, internal, invalid
from modserve.core.lifecycle import LifecycleState
from modserve.core.version import ModelId
from modserve.repository import plan
from modserve.repository.control import ControlMode, ControlOptions, ModelControl
from modserve.repository.manager import ModelManager
from modserve.repository.scanning import repositories_at
from modserve.repository.table import ModelTable

READY, UNLOADING, UNAVAILABLE = LifecycleState.READY, LifecycleState.UNLOADING, LifecycleState.UNAVAILABLE
GRAPH = {"e": ["a", "b"], "f": ["b", "e"], "g": ["c"]}


@pytest.mark.parametrize(
    ("names", "needed", "dependents"),
    [
        ("e", "ab", "f"),
        ("f", "abe", ""),
        ("b", "", "ef"),
        ("eg", "abc", "f"),
        ("z", "", ""),
    ],
)
def test_who_needs_whom(names: str, needed: str, dependents: str) -> None:
    assert plan.find_needed(names, GRAPH) == set(needed)
    assert plan.dependents(names, GRAPH) == set(dependents)


@pytest.mark.parametrize(
    ("graph", "name", "through"),
    [
        (GRAPH, "f", ""),
        ({"e": ["e"]}, "e", "e"),
        ({"e": ["f"], "f": ["g"], "g": ["e"]}, "e", "g"),
        ({"e": ["f"], "f": ["f"]}, "e", ""),
    ],
    ids=["none", "itself", "three", "another's"],
)
def test_circles(graph: Mapping[str, list[str]], name: str, through: str) -> None:
    assert plan.find_circle(name, graph) == through


@pytest.mark.parametrize(
    ("wanted", "served", "expected"),
    [
        ({"e": "ab", "f": "e"}, {"e": "a"}, {"e": "ab", "f": "e"}),
        ({"e": "b"}, {"e": "a"}, {"e": "ab"}),
        ({"e": "f", "f": "e"}, {"e": "a", "f": "e"}, {"e": "a", "f": "e"}),
        ({"e": "e"}, {"e": "a"}, {"e": "a"}),
        ({"e": "a", "f": "e"}, {"e": "f"}, {"e": "a", "f": "e"}),
        ({}, {"e": "a"}, {"e": "a"}),
    ],
    ids=["as it is", "another", "circle", "itself", "the other way round", "unwanted"],
)
def test_who_waits_for_whom(wanted: dict[str, str], served: dict[str, str], expected: dict[str, str]) -> None:
    assert plan.load_turns(wanted, served) == {name: set(needs) for name, needs in expected.items()}


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("f", "", "eab"),
        ("f", "e", ""),
        ("f", "a", "eb"),
        ("e", "", "a"),
        ("g", "", "c"),
        ("c", "", ""),
    ],
)
def test_what_goes_with_a_model(name: str, asked: str, expected: str) -> None:
    assert sorted(plan.orphans(name, GRAPH, set(asked))) == sorted(expected)


class Bench:
    """Ensembles: `e` needs a and b (in version 2), and `f` needs `e`."""

    def __init__(self) -> None:
        self.loader = FakeLoader()
        self.loader.needed = {
            "e": {"a": frozenset({None}), "b": frozenset({None, 2})},
            "f": {"e": frozenset({None})},
        }
        self.store = FakeStore()
        self.table = ModelTable()
        self.manager = ModelManager(self.table, self.loader, 4)

    async def update(self, together: bool = False, mark: int = 0, **versions: tuple[int, ...] | None) -> dict[str, str]:
        blueprints = await self.manager.inspect(
            self.store.listing(name, *each, mark=mark) for name, each in versions.items() if each is not None
        )
        requested = {name: blueprints.get(name) for name in versions}
        failures = await self.manager.update(requested, together=together)
        return {name: failure.message for name, failure in failures.items()}

    def ready(self) -> str:
        return "".join(name for name in self.table.names() if self.table.ready_versions(name))

    def reasons(self) -> dict[str, str]:
        return {entry.name: entry.reason for entry in self.table.index() if entry.reason}


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_they_load_after_what_they_are_made_of(bench: Bench) -> None:
    bench.loader.patient = True
    loading = asyncio.create_task(bench.update(e=(1,), a=(1,), f=(1,), b=(2,)))
    await turns(lambda: len(bench.loader.loads) == 2)
    assert sorted(bench.loader.order) == [("a", 1), ("b", 2)]
    bench.loader.finish("a", 1)
    bench.loader.finish("b", 2)
    await turns(lambda: len(bench.loader.loads) == 3)
    bench.loader.finish("e", 1)
    await turns(lambda: len(bench.loader.loads) == 4)
    bench.loader.finish("f", 1)
    assert await loading == {}
    assert bench.ready() == "abef"


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"a": (1,)}, "ensemble e contains models that are not available or ambiguous: b"),
        ({}, "ensemble e contains models that are not available or ambiguous: a, b"),
        ({"a": (1,), "b": (1, 3)}, "ensemble 'e' depends on 'b' whose required version 2 is not loaded."),
        (
            {"a": (9,), "b": (2,)},
            "ensemble 'e' depends on 'a' which has no loaded version. Model 'a' loading failed with error: version 9 "
            "is at UNAVAILABLE state: Internal: broken;",
        ),
    ],
    ids=["one missing", "both missing", "version", "broken"],
)
async def test_what_is_missing_is_named(bench: Bench, wanted: dict[str, tuple[int, ...]], reason: str) -> None:
    bench.loader.failures[ModelId("a", 9)] = internal("broken")
    failures = await bench.update(**{**wanted, "e": (1,)})  # type: ignore[arg-type]
    assert failures["e"] == f"load failed for model 'e': {reason}\n"
    assert bench.reasons()["e"] == f"Invalid argument: {reason}"
    assert "e" in {entry.name for entry in bench.table.unready()}
    assert ModelId("e", 1) not in bench.loader.order


async def test_they_load_when_what_was_missing_comes(bench: Bench) -> None:
    await bench.update(e=(1,), f=(1,), a=(1,))
    assert bench.ready() == "a"
    await bench.update(b=(2,))
    assert bench.ready() == "abef"
    assert bench.table.unready() == []


async def test_they_go_with_what_they_are_made_of_and_come_back_with_it(bench: Bench) -> None:
    await bench.update(e=(1,), f=(1,), a=(1,), b=(2,))
    await bench.manager.unload("a", dependents=False)
    assert bench.ready() == "b"
    await turns(lambda: bench.reasons().get("e", "").startswith("unloaded"))
    assert bench.reasons() == {
        "a": "unloaded",
        "e": "unloaded, for ensemble 'e' depends on 'a'",
        "f": "unloaded, for ensemble 'f' depends on 'a'",
    }
    assert bench.table.unready() == []
    await bench.update(a=(1,))
    assert bench.ready() == "abef"


async def test_they_are_loaded_again_with_what_they_are_made_of(bench: Bench) -> None:
    await bench.update(e=(1,), f=(1,), a=(1,), b=(2,))
    bench.loader.order.clear()
    await bench.update(a=(1,))
    assert bench.loader.order == []
    await bench.update(a=(1,), mark=1)
    assert bench.loader.order == [("a", 1), ("e", 1), ("f", 1)]


async def test_they_go_if_they_no_longer_fit(bench: Bench) -> None:
    await bench.update(e=(1,), a=(1,), b=(2,))
    bench.loader.failures[ModelId("e", 1)] = invalid("in ensemble e, shapes")
    assert await bench.update(a=(1,), mark=1) == {}
    assert bench.ready() == "ab"
    await turns(lambda: bench.reasons() == {"e": "Invalid argument: in ensemble e, shapes"})
    del bench.loader.failures[ModelId("e", 1)]
    await bench.update(a=(1,), mark=2)
    assert bench.ready() == "abe"


SERVES_ON = "served as before, because it failed to load: Invalid argument: "
MISSING = "ensemble e contains models that are not available or ambiguous: z"


@pytest.mark.parametrize("together", [True, False], ids=["explicit", "polled"])
@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"z": frozenset({None})}, MISSING),
        ({"a": frozenset({9})}, "ensemble 'e' depends on 'a' whose required version 9 is not loaded."),
        ({"f": frozenset({None})}, "circular dependency between ensembles: e -> ... -> f -> e"),
        ({"e": frozenset({None})}, "circular dependency between ensembles: e -> ... -> e -> e"),
        ({"c": frozenset({None}), "z": frozenset({None})}, MISSING),
    ],
    ids=["missing", "version", "circle", "itself", "missing, another is new"],
)
async def test_they_serve_on_if_they_can_not_be_made_anew(
    bench: Bench, needs: Mapping[str, frozenset[int | None]], reason: str, together: bool
) -> None:
    await bench.update(e=(1,), f=(1,), a=(1,), b=(2,))
    before = [bench.table.get(name, None) for name in "ef"]
    made_of = bench.loader.needed["e"]
    bench.loader.needed["e"] = needs
    composing = [bench.store.listing(name, 1, mark=0) for name in needs if name in "acf"]  # as for an explicit load
    blueprints = await bench.manager.inspect([*composing, bench.store.listing("e", 1, mark=1)])
    failures = await bench.manager.update(blueprints, together=together)
    assert {name: error.message for name, error in failures.items()} == {"e": f"load failed for model 'e': {reason}\n"}
    assert [bench.table.get(name, None) for name in "ef"] == before
    assert bench.reasons() == {"e": SERVES_ON + reason}
    assert bench.table.unready() == []
    bench.loader.needed["e"] = made_of
    assert await bench.update(together, e=(1,)) == {}
    assert bench.reasons() == {}
    assert [bench.table.get(name, None) for name in "ef"] == before


@pytest.mark.parametrize("together", [True, False], ids=["explicit", "polled"])
async def test_what_serves_on_goes_with_what_it_is_made_of(bench: Bench, together: bool) -> None:
    await bench.update(e=(1,), f=(1,), a=(1,), b=(2,))
    bench.loader.needed["e"] = {"z": frozenset({None})}
    await bench.update(together, 1, e=(1,))
    assert bench.ready() == "abef"
    await bench.manager.unload("a", dependents=False)
    assert bench.ready() == "b"
    await turns(lambda: bench.reasons().get("f", "").startswith("unloaded"))
    assert bench.reasons() == {
        "a": "unloaded",
        "e": "unloaded, for ensemble 'e' depends on 'a'",
        "f": "unloaded, for ensemble 'f' depends on 'a'",
    }


async def test_what_is_replaced_below_ends_what_can_not_be_made_anew(bench: Bench) -> None:
    await bench.update(e=(1,), a=(1,), b=(2,))
    bench.loader.needed["e"] = {"z": frozenset({None})}
    failures = await bench.update(mark=1, e=(1,), a=(1,))
    assert list(failures) == ["e"]
    assert bench.ready() == "ab"
    await turns(lambda: bench.reasons() == {"e": f"Invalid argument: {MISSING}"})


async def test_what_failed_to_load_comes_with_what_was_missing(bench: Bench) -> None:
    await bench.update(e=(1,), a=(1,), b=(2,))
    bench.loader.needed["e"] = {"z": frozenset({None})}
    await bench.update(mark=1, e=(1,))
    old = bench.table.get("e", None)
    await bench.update(z=(1,))
    assert bench.table.get("e", None) is not old
    assert bench.reasons() == {}
    await bench.manager.unload("a", dependents=False)
    assert bench.ready() == "bez"


async def test_two_can_change_which_is_made_of_which(bench: Bench) -> None:
    await bench.update(e=(1,), f=(1,), a=(1,), b=(2,))
    bench.loader.needed = {"e": {"f": frozenset({None})}, "f": {"a": frozenset({None})}}
    bench.loader.order.clear()
    async with asyncio.timeout(30):
        assert await bench.update(mark=1, e=(1,), f=(1,)) == {}
    assert bench.loader.order == [("f", 1), ("e", 1)]
    assert bench.ready() == "abef"


async def test_circles_are_no_standstill(bench: Bench) -> None:
    bench.loader.needed = {"e": {"f": frozenset({None})}, "f": {"e": frozenset({None})}}
    async with asyncio.timeout(30):
        failures = await bench.update(e=(1,), f=(1,))
    text = "circular dependency between ensembles: e -> ... -> f -> e"
    assert failures["e"] == f"load failed for model 'e': {text}\n"
    assert "circular" in failures["f"]


async def test_two_updates_do_not_wait_for_each_other(bench: Bench) -> None:
    async with asyncio.timeout(30):
        await asyncio.gather(
            bench.update(e=(1,)), bench.update(b=(2,)), bench.update(f=(1,)), bench.update(a=(1,)), bench.update(a=None)
        )
        await bench.update(a=(1,))
    assert bench.ready() == "abef"


async def test_an_explicit_load_that_fails_is_forgotten(bench: Bench) -> None:
    failures = await bench.update(together=True, e=(1,))
    assert "not available" in failures["e"]
    assert bench.table.index() == []
    await bench.update(a=(1,), b=(2,))
    assert bench.ready() == "ab"


# Borrowing


async def test_what_is_borrowed_is_drained_when_it_is_given_back(bench: Bench) -> None:
    await bench.update(a=(1,))
    first, second = bench.table.borrow("a", None), bench.table.borrow("a", 1)
    servable = bench.loader.servables[ModelId("a", 1)]
    assert first.servable is servable
    await bench.manager.unload("a", dependents=False)
    with pytest.raises(ModserveError):
        bench.table.borrow("a", None)
    first.release()
    for _ in range(10):
        await asyncio.sleep(0)
    assert servable.log == []
    second.release()
    await turns(lambda: servable.log == ["drain", "close"])


async def test_what_is_not_there_is_not_lent(bench: Bench) -> None:
    with pytest.raises(ModserveError, match="Request for unknown model: 'a' is not found"):
        bench.table.borrow("a", None)


# Control


class Repository:
    """A, b, e and f on disk, loaded on demand."""

    def __init__(self, bench: Bench, path: Path, *load: str) -> None:
        for name in "abef":
            (path / name / ("2" if name == "b" else "1")).mkdir(parents=True)
        self.bench = bench
        self.control = ModelControl(bench.manager, repositories_at([path]), ControlOptions(ControlMode.EXPLICIT, load))


async def test_loading_one_loads_what_it_is_made_of(bench: Bench, tmp_path: Path) -> None:
    control = Repository(bench, tmp_path).control
    await control.start()
    assert bench.ready() == ""
    await control.load("f")
    assert bench.ready() == "abef"
    await control.unload("f")
    assert bench.ready() == "abe"


async def test_the_start_loads_what_is_needed(bench: Bench, tmp_path: Path) -> None:
    await Repository(bench, tmp_path, "e").control.start()
    assert bench.ready() == "abe"


@pytest.mark.parametrize(
    ("loads", "unload", "left"),
    [("f", "f", ""), ("fa", "f", "a"), ("fe", "f", "abe"), ("e", "e", ""), ("fe", "e", "")],
    ids=["all", "asked for", "still needed", "one", "of another"],
)
async def test_unloading_with_dependents(bench: Bench, tmp_path: Path, loads: str, unload: str, left: str) -> None:
    control = Repository(bench, tmp_path).control
    await control.start()
    for name in loads:
        await control.load(name)
    await control.unload(unload, dependents=True)
    assert bench.ready() == left


async def test_a_model_that_is_missing_is_named_to_who_loads(bench: Bench, tmp_path: Path) -> None:
    control = Repository(bench, tmp_path).control
    (tmp_path / "b" / "2").rmdir()
    (tmp_path / "b").rmdir()
    with pytest.raises(ModserveError) as caught:
        await control.load("e")
    assert caught.value.message == (
        "load failed for model 'e': ensemble e contains models that are not available or ambiguous: b\n"
    )
    assert bench.ready() == "a"
