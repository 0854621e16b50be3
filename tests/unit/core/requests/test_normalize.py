"""What a model takes: every check of a request, with Triton's words, and the request in the model's own shapes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import RequestForm
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Shape, Tensor, encode_elements
from modserve.testing import RecordingSink, config, request, tensor

INT32, FP32, BYTES = dtypes.INT32, dtypes.FP32, dtypes.BYTES
NO_ID = "[request id: <id_unknown>] "
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
OUTPUTS = (TensorSpec("OUT", INT32, (16,)),)

SIMPLE = config(
    "simple", inputs=(TensorSpec("A", INT32, (16,)), TensorSpec("B", INT32, (16,))), outputs=OUTPUTS, max_batch_size=8
)
UNBATCHED = config("unbatched", inputs=(TensorSpec("A", FP32, (-1, 2)),), outputs=OUTPUTS, max_batch_size=0)
VARIABLE = config("variable", inputs=(TensorSpec("A", FP32, (-1,)),), outputs=OUTPUTS, max_batch_size=8)
PAIRS = config("pairs", inputs=(TensorSpec("A", FP32, (-1, -1)),), outputs=OUTPUTS, max_batch_size=8)
TEXT = config("text", inputs=(TensorSpec("A", BYTES, (-1,)),), outputs=OUTPUTS, max_batch_size=8)
OPTIONAL = config(
    "optional",
    inputs=(
        TensorSpec("A", INT32, (1,)),
        TensorSpec("B", INT32, (1,), optional=True),
        TensorSpec("C", INT32, (1,), optional=True),
    ),
    outputs=OUTPUTS,
)


def raw(datatype: dtypes.Datatype, shape: Shape, data: bytes | None = None) -> Tensor:
    """A tensor as it comes from the wire; of as many bytes as its shape says unless others are given."""
    size = int(np.prod(shape)) * datatype.size
    return Tensor.from_raw(datatype, shape, bytes(max(0, size)) if data is None else data)


def ints(*shape: int) -> Tensor:
    return raw(INT32, shape)


def floats(*shape: int, data: bytes | None = None) -> Tensor:
    return raw(FP32, shape, data)


def text(shape: Shape, data: bytes) -> Tensor:
    return raw(BYTES, shape, data)


def accept(model: ModelConfig, inputs: Mapping[str, Tensor], **more: Any) -> Inflight:
    return Signature(model).accept(request(inputs, model.name, **more), RecordingSink(), now_ns=7)


def refusal(model: ModelConfig, inputs: Mapping[str, Tensor], **more: Any) -> str:
    with pytest.raises(ModserveError) as caught:
        accept(model, inputs, **more)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def wrong_count(head: str, given: str, missing: str) -> str:
    return (
        f"{NO_ID}{head} Got input(s) [{given}], but missing required input(s) [{missing}]. "
        "Please provide all required input(s)."
    )


def wrong_shape(name: str, model: str, expected: str, got: str, note: str = NOTE) -> str:
    return f"{NO_ID}unexpected shape for input '{name}' for model '{model}'. Expected {expected}, got {got}. {note}"


def wrong_size(name: str, model: str, expected: int, got: int) -> str:
    return f"{NO_ID}input byte size mismatch for input '{name}' for model '{model}'. Expected {expected}, got {got}"


def empty_batch(name: str, model: str, expected: int, shape: str) -> str:
    mismatch = wrong_size(name, model, expected, 0)
    return f"{mismatch}: its shape {shape} begins with a batch size of 0, which must be 1 to 8"


def no_dimensions(model: str, got: str) -> str:
    return f"{NO_ID}All input dimensions should be specified for input 'A' for model '{model}', got {got}"


def cut_length(left: int) -> str:
    return (
        f"{NO_ID}incomplete string length indicator for inference input 'A' for model 'text', expecting 4 bytes but "
        f"only {left} bytes available. Please make sure the string length indicator is in one buffer."
    )


TOO_LARGE = NO_ID + "inference request batch-size must be <= 8 for 'simple', got "
ROWS_DIFFER = (
    NO_ID + "input 'B' batch size does not match other inputs for 'simple': shapes begin with the number of rows, but "
    "that of 'A' is {}, and that of 'B' {}"
)

REFUSED: dict[str, tuple[ModelConfig, Mapping[str, Tensor], str]] = {
    "one input missing": (
        SIMPLE,
        {"A": ints(1, 16)},
        wrong_count("expected 2 inputs but got 1 inputs for model 'simple'.", "'A'", "'B'"),
    ),
    "no inputs": (SIMPLE, {}, wrong_count("expected 2 inputs but got 0 inputs for model 'simple'.", "", "'A','B'")),
    "one input too many": (
        SIMPLE,
        {"A": ints(1, 16), "B": ints(1, 16), "C": ints(1, 16)},
        wrong_count("expected 2 inputs but got 3 inputs for model 'simple'.", "'A','B','C'", ""),
    ),
    "none of the required inputs": (
        OPTIONAL,
        {},
        wrong_count(
            "expected number of inputs between 1 and 3 but got 0 inputs for model 'optional'.",
            "",
            "'A'",
        ),
    ),
    "optional inputs in place of the required one": (
        OPTIONAL,
        {"B": ints(1, 1), "C": ints(1, 1)},
        wrong_count(
            "expected number of inputs between 1 and 3 but got 2 inputs for model 'optional'.",
            "'B','C'",
            "'A'",
        ),
    ),
    "unknown input": (
        SIMPLE,
        {"A": ints(1, 16), "NOSUCH": ints(1, 16)},
        "unexpected inference input 'NOSUCH' for model 'simple': its inputs are 'A', 'B'",
    ),
    "unknown input without a batch dimension": (
        UNBATCHED,
        {"NOSUCH": floats(1, 2)},
        "unexpected inference input 'NOSUCH' for model 'unbatched': its inputs are 'A'",
    ),
    "no shape": (
        SIMPLE,
        {"A": ints(), "B": ints(1, 16)},
        NO_ID + "input 'A' has no shape but model requires batch dimension for 'simple'",
    ),
    "two batch sizes": (
        SIMPLE,
        {"A": ints(2, 16), "B": ints(1, 16)},
        ROWS_DIFFER.format("[2,16]", "[1,16]"),
    ),
    "batch too large": (SIMPLE, {"A": ints(9, 16), "B": ints(9, 16)}, TOO_LARGE + "9"),
    "batch dimension forgotten": (
        SIMPLE,
        {"A": ints(16), "B": ints(16)},
        TOO_LARGE + "16: the shape of 'A' lacks the number of rows in front, which is [1,16] for one row",
    ),
    "batch dimension forgotten in one": (
        SIMPLE,
        {"A": ints(1, 16), "B": ints(16)},
        ROWS_DIFFER.format("[1,16]", "[16]"),
    ),
    "negative batch": (
        SIMPLE,
        {"A": raw(INT32, (-1, 16), b""), "B": raw(INT32, (-1, 16), b"")},
        NO_ID + "All input dimensions should be specified for input 'A' for model 'simple', got [-1,16]",
    ),
    "negative batch and another": (
        SIMPLE,
        {"A": raw(INT32, (-1, 16), b""), "B": ints(1, 16)},
        ROWS_DIFFER.format("[-1,16]", "[1,16]"),
    ),
    "empty batch": (SIMPLE, {"A": ints(0, 16), "B": ints(0, 16)}, empty_batch("A", "simple", 64, "[0,16]")),
    "empty batch of variable size": (VARIABLE, {"A": floats(0, 3)}, empty_batch("A", "variable", 12, "[0,3]")),
    "empty batch of nothing": (VARIABLE, {"A": floats(0, 0)}, empty_batch("A", "variable", 4, "[0,0]")),
    "empty batch of texts": (TEXT, {"A": text((0, 1), b"")}, empty_batch("A", "text", 4, "[0,1]")),
    "datatype": (
        SIMPLE,
        {"A": floats(1, 16), "B": ints(1, 16)},
        NO_ID + "inference input 'A' data-type is 'FP32', but model 'simple' expects 'INT32'",
    ),
    "misspelled datatype": (
        SIMPLE,
        {"A": raw(dtypes.INVALID, (1, 16)), "B": ints(1, 16)},
        NO_ID + "inference input 'A' data-type is '<invalid>', but model 'simple' expects 'INT32'",
    ),
    "wrong dimension": (
        SIMPLE,
        {"A": ints(1, 8), "B": ints(1, 16)},
        wrong_shape("A", "simple", "[-1,16]", "[1,8]", note=""),
    ),
    "too many dimensions": (
        SIMPLE,
        {"A": ints(1, 16), "B": ints(1, 1, 16)},
        wrong_shape("B", "simple", "[-1,16]", "[1,1,16]"),
    ),
    "too few dimensions": (SIMPLE, {"A": ints(1), "B": ints(1)}, wrong_shape("A", "simple", "[-1,16]", "[1]")),
    "negative dimension": (
        SIMPLE,
        {"A": raw(INT32, (1, -16), bytes(64)), "B": ints(1, 16)},
        wrong_shape("A", "simple", "[-1,16]", "[1,-16]", note=""),
    ),
    "wrong dimension without a batch dimension": (
        UNBATCHED,
        {"A": floats(3, 1)},
        wrong_shape("A", "unbatched", "[-1,2]", "[3,1]", note=""),
    ),
    "unknown dimension": (VARIABLE, {"A": floats(1, -1, data=bytes(4))}, no_dimensions("variable", "[1,-1]")),
    "an even number of negative dimensions": (
        PAIRS,
        {"A": floats(1, -2, -2, data=bytes(16))},
        no_dimensions("pairs", "[1,-2,-2]"),
    ),
    "nothing, negatively": (PAIRS, {"A": floats(1, -2, 0, data=b"")}, no_dimensions("pairs", "[1,-2,0]")),
    "negative variable dimension": (
        VARIABLE,
        {"A": floats(1, -2, data=bytes(4))},
        wrong_size("A", "variable", -8, 4),
    ),
    "too few bytes": (
        SIMPLE,
        {"A": raw(INT32, (1, 16), bytes(60)), "B": ints(1, 16)},
        wrong_size("A", "simple", 64, 60),
    ),
    "too many bytes": (
        SIMPLE,
        {"A": raw(INT32, (2, 16), bytes(129)), "B": ints(2, 16)},
        wrong_size("A", "simple", 128, 129),
    ),
    "bytes of a variable shape": (VARIABLE, {"A": floats(2, 3, data=bytes(20))}, wrong_size("A", "variable", 24, 20)),
    "bytes without a batch dimension": (UNBATCHED, {"A": floats(3, 2, data=b"")}, wrong_size("A", "unbatched", 24, 0)),
    "length word of a text cut": (TEXT, {"A": text((1, 1), b"\2\0")}, cut_length(2)),
    "second length word cut": (TEXT, {"A": text((1, 2), encode_elements([b"ab"]) + b"\0\0\0")}, cut_length(3)),
    "text cut": (
        TEXT,
        {"A": text((1, 2), encode_elements([b"ab", b"cd"])[:-1])},
        NO_ID + "expected 2 string elements for inference input 'A' for model 'text', got 1",
    ),
    "too many texts": (
        TEXT,
        {"A": text((1, 1), encode_elements([b"a", b"b"]))},
        NO_ID + "unexpected number of string elements 2 for inference input 'A' for model 'text', expecting 1",
    ),
    "a text too many, which is cut": (
        TEXT,
        {"A": text((1, 1), encode_elements([b"a", b"bc"])[:-1])},
        NO_ID + "unexpected number of string elements 2 for inference input 'A' for model 'text', expecting 1",
    ),
    "too few texts": (
        TEXT,
        {"A": text((1, 3), encode_elements([b"a", b"b"]))},
        NO_ID + "expected 3 string elements for inference input 'A' for model 'text', got 2",
    ),
    "no texts": (
        TEXT,
        {"A": text((1, 1), b"")},
        NO_ID + "expected 1 string elements for inference input 'A' for model 'text', got 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    model, inputs, message = REFUSED[case]
    assert refusal(model, inputs) == message


@pytest.mark.parametrize("case", REFUSED)
def test_the_request_id_is_named_where_triton_names_it(case: str) -> None:
    model, inputs, message = REFUSED[case]
    assert refusal(model, inputs, id="my-id") == message.replace(NO_ID, "[request id: my-id] ")


@pytest.mark.parametrize("datatype", [dtypes.INT8, dtypes.FP64, dtypes.BYTES], ids=lambda datatype: str(datatype.name))
def test_an_empty_tensor_must_fit_an_array(datatype: dtypes.Datatype) -> None:
    model = config("m", inputs=(TensorSpec("IN", datatype, (-1, -1)),), max_batch_size=2)
    most = (2**63 - 1) // (datatype.size or 8)
    inflight = accept(model, {"IN": raw(datatype, (1, 0, most), b"")})
    assert inflight.inputs["IN"].array.shape == (1, 0, most)
    for shape, text in (((1, 0, most + 1), f"[1,0,{most + 1}]"), ((2, most, 0), f"[2,{most},0]")):
        assert refusal(model, {"IN": raw(datatype, shape, b"")}) == (
            f"invalid shape for input 'IN': shape {text} causes total element count to exceed maximum size of "
            "9223372036854775807"
        )


def test_unknown_output() -> None:
    inputs = {"A": ints(1, 16), "B": ints(1, 16)}
    message = refusal(SIMPLE, inputs, outputs=("OUT", "NOSUCH"), id="my-id")
    assert message == "unexpected inference output 'NOSUCH' for model 'simple'"


def test_an_output_asked_for_twice() -> None:
    message = refusal(SIMPLE, {"A": ints(1, 16)}, outputs=("NOSUCH", "OUT", "OUT"), id="my-id")
    assert message == "[request id: my-id] output 'OUT' already exists in request"


def test_a_batch_size_that_is_a_default() -> None:
    message = refusal(replace(SIMPLE, default_batch_size=True), {"A": ints(9, 16), "B": ints(9, 16)})
    assert message.startswith(f"{TOO_LARGE}9\n8 is the default of backend ")
    assert message.endswith(",default-max-batch-size=N")


# Each request has one fault less than the one before it, so the messages show which check comes first.
ORDER: list[tuple[str, Mapping[str, Tensor], tuple[str, ...]]] = [
    ("unexpected inference output", {"X": floats(9, 3)}, ("NOSUCH",)),
    ("expected 2 inputs but got 1", {"X": floats(9, 3)}, ()),
    ("unexpected inference input 'X'", {"X": floats(9, 3), "B": floats(8, 3)}, ()),
    ("batch size does not match", {"A": floats(9, 3), "B": floats(8, 3)}, ()),
    ("batch-size must be <= 8", {"A": floats(9, 3), "B": floats(9, 3)}, ()),
    ("data-type is 'FP32'", {"A": floats(8, 3, data=b""), "B": floats(8, 16)}, ()),
    ("unexpected shape for input 'A'", {"A": raw(INT32, (8, 3), b""), "B": ints(8, 16)}, ()),
    ("input byte size mismatch", {"A": raw(INT32, (8, 16), b""), "B": ints(8, 16)}, ()),
]


@pytest.mark.parametrize(("expected", "inputs", "outputs"), ORDER, ids=[row[0] for row in ORDER])
def test_the_order_of_the_checks(expected: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> None:
    assert expected in refusal(SIMPLE, inputs, outputs=outputs)


@pytest.mark.parametrize("batch", [1, 8])
def test_accepted(batch: int) -> None:
    sink = RecordingSink()
    asked = request({"A": ints(batch, 16), "B": ints(batch, 16)}, "simple", deadline_ns=5)
    accepted = Signature(SIMPLE).accept(asked, sink, now_ns=7)
    assert accepted.request is asked
    assert accepted.sink is sink
    assert (accepted.batch_size, accepted.request_start_ns, accepted.deadline_ns) == (batch, 7, 5)
    assert accepted.output_names == ("OUT",)
    assert {name: value.shape for name, value in accepted.inputs.items()} == {"A": (batch, 16), "B": (batch, 16)}
    assert not sink.settled


@pytest.mark.parametrize(
    ("model", "inputs", "batch_size"),
    [
        (UNBATCHED, {"A": floats(5, 2)}, 0),
        (UNBATCHED, {"A": floats(0, 2)}, 0),
        (VARIABLE, {"A": floats(2, 0)}, 2),
        (TEXT, {"A": text((2, 1), encode_elements([b"a", b""]))}, 2),
        (TEXT, {"A": text((1, 0), b"")}, 1),
        (TEXT, {"A": tensor(BYTES, (3, 2), b"x")}, 3),
        (config(inputs=(), max_batch_size=8), {}, 0),
        (config(inputs=(TensorSpec("A", FP32, ()),)), {"A": floats(4)}, 4),
        (config(inputs=(TensorSpec("A", FP32, ()),), max_batch_size=0), {"A": floats()}, 0),
    ],
    ids=[
        "no batch dimension",
        "no batch dimension, no elements",
        "no elements",
        "texts",
        "no texts",
        "texts made here",
        "no inputs",
        "scalars",
        "a scalar",
    ],
)
def test_accepted_shapes(model: ModelConfig, inputs: Mapping[str, Tensor], batch_size: int) -> None:
    accepted = accept(model, inputs)
    assert accepted.batch_size == batch_size
    assert {name: value.shape for name, value in accepted.inputs.items()} == {
        name: value.shape for name, value in inputs.items()
    }


@pytest.mark.parametrize(
    ("asked", "expected"), [((), ("Y", "Z")), (("Z",), ("Z",)), (("Z", "Y"), ("Z", "Y"))], ids=["all", "one", "order"]
)
def test_outputs(asked: tuple[str, ...], expected: tuple[str, ...]) -> None:
    model = config(outputs=(TensorSpec("Y", INT32, (4,)), TensorSpec("Z", INT32, (4,))))
    accepted = accept(model, {"INPUT0": ints(1, 4)}, outputs=asked)
    assert accepted.output_names == expected


@pytest.mark.parametrize(
    ("dims", "reshape", "max_batch_size", "given", "expected"),
    [
        ((4,), (2, 2), 8, (3, 4), (3, 2, 2)),
        ((4,), (2, 2), 0, (4,), (2, 2)),
        ((1,), (), 8, (3, 1), (3,)),
        ((-1, 3), (-1, 1, 3), 8, (2, 5, 3), (2, 5, 1, 3)),
        ((-1, 1, -1), (-1, -1), 8, (2, 5, 1, 7), (2, 5, 7)),
        ((2, -1), (-1, 2), 0, (2, 9), (9, 2)),
    ],
    ids=["batched", "not batched", "to a scalar", "variable", "two variable", "variable, not batched"],
)
def test_reshape(dims: Shape, reshape: Shape, max_batch_size: int, given: Shape, expected: Shape) -> None:
    model = config(inputs=(TensorSpec("A", INT32, dims, reshape=reshape),), max_batch_size=max_batch_size)
    values = np.arange(np.prod(given), dtype=np.int32)
    for sent in (Tensor.from_raw(INT32, given, values.tobytes()), Tensor.from_array(values.reshape(given))):
        taken = accept(model, {"A": sent}).inputs["A"]
        assert (taken.shape, taken.array.shape) == (expected, expected)
        assert taken.array.reshape(-1).tolist() == values.tolist()


def key(model: ModelConfig, **inputs: Tensor) -> object:
    return accept(model, inputs).shape_key


MIXED = config(
    inputs=(
        TensorSpec("FIXED", FP32, (2,)),
        TensorSpec("ANY", FP32, (-1,)),
        TensorSpec("MAYBE", FP32, (1,), optional=True),
    )
)


def test_models_with_fixed_shapes_need_no_key() -> None:
    assert key(SIMPLE, A=ints(1, 16), B=ints(1, 16)) is None
    assert key(SIMPLE, A=ints(3, 16), B=ints(3, 16)) is None


@pytest.mark.parametrize(
    ("other", "together"),
    [
        ({"FIXED": floats(1, 2), "ANY": floats(1, 5)}, True),
        ({"ANY": floats(3, 5), "FIXED": floats(3, 2)}, True),
        ({"FIXED": floats(1, 2), "ANY": floats(1, 6)}, False),
        ({"FIXED": floats(1, 2), "ANY": floats(1, 5), "MAYBE": floats(1, 1)}, False),
    ],
    ids=["same shape", "other batch size and order", "other variable dimension", "an optional input more"],
)
def test_which_requests_may_share_a_batch(other: dict[str, Tensor], together: bool) -> None:
    one = key(MIXED, FIXED=floats(1, 2), ANY=floats(1, 5))
    assert (key(MIXED, **other) == one) is together


def test_different_optional_inputs_do_not_share_a_batch() -> None:
    keys = [key(OPTIONAL, A=ints(1, 1), **{name: ints(1, 1) for name in names}) for names in ("", "B", "C", "BC")]
    assert len(set(keys)) == 4


def test_optional_inputs_may_be_left_out() -> None:
    assert set(accept(OPTIONAL, {"A": ints(1, 1)}).inputs) == {"A"}
    assert set(accept(OPTIONAL, {"C": ints(1, 1), "A": ints(1, 1)}).inputs) == {"A", "C"}


class _Counting(str):
    """A name that counts how often it is compared."""

    compared = 0
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        _Counting.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_outputs_are_compared_only_with_their_like() -> None:
    """Of forty thousand names, each with all before it would take seconds, in which nothing else runs."""
    names = [_Counting(index) for index in range(2000)]
    _Counting.compared = 0
    message = refusal(SIMPLE, {"A": ints(1, 16), "B": ints(1, 16)}, outputs=(*names, _Counting(1999)))
    assert message == f"{NO_ID}output '1999' already exists in request"
    assert _Counting.compared < 2000


def test_messages_list_only_some_of_many_names() -> None:
    message = refusal(SIMPLE, {str(index): ints(1, 16) for index in range(5000)})
    listed = ",".join(f"'{index}'" for index in range(10))
    assert message == wrong_count(
        "expected 2 inputs but got 5000 inputs for model 'simple'.", f"{listed},...", "'A','B'"
    )


# Forms


def test_a_form_is_checked_once() -> None:
    signature, form = Signature(SIMPLE), RequestForm()
    first = request({"A": ints(2, 16), "B": ints(2, 16)}, "simple", form=form)
    second = request({"A": ints(2, 16), "B": ints(2, 16)}, "simple", form=form, deadline_ns=7)
    accepted = [signature.accept(each, RecordingSink(), 5) for each in (first, second)]
    assert [each.inputs for each in accepted] == [first.inputs, second.inputs]
    for each in accepted:
        assert (each.output_names, each.batch_size, each.shape_key, each.request_start_ns) == (("OUT",), 2, None, 5)
    assert [each.deadline_ns for each in accepted] == [0, 7]


def test_a_refused_form_is_refused_again() -> None:
    signature, form = Signature(SIMPLE), RequestForm()
    for _ in range(2):
        with pytest.raises(ModserveError, match="unexpected shape"):
            signature.accept(request({"A": ints(2, 5), "B": ints(2, 5)}, "simple", form=form), RecordingSink(), 5)


def test_the_elements_of_bytes_are_looked_at_each_time() -> None:
    signature, form = Signature(TEXT), RequestForm()
    signature.accept(request({"A": text((1, 1), encode_elements([b"four"]))}, "text", form=form), RecordingSink(), 5)
    wrong = text((1, 1), encode_elements([b"", b""]))
    with pytest.raises(ModserveError, match="unexpected number of string elements"):
        signature.accept(request({"A": wrong}, "text", form=form), RecordingSink(), 5)


def test_forms_that_are_reshaped_are_reshaped_each_time() -> None:
    reshaping = config("m", inputs=(TensorSpec("A", INT32, (4,), reshape=(2, 2)),), outputs=OUTPUTS, max_batch_size=8)
    signature, form = Signature(reshaping), RequestForm()
    for _ in range(2):
        accepted = signature.accept(request({"A": ints(1, 4)}, "m", form=form), RecordingSink(), 5)
        assert accepted.inputs["A"].shape == (1, 2, 2)


def test_forms_keep_what_batches_go_by() -> None:
    signature, form = Signature(OPTIONAL), RequestForm()
    inputs = {"A": ints(1, 1), "C": ints(1, 1)}
    keys = [signature.accept(request(inputs, "o", form=form), RecordingSink(), 5).shape_key for _ in range(2)]
    assert keys == [(None, (1,))] * 2


def test_forms_that_are_remembered_are_bounded() -> None:
    signature = Signature(SIMPLE)
    inputs = {"A": ints(1, 16), "B": ints(1, 16)}
    for _ in range(300):
        signature.accept(request(inputs, "simple", form=RequestForm()), RecordingSink(), 5)
    assert 0 < len(signature._forms) <= 256
