"""Parameters that let requests of different lengths share a batch."""

import pytest
from config_build import PATH, described, finish, problems, tensor

from modserve.config import check, parse
from modserve.core.configuration.merging import Padding, PaddingPolicy
from modserve.core.tensors import dtypes

MODEL = """
max_batch_size: 8
input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "mask" data_type: TYPE_INT64 dims: [ 1, -1 ] }
input { name: "tiny" data_type: TYPE_UINT8 dims: [ -1, 2 ] }
input { name: "flag" data_type: TYPE_BOOL dims: [ -1 ] }
input { name: "word" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "each" data_type: TYPE_FP32 dims: [ -1, 4 ] }
dynamic_batching { }
"""


def parameters(**texts: str) -> str:
    """`__` stands for a dot of the key."""
    written = {key.replace("__", "."): text for key, text in texts.items()}
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n' for key, text in written.items()
    )


def test_all_of_them() -> None:
    text = parameters(
        padding__axis__ids="0",
        padding__axis__tiny="0",
        padding__value__tiny="7",
        padding__mask="mask",
        padding__multiple_of="8",
        padding__unpad__each="0",
        padding__policy="always",
        padding__buckets="3",
        padding__relearn_every="500",
        scheduling__batch_sizes="1,2, 4,8",
        scheduling__max_batch_elements="2048",
    )
    found = finish(MODEL + text)
    assert found.config.padding == Padding(
        axes={"ids": 0, "tiny": 0, "mask": 1},
        values={"tiny": "7"},
        mask="mask",
        multiple_of=8,
        unpad={"each": 0},
        policy=PaddingPolicy.ALWAYS,
        buckets=3,
        relearn_every=500,
    )
    assert found.config.dynamic_batching is not None
    assert found.config.dynamic_batching.max_batch_elements == 2048
    assert (found.config.batch_sizes, found.config.fills_up) == ((1, 2, 4, 8), True)
    assert [each.name for each in found.config.inputs if each.optional] == ["mask"]
    assert [each.name for each in found.message.input if each.optional] == ["mask"]


def test_none_of_them() -> None:
    found = finish(MODEL).config
    assert (found.padding, found.batch_sizes, found.fills_up) == (None, (), False)


def test_tensors_may_come_from_the_model() -> None:
    model = described(tensor("IN", -1, -1, datatype=dtypes.INT64), tensor("OUT", -1, -1))
    found = finish(parameters(padding__axis__IN="0", padding__unpad__OUT="0"), model).config
    assert found.padding == Padding(axes={"IN": 0}, unpad={"OUT": 0})
    [problem] = problems(parameters(padding__axis__INN="0"), model)
    assert "parameter 'padding.axis.INN': model 'foo' has no input 'INN'; did you mean 'IN'?" in problem


AXIS = parameters(padding__axis__ids="0")


def of_type(datatype: str, value: str) -> str:
    """The model with another data type of its first input, which is padded with `value`."""
    return MODEL.replace("TYPE_INT64", f"TYPE_{datatype}", 1) + AXIS + parameters(padding__value__ids=value)


RAGGED = MODEL.replace('"word" data_type: TYPE_STRING', '"word" allow_ragged_batch: true data_type: TYPE_STRING')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            MODEL + AXIS + parameters(padding__whatever="1"),
            "unknown parameter 'padding.whatever'; known parameters are: ",
        ),
        (
            MODEL + AXIS + parameters(padding__multipleof="1"),
            "unknown parameter 'padding.multipleof'; did you mean 'padding.multiple_of'?",
        ),
        (
            MODEL + AXIS + parameters(padding__policy="sometimes"),
            "parameter 'padding.policy' is 'sometimes', expected 'measured' or 'always' or 'never'",
        ),
        (MODEL + AXIS + parameters(padding__axis__="1"), "unknown parameter 'padding.axis.'"),
        (
            MODEL + parameters(padding__mask="mask"),
            "parameter 'padding.mask' needs 'padding.axis.<input>', which says what is padded",
        ),
        (
            MODEL + parameters(padding__axis__ids="1"),
            "parameter 'padding.axis.ids' is '1', expected the number of one of the dims [-1] of input 'ids', the "
            "first being 0 (the batch dimension does not count)",
        ),
        (MODEL + parameters(padding__axis__ids="x"), "parameter 'padding.axis.ids' is 'x', expected the number"),
        (
            MODEL + parameters(padding__axis__tiny="1"),
            "parameter 'padding.axis.tiny' is 1, but that dimension of input 'tiny' with dims [-1, 2] has a fixed size",
        ),
        (MODEL + parameters(padding__axis__idz="0"), "model 'foo' has no input 'idz'; did you mean 'ids'?"),
        (
            MODEL + AXIS + parameters(padding__unpad__ids="0"),
            "model 'foo' has no output 'ids'; known outputs are: each",
        ),
        (MODEL + AXIS + parameters(padding__unpad__each="2"), "'padding.unpad.each' is '2', expected the number of"),
        (
            MODEL + AXIS + parameters(padding__value__tiny="1"),
            "parameter 'padding.value.tiny' needs 'padding.axis.tiny', which says what is padded",
        ),
        (
            MODEL + parameters(padding__axis__tiny="0", padding__value__tiny="256"),
            "parameter 'padding.value.tiny' is '256', expected a whole number from 0 to 255 for data type TYPE_UINT8",
        ),
        (
            MODEL + AXIS + parameters(padding__value__ids="-9223372036854775809"),
            "expected a whole number from -9223372036854775808 to 9223372036854775807 for data type TYPE_INT64",
        ),
        (
            MODEL + parameters(padding__axis__flag="0", padding__value__flag="1"),
            "parameter 'padding.value.flag' is '1', expected true or false for data type TYPE_BOOL",
        ),
        (
            of_type("FP16", "1e30"),
            "'padding.value.ids' is '1e30', expected a number from -65504 to 65504 for data type",
        ),
        (of_type("BF16", "-1e39"), "is '-1e39', expected a number from -3.38953e+38 to 3.38953e+38 for data type"),
        (of_type("FP32", "3.5e38"), "is '3.5e38', expected a number from -3.40282e+38 to 3.40282e+38 for data type"),
        (of_type("FP64", "1e309"), "is '1e309', expected a number from -1.79769e+308 to 1.79769e+308 for data type"),
        (of_type("FP32", "x"), "parameter 'padding.value.ids' is 'x', expected a number for data type TYPE_FP32"),
        (MODEL + AXIS + parameters(padding__mask="msk"), "is 'msk', and model 'foo' has no such input; did you mean"),
        (MODEL + AXIS + parameters(padding__mask="word"), "of data type TYPE_STRING, where a mask needs numbers"),
        (
            MODEL.replace("[ 1, -1 ]", "[ 4 ]") + AXIS + parameters(padding__mask="mask"),
            "names input 'mask' with dims [4], where a mask needs one variable dimension (-1)",
        ),
        (
            MODEL + AXIS + parameters(padding__mask="mask", padding__value__mask="1"),
            "parameter 'padding.mask' names input 'mask', which is padded with zeros",
        ),
        (
            MODEL + AXIS + parameters(padding__buckets="0"),
            "parameter 'padding.buckets' is '0', expected a whole number from 1 to 999999999999999",
        ),
        (
            MODEL + AXIS + parameters(padding__multiple_of="1000001"),
            "parameter 'padding.multiple_of' is '1000001', expected a whole number from 1 to 1000000",
        ),
        (
            MODEL.replace("max_batch_size: 8", "").replace("dynamic_batching { }", "") + AXIS,
            "parameter 'padding.axis.ids' needs a batch dimension: max_batch_size of 1 or more",
        ),
        (RAGGED + AXIS, "parameter 'padding.axis.ids' cannot be combined with allow_ragged_batch of input 'word'"),
        (
            RAGGED + parameters(padding__axis__word="0"),
            "parameter 'padding.axis.word' names input 'word', which has allow_ragged_batch",
        ),
        (
            MODEL.replace("dims: [ -1 ] }", "dims: [ -1 ] reshape { shape: [ -1, 1 ] } }", 1) + AXIS,
            "parameter 'padding.axis.ids' names input 'ids', which has a reshape",
        ),
        (
            MODEL + parameters(scheduling__batch_sizes="1,2"),
            "parameter 'scheduling.batch_sizes' is '1,2', and its last size must be max_batch_size, which is 8",
        ),
        (MODEL + parameters(scheduling__batch_sizes="4,2,8"), "is '4,2,8', expected ascending whole numbers from 1"),
        (MODEL + parameters(scheduling__batch_sizes="0,8"), "is '0,8', expected ascending whole numbers from 1 to 9"),
        (RAGGED + parameters(scheduling__batch_sizes="8"), "cannot be combined with ragged batching"),
        (
            MODEL + parameters(scheduling__max_batch_elements="64"),
            "parameter 'scheduling.max_batch_elements' needs 'padding.axis.<input>' or an input with allow_ragged",
        ),
        (
            MODEL.replace("dynamic_batching { }", "sequence_batching { }") + AXIS,
            "parameter 'padding.axis.ids' cannot be combined with sequence_batching",
        ),
        (
            MODEL.replace("dynamic_batching { }", 'platform: "ensemble" ensemble_scheduling { }') + AXIS,
            "parameter 'padding.axis.ids' cannot be combined with ensemble_scheduling",
        ),
        (
            MODEL.replace("max_batch_size: 8", "") + parameters(scheduling__batch_sizes="1,2"),
            "parameter 'scheduling.batch_sizes' needs a batch dimension: max_batch_size of 1 or more",
        ),
    ],
)
def test_problems(text: str, problem: str) -> None:
    assert problem in str(problems(text))


@pytest.mark.parametrize(
    ("datatype", "value"), [("FP16", "-65504"), ("FP16", "-inf"), ("BF16", "nan"), ("FP32", "3.4e38")]
)
def test_values_that_fit(datatype: str, value: str) -> None:
    found = finish(of_type(datatype, value)).config.padding
    assert found is not None
    assert found.values == {"ids": value}


def test_batch_sizes_may_be_for_a_batch_size_that_is_found_out() -> None:
    model = described(tensor("IN", -1, 2), tensor("OUT", -1, 2))
    text = "dynamic_batching { }" + parameters(scheduling__batch_sizes="1,4")
    assert finish(text, model).config.batch_sizes == (1, 4)
    check(parse(text + 'backend: "onnxruntime"', PATH, "foo"))


def test_ragged_elements_can_be_limited() -> None:
    found = finish(RAGGED + parameters(scheduling__max_batch_elements="64")).config.dynamic_batching
    assert found is not None
    assert found.max_batch_elements == 64
