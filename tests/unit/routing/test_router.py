"""The servable in front of a model's versions."""

from contextlib import suppress
from typing import Any

from routed_versions import Keeper, Stage, Version

from modserve.core.configuration.routing_config import RouteFigures
from modserve.core.errors import ModserveError, cancelled, internal, invalid, unavailable
from modserve.core.version import RolledBack
from modserve.testing import RecordingSink, request

LABELS = {"stable": 1, "canary": 2}
HALVES = {"labels": LABELS, "split": {"stable": 1, "canary": 1}}
ROLLBACK = {**HALVES, "rollback": {"version": "canary", "error_share": 0.5, "last_requests": 4, "least_requests": 4}}


def send(stage: Stage, count: int = 1, **parameters: Any) -> None:
    for _ in range(count):
        stage.front.submit(request(model="m", parameters=parameters), RecordingSink(), 0)


def test_requests_are_divided() -> None:
    stage = Stage({"labels": LABELS, "split": {"stable": 3, "canary": 1}})
    send(stage, 40)
    assert stage.taken_by == {1: 30, 2: 10}
    assert [route.requests for route in stage.router.routes] == [30, 10]


def test_without_a_rule_nothing_stands_before_the_sink() -> None:
    stage, sink = Stage(HALVES), RecordingSink()
    stage.front.submit(request(model="m"), sink, 0)
    assert stage.versions[1].waiting[0].sink is sink


def test_a_version_that_is_not_ready_leaves_its_share_to_the_others() -> None:
    stage = Stage(HALVES)
    stage.versions[1].unready_reason = "no instance left"
    send(stage, 4)
    assert stage.taken_by == {1: 0, 2: 4}
    stage.front = stage.routed(1)
    stage.versions[1].unready_reason = None
    send(stage, 4)
    assert stage.taken_by == {1: 4, 2: 4}
    report = stage.router.report(lambda version: "it is not there" if version == 2 else "")
    assert [(route["share"], route.get("not_ready")) for route in report["routes"]] == [
        (1.0, None),
        (0.0, "it is not there"),
    ]


def test_with_none_left_requests_go_to_the_latest() -> None:
    stage = Stage({"split": {"7": 1}})
    send(stage, 3)
    assert stage.taken_by == {1: 0, 2: 3}
    assert Stage({"labels": LABELS}).router.routes == []


def test_sticky_requests_go_where_their_key_goes() -> None:
    stage = Stage({**HALVES, "sticky": "parameter:user"})
    for user in range(20):
        before = stage.taken_by
        send(stage, 5, user=f"u{user}")
        assert sorted(count - before[number] for number, count in stage.taken_by.items()) == [0, 5]
    assert stage.router.keyless == 0
    send(stage, 4)
    assert stage.router.keyless == 4


def test_zero_is_a_key_but_no_sequence() -> None:
    stage = Stage({**HALVES, "sticky": "parameter:user"})
    send(stage, 4, user=0)
    assert sorted(stage.taken_by.values()) == [0, 4]
    stage = Stage({**HALVES, "sticky": "sequence"})
    send(stage, 4, sequence_id=0)
    assert (stage.taken_by, stage.router.keyless) == ({1: 2, 2: 2}, 4)
    send(stage, 4, sequence_id=7)
    assert sorted(stage.taken_by.values()) == [2, 6]


def test_a_header_has_no_case() -> None:
    stage = Stage({**HALVES, "sticky": "header:X-User"})
    for name in ("x-user", "X-User", "X-USER"):
        send(stage, 2, **{"Other": "1", name: "me"})
    assert sorted(stage.taken_by.values()) == [0, 6]


def begin(stage: Stage, id: int) -> Keeper:
    send(stage, sequence_id=id, sequence_start=True)
    keeper = next(each for each in stage.versions.values() if each.requests[-1:] and each.waiting)
    keeper.waiting.clear()
    assert isinstance(keeper, Keeper)
    keeper.sequences.add(id)
    return keeper


def test_a_sequence_stays_where_it_began() -> None:
    stage = Stage(HALVES, Keeper(1), Keeper(2))
    homes = [begin(stage, id) for id in (1, 2)]
    assert [home.id.version for home in homes] == [1, 2]
    stage.router.routes[0].weight = 0
    for id, home in enumerate(homes, 1):
        count = len(home.requests)
        send(stage, 3, sequence_id=id)
        assert len(home.requests) == count + 3


def test_a_sequence_that_begins_again_elsewhere_ends_where_it_was() -> None:
    stage = Stage(HALVES, Keeper(1), Keeper(2))
    first, second = begin(stage, 1), begin(stage, 1)
    assert first is not second
    assert (first.sequences, second.sequences) == (set(), {1})
    assert stage.front.has_sequence(1)
    assert stage.front.open_sequences == 1
    stage.front.abandon_sequence(1)
    assert not stage.front.has_sequence(1)


def test_a_sequence_that_nobody_has_is_for_the_latest_to_refuse() -> None:
    stage = Stage(HALVES, Keeper(1), Keeper(2))
    send(stage, 2, sequence_id=9)
    send(stage, 1, sequence_id=-1)
    assert stage.taken_by == {1: 0, 2: 3}


def fail(stage: Stage, *outcomes: float | ModserveError) -> None:
    """Requests whose outcomes at version 2 are these; those at version 1 succeed."""
    for outcome in outcomes:
        send(stage, 2)
        for number, version in stage.versions.items():
            while version.waiting:
                version.respond(outcome if number == 2 else 1.0)


def test_a_canary_that_fails_is_rolled_back() -> None:
    stage = Stage(ROLLBACK)
    fail(stage, internal("a"), 1.0, internal("b"))
    assert stage.router.routes[1].rolled_back is None
    fail(stage, internal("c"))
    rolled_back = stage.router.routes[1].rolled_back
    assert rolled_back is not None
    assert (rolled_back.reason, rolled_back.at_ms) == (
        "3 of the last 4 requests failed (75.0%), and at most 50.0% may",
        17,
    )
    send(stage, 10)
    assert stage.taken_by == {1: 14, 2: 4}
    figures = list(stage.router.figures(lambda route: True))
    assert figures[1] == RouteFigures("m", "canary", 2, 0.0, 4, True)
    assert stage.router.report(lambda version: "")["routes"][1]["rolled_back"] == {
        "reason": rolled_back.reason,
        "at_ms": 17,
    }


def test_mistakes_of_clients_and_their_absence_do_not_count() -> None:
    stage = Stage(ROLLBACK)
    fail(stage, *[invalid("x"), cancelled()] * 10)
    assert stage.router.routes[1].rolled_back is None


def test_refusals_count() -> None:
    stage = Stage(ROLLBACK)
    stage.versions[2].refusal = unavailable("full")
    for _ in range(12):
        with suppress(ModserveError):
            send(stage)
    assert stage.taken_by == {1: 8, 2: 4}


def test_a_canary_that_is_slow_is_rolled_back() -> None:
    rule = {"version": "canary", "p95_ratio": 2, "last_requests": 5, "least_requests": 5}
    stage = Stage({**HALVES, "rollback": rule})
    for _ in range(6):
        send(stage, 2)
        for number, version in stage.versions.items():
            stage.clock.ns = number * number * 1_000_000
            while version.waiting:
                version.respond()
    rolled_back = stage.router.routes[1].rolled_back
    assert rolled_back is not None
    assert "took up to 4.0 ms, 4.00 times the 1.0 ms of 'stable'" in rolled_back.reason
    assert stage.taken_by[2] == 5


def test_the_client_is_served_before_anything_is_counted() -> None:
    stage = Stage(ROLLBACK)
    order: list[str] = []

    class Sink(RecordingSink):
        def settle(self, outcome: Any, final: bool) -> None:
            order.append(f"sink {len(stage.router.routes[0].window or ())}")

    stage.front.submit(request(model="m"), Sink(), 0)
    stage.versions[1].respond()
    assert order == ["sink 0"]
    assert len(stage.router.routes[0].window or ()) == 1


async def test_it_is_ready_if_any_version_can_take_what_comes() -> None:
    stage = Stage(HALVES)
    first, second = stage.versions.values()
    assert (stage.front.unready_reason, await stage.front.check_ready()) == (None, True)
    second.unready_reason = "gone"
    assert (stage.front.unready_reason, await stage.front.check_ready()) == (None, True)
    first.unready_reason = "away"
    assert (stage.front.unready_reason, await stage.front.check_ready()) == ("away", False)
    second.unready_reason, second.refusal = None, unavailable("x")
    assert not await stage.front.check_ready()


def test_it_shows_the_latest() -> None:
    stage = Stage(HALVES, Version(1), Version(2))
    assert stage.front.id.version == 2
    assert stage.front.parts == tuple(stage.versions.values())
    assert repr(stage.front) == "Routed(m, ['stable', 'canary'] of 2 versions)"


async def test_a_version_that_was_rolled_back_takes_nothing_for_one_that_is_lost() -> None:
    stage = Stage(ROLLBACK)
    stage.router.roll_back(2, RolledBack("a test", 0))
    stage.versions[1].unready_reason = "no instance left"
    send(stage, 3)
    assert stage.taken_by == {1: 3, 2: 0}  # which refuses them, as long as it has no instance
    assert stage.front.unready_reason == "no instance left"
    assert not await stage.front.check_ready()
    stage.front = stage.routed(2)
    send(stage, 2)
    assert stage.taken_by == {1: 3, 2: 2}  # somebody has unloaded all others
    assert stage.front.unready_reason is None


def test_beside_a_version_that_was_rolled_back_the_latest_other_one_takes_what_no_route_can_take() -> None:
    stage = Stage(ROLLBACK, Version(1), Version(2), Version(3))
    stage.router.roll_back(2, RolledBack("a test", 0))
    stage.versions[1].unready_reason = "no instance left"
    send(stage, 2)
    assert stage.taken_by == {1: 0, 2: 0, 3: 2}
    stage.front = stage.routed(1, 2)
    send(stage, 2)
    assert stage.taken_by == {1: 2, 2: 0, 3: 2}
