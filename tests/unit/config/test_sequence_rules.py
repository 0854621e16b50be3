"""``sequence_batching``: its rules in Triton's words, its defaults, its value, and what the model must have for it."""

import pytest
from config_build import ONE_EACH, described, finish, problems, tensor

from modserve.core.configuration.sequence_config import (
    Control,
    ControlKind,
    DirectStrategy,
    InitialState,
    OldestStrategy,
    SequenceBatching,
    SequenceState,
)
from modserve.core.tensors import dtypes

START = "kind: CONTROL_SEQUENCE_START"
CORRID = "kind: CONTROL_SEQUENCE_CORRID"
GOOD_STATE = 'input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 2, -1 ]'


def control(text: str, name: str = "C") -> str:
    return f'control_input {{ name: "{name}" control {{ {text} }} }}'


def state(initial: str) -> str:
    return f"state {{ {GOOD_STATE} initial_state {{ {initial} }} }}"


# What is inside sequence_batching { } → what is wrong.
RULES = {
    'control_input { name: "" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }': (
        "sequence batching control tensor must have a name for foo"
    ),
    control(f"{START} int32_false_true: [0, 1]") + control("kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1]"): (
        "sequence batching control tensor 'C' is specified for multiple control kinds for foo"
    ),
    'control_input { name: "C" control [ { int32_false_true: [0, 1] }, '
    "{ kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] } ] }": (
        "sequence batching control tensor 'C' is specified for multiple control kinds for foo"
    ),
    control(f"{START} int32_false_true: [0, 1]", "IN"): (
        "sequence batching control tensor 'IN' is also an input that clients send for foo"
    ),
    control(f"{START} int32_false_true: [0, 1]") + control(f"{START} int32_false_true: [0, 1]", "D"): (
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for foo"
    ),
    control(START): (
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_START for foo"
    ),
    control(f"{START} int32_false_true: [0, 1] bool_false_true: [false, true]"): (
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' "
        "for CONTROL_SEQUENCE_START for foo"
    ),
    control("kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1, 2]"): (
        "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY for foo"
    ),
    control("kind: CONTROL_SEQUENCE_END fp32_false_true: [0]"): (
        "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_END for foo"
    ),
    control(f"{CORRID} data_type: TYPE_UINT64 int32_false_true: [0, 1]"): (
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_CORRID for foo"
    ),
    control(f"{CORRID} data_type: TYPE_FP32"): (
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for foo. Allowed data types are TYPE_UINT64, "
        "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
    ),
    "oldest { preferred_batch_size: 0 }": "sequence batching preferred batch size must be positive for foo",
    "oldest { preferred_batch_size: 9 }": "sequence batching preferred batch size must be <= max batch size for foo",
    "oldest { max_candidate_sequences: -1 }": "sequence batching max candidate sequences must be >= 0 for foo",
    "direct { minimum_slot_utilization: 1.5 }": (
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for foo"
    ),
    "direct { minimum_slot_utilization: -0.5 }": (
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for foo"
    ),
    'state { output_name: "T" data_type: TYPE_FP32 dims: 1 }': (
        "sequence batching state must specify 'input_name' for foo"
    ),
    'state { input_name: "S" output_name: "T" dims: 1 }': (
        "sequence batching state 'S' must specify 'data_type' for foo"
    ),
    'state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 0 }': (
        "sequence batching state 'S' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for "
        "foo"
    ),
    f'state {{ {GOOD_STATE} }} state {{ input_name: "S" output_name: "U" data_type: TYPE_FP32 dims: 1 }}': (
        "State input name 'S' specified more than once."
    ),
    f'state {{ {GOOD_STATE} }} state {{ input_name: "R" output_name: "T" data_type: TYPE_FP32 dims: 1 }}': (
        "State output name 'T' specified more than once."
    ),
    'state { input_name: "IN" output_name: "T" data_type: TYPE_FP32 dims: 1 }': (
        "State input name 'IN' specified more than once."
    ),
    f'state {{ {GOOD_STATE} initial_state [ {{ name: "a" }}, {{ name: "b" }} ] }}': (
        "initial_state field for state input 'S' must contain exactly one or zero element. Found '2' elements."
    ),
    state('name: "i" data_type: TYPE_INT32 dims: [2, 2] zero_data: true'): (
        "The data type used for 'initial_state' field of state 'S' does not match the state data type."
    ),
    state("data_type: TYPE_FP32 dims: [2, 2] zero_data: true"): (
        "Field 'name' must be set when using initial_state for state input 'S'."
    ),
    state('name: "i" data_type: TYPE_FP32 dims: 2 zero_data: true'): (
        "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'S'. "
        "1 != 2"
    ),
    state('name: "i" data_type: TYPE_FP32 dims: [2, -1] zero_data: true'): (
        "'initial_state' field for state input name 'S' contains variable dimensions."
    ),
    state('name: "i" data_type: TYPE_FP32 dims: [3, 1] zero_data: true'): (
        "'initial_state' dim for input name 'S' doesn't match 'state' dim description. 3 != 2"
    ),
    state('name: "i" data_type: TYPE_FP32 dims: [2, 1]'): (
        "initial_state setting expects state 'S' to have state_data set"
    ),
    state('name: "i" data_type: TYPE_FP32 dims: [2, 1] data_file: "../secret"'): (
        "initial_state file path '../secret' for state input 'S' is outside the initial_state directory"
    ),
}


@pytest.mark.parametrize("text", RULES)
def test_rules(text: str) -> None:
    found = problems(f"max_batch_size: 8\nsequence_batching {{ {text} }}\n{ONE_EACH}")
    assert [problem.split(": ", 1)[1] for problem in found] == [RULES[text]]
    assert found[0].startswith("2:")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", (1_000_000, [])),
        ("max_sequence_idle_microseconds: 7 direct { }", (7, [])),
        ("oldest { }", (1_000_000, [8])),
        ("oldest { preferred_batch_size: 2 }", (1_000_000, [2])),
    ],
    ids=["nothing", "direct", "oldest", "preferred"],
)
def test_defaults(text: str, shown: tuple[int, list[int]]) -> None:
    batching = finish(f"max_batch_size: 8 sequence_batching {{ {text} }} {ONE_EACH}").message.sequence_batching
    assert (batching.max_sequence_idle_microseconds, list(batching.oldest.preferred_batch_size)) == shown


def test_everything() -> None:
    text = f"""
    max_batch_size: 8
    sequence_batching {{
      oldest {{
        max_candidate_sequences: 5 preferred_batch_size: [4, 2] max_queue_delay_microseconds: 3 preserve_ordering: true
      }}
      max_sequence_idle_microseconds: 9
      iterative_sequence: true
      {control(f"{START} fp32_false_true: [0.5, 2]", "A")}
      {control("kind: CONTROL_SEQUENCE_END int32_false_true: [-1, 1]", "B")}
      {control("kind: CONTROL_SEQUENCE_READY bool_false_true: [true, false]", "C")}
      {control(f"{CORRID} data_type: TYPE_STRING", "D")}
      {state('name: "i" data_type: TYPE_FP32 dims: [2, 3] data_file: "f"')}
    }}
    {ONE_EACH}"""
    assert finish(text).config.sequence_batching == SequenceBatching(
        OldestStrategy(5, (2, 4), 3000, True),
        (
            Control("A", ControlKind.START, dtypes.FP32, (0.5, 2.0)),
            Control("B", ControlKind.END, dtypes.INT32, (-1, 1)),
            Control("C", ControlKind.READY, dtypes.BOOL, (True, False)),
            Control("D", ControlKind.CORRID, dtypes.BYTES),
        ),
        (SequenceState("S", "T", dtypes.FP32, (2, -1), InitialState("i", (2, 3), "f")),),
        9000,
        True,
    )


def test_direct() -> None:
    text = "direct { max_queue_delay_microseconds: 2 minimum_slot_utilization: 0.5 }"
    found = finish(f"max_batch_size: 8 sequence_batching {{ {text} }} {ONE_EACH}").config.sequence_batching
    assert found == SequenceBatching(DirectStrategy(2000, 0.5))


# With what the model has

WITH_MODEL = (
    "max_batch_size: 4 sequence_batching { "
    + control(f"{START} int32_false_true: [0, 1]", "IN_START")
    + ' state { input_name: "IN_S" output_name: "T" data_type: TYPE_FP32 dims: 2 } }'
)
INPUTS = (tensor("IN", -1, 4), tensor("IN_START", -1, 1, datatype=dtypes.INT32), tensor("IN_S", -1, 2))
OUTPUTS = (tensor("OUT", -1, 4), tensor("T", -1, 2))
WHO = "unable to load model 'foo', state"


def test_completion_leaves_out_controls_and_states() -> None:
    found = finish(WITH_MODEL, described(*INPUTS, *OUTPUTS)).config
    assert ([spec.name for spec in found.inputs], found.output_names) == (["IN"], ("OUT",))
    assert found.state_outputs == ("T",)
    assert found.dynamic_batching is None


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (
            (INPUTS[0], INPUTS[2], *OUTPUTS),
            "configuration specified sequence control 'IN_START', but model does not provide that input",
        ),
        (
            (INPUTS[0], tensor("IN_START", -1, 2, datatype=dtypes.INT32), INPUTS[2], *OUTPUTS),
            "unable to load model 'foo', sequence control 'IN_START' in model has dims [2] but dims [1] is expected",
        ),
        (
            (INPUTS[0], tensor("IN_START", -1, 1), INPUTS[2], *OUTPUTS),
            "unable to load model 'foo', sequence control 'IN_START', the model expects data-type TYPE_FP32 but the "
            "model configuration specifies data-type TYPE_INT32",
        ),
        (
            (*INPUTS, OUTPUTS[0]),
            "configuration specified state output 'T', but the model only has: OUT",
        ),
        (
            (*INPUTS[:2], tensor("IN_S", -1, 2, datatype=dtypes.INT64), *OUTPUTS),
            "unable to load model 'foo', state input 'IN_S', the model expects data-type TYPE_INT64 but the model "
            "configuration specifies data-type TYPE_FP32",
        ),
        (
            (*INPUTS[:2], tensor("IN_S", -1, 3), *OUTPUTS),
            f"{WHO} input 'IN_S', the model expects shape [-1,3] but the model configuration begins a sequence with "
            "shape [-1,2]",
        ),
        (
            (*INPUTS, OUTPUTS[0], tensor("T", -1, 3)),
            f"{WHO} output 'T', the model gives shape [-1,3] but the model configuration specifies shape [-1,2]",
        ),
        (
            (*INPUTS[:2], tensor("IN_S", -1, 2, 1), *OUTPUTS),
            f"{WHO} input 'IN_S', the model expects shape [-1,2,1] but the model configuration begins a sequence with "
            "shape [-1,2]",
        ),
    ],
    ids=[
        "no control",
        "control's dims",
        "control's type",
        "no state",
        "state's type",
        "state input's size",
        "state output's size",
        "state's rank",
    ],
)
def test_what_the_model_must_have(tensors: tuple[object, ...], expected: str) -> None:
    [problem] = problems(WITH_MODEL, described(*tensors))  # type: ignore[arg-type]
    assert problem.split(": ", 1)[1] == expected


def with_state(more: str, batch: int = 4) -> str:
    """A model with inputs and outputs IN, IN_S → OUT, T, and a state with these settings."""
    state = f'state {{ input_name: "IN_S" output_name: "T" data_type: TYPE_FP32 {more} }}'
    ends = ONE_EACH if batch else ONE_EACH.replace("dims: 4", "dims: [ -1, 4 ]")
    return f"max_batch_size: {batch} sequence_batching {{ {state} }} {ends}"


ENDS = (tensor("IN", -1, 4), tensor("OUT", -1, 4))
BEGINS_WITH_TWO = 'initial_state { name: "z" data_type: TYPE_FP32 dims: 2 zero_data: true }'


@pytest.mark.parametrize(
    ("text", "given", "kept"),
    [
        (with_state("dims: 2"), (-1, -1), (-1, -1)),
        (with_state("dims: -1"), (-1, 1), (-1, 1)),
        (with_state(f"dims: -1 {BEGINS_WITH_TWO}"), (-1, 2), (-1, 3)),
        (with_state("dims: 2 use_growable_memory: true"), (-1, -1), (-1, 4)),
        (with_state("dims: 2", 1), (1, 2), (1, 2)),
        (with_state("dims: 2", 0), (2,), (2,)),
    ],
    ids=["any size", "begins as 1", "begins as said", "growable", "one row", "no batching"],
)
def test_shapes_that_a_state_may_have_in_the_model(text: str, given: tuple[int, ...], kept: tuple[int, ...]) -> None:
    model = described(*ENDS, tensor("IN_S", *given), tensor("T", *kept))
    found = finish(text, model).config.sequence_batching
    assert found is not None
    assert found.states[0].growable == ("growable" in text)


@pytest.mark.parametrize(
    ("text", "given", "kept", "expected"),
    [
        (with_state("dims: -1"), (-1, 2), (-1, 2), "expects shape [-1,2] but {} begins a sequence with shape [-1,1]"),
        (with_state("dims: 2"), (), (-1, 2), "expects shape [] but {} begins a sequence with shape [-1,2]"),
        (with_state("dims: 2"), (1, 2), (-1, 2), "expects shape [1,2] but {} begins a sequence with shape [-1,2]"),
        (with_state("dims: 2"), (-1, 2), (4, 2), "gives shape [4,2] but {} specifies shape [-1,2]"),
        (with_state("dims: 2", 1), (2, 2), (1, 2), "expects shape [2,2] but {} begins a sequence with shape [-1,2]"),
        (with_state("dims: 1", 0), (), (1,), "expects shape [] but {} begins a sequence with shape [1]"),
        (with_state("dims: 2", 0), (2,), (3,), "gives shape [3] but {} specifies shape [2]"),
        (with_state("dims: 0"), (-1, 2), (-1, 2), "-1 to indicate a variable-size dimension for foo"),
    ],
    ids=["begins as 1", "scalar", "one row", "four rows", "two rows", "no batching", "no batching, kept", "dims"],
)
def test_a_state_that_does_not_fit(text: str, given: tuple[int, ...], kept: tuple[int, ...], expected: str) -> None:
    model = described(*ENDS, tensor("IN_S", *given), tensor("T", *kept))
    [problem] = problems(text, model)
    assert problem.endswith(expected.format("the model configuration"))


def test_where_the_batch_size_is_wrong_shapes_of_states_are_not_looked_at() -> None:
    model = described(tensor("IN", 4), tensor("OUT", 4), tensor("IN_S", 2), tensor("T", 2))
    text = with_state("dims: 2").replace(ONE_EACH, "")
    [problem] = problems(text, model)
    assert "model does not support batching while non-zero max_batch_size is specified" in problem
