"""Where a model's routing is from, and how long it lasts."""

from dataclasses import replace
from typing import Any

import pytest
from routed_versions import Keeper, Version

from modserve.core.configuration.routing_config import RouteFigures, Routing
from modserve.core.errors import Code, ModserveError, internal, invalid
from modserve.core.servable import Servable
from modserve.core.version import RolledBack
from modserve.repository.table import ModelRow, ModelTable
from modserve.repository.table import VersionRow as Row
from modserve.routing.reading import read, rollbacks
from modserve.routing.router import Routed, RouteRollback
from modserve.routing.routings import Routings
from modserve.testing import RecordingSink, request

SPLIT = {"labels": {"stable": 1, "canary": 2}, "split": {"stable": 9, "canary": 1}}
OTHER = {"split": {"1": 1}}


def versions(routing: Routing | None = None, kind: type[Version] = Version) -> dict[int, Servable]:
    made: dict[int, Servable] = {}
    for number in (1, 2):
        version = kind(number)
        version.config = replace(version.config, routing=routing)
        made[number] = version
    return made


def document(routings: Routings) -> Any:
    """What the routing says and where it is from; None without one."""
    try:
        report = routings.report("m", lambda version: "")
    except ModserveError:
        return None
    return report["source"], report["routing"]


def test_without_a_routing_the_latest_takes_requests_itself() -> None:
    routings, served = Routings(), versions()
    assert routings.front("m", served, served[2]) is served[2]
    assert document(routings) is None


def test_what_a_client_sets_is_in_place_of_the_configuration() -> None:
    routings, served = Routings(), versions(read(SPLIT))
    assert isinstance(routings.front("m", served, served[2]), Routed)
    assert document(routings) == ("config", SPLIT)
    routings.set("m", served[2], OTHER)
    routings.front("m", served, served[2])
    assert document(routings) == ("api", OTHER)
    routings.set("m", served[2], None)
    routings.front("m", served, served[2])
    assert document(routings) == ("config", SPLIT)


def test_it_lasts_until_the_model_is_unloaded() -> None:
    routings, served = Routings(), versions()
    routings.set("m", served[2], SPLIT)
    routings.front("m", served, served[2])
    routings.front("m", {1: served[1]}, served[1])
    again = versions(read(OTHER))
    routings.front("m", again, again[2])
    assert document(routings) == ("api", SPLIT)
    assert routings.front("m", {}, None) is None
    assert document(routings) is None
    assert isinstance(routings.front("m", again, again[2]), Routed)
    assert document(routings) == ("config", OTHER)


def test_a_configured_routing_goes_on_through_loads_and_changes_with_the_configuration() -> None:
    routings, served = Routings(), versions(read(SPLIT))
    front = routings.front("m", served, served[2])
    assert isinstance(front, Routed)
    for _ in range(7):
        front.submit(request(model="m"), RecordingSink(), 0)
    again = versions(read(SPLIT))
    routings.front("m", again, again[2])
    figures = routings.figures(lambda name, version: True)
    assert [each.requests for each in figures if isinstance(each, RouteFigures)] == [6, 1]
    other = versions(read(OTHER))
    routings.front("m", other, other[2])
    assert document(routings) == ("config", OTHER)
    without = versions()
    assert routings.front("m", without, without[2]) is without[2]
    assert document(routings) is None


def test_a_wrong_routing_changes_nothing() -> None:
    routings, served = Routings(), versions()
    routings.set("m", served[2], SPLIT)
    with pytest.raises(ModserveError):
        routings.set("m", served[2], {"split": {"1": -1}})
    decoupled = Version(2)
    decoupled.config = replace(decoupled.config, decoupled=True)
    with pytest.raises(ModserveError, match="decoupled"):
        routings.set("m", decoupled, {"split": {"1": 1}, "shadow": {"version": 2, "share": 1}})
    assert document(routings) == ("api", SPLIT)


def test_sequences_outlive_the_routing() -> None:
    routings, served = Routings(), versions(kind=Keeper)
    first = served[1]
    assert isinstance(first, Keeper)
    routings.set("m", served[2], SPLIT)
    first.sequences.add(5)
    routings.set("m", served[2], None)
    assert isinstance(routings.front("m", served, served[2]), Routed)
    assert document(routings) is None
    first.sequences.clear()
    assert routings.front("m", served, served[2]) is served[2]


def test_a_rollback_elsewhere_is_done_here_if_the_routing_is_the_same() -> None:
    seen: list[RouteRollback] = []
    here, elsewhere, served = Routings(), Routings(on_rollback=seen.append), versions()
    document = {**SPLIT, "rollback": {"version": "canary", "error_share": 0.1, "least_requests": 1}}
    for routings in (here, elsewhere):
        routings.set("m", served[2], document)
    front = elsewhere.front("m", served, served[2])
    assert isinstance(front, Routed)
    for _ in range(10):
        front.submit(request(model="m"), RecordingSink(), 0)
    canary = served[2]
    assert isinstance(canary, Version)
    canary.respond(internal("no"))
    assert [(each.model, each.version, each.document) for each in seen] == [("m", 2, document)]
    assert elsewhere.rollbacks == seen
    here.set("m", served[2], {**document, "split": {"stable": 8, "canary": 1}})
    here.roll_back(seen[0])
    assert here.rollbacks == []
    here.set("m", served[2], document)
    here.roll_back(seen[0])
    here.roll_back(seen[0])
    assert here.rollbacks == seen
    here.roll_back(seen[0]._replace(model="other"))


def test_labels() -> None:
    routings, served = Routings(), versions()
    failure = invalid("no number")
    with pytest.raises(ModserveError) as caught:
        routings.resolve_label("m", "canary", failure)
    assert caught.value is failure
    assert not routings.has_labels("m")
    routings.set("m", served[2], SPLIT)
    assert routings.has_labels("m")
    assert routings.resolve_label("m", "canary", failure) == 2
    with pytest.raises(ModserveError) as caught:
        routings.resolve_label("m", "beta", failure)
    text = "model 'm' has no version with the label 'beta', its labels are: 'stable' (version 1), 'canary' (version 2)"
    assert (caught.value.code, caught.value.message) == (Code.NOT_FOUND, text)
    for wrong in ("1.5", "-2", "Canary"):
        with pytest.raises(ModserveError) as caught:
            routings.resolve_label("m", wrong, failure)
        assert caught.value is failure


@pytest.mark.parametrize(
    ("document", "versions", "place"),
    [
        (SPLIT, [1], "routing.labels.canary is version 2, which is not there; the versions are: 1."),
        (
            {"split": {"1": 1, "3": 1}},
            [1, 2],
            "routing.split.3 is version 3, which is not there; the versions are: 1, 2.",
        ),
        (
            {"split": {"1": 1}, "shadow": {"version": 2, "share": 1}},
            [1],
            "routing.shadow.version is version 2, which is not there; the versions are: 1.",
        ),
        (
            {"labels": {"new": 3}},
            [2, 1],
            "routing.labels.new is version 3, which is not there; the versions are: 1, 2.",
        ),
    ],
)
def test_versions_that_are_not_there(document: dict[str, Any], versions: list[int], place: str) -> None:
    routings = Routings()
    with pytest.raises(ModserveError) as caught:
        routings.check_versions("m", document, versions)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == f"model 'm': {place} \"allow_missing\": true accepts versions that are to come"
    routings.check_versions("m", {**document, "allow_missing": True}, versions)
    routings.check_versions("m", document, [1, 2, 3])
    routings.check_versions("m", None, [])


async def test_who_borrows_a_routed_model_keeps_all_its_versions() -> None:
    table, served = ModelTable(), versions()
    table.models["m"] = ModelRow(versions={number: Row(servable=servable) for number, servable in served.items()})
    table.rank("m")
    assert table.get("m", None) is served[2]
    table.routings.set("m", table.latest("m"), SPLIT)
    table.rank("m")
    handle = table.borrow("m", None)
    assert isinstance(handle.servable, Routed)
    assert [table.loans.lent(each) for each in served.values()] == [True, True]
    handle.release()
    assert [table.loans.lent(each) for each in served.values()] == [False, False]
    handle = table.borrow("m", 1)
    assert [table.loans.lent(each) for each in served.values()] == [True, False]
    handle.release()


def decide(routings: Routings, versions: dict[str, str | None]) -> Any:
    return routings.decide("m", rollbacks({"rolled_back": versions}))


def test_a_version_that_was_rolled_back_is_not_the_latest() -> None:
    seen: list[RouteRollback] = []
    routings, served = Routings(on_rollback=seen.append), versions()
    decided = decide(routings, {"2": "it is bad"})
    assert decided[2].reason == "it is bad"
    assert seen == [RouteRollback("m", 2, "it is bad", {})]
    assert routings.latest("m", served) is served[1]
    assert routings.latest("m", {2: served[2]}) is served[2], "there is no other"
    assert routings.latest("m", {}) is None
    assert routings.report("m", lambda version: "")["rolled_back"] == {
        "2": {"reason": "it is bad", "at_ms": decided[2].at_ms}
    }
    assert (routings.note("m", 2, served[2]), routings.note("m", 1, served[1])) == (
        "rolled back, and takes no requests that name no version: it is bad",
        "version 2 was rolled back: it is bad",
    )
    assert decide(routings, {"2": None}) == {2: None}
    assert routings.latest("m", served) is served[2]
    assert document(routings) is None


@pytest.mark.parametrize("source", ["client", "configuration"])
@pytest.mark.parametrize("anew", [None, OTHER, SPLIT])
def test_a_routing_that_is_set_anew_rolls_nothing_back(source: str, anew: object) -> None:
    routings, served = Routings(), versions(read(SPLIT) if source == "configuration" else None)
    if source == "client":
        routings.set("m", served[2], SPLIT)
    routings.front("m", served, served[2])
    decide(routings, {"2": "it is bad"})
    assert [each["weight"] for each in routings.report("m", lambda version: "")["routes"]] == [9, 0]
    routings.set("m", served[2], anew)
    routings.front("m", served, served[2])
    assert (routings.rollbacks, routings.rollbacks_of("m")) == ([], {})
    if source == "configuration" or anew == SPLIT:
        weights = [each["weight"] for each in routings.report("m", lambda version: "")["routes"]]
        assert weights == ([1] if anew == OTHER else [9, 1])


def test_a_look_at_the_folder_says_what_was_rolled_back_but_for_what_is_not_there() -> None:
    routings, served = Routings(), versions(read(SPLIT))
    decide(routings, {"1": "it is bad", "2": "it is worse"})
    routings.mark_unsaved("m", 1, "the disk is full")
    routings.mark_unsaved("m", 3, "nobody knows it")
    routings.recall("m", {})
    assert [(each.version, each.reason) for each in routings.rollbacks] == [(1, "it is bad")]
    assert routings.report("m", lambda version: "")["rolled_back"]["1"]["unsaved"] == "the disk is full"
    routings.recall("m", {2: RolledBack("it is bad", 17)})
    routings.front("m", served, served[2])
    assert [each["weight"] for each in routings.report("m", lambda version: "")["routes"]] == [0, 0]


@pytest.mark.parametrize(
    ("rolled_back", "text"),
    [
        ({}, "routing.rolled_back is empty, expected a version with the reason, or with null"),
        ([], "routing.rolled_back is [], expected a JSON object"),
        ({"canary": "a"}, "routing.rolled_back has 'canary', expected a version such as 2"),
        ({"2": ""}, 'routing.rolled_back.2 is "", expected the reason, a text of 1 to 2000, or null'),
        ({"2": 1}, "routing.rolled_back.2 is 1, expected the reason, a text of 1 to 2000, or null"),
    ],
)
def test_what_is_wrong_with_a_rollback(rolled_back: object, text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        rollbacks({"rolled_back": rolled_back})
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, text)


def test_a_rollback_stands_alone() -> None:
    with pytest.raises(ModserveError, match=r"^routing\.rolled_back stands alone, .* beside it is: split$"):
        rollbacks({"rolled_back": {"2": "a"}, "split": {"1": 1}})
