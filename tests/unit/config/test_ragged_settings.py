"""Ragged inputs, batch inputs and batch outputs: Triton's rules, and what is made of them."""

import pytest
from config_build import described, finish, problems, tensor

from modserve.core.configuration.merging import BatchInput, BatchInputKind
from modserve.core.configuration.model_config import ModelDescription
from modserve.core.tensors import dtypes

RAGGED = """
max_batch_size: 16
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "IN_ENDS" data_type: TYPE_FP32 source_input: "IN"
}
"""
OUTPUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }\n'
SCATTER = 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "OUT" source_input: "IN" }\n'
MODEL = described(tensor("IN", -1), tensor("IN_ENDS", -1), tensor("OUT", -1))


def test_values() -> None:
    found = finish(RAGGED + OUTPUT + SCATTER, MODEL).config
    assert [(each.name, each.ragged) for each in found.inputs] == [("IN", True)]
    assert found.batch_inputs == (
        BatchInput(BatchInputKind.ACCUMULATED_ELEMENT_COUNT, ("IN_ENDS",), dtypes.FP32, "IN"),
    )
    assert found.batch_outputs == {"OUT": "IN"}


@pytest.mark.parametrize("kind", [each.value for each in BatchInputKind])
def test_every_kind(kind: str) -> None:
    text = RAGGED.replace("BATCH_ACCUMULATED_ELEMENT_COUNT", kind).replace("TYPE_FP32 source", "TYPE_INT32 source")
    shape = (-1, -1) if kind == "BATCH_ITEM_SHAPE" else (-1,)
    model = described(tensor("IN", -1), tensor("IN_ENDS", *shape, datatype=dtypes.INT32), tensor("OUT", -1))
    assert finish(text + OUTPUT + SCATTER, model).config.batch_inputs[0].kind.value == kind


@pytest.mark.parametrize(
    "text",
    [
        RAGGED,
        RAGGED.replace("data_type: TYPE_FP32 dims: [ -1 ] allow", "allow"),
        'max_batch_size: 16 input { name: "IN" allow_ragged_batch: true } batch_input { kind: '
        'BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "IN_ENDS" data_type: TYPE_FP32 source_input: "IN" }',
    ],
    ids=["no output", "no dims", "nothing more"],
)
def test_completion(text: str) -> None:
    found = finish(text, described(tensor("IN", -1), tensor("IN_ENDS", -1), tensor("OUT", -1, 3))).config
    assert [(each.name, each.dims) for each in found.inputs] == [("IN", (-1,))]
    assert [(each.name, each.dims) for each in found.outputs] == [("OUT", (3,))]


def test_what_the_server_makes_is_not_completed() -> None:
    """Where no input is given at all."""
    text = RAGGED.replace('input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }', "")
    found = finish(text, MODEL).config
    assert [each.name for each in found.inputs] == ["IN"]


KIND = "BATCH_ACCUMULATED_ELEMENT_COUNT"
OTHER_INPUT = 'input { name: "IN2" data_type: TYPE_FP32 dims: [ 4 ] }\n'


@pytest.mark.parametrize(
    ("text", "model", "problem"),
    [
        (
            RAGGED.replace('source_input: "IN"', ""),
            None,
            f"batch input kind '{KIND}' expects 1 source input, got 0",
        ),
        (
            RAGGED.replace('source_input: "IN"', 'source_input: [ "IN", "IN" ]'),
            None,
            f"batch input kind '{KIND}' expects 1 source input, got 2",
        ),
        (
            RAGGED.replace("TYPE_FP32 source", "TYPE_INT64 source"),
            None,
            "batch input data type must be TYPE_INT32 or TYPE_FP32",
        ),
        (RAGGED.replace('source_input: "IN"', 'source_input: "X"'), None, "unknown source input name 'X'"),
        (
            RAGGED + SCATTER.replace('source_input: "IN"', ""),
            None,
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0",
        ),
        (RAGGED + SCATTER.replace('"IN"', '"X"'), None, "unknown source input name 'X'"),
        (RAGGED + SCATTER.replace('"OUT"', '"X"'), None, "unknown target output name 'X'"),
        (
            RAGGED + SCATTER.replace('"OUT"', '[ "OUT", "OUT" ]'),
            None,
            "target output name 'OUT' can only be specified once",
        ),
        (RAGGED + SCATTER + SCATTER, None, "target output name 'OUT' can only be specified once"),
        (RAGGED + SCATTER.replace('target_name: "OUT"', ""), None, "batch output must name the outputs it is for"),
        (RAGGED.replace('target_name: "IN_ENDS"', ""), None, "batch input must name the inputs it is for"),
        (
            RAGGED.replace('"IN_ENDS"', '[ "IN_ENDS", "IN" ]'),
            None,
            "batch input target name 'IN' is also an input or another batch input's target",
        ),
        (
            RAGGED.replace('"IN_ENDS"', '[ "IN_ENDS", "IN_ENDS" ]'),
            None,
            "batch input target name 'IN_ENDS' is also an input or another batch input's target",
        ),
        (
            RAGGED + OTHER_INPUT.replace("[ 4 ]", "[ -1 ] optional: true") + SCATTER.replace('"IN"', '"IN2"'),
            None,
            "source input 'IN2' of a batch output must not be optional",
        ),
        (
            RAGGED + SCATTER.replace("OUT", "OUT2") + 'output { name: "OUT2" data_type: TYPE_FP32 dims: [ 2, -1 ] }',
            None,
            "output 'OUT2' has a variable dimension 2, which it takes from source input 'IN', and that has only 2",
        ),
        (
            RAGGED,
            described(tensor("IN", -1, -1), tensor("IN_ENDS", -1), tensor("OUT", -1)),
            "unable to load model 'foo', configuration expects model provides input with shape [-1]  for ragged input "
            "'IN', model provides [-1,-1]",
        ),
        (
            RAGGED.replace("allow_ragged", "optional: true allow_ragged"),
            MODEL,
            "configuration expects model provides input with shape [-1] for ragged input 'IN', which is not supported "
            "for optional input",
        ),
        (
            RAGGED.replace("IN_ENDS", "ENDS"),
            MODEL,
            "unexpected inference input 'ENDS', allowed inputs are: IN, IN_ENDS",
        ),
        (
            RAGGED,
            described(tensor("IN", -1), tensor("IN_ENDS", -1, datatype=dtypes.INT32), tensor("OUT", -1)),
            "configuration expects datatype TYPE_FP32 for batch input 'IN_ENDS', model provides TYPE_INT32",
        ),
        (
            RAGGED,
            described(tensor("IN", -1), tensor("IN_ENDS", -1, -1), tensor("OUT", -1)),
            f"batch input 'IN_ENDS' of kind {KIND} has 1 dimensions, model provides [-1,-1]",
        ),
    ],
)
def test_problems(text: str, model: ModelDescription | None, problem: str) -> None:
    assert problem in "\n".join(problems(text + OUTPUT, model))


def test_every_problem_has_its_place() -> None:
    text = RAGGED.replace("TYPE_FP32 source", "TYPE_INT64 source") + OUTPUT
    line = 1 + text[: text.index("TYPE_INT64")].count("\n")
    [problem] = problems(text)
    assert problem.startswith(f"{line}:")
