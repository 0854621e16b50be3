"""The sequence scheduler: who belongs to which sequence, what each request is told, and when sequences end."""

import logging
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_bench import CONTROLS, IDLE, MS, Bench, failure, sink

from modserve.core.configuration.sequence_config import (
    Control,
    ControlKind,
    DirectStrategy,
    InitialState,
    OldestStrategy,
    SequenceState,
    Strategy,
)
from modserve.core.errors import Code, ModserveError, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.tenants import Tenant
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor

DIRECT = DirectStrategy()
OLDEST = OldestStrategy(preferred_batch_sizes=(2,))
NO_START = (
    "inference request for sequence {} to model 'model' must specify the START flag on the first request of the "
    "sequence"
)
LONG_ID = (
    "[request id: <id_unknown>] string correlation ID cannot be longer than 128 characters, got {} (bytes of UTF-8)"
)
NO_ID = "inference request to model 'model' must specify a non-zero or non-empty correlation ID"
BAD_ID = "[request id: <id_unknown>] parameter 'sequence_id' is {}, expected a string or an integer from 0 to 2^64 - 1"
EXPIRED = "timeout of the corresponding sequence has been expired"

each_strategy = pytest.mark.parametrize("strategy", [DIRECT, OLDEST], ids=["direct", "oldest"])


# What is refused

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no id": ({"id": None, "flags": "s"}, NO_ID),
    "id 0": ({"id": 0, "flags": "s"}, NO_ID),
    "empty id": ({"id": "", "flags": "s"}, NO_ID),
    "no start": ({"id": 7}, NO_START.format(7)),
    "no start, end": ({"id": "seven", "flags": "e"}, NO_START.format("seven")),
    "two rows": (
        {"flags": "s", "batch_size": 2},
        "inference request to model 'model' must specify batch-size 1 due to requirements of sequence batcher",
    ),
    "a long id": (
        {"id": "x" * 129, "flags": "s"},
        LONG_ID.format(129),
    ),
    "a long id in few characters": (
        {"id": "é" * 65, "flags": "s"},
        LONG_ID.format(130),
    ),
    "an id that is true": ({"id": True, "flags": "s"}, BAD_ID.format("True")),
    "an id that is a fraction": ({"id": 1.5, "flags": "s"}, BAD_ID.format("1.5")),
    "a negative id": ({"id": -1, "flags": "s"}, BAD_ID.format("-1")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    what, message = REFUSED[case]
    bench = Bench(controls=())
    with pytest.raises(ModserveError) as caught:
        bench.enqueue(**what)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)
    assert bench.scheduler.open_sequences == 0
    assert bench.clock.next_timer_ns() is None


def test_a_flag_that_is_no_boolean_is_refused() -> None:
    bench = Bench()
    entry = bench.submit(1, "s")
    bad = Inflight(entry.request, entry.sink, entry.inputs, (), 1, None, 0)
    object.__setattr__(bad.request, "parameters", {"sequence_id": 1, "sequence_end": 1})
    with pytest.raises(ModserveError, match="parameter 'sequence_end' is 1, expected true or false"):
        bench.scheduler.enqueue(bad)


@pytest.mark.parametrize(
    ("datatype", "id", "given"), [(dtypes.BYTES, 7, "UINT64"), (dtypes.INT32, "seven", "BYTES")], ids=["number", "text"]
)
def test_an_id_that_the_model_does_not_take_is_refused(datatype: dtypes.Datatype, id: Any, given: str) -> None:
    bench = Bench(controls=(Control("CORRID", ControlKind.CORRID, datatype),))
    with pytest.raises(ModserveError) as caught:
        bench.enqueue(id, "s")
    assert caught.value.message == (
        f"[request id: <id_unknown>] sequence batching control 'CORRID' data-type is '{given}', "
        f"but model 'model' expects '{datatype.name}'"
    )


# The life of a sequence


@each_strategy
def test_a_sequence_runs_in_order_one_at_a_time_and_is_forgotten_after_its_end(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy)
    entries = [bench.submit(5, flags) for flags in ("s", "", "e")]
    for entry in entries:
        assert bench.running == [entry]
        bench.finish()
    assert bench.scheduler.open_sequences == 0
    assert bench.clock.next_timer_ns() is None
    with pytest.raises(ModserveError, match="must specify the START flag"):
        bench.enqueue(5)


@each_strategy
def test_after_the_end_was_sent_the_id_is_unknown_though_it_still_runs(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy)
    bench.submit(5, "se")
    with pytest.raises(ModserveError, match="must specify the START flag"):
        bench.enqueue(5)
    again = bench.submit(5, "s")
    bench.finish_all()
    assert sink(again).settled == 1


def test_numbers_and_texts_are_different_ids() -> None:
    bench = Bench(controls=())
    bench.submit(1, "s")
    with pytest.raises(ModserveError, match="for sequence 1 to"):
        bench.enqueue("1")


@each_strategy
def test_a_start_on_a_live_id_begins_anew_behind_what_was_there(
    strategy: Strategy, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(strategy=strategy)
    entries = [bench.submit(5, flags) for flags in ("s", "", "s", "e")]
    assert [record.getMessage() for record in caplog.records] == [
        "sequence 5 for model 'model' has a conflict. The previous sequence did not end before this sequence start. "
        "Previous sequence will be terminated early."
    ]
    starts = []
    for entry in entries:
        assert bench.running == [entry]
        starts += bench.told("START")
        bench.finish()
    assert starts == [1, 0, 1, 0]
    assert bench.scheduler.open_sequences == 0


@each_strategy
def test_a_sequence_keeps_its_instance(strategy: Strategy) -> None:
    bench = Bench(slots=3, strategy=strategy)
    for _ in range(2):
        for id in (1, 2, 3):
            bench.submit(id, "s" if not bench.scheduler.open_sequences or id > bench.scheduler.open_sequences else "")
        bench.finish_all()
    where: dict[object, set[int]] = {}
    for slot, batch in zip(bench.runner.slots, bench.runner.batches, strict=True):
        for entry in batch:
            where.setdefault(entry.request.parameters["sequence_id"], set()).add(slot)
    assert where == {1: {0}, 2: {1}, 3: {2}}


# What the model is told

TOLD = {"s": (1, 0), "": (0, 0), "e": (0, 1), "se": (1, 1)}


@each_strategy
@pytest.mark.parametrize("flags", ["s", "", "e", "se"], ids=["start", "middle", "end", "both"])
def test_controls(strategy: Strategy, flags: str) -> None:
    bench = Bench(strategy=strategy)
    if "s" not in flags:
        bench.submit(9, "s")
        bench.finish()
    bench.submit(9, flags)
    assert (bench.told("START"), bench.told("END"), bench.told("READY"), bench.told("CORRID")) == (
        [TOLD[flags][0]],
        [TOLD[flags][1]],
        [1],
        [9],
    )
    [entry] = bench.running
    assert {entry.inputs[control.name].shape for control in CONTROLS} == {(1, 1)}


def test_controls_without_a_batch_dimension() -> None:
    bench = Bench(max_batch_size=0)
    bench.submit(9, "s")
    [entry] = bench.running
    assert {entry.inputs[control.name].shape for control in CONTROLS} == {(1,)}


@pytest.mark.parametrize(
    ("datatype", "values"),
    [(dtypes.INT32, (-3, 7)), (dtypes.FP32, (0.5, 2.5)), (dtypes.BOOL, (False, True)), (dtypes.BOOL, (True, False))],
    ids=["int32", "fp32", "bool", "bool, inverted"],
)
def test_the_values_of_a_control(datatype: dtypes.Datatype, values: tuple[float, float]) -> None:
    bench = Bench(controls=(Control("START", ControlKind.START, datatype, values),))
    for flags in ("s", ""):
        bench.submit(1, flags)
        bench.finish()
    assert [bench.told("START", 0), bench.told("START", 1)] == [[values[1]], [values[0]]]
    assert bench.runner.rows[0][0].inputs["START"].datatype is datatype


@pytest.mark.parametrize(
    ("datatype", "id", "told"),
    [
        (dtypes.UINT64, 2**64 - 1, 2**64 - 1),
        (dtypes.INT64, 2**64 - 1, -1),
        (dtypes.UINT32, 2**32 + 5, 5),
        (dtypes.INT32, 2**32 - 1, -1),
        (dtypes.BYTES, "sätze", "sätze".encode()),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_datatypes_of_correlation_ids(datatype: dtypes.Datatype, id: Any, told: Any) -> None:
    bench = Bench(controls=(Control("CORRID", ControlKind.CORRID, datatype),))
    bench.submit(id, "s")
    assert bench.told("CORRID") == [told]
    [entry] = bench.running
    assert entry.inputs["CORRID"].datatype is datatype


# Direct: rows and fillers


def test_direct_fills_the_rows_of_those_that_have_nothing_to_run() -> None:
    bench = Bench(max_batch_size=4)
    for id in (1, 2, 3):
        bench.enqueue(id, "s")
    bench.clock.run()
    assert bench.told("CORRID") == [1, 2, 3]
    bench.finish()
    third = bench.submit(3, value=30)
    assert bench.runner.batches[-1] == [third]
    assert bench.told("READY") == [0, 0, 1]
    assert bench.told("CORRID") == [0, 0, 3]
    assert bench.told("START") == [0, 0, 0]
    assert bench.told("INPUT0") == [0, 0, 30]
    bench.finish()
    # Nobody is in a row behind it.
    bench.submit(1)
    assert bench.told("READY") == [1]


def test_direct_tells_of_an_absent_text_id_with_an_empty_one() -> None:
    bench = Bench(controls=(Control("CORRID", ControlKind.CORRID, dtypes.BYTES),))
    bench.submit("a", "s")
    bench.submit("b", "s")
    bench.finish_all()
    bench.submit("b")
    assert bench.told("CORRID") == [b"", b"b"]


def test_direct_does_not_mix_shapes_and_the_oldest_goes_first() -> None:
    bench = Bench(max_batch_size=3)
    bench.submit(1, "s", shape_key="a")
    second = bench.submit(2, "s", shape_key="b")
    bench.clock.advance(5)
    first = bench.submit(1, shape_key="a")
    third = bench.submit(3, "s", shape_key="b")
    bench.finish()
    assert bench.runner.batches[-1] == [second, third]
    assert bench.told("READY") == [0, 1, 1]
    bench.finish()
    assert bench.runner.batches[-1] == [first]


def test_direct_waits_for_its_delay_unless_enough_rows_are_filled() -> None:
    bench = Bench(max_batch_size=4, strategy=DirectStrategy(max_queue_delay_ns=100, minimum_slot_utilization=0.5))
    bench.submit(1, "s")
    bench.clock.advance(99)
    assert not bench.running
    bench.clock.advance(1)
    assert bench.runner.reasons == ["delay"]
    bench.finish()
    bench.submit(1)
    bench.submit(2, "s")
    assert bench.runner.reasons == ["delay", "preferred"]
    bench.finish()
    for id in (3, 4):
        bench.enqueue(id, "s")
    for id in (1, 2):
        bench.enqueue(id)
    bench.clock.run()
    assert bench.runner.reasons == ["delay", "preferred", "full"]


each_bound = pytest.mark.parametrize("bound", ["deadline", "limit"])


@each_bound
def test_direct_does_not_wait_past_a_deadline(bound: str) -> None:
    strategy = DirectStrategy(max_queue_delay_ns=100 * MS, minimum_slot_utilization=1.0)
    bench = Bench(max_batch_size=4, strategy=strategy)
    bench.submit(1, "s", **{bound: 50 * MS})
    bench.clock.advance(49 * MS)
    assert bench.runner.reasons == ["deadline"]


# Oldest


def test_oldest_batches_one_request_of_each_sequence() -> None:
    bench = Bench(max_batch_size=8, strategy=OldestStrategy(max_candidate_sequences=3, preferred_batch_sizes=(8,)))
    entries = {id: [bench.enqueue(id, "s"), bench.enqueue(id)] for id in (1, 2, 3, 4)}
    bench.clock.run()
    assert bench.runner.batches == [[entries[id][0] for id in (1, 2, 3)]]
    assert bench.runner.rows == bench.runner.batches
    bench.finish()
    assert bench.runner.batches[-1] == [entries[id][1] for id in (1, 2, 3)]


def test_oldest_follows_the_rule_of_the_dynamic_batcher() -> None:
    strategy = OldestStrategy(max_candidate_sequences=4, preferred_batch_sizes=(2,), max_queue_delay_ns=100)
    bench = Bench(max_batch_size=4, strategy=strategy)
    bench.submit(1, "s")
    bench.clock.advance(50)
    assert not bench.running
    bench.submit(2, "s")
    bench.finish()
    bench.submit(1)
    bench.clock.advance(100)
    assert bench.runner.reasons == ["preferred", "delay"]


# The backlog


@each_strategy
def test_a_sequence_without_a_place_waits_for_one(strategy: Strategy) -> None:
    bench = Bench(max_batch_size=1, strategy=strategy)
    first = [bench.submit(1, "s"), bench.submit(2, "s"), bench.submit(2), bench.submit(3, "se")]
    assert repr(bench.scheduler) == "SequenceScheduler(3 sequences, 2 of them in the backlog)"
    bench.finish()
    assert not bench.running
    last = bench.submit(1, "e")
    order = [first[0], last]
    bench.finish()
    order += bench.running
    bench.finish()
    bench.submit(2, "e")
    bench.finish_all()
    ids = [batch[0].request.parameters["sequence_id"] for batch in bench.runner.batches]
    assert ids == [1, 1, 2, 2, 2, 3]
    assert bench.scheduler.open_sequences == 0


def test_places_that_nobody_takes_cost_nothing() -> None:
    peaks: list[int] = []
    for _ in range(3):
        tracemalloc.start()
        try:
            bench = Bench(strategy=OldestStrategy(max_candidate_sequences=1_000_000), slots=2)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert min(peaks) < 1_000_000, "what other threads take meanwhile is not in all of them"
    for id in range(1, 4):
        bench.submit(id, "s")
    assert len(bench.runner.running) == 2


def test_places_are_given_row_by_row_and_those_given_back_first() -> None:
    bench = Bench(strategy=DIRECT, max_batch_size=2, slots=2)
    for id in (1, 2, 3):
        bench.submit(id, "s")
        bench.finish_all()
    for id in (2, 1):
        bench.submit(id, "e")
        bench.finish_all()
    slots: list[int] = []
    for id in (4, 5, 6, 7):
        bench.submit(id, "s")
        slots += bench.runner.running
        bench.finish_all()
    assert slots == [0, 1, 1]
    assert repr(bench.scheduler) == "SequenceScheduler(5 sequences, 1 of them in the backlog)"


@each_bound
@each_strategy
def test_a_sequence_in_the_backlog_is_given_up_when_the_first_of_its_timeouts_is_over(
    strategy: Strategy, bound: str
) -> None:
    bench = Bench(max_batch_size=1, strategy=strategy)
    bench.submit(1, "s")
    waiting = [bench.submit(2, "s", **{bound: 500}), bench.submit(2, **{bound: 100}), bench.submit(2)]
    bench.clock.advance(99)
    assert bench.dropped == []
    bench.clock.advance(1)
    assert bench.dropped == waiting
    assert {(failure(entry).code, failure(entry).message) for entry in waiting} == {(Code.UNAVAILABLE, EXPIRED)}
    with pytest.raises(ModserveError, match="must specify the START flag"):
        bench.enqueue(2)
    assert bench.scheduler.open_sequences == 1


@each_bound
@each_strategy
def test_a_request_that_is_too_late_in_its_place_takes_its_sequence_with_it(strategy: Strategy, bound: str) -> None:
    bench = Bench(max_batch_size=2, strategy=strategy)
    bench.submit(1, "s")
    late, behind = bench.submit(2, "s", **{bound: 100}), bench.submit(2)
    bench.clock.advance(100)
    assert (failure(late).message, failure(behind).message) == ("Request timeout expired", EXPIRED)
    bench.finish()
    assert not bench.running
    assert bench.scheduler.open_sequences == 1


@each_bound
@each_strategy
def test_a_request_that_is_too_late_behind_a_running_one_ends_its_sequence(strategy: Strategy, bound: str) -> None:
    bench = Bench(max_batch_size=2, strategy=strategy)
    runs, late = bench.submit(1, "s"), bench.submit(1, **{bound: 100})
    bench.clock.advance(100)
    assert failure(late).message == EXPIRED
    bench.finish()
    assert sink(runs).errors == []
    assert bench.scheduler.open_sequences == 0


# Idle


@each_strategy
def test_a_silent_sequence_is_ended_and_its_place_given_away(strategy: Strategy) -> None:
    bench = Bench(max_batch_size=1, strategy=strategy, max_idle_ns=IDLE)
    bench.submit(1, "s")
    bench.clock.advance(5 * IDLE)  # a request that runs is not silence
    assert bench.scheduler.open_sequences == 1
    bench.finish()
    waiting = bench.submit(2, "s")
    bench.clock.advance(IDLE - 1)
    assert not bench.running
    bench.clock.advance(1)
    assert bench.running == [waiting]
    with pytest.raises(ModserveError, match="must specify the START flag"):
        bench.enqueue(1)


@each_strategy
def test_every_request_begins_the_silence_anew(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy, max_idle_ns=IDLE)
    bench.submit(1, "s")
    bench.finish()
    for _ in range(3):
        bench.clock.advance(IDLE - 1)
        bench.submit(1)
        bench.finish()
    bench.clock.advance(IDLE)
    assert bench.scheduler.open_sequences == 0
    assert bench.clock.next_timer_ns() is None


# Cancelling and failing


@each_strategy
@pytest.mark.parametrize("place", [0, 1, 2], ids=["running", "waiting", "last"])
def test_cancelling_a_member_cancels_the_rest_of_the_sequence(strategy: Strategy, place: int) -> None:
    bench = Bench(strategy=strategy)
    entries = [bench.submit(1, flags) for flags in ("s", "", "")]
    entries[place].cancel()
    assert [len(sink(entry).errors) for entry in entries] == [int(place == 0), 1, 1]
    assert {failure(entry).code for entry in entries[1:]} == {Code.CANCELLED}
    assert bench.dropped == entries[1:]
    with pytest.raises(ModserveError, match="must specify the START flag"):
        bench.enqueue(1)
    bench.finish_all()
    assert len(bench.runner.batches) == 1
    assert bench.scheduler.open_sequences == 0


@each_strategy
def test_cancelling_withdraws_what_waits_for_its_batch(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy)
    bench.submit(1, "s")
    entries = [bench.submit(2, "s"), bench.submit(2), bench.submit(2)]
    entries[1].cancel()
    assert bench.dropped == [entries[0], *entries[1:]]
    bench.finish_all()
    assert len(bench.runner.batches) == 1


@each_strategy
def test_cancelling_in_the_backlog(strategy: Strategy) -> None:
    bench = Bench(max_batch_size=1, strategy=strategy)
    bench.submit(1, "s")
    entries = [bench.submit(2, "s"), bench.submit(2)]
    entries[0].cancel()
    assert bench.dropped == entries
    assert repr(bench.scheduler) == "SequenceScheduler(1 sequences, 0 of them in the backlog)"


@each_strategy
def test_a_request_that_fails_does_not_end_its_sequence(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy)
    bench.submit(1, "s")
    for entry in bench.runner.finish():
        entry.settle(unavailable("the model failed"))
    following = bench.submit(1)
    assert bench.running == [following]


# Stopping


@each_strategy
def test_when_stopping_open_sequences_go_on_and_new_ones_are_refused(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy)
    bench.submit(1, "s")
    bench.scheduler.stop()
    for id in (1, 2):
        with pytest.raises(ModserveError) as caught:
            bench.enqueue(id, "s")
        assert (caught.value.code, caught.value.message) == (
            Code.UNAVAILABLE,
            "Server is stopping, scheduler for model has stopped accepting new inference requests",
        )
    end = bench.submit(1, "e")
    bench.finish_all()
    assert sink(end).errors == []
    assert bench.scheduler.open_sequences == 0


@each_strategy
def test_an_abandoned_sequence_ends_after_what_has_come(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy)
    entries = [bench.submit(1, "s"), bench.submit(1)]
    assert [bench.scheduler.has(id) for id in (1, 2)] == [True, False]
    for id in (1, 2):
        bench.scheduler.abandon(id)
    assert (bench.scheduler.has(1), bench.scheduler.open_sequences) == (False, 1)
    bench.finish_all()
    assert [sink(entry).errors for entry in entries] == [[], []]
    assert bench.scheduler.open_sequences == 0


@each_strategy
def test_an_abandoned_sequence_that_has_nothing_to_run_ends_at_once(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy)
    bench.submit(1, "s")
    bench.finish_all()
    bench.scheduler.abandon(1)
    assert bench.scheduler.open_sequences == 0


@each_strategy
def test_closing_fails_what_waits(strategy: Strategy) -> None:
    bench = Bench(max_batch_size=1, strategy=strategy)
    runs = bench.submit(1, "s")
    waiting = [bench.submit(1), bench.submit(2, "s")]
    bench.scheduler.close(unavailable("closed"))
    assert bench.dropped == waiting
    assert {failure(entry).message for entry in waiting} == {"closed"}
    bench.finish()
    assert sink(runs).errors == []
    assert bench.clock.next_timer_ns() is None


# States

STATE = SequenceState("STATE_IN", "STATE_OUT", dtypes.INT32, (2,))


def give(entry: Inflight, *values: int) -> None:
    """What an instance does with the states of an execution."""
    assert entry.states is not None
    entry.states.keep("model", {"STATE_OUT": np.array([values], np.int32)}, 0, 1)


@each_strategy
def test_a_state_goes_from_request_to_request_and_starts_as_zero(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy, states=(STATE,))
    for flags, seen, left in (("s", [0, 0], (1, 2)), ("", [1, 2], (3, 4)), ("s", [0, 0], (5, 6)), ("", [5, 6], (0, 0))):
        entry = bench.submit(1, flags)
        assert entry.inputs["STATE_IN"].array.tolist() == [seen]
        give(entry, *left)
        bench.finish()


@each_strategy
def test_a_request_that_fails_leaves_the_state_as_it_was(strategy: Strategy) -> None:
    bench = Bench(strategy=strategy, states=(STATE,))
    entry = bench.submit(1, "s")
    give(entry, 1, 2)
    bench.finish()
    bench.submit(1)
    bench.finish()
    assert bench.submit(1).inputs["STATE_IN"].array.tolist() == [[1, 2]]


def test_states_of_different_shapes_share_no_batch() -> None:
    bench = Bench(states=(SequenceState("STATE_IN", "STATE_OUT", dtypes.INT32, (-1,)),))
    first, second = bench.enqueue(1, "s"), bench.enqueue(2, "s")
    bench.clock.run()
    assert first.inputs["STATE_IN"].shape == (1, 1)
    give(first, 1)
    give(second, 1, 2, 3)
    bench.finish()
    bench.enqueue(1)
    bench.enqueue(2)
    bench.clock.run()
    bench.finish_all()
    assert [len(batch) for batch in bench.runner.batches] == [2, 1, 1]


@pytest.mark.parametrize(
    ("state", "files", "begins"),
    [
        (SequenceState("S", "T", dtypes.FP32, (-1,), InitialState("z", (3,))), {}, [[0, 0, 0]]),
        (
            SequenceState("S", "T", dtypes.INT32, (2,), InitialState("f", (2,), "file")),
            {"S": Tensor.from_raw(dtypes.INT32, (2,), np.array([4, 5], np.int32).tobytes())},
            [[4, 5]],
        ),
        (SequenceState("S", "T", dtypes.BYTES, (2,)), {}, [[b"", b""]]),
    ],
    ids=["zero", "file", "text"],
)
def test_initial_states(state: SequenceState, files: dict[str, Tensor], begins: list[Any]) -> None:
    bench = Bench(states=(state,), files=files)
    assert bench.submit(1, "s").inputs["S"].array.tolist() == begins


def test_fillers_have_no_state_of_anybody() -> None:
    bench = Bench(states=(STATE,))
    bench.enqueue(1, "s")
    give(bench.submit(2, "s"), 7, 7)
    bench.finish()
    bench.submit(2)
    assert [entry.inputs["STATE_IN"].array.tolist() for entry in bench.runner.rows[-1]] == [[[0, 0]], [[7, 7]]]
    assert bench.runner.rows[-1][0].states is None


# Iterative sequences


@each_strategy
def test_an_iterative_request_is_a_sequence_of_its_own(strategy: Strategy) -> None:
    bench = Bench(max_batch_size=1, strategy=strategy, iterative=True)
    first, second = bench.submit(None), bench.submit(None)
    assert (bench.told("START"), bench.told("CORRID")) == ([1], [1])
    bench.runner.again(0)
    bench.clock.run()
    assert bench.running == [first]
    assert (bench.told("START"), bench.told("END"), bench.told("READY"), bench.told("CORRID")) == ([0], [0], [1], [1])
    bench.finish()
    assert bench.running == [second]
    assert bench.told("CORRID") == [2]
    bench.finish()
    assert bench.scheduler.open_sequences == 0


def test_an_iterative_request_that_waits_again_can_be_cancelled() -> None:
    bench = Bench(max_batch_size=2, strategy=DirectStrategy(100, 1.0), iterative=True)
    entry = bench.submit(None)
    bench.clock.advance(100)
    bench.runner.again(0)
    entry.cancel()
    assert failure(entry).code is Code.CANCELLED
    assert bench.dropped == [entry]
    bench.clock.advance(1000)
    assert len(bench.runner.batches) == 1
    assert bench.scheduler.open_sequences == 0


@each_strategy
def test_each_turn_of_an_iterative_request_may_wait_as_long(strategy: Strategy) -> None:
    bench = Bench(max_batch_size=1, strategy=strategy, iterative=True)
    entry = bench.submit(None, limit=100)
    bench.clock.advance(150)
    bench.runner.again(0)
    bench.clock.run()
    assert bench.running == [entry]
    bench.clock.advance(1000)
    assert bench.dropped == []


def test_generated_ids_avoid_those_of_clients_and_have_the_type_that_the_model_takes() -> None:
    bench = Bench(controls=(Control("CORRID", ControlKind.CORRID, dtypes.BYTES),), iterative=True, max_batch_size=4)
    bench.submit("1", "s")
    bench.submit(None)
    bench.finish_all()
    assert [batch[0].inputs["CORRID"].array.tolist() for batch in bench.runner.batches] == [[[b"1"]], [[b"2"]]]


# Whatever happens

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.integers(1, 5), st.sampled_from(["", "", "s", "e", "se"]), st.integers(0, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("finish"), st.integers(0, 5)),
        st.tuples(st.just("turn")),
        st.tuples(st.just("advance"), st.sampled_from([10, 60, IDLE])),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(
    actions=ACTIONS,
    slots=st.integers(1, 2),
    strategy=st.sampled_from([DIRECT, OLDEST, DirectStrategy(50, 0.6), OldestStrategy(3, (1, 2), 50)]),
)
def test_whatever_happens(actions: list[tuple[Any, ...]], slots: int, strategy: Strategy) -> None:
    logging.disable(logging.WARNING)
    try:
        _whatever_happens(Bench(slots=slots, strategy=strategy), actions, direct=isinstance(strategy, DirectStrategy))
    finally:
        logging.disable(logging.NOTSET)


def _whatever_happens(bench: Bench, actions: list[tuple[Any, ...]], direct: bool) -> None:
    accepted: list[Inflight] = []
    do: dict[str, Callable[..., object]] = {
        "turn": bench.clock.run,
        "advance": bench.clock.advance,
        "finish": lambda which: bench.finish(list(bench.runner.running)[which % len(bench.runner.running)]),
        "cancel": lambda which: accepted[which % len(accepted)].cancel(),
    }
    for action, *values in actions:
        if action == "enqueue":
            name, flags, kind = values
            try:
                accepted.append(bench.enqueue(name, flags, shape_key=kind == 1, deadline=30 if kind == 2 else 0))
            except ModserveError:
                assert "s" not in flags
        elif (action != "finish" or bench.runner.running) and (action != "cancel" or accepted):
            do[action](*values)
        running = set(map(id, bench.running))
        assert all(len(members & running) <= 1 for members in _sequences(accepted))
    for _ in range(len(accepted) + 2):
        bench.clock.advance(IDLE)
        bench.finish_all()
    bench.clock.advance(2 * IDLE)

    # Nothing is lost, and nothing answered twice.
    assert [sink(entry).settled for entry in accepted] == [1] * len(accepted)
    run = [entry for batch in bench.runner.batches for entry in batch]
    assert sorted(map(id, [*run, *bench.dropped])) == sorted(map(id, accepted))
    # All is at rest.
    assert repr(bench.scheduler) == "SequenceScheduler(0 sequences, 0 of them in the backlog)"
    assert bench.clock.next_timer_ns() is None
    # The requests of a sequence run in order and on one instance; ended ones may overlap their followers.
    places = {id(entry): place for place, entry in enumerate(accepted)}
    for members in _sequences(accepted):
        ran = [
            (number, places[id(entry)])
            for number, batch in enumerate(bench.runner.batches)
            for entry in batch
            if id(entry) in members
        ]
        assert [place for _, place in ran] == sorted(place for _, place in ran)
        numbers = [number for number, _ in ran]
        assert len(set(numbers)) == len(numbers)
        assert len({bench.runner.slots[number] for number in numbers}) <= 1
    for batch, rows in zip(bench.runner.batches, bench.runner.rows, strict=True):
        assert len(rows) <= 2
        assert [row for row in rows if row in batch] == batch
        assert len({row.inputs["INPUT0"].shape for row in rows}) == 1
        assert direct or rows == batch


def _sequences(accepted: list[Inflight]) -> list[set[int]]:
    """The requests between a start and the next start of an id."""
    found: list[set[int]] = []
    current: dict[object, set[int]] = {}
    for entry in accepted:
        key = entry.request.parameters["sequence_id"]
        if entry.request.parameters.get("sequence_start"):
            current[key] = set()
            found.append(current[key])
        current[key].add(id(entry))
    return found


# Tenants


def test_one_id_of_two_tenants_is_two_sequences() -> None:
    bench = Bench()
    bench.submit(7, "s", tenant=Tenant("a"), value=1)
    bench.submit(7, "s", tenant=Tenant("b"), value=2)
    bench.submit(7, "s", value=3)
    assert bench.scheduler.open_sequences == 3
    bench.finish_all()
    assert not sink(bench.submit(7, "e", tenant=Tenant("b"))).errors
    bench.finish_all()
    assert [bench.scheduler.has(key) for key in (("a", 7), ("b", 7), 7)] == [True, False, True]


def test_nobody_goes_on_with_a_sequence_of_another_tenant() -> None:
    bench = Bench()
    bench.submit(7, "s", tenant=Tenant("a"))
    with pytest.raises(ModserveError, match="must specify the START flag"):
        bench.submit(7, tenant=Tenant("b"))
