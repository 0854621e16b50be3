"""Flow control between an engine that responds many times and a client that takes its time to read."""

import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

from modserve.core.errors import unavailable
from modserve.core.inflight import Inflight
from modserve.core.memory import MemoryBudget

MOST_HELD = 64 * 1024 * 1024
"""Bytes of one request's responses that the engine may have given and nobody has sent yet."""

RESPONSE_BYTES = 8 * 1024
"""What a response counts beside its tensors, so that a request never has more than some thousands unsent."""

STALLED_S = 10.0
"""How long an engine waits for a client that takes nothing at all. The model's other clients wait as long."""

LONGEST_S = 300.0
"""How long an engine waits in all, over one request, for a client that takes something now and then."""


_UNLIMITED = MemoryBudget()


class Flow:
    """The flow of one request's responses. Implements `core.inflight.FlowControl`.

    The engine's thread waits in `wait`; whoever sends the responses on calls `sent`. When nothing was sent for
    `stalled_s` seconds, or the engine has waited for `longest_s` seconds in all, it calls `stalled`, on its own thread,
    with the number of unsent responses, and never waits again. `slow` is True in the second case.

    While the server's `memory` is used up, only one response may wait to be sent; otherwise `most`, if that is not 0.
    """

    def __init__(
        self,
        stalled: Callable[[int], object],
        stalled_s: float = STALLED_S,
        longest_s: float = LONGEST_S,
        memory: MemoryBudget = _UNLIMITED,
        most: int = 0,
    ) -> None:
        self._memory = memory
        self._most = most
        self.slow = False
        self._stalled = stalled
        self._stalled_s = stalled_s
        self._left_s = longest_s
        self._changed = threading.Condition()
        self._unsent: deque[int] = deque()
        self._held = 0
        self._steps = 0
        self._open = False

    def given(self, size: int) -> None:
        """The engine is about to give a response with tensors of `size` bytes."""
        with self._changed:
            self._unsent.append(size + RESPONSE_BYTES)
            self._held += self._unsent[-1]

    def wait(self) -> None:
        """Return when there is room for another response. Not for the event loop's thread."""
        with self._changed:
            while not self._open and self._too_much():
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

    def _too_much(self) -> bool:
        waiting = len(self._unsent)
        return self._held >= MOST_HELD or 0 < self._most < waiting or (waiting > 1 and self._memory.full)

    def sent(self) -> None:
        """The first unsent response has been sent, or dropped."""
        with self._changed:
            if self._unsent:  # a response that ends its request was never counted
                self._held -= self._unsent.popleft()
            self._progressed()

    def progressed(self) -> None:
        """A part of a response has been sent."""
        with self._changed:
            self._progressed()

    def release(self) -> None:
        """Nobody sends any more: let the engine go on, now and later. Lets go of `stalled`."""
        with self._changed:
            self._open = True
            self._stalled = _nothing
            self._changed.notify_all()

    def _progressed(self) -> None:
        self._steps += 1
        self._changed.notify()


def _nothing(waiting: int) -> None:
    pass


def pace(inflight: Inflight, memory: MemoryBudget, loop: AbstractEventLoop) -> None:
    """Keep the engine from running ahead of a slow client. On the event loop's thread, right after the submission.

    Whoever sends the responses on must call `inflight.sent` for each. The engine runs ahead by less while the server's
    `memory` is used up. A client that takes nothing for long is given up: its request fails. The engine never waits for
    a request to a model that preserves the order of its responses, since these may wait for another request's.
    """
    if inflight.ordered:
        return

    def give_up(waiting: int) -> None:
        why = f"did not read its responses for {STALLED_S:g} s"
        if flow.slow:
            why = f"read its responses so slowly that the model waited {LONGEST_S:g} s for it"
        inflight.end(unavailable(f"the client {why}; {waiting} responses waited for it"))

    flow = inflight.flow = Flow(lambda waiting: loop.call_soon_threadsafe(give_up, waiting), memory=memory)
