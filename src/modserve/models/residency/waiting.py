"""Requests that wait until their model is in memory.

Each has an `Inflight` of its own, which its client may cancel and which has a deadline. Once the model is loaded, the
request is submitted with a sink in between (`_Relay`), since the model creates a second `Inflight` for it: from then
on, events of one apply to both.

Stages of a model that is loaded and evicted on demand, with their transitions.

`OnDemandModel` owns its stage, and alone changes it, by `after`. What exists at each stage:

- A loaded model (`_inner`): while RESIDENT or HELD_BACK, and never otherwise.
- A task that loads it (`_task`): while WAITING or LOADING. It may also exist while the model is LEAVING, for requests
  that arrived since; it waits for that to end.
- A task that closes it (`_leaving`): while LEAVING.
- Waiting requests: at every stage but RESIDENT. Something always ends that: one of the two tasks, or the budget, which
  holds a model back only while it makes room for another one.

Draining is independent of this: it only prevents HELD_BACK, and pins the model. The budget (`memory`) sees an occupant
that is `movable` while there is a loaded model; it requests only HOLD, RELEASE and EVICT.

Activity of a loaded model, and its own rules for entering and leaving memory.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from modserve.core.configuration.model_config import QueuePolicy
from modserve.core.errors import ModserveError, cancelled, from_exception, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import Outcome, ResponseSink
from modserve.core.residency import Presence
from modserve.core.runtime.clock import Alarm, Clock
from modserve.core.servable import Finisher, RequestHolder, SequenceKeeper, Servable
from modserve.core.statistics.model_statistics import ModelStatistics, failure_reason


class Stage(enum.Enum):
    ABSENT = "not in memory"
    WAITING = "there is no room yet"
    LOADING = "being loaded"
    RESIDENT = "in memory"
    HELD_BACK = "in memory, but new requests wait"
    LEAVING = "being closed"

    @property
    def presence(self) -> Presence:
        """State for reports."""
        return Presence.RESIDENT if self is Stage.HELD_BACK else Presence[self.name]


class StageEvent(enum.Enum):
    WANTED = "somebody waits for the model"
    ROOM = "there is room for it"
    NO_ROOM = "it has turned out to be too large for the room that there was"
    ARRIVED = "it is loaded"
    FAILED = "it was not loaded, or nobody wants it any more"
    HOLD = "it is to become idle, since others need its memory"
    RELEASE = "it need not become idle any more, or does so no more: this comes whatever has become of the model"
    EVICT = "it is to leave"
    LEFT = "it is closed"


TRANSITIONS: Mapping[Stage, Mapping[StageEvent, Stage]] = {
    Stage.ABSENT: {StageEvent.WANTED: Stage.WAITING, StageEvent.FAILED: Stage.ABSENT, StageEvent.RELEASE: Stage.ABSENT},
    Stage.WAITING: {StageEvent.ROOM: Stage.LOADING, StageEvent.FAILED: Stage.ABSENT, StageEvent.RELEASE: Stage.WAITING},
    Stage.LOADING: {
        StageEvent.NO_ROOM: Stage.WAITING,
        StageEvent.ARRIVED: Stage.RESIDENT,
        StageEvent.FAILED: Stage.ABSENT,
        StageEvent.RELEASE: Stage.LOADING,
    },
    Stage.RESIDENT: {
        StageEvent.HOLD: Stage.HELD_BACK,
        StageEvent.EVICT: Stage.LEAVING,
        StageEvent.RELEASE: Stage.RESIDENT,
    },
    Stage.HELD_BACK: {
        StageEvent.HOLD: Stage.HELD_BACK,
        StageEvent.EVICT: Stage.LEAVING,
        StageEvent.RELEASE: Stage.RESIDENT,
    },
    # A task that was to load it again may be cancelled meanwhile.
    Stage.LEAVING: {StageEvent.LEFT: Stage.ABSENT, StageEvent.FAILED: Stage.LEAVING, StageEvent.RELEASE: Stage.LEAVING},
}


def after(stage: Stage, event: StageEvent) -> Stage:
    """Return the next stage. Raises RuntimeError for an event that cannot happen at a stage; that is a bug."""
    following = TRANSITIONS[stage].get(event)
    if following is None:
        raise RuntimeError(f"{event.name} cannot happen to a model that is {stage.name}: this is a bug")
    return following


class StayRules(NamedTuple):
    """A model's own parameters over the server's options."""

    pin: bool = False
    idle_ns: int = 0
    """Time in memory without requests; 0 for unlimited."""


class Borrowers(NamedTuple):
    """Borrowers of servables (`repository.locks.Loans`)."""

    lent: Callable[[Servable], bool] = lambda servable: False
    returned: Callable[[Servable], Awaitable[None]] | None = None


def at_work(servable: object) -> str:
    """Return the activity of a servable, as text. A `Finisher` also knows abandoned requests."""
    idle = isinstance(servable, Finisher) and not servable.busy
    if not idle and (count := outstanding(servable)):
        return f"{count} requests in flight" if count > 1 else "1 request in flight"
    if begun := open_sequences(servable):
        return f"{begun} open sequences" if begun > 1 else "1 open sequence"
    return "busy" if isinstance(servable, Finisher) and not idle else ""


def outstanding(servable: object) -> int:
    return servable.outstanding if isinstance(servable, RequestHolder) else 0


def open_sequences(servable: object) -> int:
    return servable.open_sequences if isinstance(servable, SequenceKeeper) else 0


NO_RULES = StayRules()
NOBODY_BORROWS = Borrowers()


class IdleWatch:
    """Calls `on_idle` when a model has not been used for `idle_ns`; never if that is 0.

    `used_ns` returns the time of the last use: the present, while the model is in use.
    """

    def __init__(self, clock: Clock, idle_ns: int, used_ns: Callable[[], int], on_idle: Callable[[], None]) -> None:
        self._clock = clock
        self._idle_ns = idle_ns
        self._used_ns = used_ns
        self._on_idle = on_idle
        self._alarm = Alarm(clock, self._look)

    def __repr__(self) -> str:
        return f"IdleWatch({self._idle_ns / 1e9:g} s)"

    @property
    def seconds(self) -> float:
        return self._idle_ns / 1e9

    def start(self) -> None:
        if self._idle_ns:
            self._alarm.at(self._used_ns() + self._idle_ns)

    def stop(self) -> None:
        self._alarm.cancel()

    def _look(self) -> None:
        due_ns = self._used_ns() + self._idle_ns
        if self._clock.now_ns() >= due_ns:
            self._on_idle()
        else:
            self._alarm.at(due_ns)


def mark_seen(task: "asyncio.Task[None]") -> None:
    """Retrieve a task's failure, already reported to its waiters, to avoid asyncio's warning."""
    if not task.cancelled():
        task.exception()


MOST = 1024
"""Maximum number of waiting requests of one model, unless its queue policy sets one."""


class WaitingRequests:
    """Waiting requests of one model, in order of arrival. On the event loop's thread.

    `on_empty` is called when the last one leaves by itself, cancelled or timed out.
    """

    def __init__(self, clock: Clock, statistics: ModelStatistics, on_empty: Callable[[], None]) -> None:
        self._clock = clock
        self._statistics = statistics
        self._on_empty = on_empty
        self._waiting: dict[Inflight, int] = {}
        """Waiting requests, each with the end of its time-out; 0 for none."""
        self._alarm = Alarm(clock, self._look)
        self._emptied = asyncio.Event()
        self.waited_ns = 0
        """Total time of finished waits."""

    def __len__(self) -> int:
        return len(self._waiting)

    def longest_ns(self, now_ns: int) -> int:
        """Return the age of the oldest waiting request; 0 if there is none."""
        return next((now_ns - inflight.queue_start_ns for inflight in self._waiting), 0)

    def add(self, inflight: Inflight, policy: QueuePolicy) -> None:
        """Queue a request. Raises UNAVAILABLE if the limit of the model's queue policy is reached."""
        most = policy.max_queue_size or MOST
        if len(self._waiting) >= most:
            request = inflight.request
            raise unavailable(
                f"{request.label}Exceeds maximum queue size: {most} requests wait until model "
                f"'{request.model_name}' is in memory"
            )
        now_ns = self._clock.now_ns()
        inflight.queue_start_ns = now_ns
        inflight.on_cancel = self._on_cancel
        timeout_ns = 0 if policy.delay else policy.timeout_ns(inflight.request.timeout_ns)
        ends = [each for each in (inflight.deadline_ns, timeout_ns and now_ns + timeout_ns) if each]
        self._waiting[inflight] = end_ns = min(ends, default=0)
        self._statistics.pending += 1
        if end_ns:
            self._alarm.by(end_ns)

    def hand_over(self, servable: Servable) -> None:
        """Submit all waiting requests to the loaded model."""
        for inflight in list(self._waiting):
            if not self._leave(inflight):
                continue  # re-entrancy: a sink may cancel other requests on a failure
            relay = _Relay(inflight)
            try:
                inner = servable.submit(inflight.request, relay, inflight.request_start_ns)
            except Exception as error:  # the model has counted it
                inflight.settle(from_exception(error, "failed to submit a request that waited for its model"))
                continue
            relay.inner = inner
            inner.callers, inner.flow = inflight.callers, inflight.flow
            inner.device_outputs = inflight.device_outputs
            inflight.ordered = inner.ordered
            inflight.on_cancel = relay.on_cancel
        self._alarm.cancel()

    async def wait_until_empty(self) -> None:
        """Wait until no request waits."""
        while self._waiting:
            await self._emptied.wait()

    def fail(self, error: ModserveError) -> None:
        for inflight in list(self._waiting):
            self._drop(inflight, error)
        self._alarm.cancel()

    def _on_cancel(self, inflight: Inflight) -> None:
        self._drop(inflight, cancelled())
        self._tell_if_empty()

    def _look(self) -> None:
        """Refuse requests that have waited too long."""
        now_ns = self._clock.now_ns()
        for inflight, end_ns in list(self._waiting.items()):
            if end_ns and end_ns <= now_ns:
                self._drop(inflight, unavailable("Request timeout expired"))
        if (next_ns := min((end_ns for end_ns in self._waiting.values() if end_ns), default=0)) > 0:
            self._alarm.at(next_ns)
        self._tell_if_empty()

    def _drop(self, inflight: Inflight, error: ModserveError) -> None:
        if self._leave(inflight):
            reason = failure_reason(error, by_backend=False)
            self._statistics.record_failure(inflight, reason, self._clock.now_ns())
            inflight.settle(error)

    def _leave(self, inflight: Inflight) -> bool:
        """Remove a request; True if it was still waiting."""
        if self._waiting.pop(inflight, None) is None:
            return False
        inflight.on_cancel = None
        self._statistics.pending -= 1
        self.waited_ns += self._clock.now_ns() - inflight.queue_start_ns
        if not self._waiting:
            self._emptied.set()
            self._emptied = asyncio.Event()
        return True

    def _tell_if_empty(self) -> None:
        if not self._waiting:
            self._on_empty()


def waiting_inflight(request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
    """Return the `Inflight` of an unchecked request; its model checks it once loaded."""
    return Inflight(request, sink, request.inputs, request.outputs, 0, None, now_ns, request.deadline_ns)


@dataclass(slots=True, eq=False)
class _Relay:
    """Implements `core.requests.response.ResponseSink`: passes the model's outcomes to the waiting request."""

    outer: Inflight
    inner: Inflight | None = None

    def settle(self, outcome: Outcome, final: bool) -> None:
        outer, inner = self.outer, self.inner
        if inner is not None:
            outer.timing = inner.timing
            if final:
                self.inner = None
        outer.settle(outcome, final)

    def on_cancel(self, outer: Inflight) -> None:
        if self.inner is not None:
            self.inner.cancel()
