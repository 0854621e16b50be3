"""A batch gives bit for bit what its requests give on their own."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape, Tensor, encode_elements
from modserve.execution.batch import merge, merge_output_names, split
from modserve.testing import RecordingSink, config, request

FP32, INT32, BYTES = dtypes.FP32, dtypes.INT32, dtypes.BYTES


def arbitrary(datatype: Datatype, shape: Shape, seed: int) -> Tensor:
    """A tensor as received, of arbitrary bits: NaNs with payloads, negative zeros, texts with zero bytes."""
    random = np.random.default_rng(seed)
    count = math.prod(shape)
    if datatype is BYTES:
        raw = encode_elements([random.bytes(int(size)) for size in random.integers(0, 9, count)])
    elif datatype is dtypes.BOOL:
        raw = random.integers(0, 2, count, dtype=np.uint8).tobytes()
    else:
        raw = random.bytes(count * datatype.size)
    return Tensor.from_raw(datatype, shape, raw)


def copying(
    datatype: Datatype, dims: Shape, reshape: Shape | None = None, max_batch_size: int = 16, outputs: int = 1
) -> ModelConfig:
    """A model of one input IN and outputs OUT0, OUT1 …"""
    return config(
        inputs=(TensorSpec("IN", datatype, dims, reshape),),
        outputs=tuple(TensorSpec(f"OUT{index}", datatype, dims, reshape) for index in range(outputs)),
        max_batch_size=max_batch_size,
    )


def accepted(model: ModelConfig, *inputs: Tensor, outputs: Sequence[tuple[str, ...]] = ()) -> list[Inflight]:
    asked = outputs or [()] * len(inputs)
    return [
        Signature(model).accept(request({"IN": tensor}, outputs=names, id=f"r{index}"), RecordingSink(), 0)
        for index, (tensor, names) in enumerate(zip(inputs, asked, strict=True))
    ]


def run(model: ModelConfig, members: list[Inflight]) -> list[dict[str, Tensor]]:
    """What each request gets when they run together on an engine that copies IN to all outputs."""
    array = merge(members)["IN"]
    outputs = dict.fromkeys(merge_output_names(members), array)
    return [dict(response.outputs) for response in split(outputs, members, model, 1)]


def refusal(model: ModelConfig, members: list[Inflight], outputs: Mapping[str, Array]) -> str:
    with pytest.raises(ModserveError) as caught:
        split(outputs, members, model, 1)
    assert caught.value.code is Code.INTERNAL
    return caught.value.message


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
@pytest.mark.parametrize(
    ("dims", "reshape"),
    [
        ((3,), None),
        ((3_000,), None),
        ((), None),
        ((2, 0), None),
        ((-1, 2), None),
        ((4,), (2, 2)),
        ((-1, 4), (2, -1, 2)),
        ((1,), ()),
    ],
    ids=[
        "vectors",
        "large vectors",
        "scalars",
        "no elements",
        "variable",
        "reshaped",
        "variable, reshaped",
        "reshaped to scalars",
    ],
)
def test_together_as_alone(datatype: Datatype, dims: Shape, reshape: Shape | None) -> None:
    model = copying(datatype, dims, reshape)
    item = tuple(5 if size == -1 else size for size in dims)
    tensors = [arbitrary(datatype, (batch, *item), seed) for seed, batch in enumerate([1, 3, 2, 1])]
    together = run(model, accepted(model, *tensors))
    for tensor, outputs in zip(tensors, together, strict=True):
        [alone] = run(model, accepted(model, tensor))
        for given in (alone["OUT0"], outputs["OUT0"]):
            assert (given.datatype, given.shape, bytes(given.raw)) == (datatype, tensor.shape, bytes(tensor.raw))
            assert given.array.shape == tensor.shape


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
def test_the_model_sees_its_own_shapes_and_types(datatype: Datatype) -> None:
    model = copying(datatype, (4,), (2, 2))
    members = accepted(model, arbitrary(datatype, (1, 4), 0), arbitrary(datatype, (2, 4), 1))
    for batch, rows in ((members, 3), (members[:1], 1)):
        array = merge(batch)["IN"]
        assert (array.shape, array.dtype) == ((rows, 2, 2), datatype.numpy)


def test_received_and_made_tensors_share_a_batch() -> None:
    model = copying(FP32, (2,))
    made = Tensor.from_array(np.array([[1.0, 2.0]], dtype=np.float32))
    transposed = Tensor.from_array(np.array([[3.0], [4.0]], dtype=np.float32).T)
    received = Tensor.from_raw(FP32, (1, 2), np.array([5, 6], dtype=np.float32).tobytes())
    assert merge(accepted(model, made, transposed, received))["IN"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_one_large_request_is_not_copied() -> None:
    model = copying(FP32, (100_000,))
    raw = bytearray(800_000)
    [member] = accepted(model, Tensor.from_raw(FP32, (2, 100_000), raw))
    array = merge([member])["IN"]
    assert np.shares_memory(array, np.frombuffer(raw, np.float32))
    [response] = split({"OUT0": array}, [member], model, 1)
    assert np.shares_memory(response.outputs["OUT0"].array, array)


@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_texts_that_an_engine_gives_back_keep_their_raw_form(max_batch_size: int) -> None:
    """To encode millions of them takes seconds."""
    model = copying(BYTES, (1, 3), reshape=(3,), max_batch_size=max_batch_size)
    given = arbitrary(BYTES, (1, 1, 3) if max_batch_size else (1, 3), 1)
    (outputs,) = run(model, accepted(model, given))
    assert outputs["OUT0"].shape == given.shape
    assert outputs["OUT0"].raw is given.raw


def test_texts_that_an_engine_has_changed_do_not() -> None:
    model = copying(BYTES, (1,))
    made = np.array([[b"a"]], object)
    (member,) = accepted(model, Tensor.from_array(made))
    assert member.inputs["IN"].raw == encode_elements([b"a"])
    made[0, 0] = b"b"
    (response,) = split({"OUT0": made}, [member], model, 1)
    assert response.outputs["OUT0"].raw == encode_elements([b"b"])


def test_models_without_a_batch_dimension() -> None:
    model = copying(INT32, (-1, 2), max_batch_size=0)
    [member] = accepted(model, arbitrary(INT32, (5, 2), 0))
    [outputs] = run(model, [member])
    assert (outputs["OUT0"].shape, bytes(outputs["OUT0"].raw)) == ((5, 2), bytes(arbitrary(INT32, (5, 2), 0).raw))


def test_outputs_may_have_other_dimensions_than_inputs() -> None:
    model = copying(INT32, (1,))
    members = accepted(model, arbitrary(INT32, (2, 1), 0), arbitrary(INT32, (1, 1), 1))
    responses = split({"OUT0": np.arange(6, dtype=np.int32).reshape(3, 2)}, members, model, 1)
    assert [response.outputs["OUT0"].array.tolist() for response in responses] == [[[0, 1], [2, 3]], [[4, 5]]]


def test_responses_name_model_version_and_request() -> None:
    model = copying(INT32, (1,))
    members = accepted(model, arbitrary(INT32, (1, 1), 0), arbitrary(INT32, (1, 1), 1))
    responses = split({"OUT0": merge(members)["IN"]}, members, model, 7)
    assert [(each.model_name, each.model_version, each.id) for each in responses] == [
        ("model", 7, "r0"),
        ("model", 7, "r1"),
    ]


def test_each_request_gets_the_outputs_it_asked_for_in_its_order() -> None:
    model = copying(INT32, (1,), outputs=3)
    tensors = [arbitrary(INT32, (1, 1), seed) for seed in range(4)]
    members = accepted(model, *tensors, outputs=[("OUT1",), (), ("OUT2", "OUT0"), ("OUT1",)])
    assert [list(outputs) for outputs in run(model, members)] == [
        ["OUT1"],
        ["OUT0", "OUT1", "OUT2"],
        ["OUT2", "OUT0"],
        ["OUT1"],
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([("OUT1",), ("OUT1",)], {"OUT1"}),
        ([("OUT1",), ("OUT2", "OUT1")], {"OUT1", "OUT2"}),
        ([("OUT0",), ()], {"OUT0", "OUT1", "OUT2"}),
    ],
    ids=["the same", "different", "all and one"],
)
def test_the_model_is_asked_for_what_anybody_wants(asked: list[tuple[str, ...]], expected: set[str]) -> None:
    model = copying(INT32, (1,), outputs=3)
    tensors = [arbitrary(INT32, (1, 1), seed) for seed in range(len(asked))]
    wanted = merge_output_names(accepted(model, *tensors, outputs=asked))
    assert set(wanted) == expected
    assert len(wanted) == len(expected)


def test_texts_as_engines_give_them() -> None:
    model = copying(BYTES, (1,))
    members = accepted(model, arbitrary(BYTES, (1, 1), 0), arbitrary(BYTES, (2, 1), 1))
    array = np.array([["a"], [b"\0\xff"], ["ü"]], dtype=object)
    responses = split({"OUT0": array}, members, model, 1)
    assert [bytes(each.outputs["OUT0"].raw) for each in responses] == [
        encode_elements([b"a"]),
        encode_elements([b"\0\xff", "ü".encode()]),
    ]


def test_outputs_nobody_asked_for_may_be_missing() -> None:
    model = copying(INT32, (1,), outputs=2)
    members = accepted(model, arbitrary(INT32, (1, 1), 0), outputs=[("OUT1",)])
    [response] = split({"OUT1": merge(members)["IN"]}, members, model, 1)
    assert list(response.outputs) == ["OUT1"]


def test_outputs_nobody_knows_are_left_out() -> None:
    model = copying(INT32, (1,))
    members = accepted(model, arbitrary(INT32, (1, 1), 0))
    array = merge(members)["IN"]
    [response] = split({"OUT0": array, "DEBUG": array}, members, model, 1)
    assert list(response.outputs) == ["OUT0"]


THREE = np.zeros((3, 1), dtype=np.float32)
RESHAPED = "output 'OUT0' of model 'model' has shape {}, but the model configuration reshapes it from [-1,2]"
BROKEN: dict[str, tuple[ModelConfig, dict[str, Array], str]] = {
    "missing": (copying(FP32, (1,)), {"OUT1": THREE}, "model 'model' did not return output 'OUT0'"),
    "too few rows": (
        copying(FP32, (1,)),
        {"OUT0": THREE[:2]},
        "output 'OUT0' of model 'model' has shape [2,1], expected 3 in the first dimension, as in the inputs",
    ),
    "no dimensions": (
        copying(FP32, (1,)),
        {"OUT0": np.array(1, dtype=np.float32)},
        "output 'OUT0' of model 'model' has shape [], expected 3 in the first dimension, as in the inputs",
    ),
    "type": (
        copying(FP32, (1,)),
        {"OUT0": THREE.astype(np.float64)},
        "output 'OUT0' of model 'model' is of type float64, but the model configuration says TYPE_FP32",
    ),
    "texts for numbers": (
        copying(FP32, (1,)),
        {"OUT0": np.array([["a"]] * 3, dtype=object)},
        "output 'OUT0' of model 'model' is of type object, but the model configuration says TYPE_FP32",
    ),
    "other rank than reshape": (
        copying(FP32, (-1, 1), (-1, 2)),
        {"OUT0": np.zeros((3, 4), np.float32)},
        RESHAPED.format("[3,4]"),
    ),
    "other size than reshape": (
        copying(FP32, (-1, 1), (-1, 2)),
        {"OUT0": np.zeros((3, 4, 1), np.float32)},
        RESHAPED.format("[3,4,1]"),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_outputs_that_break_the_configurations_word(case: str) -> None:
    model, outputs, message = BROKEN[case]
    item = tuple(2 if size == -1 else size for size in model.inputs[0].dims)
    members = accepted(model, arbitrary(FP32, (1, *item), 0), arbitrary(FP32, (2, *item), 1))
    assert refusal(model, members, outputs) == message


def test_numbers_for_texts() -> None:
    model = copying(BYTES, (1,))
    members = accepted(model, arbitrary(BYTES, (1, 1), 0))
    with pytest.raises(ModserveError, match="element 0 of a BYTES tensor is of type 'int', expected bytes or str"):
        split({"OUT0": np.array([[1]], dtype=object)}, members, model, 1)
