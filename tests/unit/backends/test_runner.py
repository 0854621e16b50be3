"""Instances run without a server, of the kinds that get batches."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from modserve.backends.api import BatchDone, InstanceHandle, InstanceLostError
from modserve.backends.runner import AsyncRunner, Runner, UnmeasurableError, runner
from modserve.core.errors import ModserveError
from modserve.core.tensors.tensor import Array

INPUTS = {"IN": np.arange(2, dtype=np.float32)}
TIMED = (INPUTS, {"IN": np.ones(3, np.float32)})


class Blocking:
    """Doubles, into the same memory each time."""

    def __init__(self, reuses: bool = True) -> None:
        self.reuses_outputs = reuses
        self.sizes: list[int] = []
        self.closed = False
        self._memory = np.zeros(8, np.float32)

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        assert outputs == ("OUT",)
        lent = self._memory[: len(inputs["IN"])]
        lent[...] = inputs["IN"] * 2
        self.sizes.append(len(lent))
        return {"OUT": lent}

    def close(self) -> None:
        self.closed = True


class OnLoop(Blocking):
    """The same for an event loop; executions end on a thread, or as `end` says."""

    max_in_flight = 3

    def __init__(self, end: Callable[[Any], None] | None = None) -> None:
        super().__init__()
        self._end = end
        self.detached = False

    def attach(self, handle: InstanceHandle) -> None:
        self.handle = handle

    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        if self._end is not None:
            self._end(done)
        else:
            threading.Thread(target=lambda: done(self.execute(inputs, outputs))).start()

    def detach(self) -> None:
        self.detached = True


@pytest.mark.parametrize("make", [Blocking, OnLoop])
def test_outputs_are_the_callers_own(make: Callable[[], Any]) -> None:
    instance = make()
    runs = runner(instance, ("OUT",), TIMED)
    first = runs.outputs(INPUTS)
    runs.outputs({"IN": np.full(2, 7, np.float32)})
    assert first["OUT"].tolist() == [0, 2]
    runs.close()
    assert instance.closed


def test_a_blocking_instance_runs_what_is_timed_in_order() -> None:
    instance = Blocking()
    runs = runner(instance, ("OUT",), TIMED)
    assert isinstance(runs, Runner)
    assert (runs.run(2), instance.sizes) == (2, [2, 3, 2, 3])


@pytest.mark.parametrize(("alone", "executions"), [(False, 6), (True, 2)])
def test_an_instance_on_an_event_loop_has_as_many_under_way_as_it_takes(alone: bool, executions: int) -> None:
    instance = OnLoop()
    runs = runner(instance, ("OUT",), TIMED, alone=alone)
    assert isinstance(runs, AsyncRunner)
    assert runs.run(2) == executions
    assert sorted(instance.sizes) == [2] * executions + [3] * executions
    runs.close()
    assert (instance.detached, instance.closed, runs.loop.is_closed()) == (True, True, True)


def test_failures_of_an_instance_on_an_event_loop() -> None:
    runs = runner(OnLoop(lambda done: done(ValueError("wrong"))), ("OUT",), TIMED)
    with pytest.raises(ValueError, match="wrong"):
        runs.outputs(INPUTS)
    with pytest.raises(ValueError, match="wrong"):
        runs.run(1)
    runs.close()


def test_the_first_of_several_ends_counts() -> None:
    def twice(done: BatchDone) -> None:
        done({"OUT": np.ones(1)})
        done(ValueError("late"))

    runs = runner(OnLoop(twice), ("OUT",), TIMED)
    assert runs.outputs(INPUTS)["OUT"].tolist() == [1]
    runs.close()


def test_an_instance_that_is_lost_ends_what_it_does() -> None:
    instance = OnLoop(lambda done: instance.handle.lost(InstanceLostError("it is gone")))
    runs = runner(instance, ("OUT",), TIMED)
    with pytest.raises(InstanceLostError, match="it is gone"):
        runs.outputs(INPUTS)
    runs.close()


def test_an_instance_that_cannot_be_attached() -> None:
    class Stubborn(OnLoop):
        def attach(self, handle: InstanceHandle) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        runner(Stubborn(), ("OUT",), TIMED)


def test_instances_that_get_no_batches() -> None:
    class ByRequest(Blocking):
        def execute_requests(self, requests: object) -> None: ...

    with pytest.raises(UnmeasurableError):
        runner(ByRequest(), ("OUT",), TIMED)
    with pytest.raises(ModserveError, match="a str is not an instance"):
        runner("instance", ("OUT",), TIMED)  # type: ignore[arg-type]
