"""What `modserve unload` reads from the index before and after its call."""

import pytest

from modserve.commands.status_report import IndexRow
from modserve.commands.unload import find_unloaded

BEFORE = [IndexRow(name, "1", "READY", "") for name in ("step", "first", "second", "other")]
NEEDS = "unloaded, for ensemble 'first' depends on 'step'"


def after(**states: str) -> list[IndexRow]:
    """READY, but for the models named, whose states are followed by reasons."""
    rows = []
    for row in BEFORE:
        state, _, reason = states.get(row.model, "READY").partition(" ")
        rows.append(IndexRow(row.model, row.version, state, reason))
    return rows


@pytest.mark.parametrize(
    ("states", "gone"),
    [
        ({}, []),
        ({"first": f"UNAVAILABLE {NEEDS}", "second": f"UNAVAILABLE {NEEDS}"}, ["first", "second"]),
        ({"first": "UNLOADING"}, ["first"]),
        ({"first": f"UNAVAILABLE {NEEDS}", "other": "UNAVAILABLE unloaded"}, ["first"]),
    ],
    ids=["nothing", "two ensembles", "one with requests in flight", "another client's"],
)
def test_what_went_with_a_model(states: dict[str, str], gone: list[str]) -> None:
    assert find_unloaded("step", BEFORE, after(step="UNAVAILABLE unloaded", **states)) == gone


def test_a_model_of_which_a_version_stays() -> None:
    two = [*BEFORE, IndexRow("first", "2", "READY", "")]
    now = [*after(step="UNAVAILABLE unloaded", first=f"UNAVAILABLE {NEEDS}"), IndexRow("first", "2", "READY", "")]
    assert find_unloaded("step", two, now) == []


def test_the_steps_of_an_ensemble() -> None:
    states = dict.fromkeys(("first", "step"), "UNAVAILABLE unloaded")
    assert find_unloaded("first", BEFORE, after(**states), dependents=True) == ["step"]
