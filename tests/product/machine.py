"""The rules: what may happen to a server, in any order. What each of them does is in `world.World`.

After most things the test says how much of what follows from them happens before the next: all of it, one turn of the
event loop, or nothing, so that the next thing meets it half done. Hypothesis makes failing examples as short as it can,
and the first of these is the simplest.
"""

from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .chats import FORMS
from .keys import CHANGES as CHANGES_OF_KEYS
from .keys import DAMAGES, POSTS
from .keys import NAMES as NAMES_OF_KEYS
from .models import BLOCKS, MODELS, ROLLBACKS, ROUTINGS, TENANTS, Kind
from .puppets import CALLS
from .world import World

ALL, TURN, NOTHING = "all", "turn", "nothing"

AFTER: Final = st.sampled_from((ALL, TURN, NOTHING))
NAMES: Final = tuple(MODELS)
INDEX: Final = st.integers(0, 3)
SIZES: Final = st.sampled_from((0, 70_000_000))
"""Of the memory for models: without a limit, room for one of most."""
LENGTHS: Final = st.lists(st.sampled_from((1, 2, 3, 8)), min_size=1, max_size=3)
"""Of the requests of one submission, for models that pad."""
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
    "resources": (1, 2, 0),
    "groups": (1, 2),
    "label": ("", "a", "b"),
    "warm_up": (False, True),
}
CHANGES: Final = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=2)
"""Fields of a `Variation` and values, by number."""


class ProductMachine(RuleBasedStateMachine):
    """A server, its clients, its engines, and whoever runs it.

    Each run is about a few models, so that what happens meets what has happened.
    """

    world: World

    @initialize(
        limit=SIZES,
        models=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
        keys=st.sampled_from((False, False, True)),
        polls=st.sampled_from((False, False, True)),
    )
    def start(self, limit: int, models: list[str], keys: bool, polls: bool) -> None:
        self.models = models
        self.world = World(limit, keys=keys, polls=polls)

    def pick(self, index: int) -> str:
        return self.models[index % len(self.models)]

    def has(self, what: Callable[[Kind], bool]) -> bool:
        return any(what(MODELS[name]) for name in self.models)

    def one(self, what: Callable[[Kind], bool], index: int) -> str:
        names = [name for name in self.models if what(MODELS[name])]
        return names[index % len(names)]

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

    @rule(times=st.integers(1, 3), seconds=st.sampled_from((0.0, 0.5, 2.0)))
    def background_work_fails(self, times: int, seconds: float) -> None:
        """The next timers throw what nobody foresees: each is counted, and what waits for it still happens."""
        self.world.loop.throws = times
        self.world.run(seconds)

    @rule(times=st.integers(1, 5))
    def turns_pass(self, times: int) -> None:
        for _ in range(times):
            self.world.turn()

    @precondition(lambda self: not self.world.loop.holds)
    @rule()
    def other_threads_stall(self) -> None:
        self.world.loop.hold_threads(True)

    @precondition(lambda self: self.world.loop.holds)
    @rule(after=AFTER)
    def other_threads_go_on(self, after: str) -> None:
        self.world.loop.hold_threads(False)
        self.after(after)

    # Requests

    @precondition(lambda self: self.has(_without_sequences))
    @rule(
        model=INDEX,
        count=st.integers(1, 4),
        apart=st.booleans(),
        lengths=LENGTHS,
        timeout_s=st.sampled_from((0.0, 0.0, 0.3, 3.0)),
        queue_timeout_ms=st.sampled_from((0, 0, 200)),
        priority=st.sampled_from((0, 0, 1, 2)),
        reaction=REACTIONS,
        after=AFTER,
    )
    def submit(
        self,
        model: int,
        count: int,
        apart: bool,
        lengths: list[int],
        timeout_s: float,
        queue_timeout_ms: int,
        priority: int,
        reaction: str,
        after: str,
    ) -> None:
        name = self.one(_without_sequences, model)
        parameters: dict[str, Any] = {"priority": priority} if priority else {}
        for number in range(count):
            self.world.submit(
                name,
                length=lengths[number % len(lengths)],
                timeout_s=timeout_s,
                queue_timeout_ms=queue_timeout_ms,
                reaction=reaction,
                **parameters,
            )
            if apart:
                self.world.run()
        self.after(after)

    @precondition(lambda self: self.has(_without_sequences))
    @rule(
        model=INDEX,
        value=st.integers(1, 2),
        timeout_s=st.sampled_from((0.0, 0.0, 0.3)),
        reaction=REACTIONS,
        after=AFTER,
    )
    def submit_again(self, model: int, value: int, timeout_s: float, reaction: str, after: str) -> None:
        """What others have sent before: a cache may have the response."""
        name = self.one(_without_sequences, model)
        self.world.submit(name, value=value, timeout_s=timeout_s, reaction=reaction)
        self.after(after)

    @rule(tenant=st.integers(0, len(TENANTS) - 1))
    def another_tenant_sends(self, tenant: int) -> None:
        """What is sent from now on is of this tenant."""
        self.world.tenant = tenant

    @precondition(lambda self: self.has(_with_sequences))
    @rule(
        model=INDEX,
        sequence=st.integers(1, 3),
        start=st.booleans(),
        end=st.booleans(),
        timeout_s=st.sampled_from((0.0, 0.0, 0.3)),
        after=AFTER,
    )
    def submit_of_sequence(
        self, model: int, sequence: int, start: bool, end: bool, timeout_s: float, after: str
    ) -> None:
        name = self.one(_with_sequences, model)
        self.world.submit(name, timeout_s=timeout_s, sequence_id=sequence, sequence_start=start, sequence_end=end)
        self.after(after)

    @precondition(lambda self: "stream" in self.models)
    @rule(reads=st.booleans(), reaction=REACTIONS, after=AFTER)
    def submit_to_stream(self, reads: bool, reaction: str, after: str) -> None:
        self.world.submit("stream", reads=reads, reaction=reaction)
        self.after(after)

    @precondition(lambda self: "caller" in self.models and self.has(_takes_numbers))
    @rule(model=INDEX, after=AFTER)
    def submit_a_call(self, model: int, after: str) -> None:
        callee = self.one(_takes_numbers, model)
        self.world.need(callee)
        self.world.submit("caller", callee=callee)
        self.after(after)

    @precondition(lambda self: "routed" in self.models)
    @rule(version=st.sampled_from((None, 1, 2)), user=st.sampled_from(("", "a", "b")), after=AFTER)
    def submit_to_routed(self, version: int | None, user: str, after: str) -> None:
        self.world.submit("routed", version=version, user=user)
        self.after(after)

    @precondition(lambda self: "text" in self.models)
    @rule(counts=LENGTHS, timeout_s=st.sampled_from((0.0, 0.0, 0.3)), after=AFTER)
    def send_texts(self, counts: list[int], timeout_s: float, after: str) -> None:
        self.world.send_texts("text", counts, timeout_s)
        self.after(after)

    @precondition(lambda self: "chat" in self.models)
    @rule(
        stream=st.booleans(),
        choices=st.integers(1, 2),
        timeout_s=st.sampled_from((0.0, 0.0, 0.3)),
        has_items=st.booleans(),
        form=st.sampled_from(FORMS),
        after=AFTER,
    )
    def chat(self, stream: bool, choices: int, timeout_s: float, has_items: bool, form: str, after: str) -> None:
        self.world.chat("chat", stream=stream, choices=choices, timeout_s=timeout_s, has_items=has_items, form=form)
        self.after(after)

    @precondition(lambda self: any(not each.post.over for each in self.world.texts))
    @rule(index=INDEX, after=AFTER)
    def a_client_of_texts_leaves(self, index: int, after: str) -> None:
        self.world.leave_texts(-1 - index)
        self.after(after)

    @precondition(lambda self: self.world.ledger.open)
    @rule(index=INDEX, after=AFTER)
    def cancel(self, index: int, after: str) -> None:
        self.world.cancel(-1 - index)
        self.after(after)

    @precondition(lambda self: self.world.ledger.open)
    @rule(index=INDEX, after=AFTER)
    def try_again(self, index: int, after: str) -> None:
        """A client has no patience any more, and sends the same once more."""
        entry = self.world.cancel(-1 - index)
        if entry is not None and not MODELS[entry.model].sequences:
            self.world.submit(entry.model, value=entry.value)
        self.after(after)

    @precondition(lambda self: any(each.unread for each in self.world.ledger.entries))
    @rule(most=st.integers(1, 3), after=AFTER)
    def slow_clients_read(self, most: int, after: str) -> None:
        self.world.read(most)
        self.after(after)

    # Keys

    @precondition(lambda self: self.world.keys is not None)
    @rule(name=st.sampled_from(NAMES_OF_KEYS), former=st.booleans(), in_stream=st.booleans())
    def another_key_sends(self, name: str, former: bool, in_stream: bool) -> None:
        """What is sent from now on has this key."""
        self.world.key = name, former, in_stream

    @precondition(lambda self: self.world.keys is not None)
    @rule(
        name=st.sampled_from((*NAMES_OF_KEYS, POSTS)),
        first=st.sampled_from(CHANGES_OF_KEYS),
        second=st.sampled_from(("", *CHANGES_OF_KEYS)),
        after=AFTER,
    )
    def keys_change(self, name: str, first: str, second: str, after: str) -> None:
        assert self.world.keys is not None
        for kind in filter(None, (first, second)):
            self.world.keys.change(kind, name)
            self.after(after)

    @precondition(lambda self: self.world.keys is not None)
    @rule(
        model=INDEX,
        name=st.sampled_from(NAMES_OF_KEYS),
        in_stream=st.booleans(),
        change=st.sampled_from(CHANGES_OF_KEYS),
        damage=st.sampled_from(("", *DAMAGES)),
        seconds=st.sampled_from((0.0, 0.6, 2.0, 6.0)),
        after=AFTER,
    )
    def a_key_is_used_before_and_after_a_change(
        self, model: int, name: str, in_stream: bool, change: str, damage: str, seconds: float, after: str
    ) -> None:
        assert self.world.keys is not None
        model_name = self.pick(model)
        start: dict[str, Any] = {"sequence_id": 5, "sequence_start": True} if MODELS[model_name].sequences else {}
        self.world.key = name, False, in_stream
        self.world.submit(model_name, **start)
        self.after(after)
        self.world.keys.change(change, name)
        self.world.run(seconds)
        if damage:
            self.world.keys.damage(damage)
            self.world.run(seconds)
        self.world.submit(model_name, **start)
        self.after(after)

    @precondition(lambda self: self.world.keys is not None)
    @rule(kind=st.sampled_from(DAMAGES), after=AFTER)
    def the_file_of_keys_is_damaged(self, kind: str, after: str) -> None:
        assert self.world.keys is not None
        self.world.keys.damage(kind)
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

    @precondition(lambda self: self.has(_blocks))
    @rule(on_loop=st.booleans())
    def engines_are_quick(self, on_loop: bool) -> None:
        """Or slow: where executions that block a thread run."""
        self.world.move_executions(on_loop=on_loop)

    @rule(call=st.sampled_from(CALLS), after=AFTER)
    def an_engine_throws(self, call: str, after: str) -> None:
        """What its interface does not foresee, at the next such call."""
        self.world.engines.throws = call
        self.after(after)

    # Models

    def vary(self, name: str, changes: list[tuple[int, int]]) -> None:
        fields = {}
        now = self.world.variations.get(name, MODELS[name].variation)
        for field, value in changes:
            key = MODELS[name].varies[field % len(MODELS[name].varies)]
            others = [each for each in VALUES[key] if each != getattr(now, key)]
            fields[key] = others[value % len(others)]
        self.world.change(name, **fields)

    @precondition(lambda self: self.has(_varies))
    @rule(model=INDEX, changes=CHANGES, after=AFTER)
    def change(self, model: int, changes: list[tuple[int, int]], after: str) -> None:
        name = self.one(_varies, model)
        self.world.need(name)
        self.vary(name, changes)
        self.after(after)

    @precondition(lambda self: self.has(_varies))
    @rule(model=INDEX, first=CHANGES, between=st.integers(0, 2), second=CHANGES, after=AFTER)
    def change_twice(
        self, model: int, first: list[tuple[int, int]], between: int, second: list[tuple[int, int]], after: str
    ) -> None:
        """Requests come before each of two changes in a row."""
        name = self.one(_varies, model)
        for changes in (first, second):
            for _ in range(between):
                sequence: dict[str, Any] = {}
                if MODELS[name].sequences:
                    sequence = {"sequence_id": 7, "sequence_start": True}
                self.world.submit(name, **sequence)
                self.after(after)
            self.world.need(name)
            self.vary(name, changes)
            self.after(after)

    @rule(model=INDEX, broken=st.booleans(), after=AFTER)
    def load_again(self, model: int, broken: bool, after: str) -> None:
        name = self.pick(model)
        self.world.need(name)
        self.world.load_again(name, broken=broken)
        self.after(after)

    @precondition(lambda self: self.world.engines.broken)
    @rule()
    def mend(self) -> None:
        self.world.mend()

    @precondition(lambda self: self.world.variations)
    @rule(model=INDEX, dependents=st.booleans(), again=st.booleans(), after=AFTER)
    def unload(self, model: int, dependents: bool, again: bool, after: str) -> None:
        name = self.pick(model)
        self.world.unload(name, dependents=dependents)
        self.after(after)
        if again:
            self.world.load_again(name)
            self.after(after)

    @precondition(lambda self: self.world.variations and self.world.limit)
    @rule(model=INDEX, after=AFTER)
    def evict(self, model: int, after: str) -> None:
        self.world.evict(self.pick(model))
        self.after(after)

    @precondition(lambda self: "routed" in self.world.variations)
    @rule(document=st.sampled_from((None, *ROUTINGS, *ROLLBACKS)), after=AFTER)
    def route(self, document: str | None, after: str) -> None:
        self.world.route("routed", document)
        self.after(after)

    @precondition(lambda self: self.world.stopping is None and len(self.world.ledger.entries) > 5)
    @rule(notice_s=st.sampled_from((0.0, 0.5, 40.0)), after=AFTER)
    def drain(self, notice_s: float, after: str) -> None:
        self.world.drain(notice_s)
        self.after(after)

    @precondition(lambda self: self.world.stopping is None and len(self.world.ledger.entries) > 9)
    @rule(after=AFTER)
    def stop(self, after: str) -> None:
        self.world.stop()
        self.after(after)


def _with_sequences(kind: Kind) -> bool:
    return kind.sequences


def _without_sequences(kind: Kind) -> bool:
    return not kind.sequences


def _takes_numbers(kind: Kind) -> bool:
    return not kind.sequences and not kind.chats


def _blocks(kind: Kind) -> bool:
    return kind.head.startswith(BLOCKS)


def _varies(kind: Kind) -> bool:
    return bool(kind.varies)
