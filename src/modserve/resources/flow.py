"""Flow control between an engine with many responses per request and a slow client."""

import logging
import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

from modserve.core.errors import unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.memory import MemoryBudget

_log = logging.getLogger(__name__)

MOST_HELD = 64 * 1024 * 1024
"""Maximum size in bytes of one request's unsent responses."""

RESPONSE_BYTES = 8 * 1024
"""Size of a response without its tensors, so that a request has at most some thousands unsent."""

STALLED_S = 10.0
"""Seconds that an engine waits for a client that reads nothing. The model's other clients wait as long."""

LONGEST_S = 300.0
"""Total seconds that an engine waits, over one request, for a client that reads from time to time."""

_UNLIMITED = MemoryBudget()


class Flow:
    """Flow of one request's responses. Implements `core.requests.inflight.FlowControl`.

    The engine's thread waits in `wait`; the sender of the responses calls `on_sent`. When nothing was sent for
    `stalled_s` seconds, or the engine has waited for `longest_s` seconds in all, it calls `stalled`, on its own thread,
    with the number of unsent responses, and never waits again. `slow` is True in the second case.

    While the server's `memory` is used up, only one response may be unsent; otherwise `most`, if that is not 0.

    An engine that must not block checks `room` and leaves a callback with `on_room`; `later`, which calls a function
    after a number of seconds, enforces the same time limits for it.
    """

    def __init__(
        self,
        stalled: Callable[[int], object],
        stalled_s: float = STALLED_S,
        longest_s: float = LONGEST_S,
        memory: MemoryBudget = _UNLIMITED,
        most: int = 0,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._memory = memory
        self._most = most
        self._later = later
        self._callbacks: list[Callable[[], None]] = []
        self._watch = (0, 0, 0.0)
        """State for the callbacks: number of this wait, steps at its beginning, and time of its beginning."""
        self.slow = False
        self._stalled = stalled
        self._stalled_s = stalled_s
        self._left_s = longest_s
        self._changed = threading.Condition()
        self._unsent: deque[int] = deque()
        self._held = 0
        self._steps = 0
        self._open = False

    def on_response(self, size: int) -> None:
        """Account for a response with tensors of `size` bytes that the engine is about to give."""
        with self._changed:
            self._unsent.append(size + RESPONSE_BYTES)
            self._held += self._unsent[-1]

    def wait(self) -> None:
        """Wait until there is room for another response. Not on the event loop's thread."""
        with self._changed:
            while self._full():
                steps, begin_s = self._steps, time.monotonic()
                limit_s = min(self._stalled_s, self._left_s)
                moved = self._changed.wait(limit_s) or self._steps != steps
                self._left_s -= time.monotonic() - begin_s
                self.slow = self._left_s <= 0 if moved else limit_s < self._stalled_s
                if not moved or self.slow:
                    self._open = True
                    waiting, stalled = len(self._unsent), self._stalled
                    break
            else:
                return
        stalled(waiting)

    @property
    def room(self) -> bool:
        """True if `wait` would return at once."""
        with self._changed:
            return not self._full()

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when there is room: at once if possible, otherwise on the thread that makes room."""
        with self._changed:
            if full := self._full():
                self._callbacks.append(callback)
                if len(self._callbacks) == 1:
                    self._watch_on()
        if not full:
            callback()

    def _watch_on(self) -> None:
        """Check later whether anything has been sent. The lock is held."""
        number = self._watch[0] + 1
        self._watch = number, self._steps, time.monotonic()
        if self._later is not None:
            self._later(min(self._stalled_s, self._left_s), lambda: self._look(number))

    def _look(self, number: int) -> None:
        with self._changed:
            current, steps, begin_s = self._watch
            if number != current or not self._callbacks:
                return
            self._left_s -= time.monotonic() - begin_s
            self.slow = self._left_s <= 0
            if steps != self._steps and not self.slow:
                self._watch_on()
                return
            self._open = True
            waiting, stalled = len(self._unsent), self._stalled
            callbacks = self._callbacks_with_room()
        stalled(waiting)
        _call_all(callbacks)

    def _callbacks_with_room(self) -> list[Callable[[], None]]:
        """Return the callbacks that are due. The lock is held; they are called without it."""
        if not self._callbacks or self._full():
            return []
        callbacks, self._callbacks = self._callbacks, []
        number, _, begin_s = self._watch
        self._left_s -= time.monotonic() - begin_s
        self._watch = number + 1, 0, 0.0
        return callbacks

    def _full(self) -> bool:
        waiting = len(self._unsent)
        too_much = self._held >= MOST_HELD or 0 < self._most < waiting or (waiting > 1 and self._memory.full)
        return too_much and not self._open

    def on_sent(self) -> None:
        """Account for the first unsent response, which has been sent or dropped."""
        with self._changed:
            if self._unsent:  # a response that ends its request is never counted
                self._held -= self._unsent.popleft()
        self.on_progress()

    def on_progress(self) -> None:
        """Record progress: a part of a response has been sent."""
        with self._changed:
            self._steps += 1
            self._changed.notify()
            callbacks = self._callbacks_with_room()
        _call_all(callbacks)

    def release(self) -> None:
        """End flow control after the last send, so that the engine never waits again. Drops `stalled`."""
        with self._changed:
            self._open = True
            self._stalled = _nothing
            self._changed.notify_all()
            callbacks = self._callbacks_with_room()
        _call_all(callbacks)


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            _log.exception("an engine failed when it was notified of room for responses")


def _nothing(waiting: int) -> None: ...


def pace(inflight: Inflight, memory: MemoryBudget, loop: AbstractEventLoop) -> None:
    """Keep the engine from running ahead of a slow client. On the event loop's thread, right after the submission.

    The sender of the responses must call `inflight.on_sent` for each. The engine runs ahead by less while the server's
    `memory` is used up. If a client reads nothing for too long, its request fails. The engine never waits for a request
    to a model that preserves the order of its responses, since these may wait for another request's.
    """
    if inflight.ordered:
        return

    def give_up(waiting: int) -> None:
        why = f"did not read its responses for {STALLED_S:g} s"
        if flow.slow:
            why = f"read its responses so slowly that the model waited {LONGEST_S:g} s for it"
        inflight.end(unavailable(f"the client {why}; {waiting} responses waited for it"))

    flow = inflight.flow = Flow(
        lambda waiting: loop.call_soon_threadsafe(give_up, waiting),
        memory=memory,
        later=lambda seconds, callback: loop.call_soon_threadsafe(loop.call_later, seconds, callback),
    )
