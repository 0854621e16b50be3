"""Rollouts on servers in this process, in simulated time."""

import json
import os
import signal
import threading
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from scripted_servers import ROLL_BACK, ScriptedModel, ScriptedServer, refusing, silent

from modserve.client.transport import LOAD, Operation
from modserve.commands import terminal
from modserve.commands.errors import RefusedError, UnreachableError
from modserve.commands.rollout import command
from modserve.commands.rollout.rule import RolloutRules
from modserve.commands.rollout.show import document, lines
from modserve.commands.rollout.steps import Rollout, RolloutPlan, RolloutReport
from modserve.commands.rollout.watch import choose_versions, count_since
from modserve.commands.server_set import ServerSet
from modserve.commands.syntax import UsageError
from modserve.commands.terminal import Interruption
from modserve.commands.top.figures import ModelCounts, TopSnapshot
from modserve.core.errors import ModserveError
from modserve.core.statistics.summary import Sketch

RULES = RolloutRules()
OLD = {"backend": "b", "max_batch_size": 4}


class World:
    """Servers, clients that send each 10 requests a second, and time. `failing` has how many of them fail, by version.

    `broken` are the servers where that is so, at first all; `slow` are those that take ten times as long. `at` has what
    happens at a second.
    """

    def __init__(self, count: int = 3) -> None:
        models = [ScriptedModel(("1", "2"), ("1",), dict(OLD)) for _ in range(count)]
        self.servers = [ScriptedServer(f"http://s{index}", {"m": model}) for index, model in enumerate(models)]
        self.now = 0.0
        self.failing: dict[str, int] = {}
        self.broken, self.slow, self.idle = set(range(count)), set[int](), set[int]()
        self.at: dict[int, Callable[[], object]] = {}
        self.counts: list[dict[str, ModelCounts]] = [{} for _ in models]
        self.unready: set[int] = set()
        self.sent = 10
        self.said: list[str] = []
        self.agrees = True

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        for second in range(int(before) + 1, int(self.now) + 1):
            for index, (server, counts) in enumerate(zip(self.servers, self.counts, strict=True)):
                for version in server.models["m"].ready[-1:] if index not in self.idle else ():
                    failures = self.failing.get(version, 0) if index in self.broken else 0
                    row, sent = counts.setdefault(version, ModelCounts()), self.sent - failures
                    row.requests += sent
                    row.failures += failures
                    each = 0.03 if index in self.slow else 0.003
                    row.seconds += sent * each
                    row.durations.observe(round(each * 1e9), sent)
            self.at.pop(second, lambda: None)()

    def source(self, index: int) -> "Source":
        return Source(self, index)

    def run(self, version: int | None = 2, rules: RolloutRules = RULES) -> RolloutReport:
        with Interruption(lambda: self.said.append("first")) as interruption:
            return Rollout(
                RolloutPlan("m", version, None, rules),
                ServerSet(self.servers),
                [self.source(index) for index in range(len(self.servers))],
                interruption,
                lambda others: self.agrees,
                self.said.append,
                self.sleep,
                lambda: self.now,
            ).run()

    @property
    def ready(self) -> list[tuple[str, ...]]:
        return [server.models["m"].ready for server in self.servers]


class Said(list[str]):
    """Sets an event at the first line."""

    def __init__(self, heard: threading.Event) -> None:
        super().__init__()
        self._heard = heard

    def append(self, text: str) -> None:
        super().append(text)
        self._heard.set()


class Source:
    def __init__(self, world: World, index: int) -> None:
        self._world, self._index = world, index
        self.url = world.servers[index].url

    def read(self) -> TopSnapshot:
        self._world.servers[self._index].on_call(Operation("GET", "", "Metrics"))
        snapshot = TopSnapshot(self._world.now, ready=self._index not in self._world.unready)
        for version, row in self._world.counts[self._index].items():
            copy = ModelCounts(row.requests, row.failures, seconds=row.seconds, durations=row.durations.copy())
            snapshot.models["m", version] = copy
        return snapshot


def test_a_good_version_reaches_all() -> None:
    world = World()
    report = world.run()
    assert (report.done, world.ready, world.now) == (True, [("2",)] * 3, 120)
    assert (report.new.requests, report.others.requests) == (600, 1200)
    assert [each.state for each in report.servers] == ["version 2 READY"] * 3
    assert [server.models["m"].config["max_batch_size"] for server in world.servers] == [4] * 3
    assert world.servers[1].calls.index("RepositoryModelLoad") > 0
    text = list(lines(report))
    assert text[-1].startswith("m: rolled out to all servers (new version: 600 requests, 0 failed, mean 3 ms, p95 ")
    assert document(report)["result"] == "done"


def test_a_bad_version_goes_back_soon() -> None:
    world = World()
    world.failing["2"] = 10
    report = world.run()
    assert (report.done, report.went_back, world.ready) == (False, True, [("1",)] * 3)
    assert world.now < 5
    assert report.why.startswith("30 of 30 requests failed, of the others 0 of 60: by chance ")
    assert [each.outcome for each in report.servers] == ["loaded, and back", "not called", "not called"]
    assert document(report)["result"] == "back"
    assert list(lines(report))[-1].endswith("; all servers are as before")


def test_what_the_repository_has() -> None:
    world = World()
    assert world.run(None).done
    assert world.ready == [("2",)] * 3


def test_the_second_server_fails() -> None:
    world = World()
    world.servers[1].on_call = refusing(LOAD, times=1)
    report = world.run()
    assert (report.done, report.went_back, world.ready) == (False, True, [("1",)] * 3)
    assert report.why == "http://s1 failed: not allowed"
    assert [each.outcome for each in report.servers] == ["loaded, and back", "failed", "not called"]


def test_the_first_server_fails() -> None:
    world = World()
    world.servers[0].on_call = refusing(LOAD, times=1)
    report = world.run()
    assert (report.went_back, world.ready, world.now) == (True, [("1",)] * 3, 0)


def test_a_version_that_a_server_does_not_have() -> None:
    """A load that succeeds but serves something else."""
    world = World()
    world.servers[2].models["m"].load = lambda config: None  # type: ignore[method-assign]
    report = world.run()
    assert (report.went_back, world.ready) == (True, [("1",)] * 3)
    assert report.why == "http://s2: it has version 1 READY, not version 2"


def test_a_server_that_vanishes_while_it_loads() -> None:
    """It may have loaded, and the report says so."""
    world = World()

    def vanish(operation: Operation) -> None:
        if operation is LOAD:
            world.servers[1].on_call = silent()
            silent()(operation)

    world.servers[1].on_call = vanish
    report = world.run()
    assert (report.done, report.went_back) == (False, False)
    assert report.servers[1].state == "unknown (no response within 1 s)"
    assert "it cannot go back" in report.servers[1].reason
    assert world.ready[::2] == [("1",)] * 2
    assert document(report)["result"] == "mixed"


@pytest.mark.parametrize("trouble", ["silent", "unready"])
def test_the_first_server_does_not_stand_the_watch(trouble: str) -> None:
    world = World()

    def happen() -> None:
        if trouble == "unready":
            world.unready.add(0)
        else:
            world.servers[0].on_call = silent(times=1)

    world.at[20] = happen
    report = world.run()
    assert (report.went_back, world.ready, world.now) == (True, [("1",)] * 3, 20)
    expected = "http://s0 is not ready any more" if trouble == "unready" else "http://s0 does not respond any more"
    assert report.why == expected


def test_another_server_may_be_silent_for_a_while() -> None:
    world = World()
    world.at[29] = lambda: setattr(world.servers[2], "on_call", silent(times=1))
    assert world.run().done


def test_nobody_sends_requests() -> None:
    world = World()
    world.sent = 0
    report = world.run()
    assert report.went_back
    assert report.why.startswith("the new version had 0 requests, and 50 are needed to compare")
    assert world.run(rules=RolloutRules(requests=0)).done


# The later servers


def test_a_later_server_gets_worse_after_it_has_loaded() -> None:
    """All go back, also the first, which is good."""
    world = World()
    world.broken = {1}
    world.at[70] = lambda: world.failing.update({"2": 5})
    report = world.run()
    assert (report.done, report.went_back, world.ready) == (False, True, [("1",)] * 3)
    assert 70 < world.now <= 90
    assert report.why.startswith("http://s1: ")
    assert " requests failed, of http://s0 0 of " in report.why
    assert [each.outcome for each in report.servers] == ["loaded, and back"] * 3
    assert [bool(each.reason) for each in report.servers] == [False, True, False]


def test_a_later_server_is_also_watched_while_the_next_ones_load() -> None:
    world = World(4)
    world.broken = {1}
    world.failing["2"] = 10
    world.servers[2].on_call = lambda operation: world.sleep(5) if operation is LOAD else None
    report = world.run()
    assert (report.went_back, "RepositoryModelLoad" in world.servers[3].calls) == (True, False)
    assert report.why.startswith("http://s1: 50 of 50 requests failed, of http://s0 0 of 50")


def test_a_slower_machine_is_no_worse_version() -> None:
    """It was as slow before."""
    world = World()
    world.slow = {2}
    assert world.run().done
    world = World()
    world.at[61] = lambda: world.slow.add(2)
    report = world.run()
    assert report.went_back
    assert " took more than 4.5 ms, of http://s0 0 of " in report.why


def test_what_is_slower_on_all_servers_is_no_worse_server() -> None:
    """As with more traffic than before."""
    world = World()
    world.at[61] = lambda: world.slow.update({0, 1, 2})
    assert world.run().done


@pytest.mark.parametrize("trouble", ["silent", "unready"])
@pytest.mark.parametrize("index", [0, 2])
def test_each_server_has_to_stand_the_second_watch(trouble: str, index: int) -> None:
    world = World()

    def happen() -> None:
        if trouble == "unready":
            world.unready.add(index)
        else:
            world.servers[index].on_call = silent(times=1)

    world.at[90] = happen
    report = world.run()
    assert (report.went_back, world.ready, world.now) == (True, [("1",)] * 3, 90)
    expected = "is not ready any more" if trouble == "unready" else "does not respond any more"
    assert report.why == f"http://s{index} {expected}"


def test_a_later_server_without_requests() -> None:
    world = World()
    world.idle = {2}
    report = world.run()
    assert (report.went_back, world.now) == (True, 120)
    assert report.why.startswith("http://s2: 0 requests of the new version, and 50 are needed to compare")
    assert world.run(rules=RolloutRules(requests=0)).done


def test_not_confirmed() -> None:
    world = World()
    world.agrees = False
    report = world.run()
    assert (report.why, report.went_back, world.ready) == ("not confirmed", True, [("1",)] * 3)


def test_an_interrupt_goes_back() -> None:
    world = World()
    world.at[10] = lambda: os.kill(os.getpid(), signal.SIGINT)
    report = world.run()
    assert (report.why, report.went_back, world.ready) == ("interrupted", True, [("1",)] * 3)
    assert world.now <= 11


def test_two_interrupts_leave_what_there_is() -> None:
    world = World()

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    world.at[10] = twice
    report = world.run()
    assert (report.done, report.went_back, world.ready) == (False, False, [("2",), ("1",), ("1",)])
    assert report.why == "interrupted twice, so that servers are left as they are"
    assert report.servers[0].state == "version 2 READY"


def test_two_interrupts_during_a_load() -> None:
    """The report does not say that the server was not called."""
    world, released = World(), threading.Event()

    def on_call(operation: Operation) -> None:
        if operation is LOAD:
            os.kill(os.getpid(), signal.SIGINT)
            assert heard.wait(30)
            os.kill(os.getpid(), signal.SIGINT)
            assert released.wait(30)

    heard = threading.Event()
    world.said = Said(heard)
    world.servers[0].on_call = on_call
    world.servers[1].on_call = lambda operation: released.set()
    report = world.run()
    assert report.why == "interrupted twice, so that servers are left as they are"
    assert [each.outcome for each in report.servers] == ["left during the load", "not called", "not called"]


@pytest.mark.parametrize(
    ("trouble", "error"), [(silent(), UnreachableError), (None, RefusedError)], ids=["dead", "not loaded"]
)
def test_nothing_is_changed_where_one_is_not_in_order(
    trouble: "Callable[[Operation], None] | None", error: type[ModserveError]
) -> None:
    world = World()
    if trouble is None:
        world.servers[2].models["m"].ready = ()
    else:
        world.servers[2].on_call = trouble
    with pytest.raises(error, match=r"http://s2: .*nothing was changed"):
        world.run()
    assert world.ready[:2] == [("1",)] * 2


# Counts


def sketch(requests: float) -> Sketch:
    """Of so many that took a second each."""
    made = Sketch()
    made.observe(10**9, int(requests))
    return made


def snapshot(**versions: tuple[float, float]) -> TopSnapshot:
    made = TopSnapshot(0.0)
    for name, (requests, failures) in versions.items():
        made.models["m", name[1:]] = ModelCounts(requests, failures, seconds=requests, durations=sketch(requests))
    return made


def test_counts_since_the_beginning() -> None:
    begin, now = snapshot(v1=(10, 1), v2=(100, 0)), snapshot(v1=(30, 2), v2=(5, 0), v3=(7, 0))
    one = count_since(now, begin, "m", ["1"])
    assert (one.requests, one.failures, one.seconds, one.durations.total) == (20, 1, 20, 20)
    assert count_since(now, begin, "m", ["2"]).requests == 5  # loaded again
    assert count_since(now, begin, "m", ["3"]).requests == 7
    assert count_since(now, begin, "m", ["1", "2", "3", "4"]).requests == 32
    assert count_since(now, begin, "other", ["1"]).total == 0


@pytest.mark.parametrize(
    ("before", "after", "versions"), [("1", "2", "2"), ("1", "12", "2"), ("1", "1", "1"), ("12", "2", "2")]
)
def test_which_versions_are_new(before: str, after: str, versions: str) -> None:
    assert choose_versions(before, after) == frozenset(versions)


# The command line


def options(*words: str) -> Namespace:
    return command.PARSER.read(words)


def test_plans(tmp_path: Path) -> None:
    plan = command.read(options("m:3", "--watch=5", "--requests=0", "--factor=2"))
    assert (plan.model, plan.version, plan.rules) == ("m", 3, RolloutRules(5, 0, 2))
    (tmp_path / "c").write_text('{"max_batch_size": 8}')
    assert command.read(options("m", f"--config={tmp_path / 'c'}")).config == {"max_batch_size": 8}
    (tmp_path / "c").write_text("[]")
    with pytest.raises(ModserveError, match="is not a JSON object"):
        command.read(options("m", f"--config={tmp_path / 'c'}"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["m"], "a rollout needs two servers or more"),
        (["m", "--url=a,b"], "option '--yes' is required"),
        (["m", "--url=a,b", "--json"], "option '--yes' is required"),
        (["m:", "--url=a,b"], "expected MODEL or MODEL:VERSION with a number, got: m:"),
        (["m:x", "--url=a,b"], "expected MODEL or MODEL:VERSION with a number, got: m:x"),
        (["m:0", "--url=a,b"], "expected MODEL or MODEL:VERSION with a number, got: m:0"),
        (["m", "--url=a,b", "--factor=0.5"], "expected a number of 1 or more, got: 0.5"),
        (["m", "--url=a,b", "--requests=x"], "expected a whole number, got: x"),
        (["m", "--url=a,b,c", "--yes", "--metrics-url=a,b"], "one for each of 3 servers, got: 2"),
    ],
)
def test_wrong_command_lines(words: Sequence[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("rollout", words) == 2
    assert text in capsys.readouterr().err


def test_a_report_as_json() -> None:
    world = World(2)
    body = json.loads(json.dumps(document(world.run())))
    assert (body["model"], body["version"], body["result"]) == ("m", 2, "done")
    assert body["servers"][1]["before"] == ["1"]
    assert [row["counts"]["requests"] for row in body["servers"]] == [600, 600]
    with pytest.raises(UsageError):
        command.read(options(":1"))


def test_a_restart_keeps_to_what_was_decided() -> None:
    world = World()
    world.failing["2"] = 10
    report = world.run()
    assert [server.rolled_back for server in world.servers] == [{"2": report.why}] * 3
    assert [each.reason for each in report.servers] == [""] * 3
    world.failing.clear()
    assert world.run().done
    assert [server.rolled_back for server in world.servers] == [{"2": None}] * 3


def test_a_server_that_cannot_keep_to_it_is_named() -> None:
    world = World()
    world.servers[1].unsaved["unsaved"] = "remove 'm/2'"
    world.servers[2].on_call = refusing(ROLL_BACK)
    world.failing["2"] = 10
    report = world.run()
    assert [each.reason for each in report.servers] == [
        "",
        "after a restart, it may not do without version 2: remove 'm/2'",
        "after a restart, it may not do without version 2: not allowed",
    ]


def test_a_version_that_served_before_is_not_rolled_back() -> None:
    world = World()
    for server in world.servers:
        server.models["m"].files = ("1",)
    world.agrees = False
    assert not world.run(version=None).done
    assert [server.rolled_back for server in world.servers] == [{}] * 3
