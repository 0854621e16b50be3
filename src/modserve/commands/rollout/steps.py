"""Steps of a rollout: load on one server, watch it, load on the others and watch these, or roll back everywhere.

`Rollout.run` always ends with a report of the final state of each server. A rollout ends early if a server does not
respond before the first change; if a load fails; by the rules (`rule.judge` for the first server, `rule.judge_later`
for the others); if a server with the new version becomes unready or silent; and if the user declines or presses Ctrl-C.
Except in the first case, every changed server is rolled back.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modserve.client.transport import LOAD
from modserve.commands.terminal import Interruption
from modserve.core.errors import ModserveError

from ..errors import RefusedError, UnreachableError
from ..model_state import ModelState, go_back, is_back, last_state, state_of, with_versions
from ..remote_server import RemoteServer
from ..server_set import ServerSet, failure_text
from ..terminal import duration, plural
from .rule import LOOKS, RolloutRules, Verdict, WatchCounts, judge, judge_later, total_of
from .watch import CountSource, RolloutError, Watch, choose_versions

_LEFT = "interrupted twice, so that servers are left as they are"
UNDER_WAY = "its rollout has begun, and is not decided"
"""Reason not to serve the new version, recorded for servers that start during a rollout."""
_SOON = 10.0
"""Time limit for a server to record the decision, in seconds."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Target of a rollout: a version, a configuration as JSON values, or by default the repository's contents."""

    model: str
    version: int | None = None
    config: Mapping[str, Any] | None = None
    rules: RolloutRules = field(default_factory=RolloutRules)

    def config_for(self, before: ModelState) -> dict[str, Any] | None:
        """Return the configuration for loading on a server: its own or the plan's, with the version."""
        config = before.config if self.config is None else self.config
        if self.version is not None:
            return with_versions(config or {}, (str(self.version),))
        return None if self.config is None else dict(self.config)


@dataclass(slots=True)
class ServerProgress:
    """A server with its previous state, the outcome of its calls, and its final state."""

    server: RemoteServer
    before: ModelState
    outcome: str = "not called"
    changed: bool = False
    unsure: bool = False
    """True if a call had no response, so that the server may still execute it."""
    reason: str = ""
    after: ModelState = field(default_factory=ModelState)
    former: WatchCounts = field(default_factory=WatchCounts)
    """Counts of the previous version, while the first server was watched."""
    counts: WatchCounts = field(default_factory=WatchCounts)
    """Counts of the new version, while this server was watched."""
    state: str = ""
    as_before: bool = False

    @property
    def new_versions(self) -> frozenset[str]:
        return choose_versions(self.before.versions, self.after.versions)


@dataclass(slots=True)
class RolloutReport:
    """Report of a rollout. `why` is the reason for the decision. `went_back`: all servers are in their previous state.

    `new` and `others` are the counts during the watch of the first server.
    """

    plan: RolloutPlan
    servers: Sequence[ServerProgress] = ()
    done: bool = False
    went_back: bool = False
    why: str = ""
    new: WatchCounts = field(default_factory=WatchCounts)
    others: WatchCounts = field(default_factory=WatchCounts)


class Rollout:
    """Rollout over several servers, with `sources` in their order. `agree` asks whether to continue with N others."""

    def __init__(
        self,
        plan: RolloutPlan,
        servers: ServerSet,
        sources: Sequence[CountSource],
        interruption: Interruption,
        agree: Callable[[int], bool],
        say: Say,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._plan, self._set, self._sources = plan, servers, sources
        self._interruption, self._agree, self._say = interruption, agree, say
        self._sleep, self._clock = sleep, clock
        self._report = RolloutReport(plan)

    def run(self) -> RolloutReport:
        """Roll out. Raises UnreachableError and RefusedError before changes, KeyboardInterrupt for a second Ctrl-C."""
        servers = self._report.servers = self._states_before()
        try:
            for url, failure in self._keep(servers, UNDER_WAY).items():
                self._say(f"{url}: servers that start before the end may take {_one_line(failure)}")
            self._load(servers[0])
            self._report.why = self._watch_first(servers)
            self._check_interrupt()
            if not self._agree(len(servers) - 1):
                self._check_interrupt()
                raise RolloutError("not confirmed")
            self._go_on(servers)
            self._report.done = True
            self._note(servers, self._keep(servers, None), "may not serve")
        except RolloutError as error:
            self._report.why = str(error)
            self._say(f"going back: {error}")
            self._try_back(servers)
            self._note(servers, self._keep(servers, str(error)), "may not do without")
        except KeyboardInterrupt:
            self._report.why = _LEFT
        self._end(servers)
        return self._report

    # Before

    def _states_before(self) -> list[ServerProgress]:
        model = self._plan.model
        states = self._set.call(lambda server: state_of(server, model))
        failed = [each for each in states if each.error is not None]
        if failed:
            text = failure_text(failed[0].error, failed[0].url) if failed[0].error is not None else ""
            raise UnreachableError(f"{failed[0].url}: {text}; nothing was changed")
        for each in states:
            if not each.value.versions:
                raise RefusedError(
                    f"{each.url}: no version of model '{model}' is READY, so there is nothing to compare with; "
                    "nothing was changed",
                    "'modserve load' loads it on all servers",
                )
        return [ServerProgress(each.server, each.value) for each in states]

    # Forward

    def _load(self, each: ServerProgress) -> None:
        """Load on a server. Raises RolloutError."""
        self._check_interrupt()
        config, model = self._plan.config_for(each.before), self._plan.model
        begin = self._clock()
        try:
            self._one(each, lambda server: state_of(server, model))  # a probe with a short time limit
            each.changed, each.outcome = True, "left during the load"
            each.after = self._one(each, lambda server: _load_on(server, model, config))
        except ModserveError as error:
            each.outcome, each.reason = "failed", failure_text(error, each.server.url)
            each.unsure = each.changed and isinstance(error, UnreachableError)
            raise RolloutError(f"{each.server.url} failed: {_one_line(each.reason)}") from error
        version = self._plan.version
        expected = self._report.servers[0].after.versions if version is None else (str(version),)
        if each.after.versions != expected:
            each.outcome, each.reason = "failed", f"it has {each.after}, not version {', '.join(expected)}"
            raise RolloutError(f"{each.server.url}: {each.reason}")
        each.outcome = f"loaded after {duration(self._clock() - begin)}"
        self._say(f"{each.server.url}: {each.after}, {each.outcome}; before: {each.before}")

    def _one(self, each: ServerProgress, work: Callable[[RemoteServer], ModelState]) -> ModelState:
        [outcome] = self._set.call(work, [each.server])
        return outcome.value

    def _watch_first(self, servers: Sequence[ServerProgress]) -> str:
        """Watch the first server and return the counts as text. Raises RolloutError."""
        rules, others = self._plan.rules, servers[1:]
        watch = Watch(self._plan.model, self._sources)
        former = {index: each.before.versions for index, each in enumerate(others, 1)}
        watch.begin({0: servers[0].new_versions, **former}, [0])
        beside = plural(len(others), "other")
        self._say(f"watching {servers[0].server.url} for {duration(rules.watch)} beside {beside}")
        for elapsed, last in self._looks(watch):
            servers[0].counts, *formers = watch.counts()
            for each, counts in zip(others, formers, strict=True):
                each.former = counts
            self._report.new, self._report.others = servers[0].counts, total_of(formers)
            self._say(f"{duration(elapsed)}: new: {self._report.new}; others: {self._report.others}")
            judgement = judge(self._report.new, self._report.others, rules, last=last)
            if judgement.verdict is Verdict.GO_BACK:
                raise RolloutError(judgement.reason)
        return judgement.reason

    def _go_on(self, servers: Sequence[ServerProgress]) -> None:
        """Load on the others one by one, and watch them together. Raises RolloutError."""
        others = servers[1:]
        watch = Watch(self._plan.model, self._sources)
        watch.begin({0: servers[0].new_versions}, [0])
        for index, each in enumerate(others, 1):
            self._load(each)
            watch.begin({index: each.new_versions}, [index])
            watch.check()
            self._judge_later(watch, servers, len(others) ** 2, last=False)
        watched = others[0].server.url if len(others) == 1 else f"the {plural(len(others), 'other')}"
        self._say(f"watching {watched} for {duration(self._plan.rules.watch)} beside {servers[0].server.url}")
        for elapsed, last in self._looks(watch):
            first = self._judge_later(watch, servers, len(others), last=last)
            self._say(f"{duration(elapsed)}: others: {total_of([each.counts for each in others])}; first: {first}")

    def _judge_later(self, watch: Watch, servers: Sequence[ServerProgress], tests: int, *, last: bool) -> WatchCounts:
        """Return the first server's counts. Raises RolloutError for a server worse than it and the previous version."""
        first, *others = watch.counts()
        for each, counts in zip(servers[1:], others, strict=True):
            each.counts = counts
        for each in servers[1:]:
            references = {"the version before": each.former, servers[0].server.url: first}
            judgement = judge_later(each.counts, references, self._plan.rules, last=last, tests=tests)
            if judgement.verdict is Verdict.GO_BACK:
                each.reason = judgement.reason
                raise RolloutError(f"{each.server.url}: {judgement.reason}")
        return first

    def _looks(self, watch: Watch) -> Iterator[tuple[float, bool]]:
        """Yield the elapsed seconds at each check, and True for the last one. Raises RolloutError."""
        start = self._clock()
        for part in LOOKS:
            for _ in self._ticks(start + part * self._plan.rules.watch):
                watch.check()
            yield self._clock() - start, part == LOOKS[-1]

    def _ticks(self, until: float) -> Iterator[None]:
        """Yield once a second and at the time `until`. Raises RolloutError on an interrupt."""
        while True:
            self._check_interrupt()
            left = until - self._clock()
            if left <= 0:
                break
            self._sleep(min(left, 1.0))
            if left > 1.0:
                yield
        yield

    def _check_interrupt(self) -> None:
        if self._interruption.happened:
            raise RolloutError("interrupted")

    # Back

    def _try_back(self, servers: Sequence[ServerProgress]) -> None:
        try:
            self._back(servers)
        except KeyboardInterrupt:
            self._report.why = _LEFT

    def _back(self, servers: Sequence[ServerProgress]) -> None:
        changed = {each.server.url: each for each in servers if each.changed}

        def back(server: RemoteServer) -> ModelState:
            each = changed[server.url]
            return go_back(server, self._plan.model, each.before, unsure=each.unsure)

        for outcome in self._set.call(back, [each.server for each in changed.values()]) if changed else ():
            each = changed[outcome.url]
            if outcome.error is not None:
                reason = f"it cannot go back: {failure_text(outcome.error, outcome.url)}"
                each.reason = "\n".join(filter(None, (each.reason, reason)))
            elif not each.outcome.startswith("failed"):
                each.outcome = "loaded, and back"

    def _keep(self, servers: Sequence[ServerProgress], why: str | None) -> dict[str, str]:
        """Record on all servers whether the new version is rolled back; servers that start later follow the record.

        Versions that served before are skipped: only their files or configuration changed. Returns the failures by
        address.
        """
        model = self._plan.model
        versions = servers[0].after.versions if self._plan.version is None else (str(self._plan.version),)
        failures: dict[str, str] = {}
        for version in sorted(set(versions).difference(*(each.before.versions for each in servers))):

            def keep(server: RemoteServer, version: str = version) -> Any:
                return server.within(_SOON).roll_back(model, version, why)

            decided = why not in (None, UNDER_WAY)
            receivers = [each.server for each in servers if decided or not each.server.url.startswith("grpc")]
            for outcome in self._set.call(keep, receivers):
                failure = "" if outcome.error is None else failure_text(outcome.error, outcome.url)
                if outcome.error is None:
                    failure = outcome.value.get("rolled_back", {}).get(version, {}).get("unsaved", "")
                if failure:
                    failures[outcome.url] = f"version {version}: {failure}"
        return failures

    def _note(self, servers: Sequence[ServerProgress], failures: Mapping[str, str], consequence: str) -> None:
        for each in servers:
            if failure := failures.get(each.server.url):
                failure = f"after a restart, it {consequence} {failure}"
                each.reason = "\n".join(filter(None, (each.reason, failure)))

    def _end(self, servers: Sequence[ServerProgress]) -> None:
        model = self._plan.model
        for each, state in zip(servers, self._set.call(lambda server: last_state(server, model)), strict=True):
            each.state = state.value
        if not self._report.done:
            for each, outcome in zip(servers, self._set.call(lambda server: state_of(server, model)), strict=True):
                each.as_before = outcome.error is None and is_back(outcome.value, each.before)
            self._report.went_back = all(each.as_before for each in servers)


def _one_line(text: str) -> str:
    return "; ".join(filter(None, map(str.strip, text.splitlines())))


def _load_on(server: RemoteServer, model: str, config: Mapping[str, Any] | None) -> ModelState:
    server.call(LOAD, model, parameters={} if config is None else {"config": json.dumps(config)})
    return state_of(server, model)
