"""Which steps are ready, which are skipped, and in what shape tensors are handed on."""

import pytest

from modserve.core.configuration.ensemble_config import Condition, EnsembleConfig, Step
from modserve.core.configuration.model_config import TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Shape
from modserve.scheduling.dataflow import Entry, MissingReason, StepPlan, Value, Wave, as_output, fit, follow_up, runs
from modserve.testing import tensor

ABSENT, SKIPPED = MissingReason.ABSENT, MissingReason.SKIPPED
HERE = Value(tensor(dtypes.INT32, (1,), 1))


def step(inputs: str, outputs: str, when: Condition | None = None) -> Step:
    """A step whose model calls its tensors as the ensemble does."""
    return Step("m", None, {name: name for name in inputs.split()}, {name: name for name in outputs.split()}, when)


DIAMOND = EnsembleConfig((step("in", "a"), step("in", "b"), step("a b", "out"), step("b", "aside")))
SWITCH = EnsembleConfig(
    (
        step("in", "k"),
        step("in", "out", Condition("k", "==", 1)),
        step("in", "out", Condition("k", "==", 2)),
    )
)


@pytest.mark.parametrize(
    ("outputs", "needed", "asked"),
    [
        (("out",), (0, 1, 2), {0: ("a",), 1: ("b",), 2: ("out",)}),
        (("aside",), (1, 3), {1: ("b",), 3: ("aside",)}),
        (("a",), (0,), {0: ("a",)}),
        (("aside", "out"), (0, 1, 2, 3), {0: ("a",), 1: ("b",), 2: ("out",), 3: ("aside",)}),
    ],
)
def test_only_what_the_outputs_need_is_planned(
    outputs: tuple[str, ...], needed: tuple[int, ...], asked: dict[int, tuple[str, ...]]
) -> None:
    plan = StepPlan(DIAMOND, outputs)
    assert (plan.needed, plan.requested) == (needed, asked)
    assert plan.needs == (("m", None),)


def test_what_a_condition_asks_about_is_needed_too() -> None:
    assert StepPlan(SWITCH, ("out",)).needed == (0, 1, 2)


def test_steps_are_ready_once_all_their_inputs_are_known() -> None:
    wave = Wave(StepPlan(DIAMOND, ("out",)))
    assert wave.settle({"in": HERE}) == [0, 1]
    assert wave.settle({"a": HERE}) == []
    assert not wave.complete
    assert wave.settle({"b": ABSENT}) == [2]
    assert wave.take(2) == ({"a": HERE, "b": ABSENT}, None)
    assert wave.settle({"out": HERE}) == []
    assert wave.complete
    assert wave.outputs(["out"]) == {"out": HERE}


def test_tensors_that_nobody_needs_any_more_are_let_go() -> None:
    wave = Wave(StepPlan(DIAMOND, ("out", "b")))
    wave.settle({"in": HERE})
    wave.take(0)
    assert wave.take(1) == ({"in": HERE}, None)
    wave.settle({"a": HERE, "b": HERE})
    wave.take(2)
    wave.settle({"out": HERE})
    assert wave.outputs(["b", "out"]) == {"b": HERE, "out": HERE}
    assert wave.outputs(["a", "in"]) == {"a": ABSENT, "in": ABSENT}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(HERE, SKIPPED, HERE), (SKIPPED, HERE, HERE), (SKIPPED, SKIPPED, SKIPPED), (ABSENT, SKIPPED, ABSENT)],
)
def test_of_two_steps_that_may_give_a_tensor_both_have_their_say(first: Entry, second: Entry, expected: Entry) -> None:
    wave = Wave(StepPlan(SWITCH, ("out",)))
    assert wave.settle({"in": HERE}) == [0]
    assert wave.settle({"k": HERE}) == [1, 2]
    wave.settle({"out": first})
    assert not wave.complete
    wave.settle({"out": second})
    assert wave.complete
    assert wave.outputs(["out"]) == {"out": expected}


def test_waiting_is_counted_along_the_longest_way() -> None:
    wave = Wave(StepPlan(SWITCH, ("out",)))
    wave.settle({"in": HERE})
    wave.settle({"k": HERE}, 5)
    assert (wave.longest_wait_ns(["in"]), wave.longest_wait_ns(["in", "k"]), wave.longest_wait_ns([])) == (0, 5, 0)
    wave.settle({"out": HERE}, 9)
    wave.settle({"out": SKIPPED}, 7)
    assert wave.longest_wait_ns(["out"]) == 9


def test_what_a_response_gives_and_what_it_lacks() -> None:
    entries = follow_up(
        Step("m", None, {}, {"a": "x", "b": "y", "c": "z"}),
        InferenceResponse("m", 1, {"a": HERE.tensor}, skipped=frozenset("b")),
        "abc",
        4,
        None,
    )
    given = entries.pop("x")
    assert isinstance(given, Value)
    assert (given.tensor, given.batch_size, entries) == (HERE.tensor, 4, {"y": SKIPPED, "z": ABSENT})


def test_two_steps_must_not_give_one_tensor() -> None:
    wave = Wave(StepPlan(SWITCH, ("out",)))
    wave.settle({"out": HERE})
    with pytest.raises(ModserveError, match="more than one step produced tensor 'out'") as caught:
        wave.settle({"out": HERE})
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(
    ("inputs", "optional", "expected"),
    [
        ({"a": HERE, "b": HERE}, "", True),
        ({"a": HERE, "b": ABSENT}, "", True),  # the model says what is missing
        ({"a": ABSENT, "b": ABSENT}, "", True),
        ({"a": HERE, "b": SKIPPED}, "", False),
        ({"a": HERE, "b": SKIPPED}, "a", False),
        ({"a": HERE, "b": SKIPPED}, "b", True),
        ({"a": SKIPPED, "b": SKIPPED}, "a b", False),
        ({"a": ABSENT, "b": SKIPPED}, "a b", False),
    ],
)
def test_steps_without_their_inputs_are_skipped(inputs: dict[str, Entry], optional: str, expected: bool) -> None:
    assert runs(step("a b", "out"), inputs, None, set(optional.split())) is expected


@pytest.mark.parametrize(("condition", "expected"), [(HERE, True), (ABSENT, False), (SKIPPED, False)])
def test_a_step_whose_condition_can_not_hold_is_skipped(condition: Entry, expected: bool) -> None:
    assert runs(step("a", "out", Condition("k", "==", 1)), {"a": HERE}, condition, ()) is expected


@pytest.mark.parametrize(
    ("shape", "batch_size", "dims", "batching", "expected"),
    [
        ((2, 4), 2, (4,), True, (2, 4)),
        ((4,), 0, (4,), False, (4,)),
        ((4,), 0, (4,), True, (1, 4)),
        ((3, 4), 0, (4,), True, (3, 4)),
        ((3, 4), 0, (-1,), True, (3, 4)),
        ((1, 4), 1, (4,), False, (4,)),
        ((1, 4), 1, (-1, 4), False, (1, 4)),
        ((2, 4), 2, (-1, 4), False, (2, 4)),
        ((2, 4), 2, (4,), False, (2, 4)),
    ],
)
def test_batch_dimensions_between_models(
    shape: Shape, batch_size: int, dims: Shape, batching: bool, expected: Shape
) -> None:
    given = tensor(dtypes.INT32, shape)
    found = fit(given, batch_size, dims, batching)
    assert found.shape == expected
    assert (found is given) == (shape == expected)


@pytest.mark.parametrize(
    ("spec", "shape", "expected"),
    [
        (TensorSpec("o", dtypes.INT32, (2, 2)), (3, 2, 2), (3, 2, 2)),
        (TensorSpec("o", dtypes.INT32, (2, 2), reshape=(4,)), (3, 4), (3, 2, 2)),
        (TensorSpec("o", dtypes.INT32, (1, -1), reshape=(-1,)), (3, 5), (3, 1, 5)),
    ],
)
def test_outputs_as_clients_see_them(spec: TensorSpec, shape: Shape, expected: Shape) -> None:
    assert as_output(spec, Value(tensor(dtypes.INT32, shape), 3), True).shape == expected


def test_an_output_that_can_not_be_reshaped() -> None:
    spec = TensorSpec("o", dtypes.INT32, (2, 2), reshape=(4,))
    with pytest.raises(ModserveError, match=r"output 'o' has shape \[3,5\], but .* reshapes it from \[4\]"):
        as_output(spec, Value(tensor(dtypes.INT32, (3, 5)), 3), True)
