"""What to do next, from tables written by hand: no event loop, no loader."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_loader import FakeServable, FakeStore

from modserve.core.errors import Code, ModserveError, internal, invalid
from modserve.core.lifecycle import LifecycleState, VersionState
from modserve.core.loading import Blueprint, DirectoryLease, Needs, UnreadableModelError
from modserve.core.servable import Servable
from modserve.core.version import ModelId
from modserve.repository import plan
from modserve.repository.plan import Action, Update
from modserve.repository.table import Loaded, ModelRow, VersionRow

STORE = FakeStore()


def blueprint(name: str, *versions: int, mark: object = None, needs: str = "") -> Blueprint:
    return Blueprint(STORE.listing(name, *versions, mark=mark), versions, {need: frozenset({None}) for need in needs})


class StillServable(FakeServable):
    """Made without an event loop."""

    def __init__(self, name: str, version: int) -> None:
        self.id = ModelId(name, version)


def row(name: str, version: int) -> VersionRow:
    servable: Servable = StillServable(name, version)
    loaded = Loaded(servable, STORE.listing(name, version), DirectoryLease(Path(name)), 0)
    return VersionRow(VersionState(LifecycleState.READY), servable, loaded)


def model(name: str, *versions: int, needs: str = "") -> ModelRow:
    """A model with these READY versions, as its blueprint has them."""
    design = blueprint(name, *versions, needs=needs)
    rows = {version: row(name, version) for version in versions}
    made_of: Needs = design.needs if versions else {}
    return ModelRow(design, rows, made_of, latest=rows[max(rows)].servable if rows else None)


def first(
    name: str, requested: Mapping[str, Blueprint | None], *models: ModelRow, together: bool = False, waiting: str = ""
) -> Action:
    """What is done with a model when nothing else of the update has been done."""
    table = {each.blueprint.listing.name: each for each in models if each.blueprint is not None}
    update = plan.begin(table, requested, together)
    for each in requested:
        table.setdefault(each, ModelRow())
    return plan.decide(name, update, table, set(waiting), {})


def replaced(table: dict[str, ModelRow], name: str) -> None:
    """Another servable serves the model's version 1."""
    table[name].versions[1] = row(name, 1)
    table[name].latest = table[name].versions[1].servable


# One model


def test_a_new_model_is_loaded() -> None:
    design = blueprint("a", 1, 2)
    action = first("a", {"a": design})
    assert (action.blueprint, action.load, action.retire, action.together) == (design, (1, 2), (), False)
    assert (action.problem, action.failure) == ("", None)
    assert action.reason == "loads versions [1, 2] of [1, 2]"


def test_what_is_in_service_as_requested_is_left_alone() -> None:
    action = first("a", {"a": blueprint("a", 1, 2)}, model("a", 1, 2))
    assert (action.load, action.retire) == ((), ())


@pytest.mark.parametrize(
    ("request_", "load", "retire"),
    [
        (blueprint("a", 2, 3), (3,), (1,)),
        (blueprint("a", 1, 2, mark="new"), (1, 2), ()),
        (blueprint("a", 2, mark="new"), (2,), (1,)),
    ],
    ids=["other versions", "other files", "both"],
)
def test_versions_that_differ_are_loaded_and_the_others_retired(
    request_: Blueprint, load: tuple[int, ...], retire: tuple[int, ...]
) -> None:
    action = first("a", {"a": request_}, model("a", 1, 2))
    assert (action.load, action.retire, action.state_reason) == (load, retire, "unloaded")
    assert action.together, "beside versions that serve, all are taken or none"


def test_what_is_not_wanted_is_retired() -> None:
    action = first("a", {"a": None}, model("a", 1, 2))
    assert action == Action("a", "is no longer wanted", problem="", retire=(1, 2))
    assert first("a", {"a": None}).retire == ()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UnreadableModelError(Code.INVALID_ARG, "x"), Code.INTERNAL, "failed to load 'a', failed to poll from"),
        (invalid("x"), Code.INVALID_ARG, "load failed for model 'a': x\n"),
    ],
)
def test_an_unusable_configuration_changes_nothing_in_service(
    error: ModserveError, code: Code, text: str, together: bool
) -> None:
    design = Blueprint(STORE.listing("a", 1), failure=error)
    for models in ((), (model("a", 1),)):
        action = first("a", {"a": design}, *models, together=together)
        assert (action.load, action.retire, action.blueprint) == ((), (), None)
        assert action.failure is not None
        assert (action.failure.code, action.failure.message[: len(text)]) == (code, text)
        assert action.problem == ("" if together and not models else "Invalid argument: x")


# Models that are made of others


def test_dependents_have_their_turn_after_what_they_need() -> None:
    models = {name: model(name, 1, needs=needs) for name, needs in {"a": "", "e": "a", "f": "e"}.items()}
    update = plan.begin(models, {"a": blueprint("a", 1, mark="new")}, False)
    assert update.turns == {"a": set(), "e": {"a"}, "f": {"e"}}
    assert plan.begin(models, {"a": None}, False).names == {"a", "e", "f"}
    assert plan.begin(models, {"f": None}, False).names == {"a", "e", "f"}, "what it needs is read"


class Below:
    """`e` is made of `a`, and `a` is requested anew."""

    def __init__(self, **changes: Blueprint) -> None:
        self.models = {"a": model("a", 1), "e": model("e", 1, needs="a")}
        self.update: Update = plan.begin(self.models, {"a": blueprint("a", 1, mark="new"), **changes}, False)

    def decide(self, waiting: str = "", **failures: ModserveError) -> Action:
        return plan.decide("e", self.update, self.models, set(waiting), failures)


def test_a_dependent_is_left_alone_if_what_it_needs_serves_as_before() -> None:
    assert Below().decide() == Action("e")


def test_a_dependent_is_loaded_again_with_what_it_needs() -> None:
    below = Below()
    replaced(below.models, "a")
    action = below.decide()
    assert (action.load, action.stale, action.together) == ((1,), True, True)
    assert action.reason.endswith("because a model that it needs has changed")


def test_what_may_yet_change_counts_as_changed() -> None:
    assert Below().decide(waiting="a").stale


def test_a_dependent_goes_if_what_it_is_made_of_is_replaced_and_what_it_needs_is_missing() -> None:
    below = Below(e=blueprint("e", 1, mark="new", needs="z"))
    action = below.decide()
    assert (action.retire, action.problem) == ((), f"served as before, because it failed to load: {MISSING}")
    replaced(below.models, "a")
    action = below.decide()
    assert (action.retire, action.problem, action.state_reason) == ((1,), "", MISSING)


MISSING = "Invalid argument: ensemble e contains models that are not available or ambiguous: z"


def test_a_dependent_with_an_unusable_configuration_goes_if_what_it_is_made_of_is_replaced() -> None:
    below = Below(e=Blueprint(STORE.listing("e", 1), failure=internal("broken")))
    assert below.decide().retire == ()
    replaced(below.models, "a")
    action = below.decide()
    assert (action.retire, action.state_reason, action.problem) == ((1,), "Internal: broken", "")


def test_the_failure_of_what_it_needs_is_told() -> None:
    models = {
        "a": ModelRow(blueprint("a", 1), {1: VersionRow(VersionState(LifecycleState.UNAVAILABLE, "Internal: no"))})
    }
    requested = {"e": blueprint("e", 1, needs="a")}
    update = plan.begin(models, requested, True)
    action = plan.decide("e", update, {**models, "e": ModelRow()}, set(), {})
    assert action.failure is not None
    assert action.failure.message == (
        "load failed for model 'e': ensemble 'e' depends on 'a' which has no loaded version. Model 'a' loading failed "
        "with error: version 1 is at UNAVAILABLE state: Internal: no;\n"
    )
    assert (action.problem, action.retire, action.load) == ("", (), ())


def test_dependents_are_retired_before_what_they_need() -> None:
    models = {name: model(name, 1, needs=needs) for name, needs in {"a": "", "e": "a", "f": "e", "b": ""}.items()}
    update = plan.begin(models, {"a": None, "f": None}, False)
    actions = plan.retirements(update, models)
    assert [(action.model, action.retire, action.state_reason) for action in actions] == [
        ("e", (1,), "unloaded, for ensemble 'e' depends on 'a'")
    ]


def test_circles() -> None:
    requested = {"e": blueprint("e", 1, needs="f"), "f": blueprint("f", 1, needs="e")}
    for name in requested:
        action = first(name, requested, waiting="ef")
        assert action.failure is not None
        assert "circular dependency between ensembles" in action.failure.message


def test_nothing_is_changed_by_a_decision() -> None:
    below = Below()
    replaced(below.models, "a")
    before = {name: dataclasses.replace(each) for name, each in below.models.items()}
    assert below.decide() == below.decide()
    assert below.models == before
