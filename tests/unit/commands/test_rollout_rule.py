"""The rule of ``modserve rollout``: its test against enumeration, and how often it errs in simulated rollouts."""

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from modserve.commands.rollout.rule import (
    LOOKS,
    Judgement,
    RolloutRules,
    Verdict,
    WatchCounts,
    chance_of,
    judge,
    judge_later,
    total_of,
)
from modserve.core.statistics.summary import Sketch

RULES = RolloutRules()


def counts(latencies: Sequence[float], failures: int = 0) -> WatchCounts:
    durations = Sketch()
    for each in latencies:
        durations.observe(round(each * 1e9))
    return WatchCounts(len(latencies), failures, sum(latencies), durations)


# The test


def by_enumeration(part: int, whole: int, others_part: int, others_whole: int) -> float:
    """Over all ways to put the marks on the requests."""
    total, marked = whole + others_whole, part + others_part
    ways = [sum(index < whole for index in marks) for marks in itertools.combinations(range(total), marked)]
    return sum(number >= part for number in ways) / len(ways)


@pytest.mark.parametrize(
    ("part", "whole", "others_part", "others_whole"),
    [(0, 3, 0, 4), (1, 3, 0, 4), (3, 3, 0, 6), (2, 4, 2, 8), (4, 4, 5, 6), (0, 0, 2, 5), (2, 5, 0, 0)],
)
def test_fishers_test(part: int, whole: int, others_part: int, others_whole: int) -> None:
    expected = by_enumeration(part, whole, others_part, others_whole)
    assert chance_of(part, whole, others_part, others_whole) == pytest.approx(expected)


def test_fishers_test_of_large_numbers() -> None:
    assert chance_of(1000, 1_000_000, 2000, 2_000_000) == pytest.approx(0.5, abs=0.02)
    assert chance_of(2000, 1_000_000, 2000, 2_000_000) < 1e-50
    assert chance_of(10**9, 10**9, 0, 10**9) == 0


# One look


def judged(new: WatchCounts, others: WatchCounts, *, last: bool = True) -> Judgement:
    return judge(new, others, RULES, last=last)


def test_the_same_goes_on() -> None:
    same = counts([0.003] * 100, 1)
    assert judged(same, same).verdict is Verdict.GO_ON
    assert judged(same, same, last=False).verdict is Verdict.WATCH


@pytest.mark.parametrize(("failures", "verdict"), [(1, Verdict.WATCH), (3, Verdict.WATCH), (8, Verdict.GO_BACK)])
def test_a_few_failures_are_chance(failures: int, verdict: Verdict) -> None:
    """3 of 50 where the others have none of 100 happen in 1 of 28 cases."""
    assert judged(counts([0.003] * (50 - failures), failures), counts([0.003] * 100), last=False).verdict is verdict


def test_the_reason_has_the_numbers() -> None:
    reason = judged(counts([0.003] * 40, 10), counts([0.003] * 100)).reason
    assert reason == "10 of 50 requests failed, of the others 0 of 100: by chance 1 in 113,855"


def test_all_requests_fail() -> None:
    """Also if nothing reaches the others, with which there is nothing to compare then."""
    assert judged(WatchCounts(0, 3), WatchCounts(), last=False).verdict is Verdict.GO_BACK
    assert judged(counts([0.003], 3), WatchCounts(), last=False).verdict is Verdict.WATCH


def test_a_difference_that_does_not_matter() -> None:
    """Significant, but less than the factor."""
    new, others = (WatchCounts(1e6 - failures, failures, 3000) for failures in (12_000, 10_000))
    assert chance_of(new.failures, new.total, others.failures, others.total) < 1e-6
    assert judged(new, others).verdict is Verdict.GO_ON


def test_slower_by_more_than_the_factor() -> None:
    judgement = judged(counts([0.03] * 60), counts([0.003] * 100))
    assert judgement.verdict is Verdict.GO_BACK
    text = "60 of 60 requests took more than 4.5 ms, of the others 0 of 100, whose median is 3 ms: by chance less than"
    assert judgement.reason.startswith(text)


def test_a_slow_tail() -> None:
    others = counts([0.003] * 200)
    tail = counts([0.003] * 160 + [0.3] * 40)
    reason = judged(tail, others).reason
    assert "whose 95th percentile is" in reason
    assert judged(counts([0.003] * 196 + [0.3] * 4), others).verdict is Verdict.GO_ON


def test_one_slow_request_of_three_is_nothing() -> None:
    judgement = judged(counts([0.003, 0.003, 0.9]), counts([0.003] * 100), last=False)
    assert judgement.verdict is Verdict.WATCH


def test_means_where_no_durations_are_known() -> None:
    """Of a hundred requests or more."""
    slow, quick = WatchCounts(100, 0, 2.0), WatchCounts(200, 0, 2.0)
    assert judged(slow, quick).reason == "a request takes 20 ms on average, on the others 10 ms"
    assert judged(WatchCounts(99, 0, 2.0), quick).verdict is Verdict.GO_ON
    assert judged(WatchCounts(100, 0, 1.4), quick).verdict is Verdict.GO_ON


@pytest.mark.parametrize(("new", "others", "side"), [(49, 100, "the new version"), (50, 49, "the others")])
def test_too_few_requests_are_no_proof(new: int, others: int, side: str) -> None:
    judgement = judged(counts([0.003] * new), counts([0.003] * others))
    assert judgement.verdict is Verdict.GO_BACK
    assert judgement.reason.startswith(f"{side} had 49 requests, and 50 are needed to compare")


def test_none_are_needed_where_nobody_says_so() -> None:
    rules = RolloutRules(requests=0)
    assert judge(WatchCounts(), WatchCounts(), rules, last=True).verdict is Verdict.GO_ON


def test_totals() -> None:
    whole = total_of([counts([0.003], 1), counts([0.3])])
    assert (whole.requests, whole.failures, whole.durations.longer(5e6), whole.durations.total) == (2, 1, 1, 2)
    assert str(whole).startswith("3 requests, 1 failed, mean 152 ms, p95 300 ms")
    assert str(WatchCounts()) == "0 requests, 0 failed"


# Whole rollouts, in simulated time


Service = Callable[[random.Random], "float | None"]
"""The latency of a request; None for a failure."""


def service(mean: float, failing: float) -> Service:
    """Latencies as servers have them, with a long tail."""
    return lambda chance: None if chance.random() < failing else mean * chance.lognormvariate(0, 0.7)


def rollout(new: Service, others: Service, requests: int, seed: int) -> tuple[Verdict, float]:
    """The verdict, and at which part of the watch; the new version gets a third of the requests."""
    chance = random.Random(seed)
    outcomes = [[each(chance) for _ in range(number)] for each, number in ((new, requests), (others, 2 * requests))]
    for look in LOOKS:
        seen = [side[: round(len(side) * look)] for side in outcomes]
        sides = [counts([each for each in side if each is not None], side.count(None)) for side in seen]
        judgement = judge(sides[0], sides[1], RULES, last=look == 1.0)
        if judgement.verdict is not Verdict.WATCH:
            return judgement.verdict, look
    raise AssertionError("the last look decides")


def went_back(new: Service, others: Service, requests: int, rollouts: int) -> float:
    verdicts = [rollout(new, others, requests, seed)[0] for seed in range(rollouts)]
    return verdicts.count(Verdict.GO_BACK) / rollouts


@pytest.mark.parametrize(("requests", "failing"), [(60, 0.0), (60, 0.1), (400, 0.02)])
def test_a_version_like_the_others_goes_on(requests: int, failing: float) -> None:
    """19 of 20 times at least."""
    same = service(0.01, failing)
    assert went_back(same, same, requests, 150) <= 0.05


def test_a_little_slower_goes_on() -> None:
    assert went_back(service(0.011, 0.01), service(0.01, 0.01), 400, 60) <= 0.05


@pytest.mark.parametrize(
    ("mean", "failing"), [(0.01, 0.15), (0.05, 0.01), (0.05, 0.2)], ids=["errors", "latency", "both"]
)
def test_a_worse_version_goes_back(mean: float, failing: float) -> None:
    """19 of 20 times at least, with 200 requests."""
    assert went_back(service(mean, failing), service(0.01, 0.01), 200, 60) >= 0.95


def test_a_broken_version_goes_back_at_once() -> None:
    looks = {rollout(service(0.01, 1.0), service(0.01, 0.01), 400, seed)[1] for seed in range(20)}
    assert looks == {LOOKS[0]}


# The later servers


def later(*, last: bool = True, tests: int = 1, **sides: WatchCounts) -> Judgement:
    references = {"the version before": sides["former"], "http://first": sides["first"]}
    return judge_later(sides["new"], references, RULES, last=last, tests=tests)


def test_a_later_server_is_worse_if_it_is_worse_than_both() -> None:
    good, slow = counts([0.003] * 100), counts([0.03] * 100)
    assert later(new=slow, former=slow, first=good).verdict is Verdict.GO_ON
    assert later(new=slow, former=good, first=slow).verdict is Verdict.GO_ON
    judgement = later(new=slow, former=good, first=good)
    assert judgement.verdict is Verdict.GO_BACK
    assert judgement.reason.startswith(
        "100 of 100 requests took more than 4.5 ms, of http://first 0 of 100, whose median"
    )


def test_a_later_server_that_had_no_requests_before() -> None:
    good, slow, nothing = counts([0.003] * 100), counts([0.03] * 100), WatchCounts()
    assert later(new=slow, former=nothing, first=good).verdict is Verdict.GO_BACK
    assert later(new=slow, former=nothing, first=nothing).verdict is Verdict.GO_ON
    assert later(new=WatchCounts(0, 3), former=nothing, first=nothing, last=False).reason == "3 of 3 requests failed"
    reason = later(new=counts([0.003] * 49), former=good, first=good).reason
    assert reason.startswith("49 requests of the new version, and 50 are needed to compare; ")


def second_watch(services: Sequence[Service], requests: int, seed: int) -> Verdict:
    """Of a first server and later ones, which had the service of the first before."""
    chance = random.Random(seed)
    outcomes = [[each(chance) for _ in range(requests)] for each in services]
    former = [[services[0](chance) for _ in range(requests)] for _ in services[1:]]

    def counted(side: Sequence["float | None"]) -> WatchCounts:
        return counts([each for each in side if each is not None], side.count(None))

    for look in LOOKS:
        first, *others = (counted(side[: round(requests * look)]) for side in outcomes)
        for before, new in zip(map(counted, former), others, strict=True):
            judgement = later(new=new, former=before, first=first, last=look == 1.0, tests=len(others))
            if judgement.verdict is Verdict.GO_BACK:
                return Verdict.GO_BACK
    return Verdict.GO_ON


@pytest.mark.parametrize("failing", [0.0, 0.1])
def test_later_servers_like_the_first_go_on(failing: float) -> None:
    """19 of 20 times at least, however many there are."""
    verdicts = [second_watch([service(0.01, failing)] * 9, 60, seed) for seed in range(60)]
    assert verdicts.count(Verdict.GO_BACK) <= 3


@pytest.mark.parametrize(("mean", "failing"), [(0.01, 0.2), (0.05, 0.01)], ids=["errors", "latency"])
def test_one_later_server_that_is_worse(mean: float, failing: float) -> None:
    services = [service(0.01, 0.01)] * 4 + [service(mean, failing)]
    verdicts = [second_watch(services, 200, seed) for seed in range(40)]
    assert verdicts.count(Verdict.GO_BACK) >= 38
