"""The sequence scheduler: the requests of a sequence run in order, one at a time, on one instance.

It follows Triton's SequenceBatchScheduler. Each instance has places for sequences. A sequence has one from its first
request until its end, or waits in the backlog (`sequence_places.py`). A `Lane` for each instance forms batches there.

A request is first in `waiting` of its sequence; then it is `busy`, in the lane, with at most one per sequence; then it
is busy and the sequence is `running`, which means that its instance has it. How a request ends depends on this:

- waiting: by this scheduler, in `_leave`.
- busy, not running: by its lane, which calls `_on_lane_drop` (as the lane's `OnDrop`); so does calling its `on_cancel`.
- running: by the runner. Its owner calls `batch_done`, or `run_again` if the request must run once more.

A sequence is open while more of its requests may come: from its first request until one with the END flag, or until it
is abandoned, aborted or idle for too long. It is live from its first request until `_finish`, when it is not open and
has no request left. So every open sequence is live. A live sequence has a place or is in the backlog. A failure, a
time-out or a cancellation of one request aborts the whole sequence: requests that have not begun to run fail.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.sequence_config import OldestStrategy, SequenceBatching
from modserve.core.errors import Code, ModserveError, cancelled, invalid, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import NOBODY
from modserve.core.requests.sequence import (
    ControlTensors,
    Membership,
    SequenceId,
    SequenceKey,
    StateTable,
    check_id,
    membership,
    zeros_like,
)
from modserve.core.runtime.clock import Alarm, Clock
from modserve.core.tenants import Tenant
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import STOPPING

from .scheduler import OnDrop, PinnedRunner, SlotT
from .sequence_lane import DirectLane, Lane, OneSlot, oldest_lane
from .sequence_places import PlaceShares, Sequence

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SequenceRequest:
    """The scheduler's state of a request until its end."""

    sequence: Sequence
    says: Membership
    arrived_ns: int
    shape_key: Any


class SequenceScheduler(Generic[SlotT]):
    """`scheduling.Scheduler` for a runner with numbered slots. Its owner calls `change`, `batch_done` and others.

    `state_files`: initial states by input. `on_end` is called when a sequence ends, `on_left` with the number of an
    instance that `change` removed, when the last sequence there has ended.
    """

    def __init__(
        self,
        config: ModelConfig,
        runner: PinnedRunner[SlotT],
        clock: Clock,
        on_drop: OnDrop,
        state_files: Mapping[str, Tensor],
        on_end: Callable[[], None] = lambda: None,
        on_left: Callable[[int], None] = lambda number: None,
    ) -> None:
        assert config.sequence_batching is not None, "made for models that have it: this is a bug"
        self._batching: SequenceBatching = config.sequence_batching
        self._model = config.name
        self._runner = runner
        self._clock = clock
        self._on_drop = on_drop
        self._controls = ControlTensors(self._batching.controls, config.batching)
        self._states = StateTable(self._batching.states, config.batching, state_files)
        self._open: dict[SequenceKey, Sequence] = {}
        """Sequences that may get more requests."""
        self._live: dict[Sequence, None] = {}
        """Unfinished sequences, in order of their begin."""
        self._members: dict[Inflight, SequenceRequest] = {}
        self._numbers = itertools.count(1)
        self._stopped = False
        self._on_end = on_end
        self._on_left = on_left
        strategy = self._batching.strategy
        candidates = strategy.max_candidate_sequences if isinstance(strategy, OldestStrategy) else 0
        self._max_batch_size = config.max_batch_size
        self._rows = candidates if candidates > 0 else max(1, config.max_batch_size)
        self._lanes = {number: self._lane(number) for number in range(runner.count)}
        """Lanes by instance number."""
        self._leaving: dict[int, int] = {}
        """Number of sequences on instances that get no new ones."""
        self._places = PlaceShares(self._rows, runner.count)

    def __repr__(self) -> str:
        return f"SequenceScheduler({len(self._live)} sequences, {self._places.waiting} of them in the backlog)"

    @property
    def count(self) -> int:
        return len(self._members)

    @property
    def open_sequences(self) -> int:
        return len(self._live)

    def longest_wait_ns(self, now_ns: int) -> int:
        heads = [sequence.first_waiting for sequence in self._live]
        return max([now_ns - self._members[head].arrived_ns for head in heads if head is not None], default=0)

    def has(self, key: SequenceKey) -> bool:
        return key in self._open

    def abandon(self, key: SequenceKey) -> None:
        """End the sequence with this key, if there is one, after its received requests."""
        sequence = self._open.pop(key, None)
        if sequence is not None and not sequence.waiting and sequence.busy is None:
            self._finish(sequence)

    # Arrival

    def enqueue(self, inflight: Inflight) -> None:
        """Queue a request like any scheduler. Also raises INVALID_ARG for a request without a sequence."""
        request = inflight.request
        says = membership(request)
        if says.id or not self._batching.iterative:
            check_id(says.id, request, self._batching)
        if inflight.batch_size > 1:
            why = "due to requirements of sequence batcher"
            raise invalid(f"inference request to model '{self._model}' must specify batch-size 1 {why}")
        if not says.id:
            if not self._batching.iterative:
                raise invalid(
                    f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID"
                )
            says = Membership(self._find_unused_id(), start=True)
        sequence = self._open.get(says.key)
        if self._stopped and says.start:
            raise unavailable(STOPPING)
        if sequence is None and not says.start:
            first = "must specify the START flag on the first request of the sequence"
            raise invalid(f"inference request for sequence {says.id} to model '{self._model}' {first}")
        now_ns = self._clock.now_ns()
        if sequence is None:
            self._places.check(request.tenant, request.label, self._model)
            sequence = self._begin(says.key, request.tenant)
        elif says.start:
            conflict = "The previous sequence did not end before this sequence start"
            text = f"sequence %s for model '%s' has a conflict. {conflict}. Previous sequence will be terminated early."
            _log.warning(text, says.id, self._model)
        if says.end:
            del self._open[says.key]
        if request.timeout_ns:  # sequences have no queue policy that defines it
            inflight.queue_limit_ns = inflight.request_start_ns + request.timeout_ns
        inflight.queue_start_ns = now_ns
        inflight.on_cancel = self._on_cancel
        self._members[inflight] = SequenceRequest(sequence, says, now_ns, inflight.shape_key)
        sequence.waiting.append(inflight)
        sequence.idle_since_ns = now_ns
        if begin_by_ns := inflight.begin_by_ns:
            sequence.alarm.by(begin_by_ns)
        sequence.alarm.by(now_ns + self._batching.max_idle_ns)
        self._advance(sequence)

    def _begin(self, key: SequenceKey, tenant: Tenant | None) -> Sequence:
        now_ns = self._clock.now_ns()
        sequence = Sequence(key, now_ns)
        sequence.alarm = Alarm(self._clock, partial(self._look, sequence))
        self._open[key] = sequence
        self._live[sequence] = None
        self._places.begin(sequence, tenant, now_ns)
        return sequence

    def _find_unused_id(self) -> SequenceId:
        control = self._batching.correlation
        as_text = control is not None and control.datatype is dtypes.BYTES
        ids: Iterator[SequenceId] = map(str, self._numbers) if as_text else self._numbers
        return next(id for id in ids if id not in self._open)

    # Execution

    def _advance(self, sequence: Sequence) -> None:
        """Offer the next request to the lane, if there is one and the lane has none of the sequence."""
        if sequence.place is None or sequence.busy is not None or not sequence.waiting:
            return
        head = sequence.waiting.popleft()
        member = self._members[head]
        inputs = {**head.inputs, **self._controls.of(member.says)}
        if self._batching.states:
            if sequence.states is None or member.says.start:
                sequence.states = self._states.fresh()
            head.states = sequence.states
            inputs.update(sequence.states.inputs)
            head.shape_key = (member.shape_key, sequence.states.shapes)
        head.inputs = inputs
        sequence.busy = head
        row, number = sequence.place
        self._lanes[number].offer(row, head)

    def _on_run(self, batch: list[Inflight]) -> None:
        for inflight in batch:
            member = self._members[inflight]
            # Batches measure the delay since requests could run, statistics since they arrived.
            inflight.queue_start_ns = member.arrived_ns
            inflight.on_cancel = self._on_cancel
            member.sequence.running = True

    def dispatch(self) -> None:
        for lane in list(self._lanes.values()):
            lane.dispatch()

    def batch_done(self, batch: list[Inflight]) -> None:
        """Record the end of an execution: the resulting states of the sequences are available."""
        now_ns = self._clock.now_ns()
        for inflight in batch:
            inflight.on_cancel = None
            self._idle(self._members.pop(inflight).sequence, now_ns)

    def run_again(self, inflight: Inflight) -> None:
        """Queue a request that must run once more after its execution."""
        member = self._members[inflight]
        now_ns = self._clock.now_ns()
        member.says = Membership(member.says.id, tenant=member.says.tenant)
        member.arrived_ns = now_ns
        if inflight.queue_limit_ns:
            inflight.queue_limit_ns = now_ns + inflight.request.timeout_ns
        inflight.on_cancel = self._on_cancel
        member.sequence.waiting.appendleft(inflight)
        self._idle(member.sequence, now_ns)

    def _idle(self, sequence: Sequence, now_ns: int) -> None:
        """Advance or finish a sequence without a request at its lane or instance."""
        sequence.busy = None
        sequence.running = False
        sequence.idle_since_ns = now_ns
        if sequence.waiting:
            self._advance(sequence)
        elif self._batching.iterative or self._open.get(sequence.key) is not sequence:
            self._finish(sequence)

    # End

    def hurry(self) -> None:
        """Do nothing: sequences end when their clients end them."""

    def stop(self) -> None:
        self._stopped = True

    def close(self, error: ModserveError) -> None:
        self._stopped = True
        self.fail_waiting(error)
        for lane in self._lanes.values():
            lane.close(error)

    def fail_waiting(self, error: ModserveError) -> None:
        """End all sequences: their requests that have not begun to run fail."""
        for sequence in list(self._live):
            self._abort(sequence, error)

    def slot_lost(self, number: int, error: ModserveError, in_vain: bool) -> None:
        """End the sequences of a lost instance, which may have had their states; sequences with states in the server
        continue.

        If no other instance could be created (`in_vain`), they do not wait for the next attempt.
        """
        for sequence in list(self._live):
            if sequence.place is not None and sequence.place[1] == number and (in_vain or not self._batching.states):
                self._abort(sequence, error)

    def _finish(self, sequence: Sequence) -> None:
        """Finish a sequence: its place goes to the next one in the backlog."""
        if sequence.over:
            return
        sequence.over = True
        self._close_to_more(sequence)
        sequence.alarm.end()
        del self._live[sequence]
        self._on_end()
        following = self._places.end(sequence, self._clock.now_ns())
        if sequence.place is not None and sequence.place[1] in self._leaving:
            self._leave_lane(sequence.place[1])
        if following is not None:
            self._advance(following)

    def _close_to_more(self, sequence: Sequence) -> None:
        if self._open.get(sequence.key) is sequence:
            del self._open[sequence.key]

    def _abort(self, sequence: Sequence, error: ModserveError) -> None:
        """End a sequence early: its requests that have not begun to run fail with `error`."""
        self._close_to_more(sequence)
        waiting = list(sequence.waiting)
        sequence.waiting.clear()
        busy = sequence.busy
        if busy is not None and not sequence.running and busy.on_cancel is not None:
            sequence.failure = error
            busy.on_cancel(busy)  # its lane drops it, and calls `_on_lane_drop`
        for inflight in waiting:
            self._leave(inflight, error)
        if sequence.busy is None:
            self._finish(sequence)

    def _leave(self, inflight: Inflight, error: ModserveError) -> None:
        if self._members.pop(inflight, None) is not None:
            inflight.on_cancel = None
            self._on_drop(inflight, error)

    def _on_lane_drop(self, inflight: Inflight, error: ModserveError) -> None:
        """Abort the sequence of a request dropped by a lane: it cannot continue without the request."""
        sequence = self._members[inflight].sequence
        sequence.busy = None
        self._leave(inflight, sequence.failure or error)
        self._abort(sequence, error if error.code is Code.CANCELLED else _make_expiry_error())

    def _on_cancel(self, inflight: Inflight) -> None:
        """Abort the sequence of a cancelled request; if that is running, the runner settles it."""
        self._abort(self._members[inflight].sequence, cancelled())

    # Time limits

    def _look(self, sequence: Sequence) -> None:
        """End a sequence if its client is too slow, or a request has waited too long for a place or its turn."""
        now_ns = self._clock.now_ns()
        late_ns = min(filter(None, [inflight.begin_by_ns for inflight in sequence.waiting]), default=0)
        if late_ns and late_ns <= now_ns:
            self._abort(sequence, _make_expiry_error())
            return
        if late_ns:
            sequence.alarm.by(late_ns)
        if sequence.waiting or sequence.busy is not None:
            idle_ns = now_ns + self._batching.max_idle_ns
        else:
            idle_ns = sequence.idle_since_ns + self._batching.max_idle_ns
            if idle_ns <= now_ns:
                _log.debug("sequence %s of model '%s' is ended: it has been idle too long", sequence.key, self._model)
                self._finish(sequence)
                return
        sequence.alarm.by(idle_ns)

    # Lanes

    def change(self, added: Collection[int], removed: Collection[int]) -> list[int]:
        """Change the instances with places. Sequences on removed ones continue there to their ends, as in Triton (core,
        SequenceBatchScheduler::Update).

        Returns the removed numbers without sequences; `on_left` is called for the others when they have none.
        """
        placed = Counter(sequence.place[1] for sequence in self._live if sequence.place is not None)
        empty = [number for number in removed if not placed[number]]
        for number in removed:
            self._places.remove(number)
            self._leaving[number] = placed[number]
        for number in empty:
            self._end_lane(number)
        now_ns = self._clock.now_ns()
        for number in added:
            self._lanes[number] = self._lane(number)
            for sequence in self._places.add(number, now_ns):
                self._advance(sequence)
        return empty

    def _leave_lane(self, number: int) -> None:
        self._leaving[number] -= 1
        if not self._leaving[number]:
            self._end_lane(number)
            self._on_left(number)

    def _end_lane(self, number: int) -> None:
        del self._leaving[number]
        self._lanes.pop(number).close(unavailable(STOPPING))  # no request waits there

    def _lane(self, number: int) -> Lane[SlotT]:
        slot = OneSlot(self._runner, number, self._on_run)
        strategy = self._batching.strategy
        if isinstance(strategy, OldestStrategy):
            return oldest_lane(strategy, self._max_batch_size, slot, self._clock, self._on_lane_drop)
        return DirectLane(strategy, self._rows, slot, self._clock, self._on_lane_drop, self._filler)

    def _filler(self, like: Inflight) -> Inflight:
        inputs = {**zeros_like(like.inputs), **self._controls.absent()}
        request, names = InferenceRequest(self._model, {}), like.output_names
        filler = Inflight(request, NOBODY, inputs, names, like.batch_size, like.shape_key, 0, 0, like.length)
        filler.settled = True
        return filler


def _make_expiry_error() -> ModserveError:
    return unavailable("timeout of the corresponding sequence has been expired")
