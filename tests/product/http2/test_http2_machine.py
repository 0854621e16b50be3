"""One HTTP/2 connection as a state machine: whatever a client does that keeps to the rules, it is never cut off.

`PRODUCT_SECONDS=600 PRODUCT_SEED=7 pytest tests/product/http2` goes on for ten minutes from another seed.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from modserve.frontends.http2 import frames
from product.http2.http2_peer import Call, Peer, order
from product.http2.http2_port import KINDS, Port, path

SECONDS: Final = float(os.environ.get("PRODUCT_SECONDS", "0"))
SEED: Final = int(os.environ.get("PRODUCT_SEED", "1"))
EXAMPLES: Final = 12
STEPS: Final = 20

MOST_PIECES: Final = 300

_FOLDER: Final = tempfile.TemporaryDirectory()
_SIZES: Final = st.sampled_from((0, 1, 5, 100, 400, 1_019, 1_023, 1_024, 5_000, 16_379, 70_000, 300_000))
_SHORT: Final = st.sampled_from((0, 1, 100, 400, 1_019, 1_100))
_PIECES: Final = st.integers(1, 3)
_WINDOWS: Final = st.sampled_from((0, 5, 1_024, 4_000, 65_535, 1_000_000))


class OneConnection(RuleBasedStateMachine):
    """The peer's assertions are most of what has to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.port = Port(Path(_FOLDER.name))
        self.peer = Peer()
        self.pieces = 0
        """Bytes that come at a time; 0: all."""
        self.tags = 0

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.port.close()

    # How bytes travel

    def exchange(self) -> None:
        """Both sides say what they have to say, until neither has more."""
        peer, port = self.peer, self.port
        while peer.outgoing or port.transport.written:
            sent = bytes(peer.outgoing)
            peer.outgoing.clear()
            size = max(self.pieces or len(sent), len(sent) // MOST_PIECES, 1)
            for at in range(0, len(sent), size):
                port.receive(sent[at : at + size])
            peer.hear(port.written())

    @initialize(window=_WINDOWS, size=st.sampled_from((0, 0, 7, 1_000)))
    def greet(self, window: int, size: int) -> None:
        self.pieces = size
        self.peer = Peer(window)
        self.exchange()

    # Calls

    def open(self, kind: str, more: list[tuple[str, str]], parts: int = 1, padding: int = 0) -> Call:
        self.tags = self.tags % 255 + 1
        return self.peer.open(path(kind), self.tags, more, parts, padding)

    def ask(self, call: Call, count: int, size: int) -> None:
        kind = call.path.rpartition("/")[2]
        if kind in ("server", "both"):
            call.due.extend([size] * count)
        elif kind == "unary":
            call.due.append(size)
        elif call.due:
            call.due[0] += count * size
        else:
            call.due.append(count * size)
        self.peer.send(call, order(count, size, call.tag))

    def calls(self, *kinds: str) -> list[Call]:
        """Those on which the client has the word."""
        names = [path(kind) for kind in kinds]
        return [each for each in self.peer.calls.values() if each.path in names and not (each.over or each.closing)]

    @rule(
        kind=st.sampled_from(KINDS), count=st.integers(0, 3), size=_SIZES, names=st.integers(0, 20),
        parts=st.integers(1, 5), padding=st.sampled_from((0, 0, 1, 200)),
    )  # fmt: skip
    def begin(self, kind: str, count: int, size: int, names: int, parts: int, padding: int) -> None:
        more = [(f"name-{number}", f"{size}-{number % 3}") for number in range(names)]
        call = self.open(kind, more, parts, padding)
        self.ask(call, count, size)
        if kind in ("unary", "server"):
            self.peer.close(call)
        self.exchange()

    @rule(
        fields=st.sampled_from((1, 20, 2_000)), size=st.sampled_from((17_000, 70_000, 300_000)), parts=st.integers(1, 9)
    )
    def say_too_much(self, fields: int, size: int, parts: int) -> None:
        """A call with far too much metadata."""
        value = "z" * (size // fields)
        call = self.open("unary", [(f"long-{number}", value) for number in range(fields)], parts)
        call.refused = True
        self.exchange()

    @precondition(lambda self: self.calls("client", "both"))
    @rule(data=st.data(), count=st.integers(0, 5), size=_SIZES)
    def go_on(self, data: st.DataObject, count: int, size: int) -> None:
        self.ask(data.draw(st.sampled_from(self.calls("client", "both"))), count, size)
        self.exchange()

    @precondition(lambda self: self.calls("client", "both"))
    @rule(data=st.data())
    def half_close(self, data: st.DataObject) -> None:
        self.peer.close(data.draw(st.sampled_from(self.calls("client", "both"))))
        self.exchange()

    @rule(data=st.data())
    @precondition(lambda self: any(not each.over for each in self.peer.calls.values()))
    def cancel(self, data: st.DataObject) -> None:
        self.peer.cancel(data.draw(st.sampled_from([each for each in self.peer.calls.values() if not each.over])))
        self.exchange()

    def wait_for(self, calls: list[Call], pieces: int = 0) -> None:
        """Until the calls are over; meanwhile their responses are taken, unless `pieces` is 0."""
        for _ in range(10_000):
            if all(call.over for call in calls):
                return
            for call in calls:
                self.peer.want(call)
            if not pieces:
                self.peer.give_back()
            self.exchange()
            for call in calls:
                if pieces and call.unread:
                    self.peer.take(call, pieces)
        raise AssertionError(
            f"they never end: {[call for call in calls if not call.over]}, {self.peer.room} bytes left"
        )

    # Windows

    @rule(pieces=_PIECES)
    def read(self, pieces: int) -> None:
        """The programs take all that has come, and wait for more."""
        for call in self.peer.calls.values():
            while call.unread:
                self.peer.take(call, pieces)
            self.peer.want(call)
        self.exchange()

    @rule(holding=st.booleans())
    def hold(self, holding: bool) -> None:
        self.peer.holding = holding

    @rule(rounds=st.sampled_from((100, 1_500)), size=_SHORT, pieces=_PIECES, pings=st.booleans())
    def talk(self, rounds: int, size: int, pieces: int, pings: bool) -> None:
        """A lively stream: a response for each request, each of them read at once."""
        self.peer.give_back()
        call = self.open("both", [])
        for _ in range(rounds):
            self.ask(call, 1, size)
            self.exchange()
            self.peer.want(call)
            self.exchange()
            while call.unread:
                self.peer.take(call, pieces)
            if pings and self.peer.may_ping > 0:
                self.peer.ping()
        self.peer.close(call)
        self.exchange()

    @rule(count=st.sampled_from((100, 2_500)), size=_SHORT, pieces=_PIECES, ahead=st.sampled_from((1_000, 1 << 24)))
    def pour(self, count: int, size: int, pieces: int, ahead: int) -> None:
        """Many responses to one request, which the program reads one by one, with room for much ahead or for little."""
        self.peer.give_back()
        self.peer.update(0, ahead)
        self.peer.room += ahead
        call = self.open("server", [])
        if ahead > call.room:
            self.peer.update(call.number, ahead)
            call.room += ahead
        self.ask(call, count, size)
        self.peer.close(call)
        self.exchange()
        self.wait_for([call], pieces)
        for _ in range(len(call.unread)):
            self.peer.take(call, pieces)
        self.exchange()

    @rule(count=st.sampled_from((20, 700)), size=_SHORT, pieces=_PIECES, together=st.sampled_from((1, 50)))
    def many_calls(self, count: int, size: int, pieces: int, together: int) -> None:
        """Unary ones, as many at a time."""
        for at in range(0, count, together):
            calls = [self.open("unary", []) for _ in range(min(together, count - at))]
            for call in calls:
                self.ask(call, 1, size)
                self.peer.close(call)
            self.exchange()
            self.wait_for(calls)
            for call in calls:
                while call.unread:
                    self.peer.take(call, pieces)
        self.exchange()

    # The connection

    @precondition(lambda self: self.peer.may_ping > 0)
    @rule()
    def ping(self) -> None:
        self.peer.ping()
        self.exchange()

    @rule(window=_WINDOWS)
    def change_windows(self, window: int) -> None:
        self.peer.settings({frames.INITIAL_WINDOW_SIZE: window})
        self.exchange()

    @rule(size=st.sampled_from((16_384, 20_000, 1 << 20)), table=st.sampled_from((0, 200, 4_096, 10_000)))
    def change_settings(self, size: int, table: int) -> None:
        """The table is that of what the server sends; its own that of what the client sends."""
        self.peer.settings({frames.MAX_FRAME_SIZE: size, frames.HEADER_TABLE_SIZE: table, 0xF00: 1})
        self.exchange()

    @rule(size=st.sampled_from((0, 100, 4_096)))
    def change_table(self, size: int) -> None:
        self.peer.encoder.header_table_size = size

    @rule(number=st.integers(1, 30))
    def prioritize(self, number: int) -> None:
        self.peer.prioritize(2 * number + 1)
        self.exchange()

    @rule(size=st.sampled_from((0, 1, 9, 100)))
    def cut(self, size: int) -> None:
        """From now on bytes come in such pieces."""
        self.pieces = size

    @rule()
    def stop_reading(self) -> None:
        """The client takes nothing for a while."""
        self.port.connection.pause_writing()
        self.port.pass_time(3)
        self.port.transport.drain()
        self.port.loop.settle()
        self.exchange()

    @rule(seconds=st.integers(1, 20))
    def pass_time(self, seconds: int) -> None:
        self.read(1)
        self.port.pass_time(seconds)
        self.exchange()

    # What holds

    @invariant()
    def windows_add_up(self) -> None:
        connection = self.port.connection
        assert not self.port.transport.closed
        assert not connection.failed
        assert connection.windows.left == self.peer.room
        for number, stream in connection.streams.items():
            assert stream.window == self.peer.calls[number].room

    def finish(self) -> None:
        """Every call comes to its end, each to one, and nothing is left of any."""
        if self.peer.unacknowledged > 1:  # it has failed before the first words
            return
        peer, port = self.peer, self.port
        peer.holding = False
        for call in self.calls(*KINDS):
            peer.close(call)
        self.exchange()
        peer.give_back()
        self.wait_for(list(peer.calls.values()), 1)
        self.exchange()
        assert sum(port.dispatcher.statuses) == len(peer.calls)
        assert peer.unacknowledged == 0
        self.windows_add_up()
        assert not port.connection.streams
        assert port.memory.held == 0
        assert len(port.port.deadlines) == 0


OneConnection.TestCase.settings = settings(deadline=None)


def options(**more: Any) -> settings:
    return settings(
        stateful_step_count=STEPS, deadline=None, database=None, suppress_health_check=list(HealthCheck), **more
    )


def test_a_client_that_keeps_to_the_rules_is_never_cut_off() -> None:
    if not SECONDS:
        run_state_machine_as_test(OneConnection, settings=options(max_examples=EXAMPLES, derandomize=True))
        return
    number, end = SEED, time.monotonic() + SECONDS
    while time.monotonic() < end:
        run_state_machine_as_test(seed(number)(OneConnection), settings=options(max_examples=EXAMPLES))
        number += 1
