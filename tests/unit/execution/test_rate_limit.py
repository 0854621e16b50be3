"""Who gets resources that several models share, and when."""

from collections.abc import Callable

import pytest

from modserve.core.configuration.model_config import InstanceGroup, InstanceKind, Resource
from modserve.core.errors import ModserveError
from modserve.execution.rate_limit import RateLimiter, ResourceTurn, TurnState, turns
from modserve.testing import config

R, S = Resource("R", 1), Resource("S", 1)


class Bench:
    """Instances by name; `log` has those that began, in order."""

    def __init__(self, available: dict[tuple[str, int | None], int] | None = None) -> None:
        self.later: list[Callable[[], None]] = []
        self.limiter = RateLimiter(available or {}, self.later.append)
        self.turns: dict[str, ResourceTurn] = {}
        self.log: list[str] = []

    def add(self, name: str, *resources: Resource, priority: int = 1) -> None:
        (turn,) = turns(config(instance_groups=(group(*resources, priority=priority),))) or [ResourceTurn({}, priority)]
        turn.on_grant = lambda: self.begin(name)
        self.limiter.add([turn])
        self.turns[name] = turn

    def begin(self, name: str) -> None:
        if self.limiter.begin(self.turns[name]):
            self.log.append(name)

    def end(self, name: str) -> None:
        self.limiter.end(self.turns[name])
        self.run()

    def run(self) -> None:
        while self.later:
            self.later.pop(0)()

    def running(self) -> list[str]:
        return [name for name, turn in self.turns.items() if turn.state is TurnState.RUNNING]


def group(*resources: Resource, priority: int = 1, **more: object) -> InstanceGroup:
    return InstanceGroup("g", InstanceKind.CPU, 1, resources=resources, priority=priority)


def test_the_default_is_what_the_neediest_needs() -> None:
    bench = Bench()
    bench.add("a", Resource("R", 1))
    bench.add("b", Resource("R", 2))
    bench.add("c", Resource("R", 1))
    for name in "abc":
        bench.begin(name)
    assert bench.running() == ["a"]  # c would fit, but b would wait for ever
    bench.end("a")
    assert bench.running() == ["b"]
    bench.end("b")
    bench.begin("a")
    assert sorted(bench.running()) == ["a", "c"]


def test_those_who_need_something_else_run() -> None:
    bench = Bench()
    bench.add("a", R)
    bench.add("b", R, S)
    bench.add("c", S)
    bench.add("d", Resource("T", 1))
    for name in "abcd":
        bench.begin(name)
    assert bench.running() == ["a", "d"]
    bench.end("a")
    assert bench.running() == ["b", "d"]
    bench.end("b")
    assert bench.running() == ["c", "d"]


def test_priorities_are_shares() -> None:
    bench = Bench()
    bench.add("one", R, priority=1)
    bench.add("two", R, priority=2)
    bench.add("four", R, priority=4)
    for name in bench.turns:
        bench.begin(name)
    for _ in range(69):
        name = bench.log[-1]
        bench.limiter.end(bench.turns[name])
        bench.begin(name)  # it wants to go on at once
        bench.run()
    counts = [bench.log.count(name) for name in ("one", "two", "four")]
    assert sum(counts) == 70
    assert counts == pytest.approx([40, 20, 10], abs=1)


def test_one_that_was_idle_does_not_catch_up() -> None:
    bench = Bench()
    bench.add("old", R)
    for _ in range(1000):
        bench.begin("old")
        bench.end("old")
    bench.add("new", R)
    bench.begin("old")
    bench.begin("new")
    for _ in range(10):
        name = bench.log[-1]
        bench.limiter.end(bench.turns[name])
        bench.begin(name)
        bench.run()
    assert bench.log[1001:].count("old") == bench.log[1001:].count("new") == 5


def test_a_grant_that_nobody_wants_goes_to_the_next() -> None:
    bench = Bench()
    for name in "abc":
        bench.add(name, R)
        bench.begin(name)
    bench.turns["b"].on_grant = lambda: None
    bench.end("a")
    assert (bench.running(), bench.turns["b"].state) == (["c"], TurnState.IDLE)


def test_one_that_waits_gives_up() -> None:
    bench = Bench()
    for name in "abc":
        bench.add(name, R)
        bench.begin(name)
    bench.end("b")
    bench.end("a")
    assert bench.running() == ["c"]


def test_what_the_options_say() -> None:
    available = {("R", None): 2, ("R", 1): 5, ("G", 3): 4}
    bench = Bench(available)
    for count in (1, 1, 2):
        bench.add(f"r{len(bench.turns)}", Resource("R", count))
        bench.begin(f"r{len(bench.turns) - 1}")
    assert bench.running() == ["r0", "r1"]
    bench.add("g", Resource("G", 4, True))
    for resource, limit in ((Resource("R", 3), 2), (Resource("G", 5, True), 4), (Resource("X", 1), 0)):
        with pytest.raises(ModserveError) as caught:
            bench.add("no", resource)
        assert caught.value.message == (
            f'Resource count for "{resource.name}" is limited to {limit} which will prevent scheduling of one or more '
            f"model instances, the minimum required count is {resource.count}"
        )
    on_gpu = InstanceGroup("g", InstanceKind.GPU, 1, (1, 0), (Resource("R", 2),))
    first, second = turns(config(instance_groups=(on_gpu,)))
    bench.limiter.add([first, second])
    assert bench.limiter.begin(first)  # another device
    assert not bench.limiter.begin(second)


def test_global_and_of_a_device() -> None:
    bench = Bench()
    bench.add("a", Resource("R", 1, True))
    with pytest.raises(ModserveError, match="present as both global and device-specific"):
        bench.add("b", R)
    bench.limiter.remove([bench.turns["a"]])
    bench.add("b", R)


def test_a_model_that_goes() -> None:
    bench = Bench()
    bench.add("small", R)
    bench.add("big", Resource("R", 5))
    for name in ("big", "small"):
        bench.begin(name)
    assert bench.running() == ["big"]
    bench.limiter.remove([bench.turns["big"]])
    bench.run()
    assert bench.running() == ["small"]
    bench.add("other", R)
    bench.begin("other")
    assert bench.running() == ["small"]  # there is one again


def test_the_instances_of_a_model() -> None:
    groups = (
        InstanceGroup("a", InstanceKind.CPU, 2, (), (R,), 3),
        InstanceGroup("b", InstanceKind.GPU, 1, (2, 0), (R, Resource("G", 4, True))),
    )
    made = turns(config(instance_groups=groups))
    assert [dict(turn.needs) for turn in made] == [
        {("R", 0): 1},
        {("R", 0): 1},
        {("R", 2): 1, ("G", -2): 4},
        {("R", 0): 1, ("G", -2): 4},
    ]
    assert [turn.weight for turn in made] == [3, 3, 1, 1]
    assert turns(config(instance_groups=(InstanceGroup("a", InstanceKind.CPU, 2, (), (), 3),))) == []


def test_a_grant_that_fails_costs_no_others(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({("R", None): 2})
    bench.add("all", Resource("R", 2))
    for name in "abc":
        bench.add(name, Resource("R", 1))
    bench.begin("all")
    for name in "abc":
        bench.begin(name)

    def fail() -> None:
        raise ValueError("its scheduler is broken")

    bench.turns["a"].on_grant = fail
    bench.end("all")
    assert bench.running() == ["b", "c"]
    assert bench.turns["a"].state is TurnState.IDLE
    assert "its scheduler is broken" in caplog.text
    for name in "bc":
        bench.end(name)
    bench.begin("all")
    assert bench.running() == ["all"]
