"""The budget of the models' memory: who is in memory, who leaves it, and what requests hear meanwhile."""

import asyncio
import random

import pytest
from residency_bench import SECOND, Bench, Sequences, settle

from modserve.core.configuration.model_config import DynamicBatching, QueuePolicy
from modserve.core.errors import Code, ModserveError, OverloadedError, invalid
from modserve.core.residency import Presence
from modserve.core.statistics.model_statistics import FailureReason
from modserve.models.residency.on_demand_sequences import OnDemandKeeper
from modserve.models.residency.waiting import MOST, StayRules
from modserve.testing import RecordingSink, config, request

# One model


async def test_the_first_request_loads_and_all_that_wait_share_the_load() -> None:
    bench = Bench(100, a=60)
    model = bench.models["a"]
    assert (model.unready_reason, model.residency.presence, await model.check_ready()) == (None, Presence.ABSENT, True)
    bench.gates["a"] = asyncio.Event()
    sinks = [bench.send("a", id=str(number)) for number in range(5)]
    await settle()
    assert (model.residency.presence, model.residency.waiting, model.outstanding) == (Presence.LOADING, 5, 5)
    assert (bench.log, model.busy, model.statistics.pending) == ([], True, 5)
    bench.gates["a"].set()
    await settle()
    assert (bench.log, model.statistics.pending) == (["+a"], 0)
    bench.loaded["a"].answer()
    assert [sink.responses[0].id for sink in sinks] == ["0", "1", "2", "3", "4"]
    report = model.residency
    assert (report.resident, report.size, report.loads, report.waiting, bench.memory.held) == (True, 60, 1, 0, 60)
    assert report.waited_ns > 0
    assert (model.config_message, model.labels) == (b"complete", {"OUTPUT0": ("cat", "dog")})


async def test_a_model_in_memory_gets_its_requests_at_once() -> None:
    bench = Bench(100, a=60)
    await bench.infer("a")
    sink = bench.send("a")
    assert len(bench.loaded["a"].inflights) == 1  # in the same turn of the event loop
    bench.loaded["a"].answer()
    assert sink.responses


async def test_a_load_that_fails_fails_those_that_wait_and_is_tried_again_later() -> None:
    bench = Bench(100, a=60)
    bench.failures["a"] = invalid("the file is broken\n\nAt:\n  /models/a/1/model.py(3): initialize\n")
    sinks = [bench.send("a") for _ in range(3)]
    await settle()
    for sink in sinks:
        assert sink.errors[0].code is Code.UNAVAILABLE
        assert "cannot be loaded: the file is broken (the next attempt is due in 1 s)" in sink.errors[0].message
    assert (bench.health, bench.memory.held) == (1, 0)
    assert "the file is broken" in str(bench.models["a"].unready_reason)
    with pytest.raises(OverloadedError, match="the next attempt is due in 1 s") as refusal:
        bench.send("a")
    assert 0 < refusal.value.retry_after_ns <= SECOND
    await bench.wait(1.1)
    assert (bench.models["a"].unready_reason, bench.health) == (None, 2)
    bench.send("a")
    await settle()
    with pytest.raises(OverloadedError, match="due in 2 s"):  # twice as long
        bench.send("a")
    await bench.wait(2.1)
    del bench.failures["a"]
    await bench.infer("a")
    assert (bench.models["a"].residency.failed_loads, bench.models["a"].residency.loads) == (2, 1)
    assert bench.models["a"].statistics.failures[FailureReason.REJECTED] == 6


async def test_a_cancelled_request_leaves_and_the_others_stay() -> None:
    bench = Bench(100, a=60)
    bench.gates["a"] = asyncio.Event()
    first, second = RecordingSink(), RecordingSink()
    inflight = bench.models["a"].submit(request(model="a"), first, bench.clock.now_ns())
    bench.send("a", second)
    await settle()
    inflight.cancel()
    assert (first.errors[0].code, bench.models["a"].residency.waiting) == (Code.CANCELLED, 1)
    bench.gates["a"].set()
    await settle()
    assert len(bench.loaded["a"].inflights) == 1
    bench.loaded["a"].answer()
    assert second.responses


async def test_a_request_that_was_handed_over_is_cancelled_in_the_model() -> None:
    bench = Bench(100, a=60)
    sink = RecordingSink()
    inflight = bench.models["a"].submit(request(model="a"), sink, bench.clock.now_ns())
    await settle()
    inner = bench.loaded["a"].inflights[0]
    inflight.cancel()
    assert inner.cancelled
    assert (len(sink.errors), sink.ended) == (1, 1)


async def test_when_nobody_waits_any_more_no_memory_is_waited_for() -> None:
    bench = Bench(100, a=80, b=80)
    bench.models["b"].size = 80
    await bench.infer("a")
    bench.send("a")
    sink = RecordingSink()
    inflight = bench.models["b"].submit(request(model="b"), sink, bench.clock.now_ns())
    await settle()
    assert bench.models["b"].residency.presence is Presence.WAITING
    inflight.cancel()
    await settle()
    assert (bench.models["b"].residency.presence, bench.resident) == (Presence.ABSENT, "a")
    bench.loaded["a"].answer()
    await settle()
    assert bench.log == ["+a"]


async def test_waiting_requests_have_their_own_times() -> None:
    bench = Bench(100, a=60)
    bench.gates["a"] = asyncio.Event()
    now_ns = bench.clock.now_ns()
    by_deadline = bench.send("a", deadline_ns=now_ns + 2 * SECOND)
    by_timeout = bench.send("a", timeout_ns=3 * SECOND)
    patient = bench.send("a")
    await bench.wait(2.5)
    assert [error.message for error in by_deadline.errors] == ["Request timeout expired"]
    assert not by_timeout.errors
    await bench.wait(1)
    assert [error.code for error in by_timeout.errors] == [Code.UNAVAILABLE]
    bench.gates["a"].set()
    await settle()
    bench.loaded["a"].answer()
    assert patient.responses


async def test_only_so_many_requests_wait() -> None:
    bench = Bench(100, a=60, b=60)
    bench.gates["a"] = asyncio.Event()
    model = bench.models["a"]
    model.config = config("a", dynamic_batching=DynamicBatching(default_policy=QueuePolicy(max_queue_size=2)))
    bench.send("a")
    bench.send("a")
    with pytest.raises(ModserveError, match="Exceeds maximum queue size: 2 requests wait until model 'a' is in memory"):
        bench.send("a")
    for _ in range(MOST):
        bench.send("b")
    with pytest.raises(ModserveError, match="Exceeds maximum queue size"):
        bench.send("b")
    for each in bench.models.values():
        bench.gates.setdefault(each.id.name, asyncio.Event()).set()
        await each.close()


# The limit


async def test_the_least_recently_used_leave() -> None:
    bench = Bench(100, a=30, b=30, c=30, d=50)
    await bench.infer("a", "b", "c", "a")
    assert (bench.resident, bench.memory.held) == ("abc", 90)
    await bench.infer("d")
    assert (bench.resident, bench.log[3:]) == ("ad", ["+d", "-b", "-c"])
    # Its size was not known before. From now on it is.
    await bench.infer("b", "c")
    bench.log.clear()
    await bench.infer("d")
    assert bench.log == ["-b", "+d"] or bench.log[-1] == "+d"
    assert bench.memory.held <= 100


async def test_what_is_known_of_the_size_is_used() -> None:
    bench = Bench(100, a=50, b=50, c=50)
    for model in bench.models.values():
        model.files = 40
    await bench.infer("a", "b", "c", "a", "b", "c")
    assert bench.log == ["+a", "+b", "-a", "+c", "-b", "+a", "-c", "+b", "-a", "+c"]
    assert [model.residency.evictions for model in bench.models.values()] == [2, 1, 1]


async def test_no_more_leave_than_must_and_none_in_vain() -> None:
    bench = Bench(100, a=30, b=60, c=70)
    bench.models["c"].size = 70
    await bench.infer("a", "b")
    bench.send("b")
    sink = bench.send("c")
    await settle()
    assert bench.resident == "ab"  # without b, the memory of a is not enough
    bench.loaded["b"].answer()
    await settle()
    assert (bench.resident, bench.log) == ("ac", ["+a", "+b", "-b", "+c"]) or bench.resident == "c"
    bench.loaded["c"].answer()
    assert sink.responses


async def test_work_in_flight_is_never_touched() -> None:
    bench = Bench(100, a=80, b=80)
    bench.models["b"].size = 80
    await bench.infer("a")
    busy = bench.send("a")
    sink = bench.send("b")
    await bench.wait(20)
    assert (bench.resident, busy.responses, sink.settled) == ("a", [], 0)
    bench.loaded["a"].answer()
    await settle()
    bench.loaded["b"].answer()
    assert (bench.resident, len(busy.responses), len(sink.responses)) == ("b", 1, 1)


async def test_the_wait_for_memory_ends_with_who_holds_it() -> None:
    bench = Bench(100, wait_s=5, a=50, b=40, c=80)
    bench.models["c"].size = 80
    await bench.infer("a", "b")
    bench.send("a")
    bench.borrowed.add("b")
    sink = bench.send("c")
    await bench.wait(4.5)
    assert sink.settled == 0
    await bench.wait(1)
    error = sink.errors[0]
    assert isinstance(error, OverloadedError)
    assert error.message == (
        "there is no memory for model 'c' version 1, which needs 0.0 MB of the 0.0 MB that --model-memory-limit "
        "allows; in memory: 'a' version 1 (0.0 MB: 1 request in flight), 'b' version 1 (0.0 MB: borrowed by another "
        "model)"
    )
    assert (bench.models["c"].unready_reason, bench.resident) == (None, "ab")
    bench.loaded["a"].answer()
    bench.borrowed.clear()
    await bench.infer("c")  # the next request tries again at once


async def test_a_pinned_model_stays_and_what_cannot_fit_beside_it_hears_so_at_once() -> None:
    bench = Bench(100, a=60, b=60, c=30)
    bench.models["a"] = bench.model("a", StayRules(pin=True))
    bench.models["b"].size = 60
    await bench.infer("a", "c")
    sink = bench.send("b")
    await settle()
    assert "'a' version 1 (0.0 MB: pinned)" in sink.errors[0].message
    assert bench.resident == "ac"
    bench.models["a"].pin(False)
    await bench.infer("b")
    assert bench.resident == "bc" or bench.resident == "b"


async def test_a_model_that_is_larger_than_the_limit() -> None:
    bench = Bench(100_000_000, a=250_000_000, b=10_000_000)
    await bench.infer("b")
    sink = bench.send("a")
    await settle()
    assert "needs 250.0 MB of memory (as measured when it was loaded), more than --model-memory-limit allows" in (
        sink.errors[0].message
    )
    assert (bench.log[-2:], bench.process, bench.resident) == (["+a", "-a"], 1000 + 10_000_000, "b")
    await bench.wait(100)
    with pytest.raises(OverloadedError, match=r"250\.0 MB"):
        bench.send("a")
    bench.models["a"] = bench.model("a", files=120_000_000)
    sink = bench.send("a")
    await settle()
    assert "needs 120.0 MB of memory (its files alone)" in sink.errors[0].message
    assert bench.log[-1] == "-a"  # it was not even tried


async def test_open_sequences_keep_a_model() -> None:
    bench = Bench(100, wait_s=5, a=80, b=80)
    keeper = bench.models["a"] = bench.model("a", kind=OnDemandKeeper)
    assert isinstance(keeper, OnDemandKeeper)
    bench.models["b"].size = 80
    await bench.infer("a")
    loaded = bench.loaded["a"]
    assert isinstance(loaded, Sequences)
    loaded.open_sequences = 1
    assert (keeper.open_sequences, keeper.has_sequence(1)) == (1, True)
    sink = bench.send("b")
    await bench.wait(6)
    assert "1 open sequence" in sink.errors[0].message
    loaded.open_sequences = 0
    await bench.infer("b")
    assert (bench.resident, keeper.open_sequences, keeper.has_sequence(1)) == ("b", 0, False)


async def test_what_another_model_borrows_is_the_last_to_leave() -> None:
    bench = Bench(100, a=40, b=40, c=40)
    for model in bench.models.values():
        model.files = 40
    await bench.infer("a", "b")
    bench.borrowed.add("a")
    await bench.infer("c")
    assert bench.resident == "ac"
    bench.borrowed.add("c")
    # Nothing is in flight anywhere: those that borrow may be waiting for this very model.
    await bench.infer("b")
    assert "b" in bench.resident


async def test_a_model_that_is_always_busy_is_held_back_for_one_that_waits() -> None:
    bench = Bench(100, a=80, b=80)
    bench.models["b"].size = 80
    await bench.infer("a")
    first = bench.send("a")
    waiting = bench.send("b")
    await bench.wait(0.5)
    assert len(bench.loaded["a"].inflights) == 1
    bench.send("a")
    assert len(bench.loaded["a"].inflights) == 2
    await bench.wait(1)
    later = bench.send("a")
    assert len(bench.loaded["a"].inflights) == 2  # the new one waits
    bench.loaded["a"].answer()
    await settle()
    bench.loaded["b"].answer()
    await settle()
    assert (len(first.responses), len(waiting.responses)) == (1, 1)
    await bench.wait(2)
    bench.loaded["a"].answer()
    assert later.responses
    assert bench.log == ["+a", "-a", "+b", "-b", "+a"]


async def test_a_model_that_was_held_back_in_vain_goes_on() -> None:
    bench = Bench(100, wait_s=5, a=80, b=80)
    bench.models["b"].size = 80
    await bench.infer("a")
    bench.send("a")
    refused = bench.send("b")
    await bench.wait(2)
    held = bench.send("a")
    await bench.wait(4)
    assert refused.errors
    assert len(bench.loaded["a"].inflights) == 2
    bench.loaded["a"].answer()
    assert held.responses


async def test_a_request_that_comes_while_its_model_leaves() -> None:
    bench = Bench(100, a=80, b=80)
    bench.models["b"].size = 80
    await bench.infer("a")
    first = bench.send("b")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.models["a"].residency.presence is Presence.LEAVING
    again = bench.send("a")
    await settle()
    bench.loaded["b"].answer()
    await bench.wait(2)
    bench.loaded["a"].answer()
    assert (len(first.responses), len(again.responses)) == (1, 1)
    assert bench.log == ["+a", "-a", "+b", "-b", "+a"]


async def test_two_that_want_the_same_room_both_get_theirs() -> None:
    bench = Bench(100, a=100, b=50, c=50)
    bench.models["b"].size = bench.models["c"].size = 50
    await bench.infer("a")
    sinks = [bench.send("b"), bench.send("c")]
    await settle()
    assert (bench.resident, bench.log) == ("bc", ["+a", "-a", "+b", "+c"])
    for name in "bc":
        bench.loaded[name].answer()
    assert all(sink.responses for sink in sinks)


async def test_loads_run_one_after_the_other() -> None:
    bench = Bench(100, a=50, b=50)
    bench.gates["a"] = asyncio.Event()
    bench.send("a")
    await settle()
    bench.send("b")
    await settle()
    assert (bench.log, bench.models["b"].residency.presence) == ([], Presence.WAITING)
    bench.gates["a"].set()
    await settle()
    assert (bench.log, [model.size for model in bench.models.values()]) == (["+a", "+b"], [50, 50])


async def test_at_random_the_limit_holds_and_nothing_fails() -> None:
    rng = random.Random(13)
    bench = Bench(100, **{f"m{number}": rng.randint(10, 60) for number in range(8)})
    sinks = []
    for _ in range(600):
        action = rng.random()
        if action < 0.5:
            sinks.append(bench.send(f"m{rng.randrange(8)}"))
        elif action < 0.8 and bench.loaded:
            bench.loaded[rng.choice(list(bench.loaded))].answer()
        else:
            bench.clock.advance(rng.randrange(SECOND // 10))
        for _ in range(rng.randrange(8)):
            await asyncio.sleep(0)
    for _ in range(400):
        for loaded in bench.loaded.values():
            loaded.answer()
        await bench.wait(0.2)
        if all(sink.settled for sink in sinks):
            break
    assert [sink.errors for sink in sinks if sink.errors] == []
    assert all(len(sink.responses) == 1 for sink in sinks)
    assert bench.memory.held <= 100
    assert sum(model.residency.evictions for model in bench.models.values()) > 10


# Idle


async def test_what_is_not_used_leaves() -> None:
    bench = Bench(0, a=50)
    model = bench.models["a"] = bench.model("a", StayRules(idle_ns=10 * SECOND))
    await bench.infer("a")
    await bench.wait(8)
    await bench.infer("a")
    await bench.wait(8)
    assert bench.resident == "a"
    busy = bench.send("a")
    await bench.wait(40)
    assert bench.resident == "a"
    bench.loaded["a"].answer()
    await bench.wait(21)
    assert (bench.resident, bench.log, len(busy.responses)) == ("", ["+a", "-a"], 1)
    assert model.unready_reason is None
    await bench.infer("a")
    assert (model.residency.loads, model.residency.evictions) == (2, 1)


async def test_what_is_pinned_does_not_leave_for_idleness() -> None:
    bench = Bench(0, a=50)
    bench.models["a"] = bench.model("a", StayRules(pin=True, idle_ns=10 * SECOND))
    await bench.infer("a")
    await bench.wait(60)
    assert bench.resident == "a"
    bench.models["a"].pin(False)
    await bench.wait(60)
    assert bench.resident == ""


# What it is asked besides


async def test_to_describe_a_model_loads_it_once() -> None:
    bench = Bench(100, a=50)
    model = bench.models["a"]
    assert not model.described
    await asyncio.gather(model.describe(), model.describe())
    assert (bench.log, model.described) == (["+a"], True)
    model.leave("a test")
    await settle()
    await model.describe()
    assert (bench.log, model.config_message) == (["+a", "-a"], b"complete")
    bench.failures["a"] = invalid("broken")
    other = bench.model("a")
    with pytest.raises(ModserveError, match="broken"):
        await other.describe()
    with pytest.raises(OverloadedError, match="broken"):
        await other.describe()


async def test_the_statistics_go_on_over_loads() -> None:
    bench = Bench(100, a=50)
    model = bench.models["a"]
    await bench.infer("a")
    first = bench.loaded["a"].statistics
    model.leave("a test")
    await settle()
    await bench.infer("a")
    assert bench.loaded["a"].statistics is first is model.statistics


# The end


async def test_a_version_that_is_retired_serves_what_waits() -> None:
    bench = Bench(100, a=50)
    bench.gates["a"] = asyncio.Event()
    sink = bench.send("a")
    await settle()
    draining = asyncio.ensure_future(bench.models["a"].drain())
    await settle()
    with pytest.raises(ModserveError, match="stopping"):
        bench.send("a")
    bench.gates["a"].set()
    await settle()
    assert not draining.done()
    bench.loaded["a"].answer()
    await settle()
    assert (draining.done(), len(sink.responses)) == (True, 1)
    await bench.models["a"].close()
    assert (bench.log, bench.memory.held) == (["+a", "-a"], 0)


async def test_a_version_that_is_closed_fails_what_waits() -> None:
    bench = Bench(100, a=50)
    bench.gates["a"] = asyncio.Event()
    sink = bench.send("a")
    await settle()
    await bench.models["a"].close()
    assert (len(sink.errors), bench.memory.held, bench.log) == (1, 0, [])


async def test_a_version_that_is_not_in_memory_ends_at_once() -> None:
    bench = Bench(100, a=50)
    model = bench.models["a"]
    await model.idle()
    model.hurry()
    await model.drain()
    await model.close()
    assert (bench.log, model.busy, model.outstanding) == ([], False, 0)


async def test_who_comes_when_the_last_one_that_waits_has_just_been_cancelled_is_served() -> None:
    bench = Bench(100, a=60, b=60)
    bench.send("a")
    await settle()
    gone = bench.models["b"].submit(request(model="b"), RecordingSink(), bench.clock.now_ns())
    await settle()
    assert bench.models["b"].residency.presence.value == "waits for memory"
    gone.cancel()
    late = bench.send("b")  # its load is being given up
    await settle()
    assert not late.errors
    bench.loaded["a"].answer()
    await settle()
    bench.loaded["b"].answer()
    assert late.responses


async def test_a_model_that_is_loaded_when_the_load_for_others_is_being_given_up() -> None:
    bench = Bench(100, a=60, b=60)
    bench.send("a")
    await settle()
    gone = bench.models["b"].submit(request(model="b"), RecordingSink(), bench.clock.now_ns())
    await settle()
    gone.cancel()
    bringing = asyncio.create_task(bench.models["b"].ensure())
    await settle()
    bench.loaded["a"].answer()
    await asyncio.wait_for(bringing, 10)
    assert bench.resident == "b"


async def test_what_waits_at_the_end_of_a_load_that_was_given_up_is_still_served_when_the_model_drains() -> None:
    bench = Bench(100, a=60, b=60)
    bench.send("a")
    await settle()
    gone = bench.models["b"].submit(request(model="b"), RecordingSink(), bench.clock.now_ns())
    await settle()
    gone.cancel()
    late = bench.send("b")
    draining = asyncio.create_task(bench.models["b"].drain())
    await settle()
    bench.loaded["a"].answer()
    await settle()
    bench.loaded["b"].answer()
    await asyncio.wait_for(draining, 10)
    assert late.responses


async def test_a_model_that_waits_for_nobody_may_leave() -> None:
    bench = Bench(100, a=60, b=60)
    bench.send("a")
    await settle()
    bench.loaded["a"].abandoned = True  # its engine goes on with a request of a client that has gone
    late = bench.send("b")
    await settle()
    bench.loaded["b"].answer()
    assert late.responses
