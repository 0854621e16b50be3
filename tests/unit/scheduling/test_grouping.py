"""Requests that must not share a batch."""

from typing import Any

import pytest

from modserve.core.errors import Code, ModserveError, unavailable
from modserve.core.inflight import Inflight
from modserve.scheduling.grouping import Grouped, by_parameters
from modserve.testing import inflight


class Recorder:
    """Implements `scheduler.Scheduler`."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def enqueue(self, entry: Inflight) -> None:
        self.calls.append(entry.shape_key)

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self, error: ModserveError) -> None:
        self.calls.append(error)


def test_keys_are_added_from_outside_in() -> None:
    recorder = Recorder()
    scheduler = Grouped(Grouped(recorder, lambda entry: entry.length), lambda entry: "outer")
    scheduler.enqueue(inflight(shape_key="shape"))
    scheduler.stop()
    scheduler.close(error := unavailable("closed"))
    assert recorder.calls == [(("shape", "outer"), 0), "stop", error]


def keyed(**parameters: Any) -> object:
    entry = inflight()
    entry.request.parameters.update(parameters)  # type: ignore[attr-defined]
    return by_parameters(("a", "b"), "model")(entry)


def test_values_of_different_types_differ() -> None:
    keys = [keyed(a=value) for value in (1, 1.0, True, "1", None)] + [keyed(b=1), keyed(a=1, b=1)]
    assert len(set(keys)) == len(keys)
    assert keyed() == keyed(a=None, c=3)


def test_values_that_parameters_cannot_have_are_refused() -> None:
    with pytest.raises(ModserveError, match="parameter 'b' of a request to model 'model' is of type list") as caught:
        keyed(b=[1])
    assert caught.value.code is Code.INVALID_ARG
