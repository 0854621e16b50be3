"""The rule that decides whether a new version is as good as the old one, from what servers have counted. Pure.

The counts are checked five times, at the end of the watch and after a half, a quarter, an eighth and a sixteenth of
it, so that a version that fails is noticed soon. Each check makes up to three tests, all of the same kind: of the
requests with a property, do more lie on the new version than chance explains? The property is to have failed, to take
longer than `factor` times the others' median, or than `factor` times their 95th percentile. Fisher's exact test is
right for any numbers, also for three requests. Its levels are such that together all tests of a watch turn back a
version that is like the others in less than 1 of 20 rollouts: 3 · (4 · 0.001 + 0.01) = 0.042.

A difference has to be significant and large. Of a million requests, 1 % is significant and does not matter.

The servers that load the version later are judged one by one, each against two others: the first server, which has the
version as well, and itself before. It is worse only if it is worse than both. So neither a slower machine nor more
traffic than before turns a rollout back. The levels are divided by the number of servers, since any of them can err.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from modserve.core.statistics.summary import Sketch

from ..terminal import count, duration, plural
from ..top.figures import quantile

LOOKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Times of the checks, as fractions of the watch."""
_LEVEL, _LAST_LEVEL = 0.001, 0.01
_PERCENTILES = {"median": 0.5, "95th percentile": 0.95}
_FOR_MEANS = 100
"""Requests on either side, where there are only means to compare."""


@dataclass(frozen=True, slots=True)
class WatchCounts:
    """Counts of a model by one or more servers during the watch.

    `requests` succeeded, `failures` did not. `durations` are empty where there are only means.
    """

    requests: float = 0
    failures: float = 0
    seconds: float = 0
    durations: Sketch = field(default_factory=Sketch)

    @property
    def total(self) -> float:
        return self.requests + self.failures

    @property
    def mean(self) -> float:
        return self.seconds / self.requests if self.requests else 0.0

    def plus(self, other: "WatchCounts") -> "WatchCounts":
        durations = self.durations.copy()
        durations.add(other.durations)
        return WatchCounts(
            self.requests + other.requests,
            self.failures + other.failures,
            self.seconds + other.seconds,
            durations,
        )

    def __str__(self) -> str:
        text = f"{plural(round(self.total), 'request')}, {count(self.failures)} failed"
        if not self.requests:
            return text
        p95 = quantile(self.durations, 0.95)
        return f"{text}, mean {duration(self.mean)}" + (f", p95 {duration(p95)}" if p95 >= 0 else "")


@dataclass(frozen=True, slots=True)
class RolloutRules:
    """Rules of a rollout. `watch` is in seconds; `requests` is the number that each side needs in it to go on."""

    watch: float = 60.0
    requests: int = 50
    factor: float = 1.5


class Verdict(Enum):
    GO_ON = "go on"
    GO_BACK = "go back"
    WATCH = "watch"


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    reason: str = ""


def judge(new: WatchCounts, others: WatchCounts, rules: RolloutRules, *, last: bool) -> Judgement:
    """Judge the counts of one check; the `last` check decides."""
    problem = _problem(new, others, "the others", rules.factor, _LAST_LEVEL if last else _LEVEL)
    if problem:
        return Judgement(Verdict.GO_BACK, problem)
    if not last:
        return Judgement(Verdict.WATCH)
    for side, counts in (("the new version", new), ("the others", others)):
        if counts.total < rules.requests:
            text = f"{side} had {plural(round(counts.total), 'request')}, and {rules.requests} are needed to compare"
            return Judgement(Verdict.GO_BACK, f"{text}; --watch and --requests set that")
    return Judgement(Verdict.GO_ON, f"new version: {new}; others: {others}")


def judge_later(
    new: WatchCounts, references: Mapping[str, WatchCounts], rules: RolloutRules, *, last: bool, tests: int
) -> Judgement:
    """Judge one check of a server that loads the version later. Significance levels are divided by `tests`.

    `references` are the counts to compare with, by name; the reason given is that of the last one.
    """
    level = (_LAST_LEVEL if last else _LEVEL) / tests
    comparable = {name: counts for name, counts in references.items() if counts.total} or {"nobody": WatchCounts()}
    problems = [_problem(new, counts, name, rules.factor, level) for name, counts in comparable.items()]
    if all(problems):
        return Judgement(Verdict.GO_BACK, problems[-1])
    if last and new.total < rules.requests:
        text = f"{plural(round(new.total), 'request')} of the new version, and {rules.requests} are needed to compare"
        return Judgement(Verdict.GO_BACK, f"{text}; --watch and --requests set that")
    return Judgement(Verdict.GO_ON if last else Verdict.WATCH)


def _problem(new: WatchCounts, others: WatchCounts, name: str, factor: float, level: float) -> str:
    """Return in which respect the new version is worse; empty if in none. `name` is that of the others."""
    problems = (_errors(new, others, name, factor, level), *_latencies(new, others, name, factor, level))
    return next(filter(None, problems), "")


def _errors(new: WatchCounts, others: WatchCounts, name: str, factor: float, level: float) -> str:
    failed = f"{count(new.failures)} of {plural(round(new.total), 'request')} failed"
    if not others.total:
        return failed if new.failures and not new.requests else ""
    share = others.failures / others.total
    if not new.failures or new.failures / new.total < factor * share:
        return ""
    chance = chance_of(new.failures, new.total, others.failures, others.total)
    if chance >= level:
        return ""
    return f"{failed}, of {name} {count(others.failures)} of {count(others.total)}: by chance {_chance(chance)}"


def _latencies(new: WatchCounts, others: WatchCounts, name: str, factor: float, level: float) -> Iterator[str]:
    if not (new.requests and others.requests):
        return
    whole, others_whole = new.durations.total, others.durations.total
    if not (whole and others_whole):
        if min(new.requests, others.requests) >= _FOR_MEANS and new.mean > factor * others.mean:
            yield f"a request takes {duration(new.mean)} on average, on {name} {duration(others.mean)}"
        return
    for percentile, share in _PERCENTILES.items():
        usual = quantile(others.durations, share)
        limit = factor * usual
        slow, others_slow = new.durations.longer(limit * 1e9), others.durations.longer(limit * 1e9)
        if slow <= (1 - share) * whole:
            continue
        chance = chance_of(slow, whole, others_slow, others_whole)
        if chance < level:
            yield (
                f"{count(slow)} of {plural(round(whole), 'request')} took more than {duration(limit)}, of {name} "
                f"{count(others_slow)} of {count(others_whole)}, whose {percentile} is {duration(usual)}: "
                f"by chance {_chance(chance)}"
            )


def _chance(chance: float) -> str:
    return "less than 1 in a million" if chance < 1e-6 else f"1 in {count(1 / chance)}"


def chance_of(part: float, whole: float, others_part: float, others_whole: float) -> float:
    """Return the p-value of Fisher's exact test, one-sided: of at least this many parts on the first side by chance."""
    drawn, marked, total = round(whole), round(part + others_part), round(whole + others_whole)
    most = min(drawn, marked)
    least = max(round(part), drawn + marked - total, 0)
    if least > most:
        return 0.0
    term = math.exp(_log_ways(marked, least) + _log_ways(total - marked, drawn - least) - _log_ways(total, drawn))
    chance = 0.0
    for number in range(least, most + 1):
        chance += term
        if term < chance * 1e-12:
            break
        term *= (marked - number) * (drawn - number) / ((number + 1) * (total - marked - drawn + number + 1))
    return min(1.0, chance)


def _log_ways(whole: int, part: int) -> float:
    """Return the logarithm of the binomial coefficient."""
    return math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)


def total_of(parts: Sequence[WatchCounts]) -> WatchCounts:
    whole = WatchCounts()
    for part in parts:
        whole = whole.plus(part)
    return whole
