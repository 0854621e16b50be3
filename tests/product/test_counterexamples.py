"""What the product test has found, each as the fewest steps that show it. Leaving the `World` looks at everything."""

import pytest

from .machine import ProductMachine
from .models import ROLLBACKS, ROUTINGS
from .world import World

ONE = 70_000_000
"""Memory for one model."""


def test_two_changes_in_place_while_requests_wait() -> None:
    """The first queue was never looked at again once the second was empty: its requests waited for ever."""
    with World() as world:
        world.submit("plain")
        world.run()  # it runs
        world.submit("plain")
        world.run()  # it waits in the first queue
        world.change("plain", delay_ms=100)
        world.run()
        world.submit("plain")
        world.run()  # and this in the second
        world.change("plain", delay_ms=0)
        world.run()
        last = world.submit("plain")
        world.run()
        for _ in range(4):
            world.finish()
            world.run()
        assert last.responses == 1


def test_a_request_in_the_turn_in_which_the_last_one_that_waits_for_memory_is_cancelled() -> None:
    """It got 503 "Server is stopping", from a load that was being given up."""
    with World(ONE) as world:
        world.submit("plain")
        world.run()  # it is in memory, and at work
        world.submit("bare")
        world.run()  # it waits for memory
        world.cancel()
        late = world.submit("bare")
        world.run()
        assert late.open
        world.finish()
        world.run()
        world.finish()
        world.run()
        assert late.responses == 1


def test_a_model_whose_engine_goes_on_for_nobody_leaves_memory() -> None:
    """Whoever waited for its memory looked at it without a pause: the event loop did nothing else for ever."""
    with World(ONE) as world:
        world.submit("plain")
        world.run()
        world.cancel()  # its engine does not hear of that
        waiting = world.submit("bare")
        world.run(20.0)
        world.finish(1)
        world.run()
        assert waiting.responses == 1


@pytest.mark.parametrize("turns", range(12))
def test_what_is_rolled_back_during_a_load_stays_so(turns: int) -> None:
    """The load had looked at the folder before, and its look was taken for the newest state."""
    with World() as world:
        world.need("routed")
        world.run()
        world.load_again("routed")
        for _ in range(turns):
            world.turn()
        world.route("routed", ROLLBACKS[0])
        world.run()
        assert set(world.server.routings.rollbacks_of("routed")) == {2}


@pytest.mark.parametrize("is_decided", [False, True])
def test_what_is_rolled_back_right_before_the_stop_is_written_down(is_decided: bool) -> None:
    """Or refused, if the stop comes first."""
    with World() as world:
        world.need("routed")
        world.run()
        world.route("routed", ROLLBACKS[0])
        while is_decided and not world.server.routings.rollbacks_of("routed"):
            world.turn()
        world.loop.hold_threads(True)
        world.turn()
        world.stop()
        world.turn()


def test_what_is_rolled_back_right_before_an_unload_is_written_down() -> None:
    """The model had gone when its folder was to be written."""
    with World() as world:
        world.need("routed")
        world.loop.hold_threads(True)
        world.route("routed", ROLLBACKS[0])
        world.run()
        world.loop.hold_threads(False)
        world.turn()
        world.unload("routed")
        world.run()


def test_a_version_that_was_rolled_back_gets_nothing_when_the_other_one_is_lost() -> None:
    """It got everything, for it was the latest."""
    with World() as world:
        world.need("routed")
        world.route("routed", ROUTINGS[0])
        while not world.server.routings.rollbacks:
            world.submit("routed")
            world.run()
            version = world.executions[0].instance.version
            world.finish(how="error" if version == 2 else "ok")
            world.run()
        (stable,) = [each for each in world.engines.instances if each.version == 1]
        world.loop.act(stable.lose)
        world.run()
        assert not world.server.model_ready("routed", None)
        assert world.submit("routed").refusal is not None
        world.run(2.0)  # another instance is there
        assert world.submit("routed").refusal is None
        world.run()
        assert world.executions[0].instance.version == 1


def test_instances_with_resources_while_a_batch_waits_for_more() -> None:
    """Two instances that could not run at once were granted the resource in turns, without a pause."""
    with World() as world:
        world.need("greedy")
        world.change("greedy", delay_ms=100, count=2)
        world.run()
        world.submit("modest")
        world.run()
        for _ in range(2):
            world.submit("greedy")
        world.run()  # they wait for what "modest" has
        world.finish()
        world.run()
        assert not world.executions
        world.run(0.2)
        assert len(world.executions) == 1


def test_a_load_and_requests_for_the_version_before_it_want_the_same_memory() -> None:
    """The version before it was loaded again while it was held back, left with nothing done, and so on for ever."""
    with World(ONE) as world:
        world.submit("cached")
        world.run()
        world.change("cached", delay_ms=100)
        world.run()
        world.submit("cached")
        world.run()
        world.change("cached", preferred=2)
        world.run(2.0)
        world.submit("cached")
        world.run(2.0)


def test_a_stop_while_a_model_that_has_been_loaded_waits_for_others_to_leave() -> None:
    """It was larger than expected, and stayed open when its load was given up."""
    with World(ONE) as world:
        world.submit("stream")
        world.submit("chain")
        world.turn()
        world.change("chain", cached=True)
        for _ in range(4):
            world.turn()
        world.stop()
        world.cancel()


def test_one_who_waits_for_the_same_response_cancels_another() -> None:
    """It was told of its end a second time, and those behind it never were."""
    for ways in ("ok", "error"):
        with World() as world:
            world.submit("cached", value=1)
            world.run()  # it runs, and the others wait for its response
            world.submit("cached", value=1, reaction="cancel")
            cancelled = world.submit("cached", value=1)
            world.run()
            world.finish(how=ways)
            world.run()
            assert cancelled.responses == 0


def test_a_client_leaves_while_its_call_waits_for_a_thread() -> None:
    """The port told the call again and again that it is cancelled, and did nothing else until the thread was ready."""
    with World() as world:
        world.loop.hold_threads(True)
        world.chat("chat")
        world.run()
        world.leave_texts()
        world.run()


def test_a_drain_does_not_count_what_its_clients_have_left() -> None:
    """It was over, and said that an execution was in flight which nobody waited for."""
    with World() as world:
        world.submit("plain")
        world.run()
        world.cancel()
        world.drain()
        world.run(31.0)
        assert world.draining is not None
        report = world.draining.result()
        assert (report.drained, report.in_flight) == (True, {})
        assert world.executions


def test_a_batch_that_nobody_asked_for_mixes_its_requests() -> None:
    """Its requests run again, each by itself; whoever left meanwhile does not, and from then on nothing is merged."""
    with World() as world:
        world.submit("unasked")
        world.run()  # it runs, and the others are merged behind it
        first, gone, last = (world.submit("unasked") for _ in range(3))
        world.run()
        world.finish()
        world.run()
        assert [len(each.inputs["IN"]) for each in world.executions] == [3]
        world.cancel(-2)
        world.finish()
        world.run()
        for _ in range(2):
            assert [len(each.inputs["IN"]) for each in world.executions] == [1]
            world.finish()
            world.run()
        assert (first.responses, gone.responses, last.responses) == (1, 0, 1)
        more = [world.submit("unasked") for _ in range(3)]
        world.run()
        for _ in more:
            assert [len(each.inputs["IN"]) for each in world.executions] == [1]
            world.finish()
            world.run()
        assert [each.responses for each in more] == [1, 1, 1]


def test_the_timer_of_a_limit_fails_once() -> None:
    """No execution of the model was ever given up again."""
    with World() as world:
        entry = world.submit("hasty")
        world.run()
        world.loop.throws = 1
        world.run(60.0)
        assert (world.loop.throws, entry.ended) == (0, True)


def test_a_model_that_calls_another_while_it_warms_up() -> None:
    """Under a limit of memory, loads ran one after the other: the two waited for each other, and all for them."""
    with World(70_000_000) as world:
        world.need("caller")
        world.change("caller", warm_up=True)
        world.run()
        world.loop.act(world.engines.run_by_themselves)
        entry = world.submit("caller")
        world.run(5.0)
        assert (entry.ended, entry.failure) == (True, None)
        assert not [task for task in world.operations if not task.done()]


def test_an_instance_that_is_dismissed_while_it_warms_up() -> None:
    """One of its two calls failed, it was dismissed, and nobody saw it off when the other one ended."""
    with World() as world:
        world.need("caller")
        world.change("caller", warm_up=True, count=2)
        world.run()
        world.drain(notice_s=0.5)
        world.turn()
        world.run(2.0)


def test_an_instance_that_is_refused_when_it_is_made_anew_and_then_unloaded() -> None:
    """Its engine was to be closed by the next attempt, which never came."""
    with World() as world:
        world.need("plain")
        world.engines.throws = "attach"
        world.lose()
        world.run(2.0)
        world.unload("plain")
        world.run()
        assert world.engines.made == 0


def test_an_instance_that_is_lost_before_its_warm_up() -> None:
    """It was closed meanwhile, and whoever waited for the model heard that."""
    with World(70_000_000) as world:
        world.need("plain")
        world.evict("plain")
        world.run()
        world.change("plain", warm_up=True, count=2)
        world.run()
        entry = world.submit("plain")
        world.run()
        world.lose(1)
        world.run(2.0)
        world.finish()
        world.run()
        assert entry.failure is not None
        assert "was lost before its warm-up" in entry.failure.message


def test_an_instance_that_is_lost_in_a_load_that_fails() -> None:
    """The next load counted it as lost for ever."""
    with World(70_000_000) as world:
        world.need("plain")
        world.change("plain", warm_up=True)
        world.run()
        world.submit("plain")
        world.run()
        world.finish(how="error")
        world.lose()
        world.run()


def test_an_instance_of_a_change_that_a_drain_ends_is_closed_after_its_warm_up() -> None:
    """Its samples were still running when it was dismissed, and no request was settled afterwards."""
    with World() as world:
        world.need("plain")
        world.run()
        world.change("plain", count=2)
        world.turn()
        world.change("plain", warm_up=True)
        world.run()
        world.drain()
        world.run()


def test_a_sequence_goes_on_with_the_files_of_its_start() -> None:
    """Others of the same files were expected of it."""
    with World() as world:
        world.submit("blocking_sequences", sequence_id=1, sequence_start=True)
        world.run()
        world.load_again("blocking_sequences")
        world.run()
        entry = world.submit("blocking_sequences", sequence_id=1)
        world.run()
        assert entry.ended
        assert entry.failure is None


def test_the_next_server_of_a_repository_that_is_polled_keeps_to_rollbacks() -> None:
    with World(polls=True) as world:
        world.need("routed")
        world.route("routed", ROLLBACKS[0])
        world.run()


def test_the_rollback_of_a_model_goes_with_its_folder() -> None:
    """It was expected in the folder that is gone."""
    with World(polls=True) as world:
        world.need("routed")
        world.route("routed", ROLLBACKS[0])
        world.run()
        world.unload("routed")
        world.run(2.0)


def test_a_rollback_is_written_when_the_folder_is_there_again() -> None:
    """It was decided while the owner replaced the folder, and never written: the next server served that version."""
    machine = ProductMachine()
    machine.start(limit=70_000_000, polls=True, keys=False, models=["plain", "routed"])
    machine.submit_to_routed(after="all", user="b", version=1)
    machine.change_twice(after="nothing", between=2, first=[(8, 1)], model=1, second=[(5, 1), (4, 0)])
    machine.unload(after="all", again=True, dependents=False, model=1)
    machine.teardown()


def test_a_drained_server_writes_no_rollback_into_a_folder_that_was_removed() -> None:
    """It was expected there: the owner had removed the folder while requests to the version ran."""
    machine = ProductMachine()
    machine.start(limit=70_000_000, polls=True, keys=False, models=["routed"])
    machine.submit(
        after="turn",
        apart=True,
        count=4,
        lengths=[1, 1, 3],
        model=0,
        priority=0,
        queue_timeout_ms=0,
        reaction="",
        timeout_s=0.0,
    )
    machine.drain(after="all", notice_s=0.5)
    machine.unload(after="all", again=False, dependents=False, model=1)
    machine.teardown()
