"""The rules: what may happen to a server, in any order. What each of them does is in `world.World`.

After most things the test says how much of what follows from them happens before the next: all of it, one turn of the
event loop, or nothing, so that the next thing meets it half done. Hypothesis makes failing examples as short as it can,
and the first of these is the simplest.
"""

from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .models import MODELS, ROUTINGS
from .world import World

ALL, TURN, NOTHING = "all", "turn", "nothing"

AFTER: Final = st.sampled_from((ALL, TURN, NOTHING))
NAMES: Final = tuple(MODELS)
PLAIN: Final = tuple(name for name in NAMES if not MODELS[name].sequences)
SEQUENCES: Final = tuple(name for name in NAMES if MODELS[name].sequences)
INDEX: Final = st.integers(0, 3)
SIZES: Final = st.sampled_from((0, 70_000_000, 130_000_000))
"""Of the memory for models: without a limit, room for one, room for two."""
REACTIONS: Final = st.sampled_from(("", "", "", "cancel", "submit", "raise"))
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "count": (1, 2, 3),
    "delay_ms": (0, 100),
    "preferred": (0, 2),
    "queue_size": (0, 2),
    "timeout_ms": (0, 1000),
    "delays_late": (False, True),
    "ordered": (False, True),
    "levels": (0, 2),
    "cached": (False, True),
}
FIELDS: Final = st.one_of(
    *(st.tuples(st.just(name), st.sampled_from(values)) for name, values in VALUES.items()),
)


class ProductMachine(RuleBasedStateMachine):
    """A server, its clients, its engines, and whoever runs it."""

    world: World

    @initialize(limit=SIZES)
    def start(self, limit: int) -> None:
        self.world = World(limit)

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is None:
            return
        try:
            if not world.ledger.wrong:
                world.end()
        finally:
            world.dispose()

    def after(self, what: str) -> None:
        if what == ALL:
            self.world.run()
        elif what == TURN:
            self.world.turn()
        else:
            self.world.ledger.check()

    # Time

    @rule(seconds=st.sampled_from((0.05, 0.5, 2.0, 31.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(times=st.integers(1, 5))
    def turns_pass(self, times: int) -> None:
        for _ in range(times):
            self.world.turn()

    @rule()
    def other_threads_stall(self) -> None:
        self.world.loop.hold_threads(True)

    @precondition(lambda self: self.world.loop.holds)
    @rule(after=AFTER)
    def other_threads_go_on(self, after: str) -> None:
        self.world.loop.hold_threads(False)
        self.after(after)

    # Requests

    @rule(
        model=st.sampled_from(PLAIN),
        count=st.integers(1, 3),
        timeout_s=st.sampled_from((0.0, 0.0, 0.3, 3.0)),
        queue_timeout_ms=st.sampled_from((0, 0, 200)),
        priority=st.sampled_from((0, 0, 1, 2)),
        reaction=REACTIONS,
        after=AFTER,
    )
    def submit(
        self,
        model: str,
        count: int,
        timeout_s: float,
        queue_timeout_ms: int,
        priority: int,
        reaction: str,
        after: str,
    ) -> None:
        parameters = {"priority": priority} if priority else {}
        for _ in range(count):
            self.world.submit(
                model, timeout_s=timeout_s, queue_timeout_ms=queue_timeout_ms, reaction=reaction, **parameters
            )
        self.after(after)

    @rule(
        model=st.sampled_from(("cached", "plain", "chain", "bare")),
        value=st.integers(1, 2),
        timeout_s=st.sampled_from((0.0, 0.0, 0.3)),
        reaction=REACTIONS,
        after=AFTER,
    )
    def submit_again(self, model: str, value: int, timeout_s: float, reaction: str, after: str) -> None:
        """What others have sent before: a cache may have the response."""
        self.world.submit(model, value=value, timeout_s=timeout_s, reaction=reaction)
        self.after(after)

    @rule(
        model=st.sampled_from(SEQUENCES),
        sequence=st.integers(1, 3),
        start=st.booleans(),
        end=st.booleans(),
        timeout_s=st.sampled_from((0.0, 0.0, 0.3)),
        after=AFTER,
    )
    def submit_of_sequence(
        self, model: str, sequence: int, start: bool, end: bool, timeout_s: float, after: str
    ) -> None:
        self.world.submit(
            model, timeout_s=timeout_s, sequence_id=sequence, sequence_start=start, sequence_end=end
        )
        self.after(after)

    @rule(reads=st.booleans(), reaction=REACTIONS, after=AFTER)
    def submit_to_stream(self, reads: bool, reaction: str, after: str) -> None:
        self.world.submit("stream", reads=reads, reaction=reaction)
        self.after(after)

    @rule(callee=st.sampled_from(tuple(name for name in PLAIN if name != "stream")), after=AFTER)
    def submit_a_call_of(self, callee: str, after: str) -> None:
        self.world.need(callee)
        self.world.submit("caller", callee=callee)
        self.after(after)

    @rule(version=st.sampled_from((None, 1, 2)), user=st.sampled_from(("", "a", "b")), after=AFTER)
    def submit_to_routed(self, version: int | None, user: str, after: str) -> None:
        self.world.submit("routed", version=version, user=user)
        self.after(after)

    @precondition(lambda self: self.world.ledger.open)
    @rule(index=INDEX, after=AFTER)
    def cancel(self, index: int, after: str) -> None:
        self.world.cancel(-1 - index)
        self.after(after)

    @rule(most=st.integers(1, 3), after=AFTER)
    def slow_clients_read(self, most: int, after: str) -> None:
        self.world.read(most)
        self.after(after)

    # Engines

    @precondition(lambda self: self.world.executions)
    @rule(index=INDEX, how=st.sampled_from(("ok", "ok", "ok", "error", "unforeseen")), after=AFTER)
    def finish(self, index: int, how: str, after: str) -> None:
        self.world.finish(index, how)
        self.after(after)

    @precondition(lambda self: any(each.open for each in self.world.executions))
    @rule(index=INDEX, complete=st.booleans(), after=AFTER)
    def respond(self, index: int, complete: bool, after: str) -> None:
        self.world.respond(index, complete=complete)
        self.after(after)

    @precondition(lambda self: self.world.engines.instances)
    @rule(index=INDEX, after=AFTER)
    def lose(self, index: int, after: str) -> None:
        self.world.lose(index)
        self.after(after)

    # Models

    @rule(model=st.sampled_from(NAMES), fields=st.lists(FIELDS, min_size=1, max_size=2), after=AFTER)
    def change(self, model: str, fields: list[tuple[str, Any]], after: str) -> None:
        self.world.need(model)
        self.world.change(model, **dict(fields))
        self.after(after)

    @rule(model=st.sampled_from(NAMES), broken=st.booleans(), after=AFTER)
    def load_again(self, model: str, broken: bool, after: str) -> None:
        self.world.need(model)
        self.world.load_again(model, broken=broken)
        self.after(after)

    @rule()
    def mend(self) -> None:
        self.world.mend()

    @precondition(lambda self: self.world.variations)
    @rule(index=INDEX, dependents=st.booleans(), after=AFTER)
    def unload(self, index: int, dependents: bool, after: str) -> None:
        names = list(self.world.variations)
        self.world.unload(names[index % len(names)], dependents=dependents)
        self.after(after)

    @precondition(lambda self: self.world.variations)
    @rule(index=INDEX, after=AFTER)
    def evict(self, index: int, after: str) -> None:
        names = list(self.world.variations)
        self.world.evict(names[index % len(names)])
        self.after(after)

    @precondition(lambda self: "routed" in self.world.variations)
    @rule(document=st.sampled_from((None, *ROUTINGS)), after=AFTER)
    def route(self, document: str | None, after: str) -> None:
        self.world.route("routed", document)
        self.after(after)

    @precondition(lambda self: len(self.world.ledger.entries) > 2)
    @rule(after=AFTER)
    def stop(self, after: str) -> None:
        self.world.stop()
        self.after(after)
