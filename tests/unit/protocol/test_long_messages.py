"""Long requests over gRPC come to the same as those that protobuf reads as a whole."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.memory import MemoryBudget, MemoryExhaustedError
from modserve.core.requests.request import InferenceRequest
from modserve.core.tensors import dtypes
from modserve.core.wire import protobuf_wire
from modserve.core.wire.protobuf_wire import bytes_field as field
from modserve.pb import inference as pb
from modserve.protocol.grpc import grpc_messages
from modserve.protocol.grpc.infer_message import from_protobuf
from modserve.protocol.grpc.long_messages import ManyFieldsError, Tensors, split

LONG = 64 * 1024

Input = pb.ModelInferRequest.InferInputTensor
Take = Callable[[int], None]


def nothing(size: int) -> None: ...


def apart(data: bytes) -> tuple[pb.ModelInferRequest, Tensors]:
    found = split(data)
    assert found is not None
    return found


def decoded(data: bytes, take: Take = nothing) -> InferenceRequest:
    message, tensors = apart(data)
    return grpc_messages.decode_request(from_protobuf(message, tensors), take=take)


def read(request: InferenceRequest) -> Any:
    inputs = [(name, each.datatype, each.shape, bytes(each.raw)) for name, each in request.inputs.items()]
    return inputs, request.outputs, request.id, request.parameters, request.version


def same(message: pb.ModelInferRequest) -> InferenceRequest:
    found = decoded(message.SerializeToString())
    assert read(found) == read(grpc_messages.decode_request(from_protobuf(message)))
    return found


def refusal(data: bytes, take: Take = nothing) -> str:
    with pytest.raises(ModserveError) as caught:
        decoded(data, take)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def request(datatype: str, count: int, contents: bytes) -> bytes:
    tensor = Input(name="IN", datatype=datatype, shape=[count]).SerializeToString() + field(5, contents)
    return pb.ModelInferRequest(model_name="m").SerializeToString() + field(5, tensor)


def test_raw_tensors_are_views_of_the_message() -> None:
    inputs = [Input(name=name, datatype="UINT8", shape=[100_000]) for name in ("A", "B")]
    raws = [bytes([number]) * 100_000 for number in (1, 2)]
    message = pb.ModelInferRequest(model_name="m", id="7", inputs=inputs, raw_input_contents=raws)
    message.outputs.add(name="OUT")
    message.parameters["p"].int64_param = 3
    data = message.SerializeToString()
    found = split(data, LONG)
    assert found is not None
    short, tensors = found
    assert [bytes(raw) for raw in tensors.raws] == raws
    assert all(isinstance(raw, memoryview) and raw.obj is data for raw in tensors.raws)
    message.ClearField("raw_input_contents")
    assert short == message
    request = grpc_messages.decode_request(from_protobuf(short, tensors))
    assert [bytes(tensor.raw) for tensor in request.inputs.values()] == raws


NUMBERS = {
    "BOOL": ("bool_contents", [True, False, True]),
    "INT8": ("int_contents", [-128, 127, 0]),
    "INT16": ("int_contents", [-(2**15), 300, 2**15 - 1]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1, 5, -1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1, 300]),
    "UINT8": ("uint_contents", [255, 0, 128]),
    "UINT16": ("uint_contents", [2**16 - 1, 0, 127]),
    "UINT32": ("uint_contents", [2**32 - 1, 0, 128]),
    "UINT64": ("uint64_contents", [2**64 - 1, 0, 2**35]),
    "FP32": ("fp32_contents", [1.5, -0.25, float("inf")]),
    "FP64": ("fp64_contents", [1.5, -1e300]),
    "BYTES": ("bytes_contents", [b"", b"a", b"b" * 200]),
}


@pytest.mark.parametrize(("datatype", "elements"), NUMBERS.items(), ids=NUMBERS)
@pytest.mark.parametrize("times", [1, 30_000])
def test_typed_elements(datatype: str, elements: tuple[str, list[Any]], times: int) -> None:
    """As many as take several steps, too."""
    name, values = elements
    tensor = Input(name="IN", datatype=datatype, shape=[len(values) * times])
    getattr(tensor.contents, name).extend(values * times)
    other = Input(name="B", datatype="INT32", shape=[1], contents=pb.InferTensorContents(int_contents=[9]))
    found = same(pb.ModelInferRequest(model_name="m", inputs=[tensor, other]))
    if datatype != "BYTES":
        expected = np.array(values * times, dtypes.BY_NAME[datatype].numpy)
        np.testing.assert_array_equal(found.inputs["IN"].array, expected)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50))
def test_numbers_of_any_length(values: list[int]) -> None:
    tensor = Input(name="IN", datatype="INT64", shape=[len(values)])
    tensor.contents.int64_contents.extend(values)
    same(pb.ModelInferRequest(model_name="m", inputs=[tensor]))


def varints(*numbers: int) -> bytes:
    return b"".join(map(protobuf_wire.varint, numbers))


@pytest.mark.parametrize(
    ("datatype", "contents", "values"),
    [
        ("INT32", b"".join(b"\x10" + varints(number) for number in (1, 300)), [1, 300]),
        ("INT32", field(2, varints(1)) + b"\x10\x05" + field(2, varints(300, 2)), [1, 5, 300, 2]),
        ("INT32", field(99, b"unknown") + field(2, varints(7)) + b"\x20" * 0, [7]),
        ("INT32", field(2, b"") + field(2, varints(7)), [7]),
        ("INT32", field(3, b"") + field(2, varints(7)), [7]),
        ("FP32", b"\x35\0\0\x80\x3f" + field(6, b"\0\0\0\x40"), [1.0, 2.0]),
        ("FP64", b"\x39\0\0\0\0\0\0\xf0\x3f", [1.0]),
        ("BOOL", field(1, varints(0, 2**40)), [False, True]),
        ("UINT32", field(4, varints(2**32 + 5)), [5]),
        ("INT32", field(2, varints(2**63 + 5)), [5]),
    ],
    ids=[
        "single",
        "mixed",
        "unknown field",
        "empty first",
        "empty other",
        "FP32",
        "FP64",
        "BOOL",
        "33 bits",
        "64 bits",
    ],
)
def test_elements_written_in_other_ways(datatype: str, contents: bytes, values: list[Any]) -> None:
    data = request(datatype, len(values), contents)
    found = decoded(data)
    assert found.inputs["IN"].array.tolist() == values
    assert read(found) == read(grpc_messages.decode_request(from_protobuf(pb.ModelInferRequest.FromString(data))))


def test_contents_in_several_pieces_are_one() -> None:
    tensor = Input(name="IN", datatype="INT32", shape=[2]).SerializeToString()
    tensor += field(5, field(2, b"\1")) + field(5, field(2, b"\2"))
    data = pb.ModelInferRequest(model_name="m").SerializeToString() + field(5, tensor)
    assert decoded(data).inputs["IN"].array.tolist() == [1, 2]


def test_the_same_refusals() -> None:
    """Word for word, where protobuf reads the whole."""
    for datatype, contents in (
        ("INT32", field(3, varints(1))),
        ("INT32", field(2, varints(1)) + field(3, varints(1))),
        ("BYTES", field(2, varints(1))),
        ("FP16", field(6, bytes(4))),
        ("INT8", field(2, varints(1, 300))),
        ("nonsense", field(2, varints(1))),
    ):
        data = request(datatype, 2 if datatype == "INT8" else 1, contents)
        with pytest.raises(ModserveError) as caught:
            grpc_messages.decode_request(from_protobuf(pb.ModelInferRequest.FromString(data)))
        assert refusal(data) == caught.value.message
    nothing_there = pb.ModelInferRequest(model_name="m", inputs=[Input(name="IN", datatype="INT32", shape=[1])])
    assert refusal(nothing_there.SerializeToString()) == (
        "unable to find data for input tensor 'IN' for model 'm' in request."
    )


def test_an_element_that_does_not_fit_is_named_by_its_place() -> None:
    data = request("INT8", 100_001, field(2, b"\1" * 100_000 + varints(200)))
    assert refusal(data) == "element 100000 of input 'IN' is 200, INT8 takes -128 to 127"


@pytest.mark.parametrize(
    ("datatype", "count", "contents", "expected", "got"),
    [("INT32", 1, field(2, bytes(17_500)), 4, 70_000), ("INT16", 5, field(2, b"\1\2"), 10, 4)],
    ids=["too many", "too few"],
)
def test_elements_are_counted_before_there_is_room_for_them(
    datatype: str, count: int, contents: bytes, expected: int, got: int
) -> None:
    taken: list[int] = []
    assert refusal(request(datatype, count, contents), taken.append) == (
        f"[request id: <id_unknown>] input byte size mismatch for input 'IN' for model 'm'. Expected {expected}, "
        f"got {got}"
    )
    assert not taken


def test_of_too_many_texts_only_one_more_is_read() -> None:
    found = decoded(request("BYTES", 2, b"\x42\0" * 1_000)).inputs["IN"]
    assert found.count_elements() == 3


def test_memory_is_taken_before_it_is_needed() -> None:
    taken: list[int] = []
    decoded(request("BYTES", 1_000, b"\x42\0" * 1_000), taken.append)
    assert taken == [2_000 + 68 * 1_000]  # the texts, their lengths, and what an engine makes of them
    taken.clear()
    decoded(request("INT64", 1_000, field(3, bytes(1_000))), taken.append)
    assert taken == [8_000]
    budget = MemoryBudget(7_999)
    with pytest.raises(MemoryExhaustedError):
        decoded(request("INT64", 1_000, field(3, bytes(1_000))), budget.take)


@pytest.mark.parametrize(
    "data",
    [
        field(1, b"m")[:-1] + b"",
        b"\x0a",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x2a\x05\x0a\x09name",
        b"\x3a\x05raw",
        b"\x2b",
        b"\x0e",
        b"\x00\x00",
        b"\x79\0\0",
        b"\x0a\x02\xff\xff",
    ],
)
def test_what_is_no_request(data: bytes) -> None:
    with pytest.raises(DecodeError):
        pb.ModelInferRequest.FromString(data)
    for most in (0, LONG):
        with pytest.raises(DecodeError):
            split(data, most)


@pytest.mark.parametrize(
    "contents",
    [
        b"\x12\x05\x01",
        b"\x12\x02\x01\x80",
        b"\x12\x0b" + b"\xff" * 10 + b"\x01",
        b"\x12" + protobuf_wire.varint(70_000) + b"\xff" * 69_999 + b"\x01",
        b"\x10",
    ],
    ids=["ends early", "half a number", "eleven bytes", "a number of 70,000 bytes", "no number"],
)
def test_what_are_no_elements(contents: bytes) -> None:
    assert refusal(request("INT32", 1, contents)).startswith("Unable to parse request: the contents of input 'IN': ")


def test_texts_that_end_early() -> None:
    for contents in (b"\x42\x05abc", b"\x42", b"\x42\x80"):
        assert "Unable to parse request" in refusal(request("BYTES", 1, contents))


def test_what_takes_long_is_left_to_a_thread() -> None:
    many = field(7, b"") * 101
    assert split(many, LONG) is None
    assert len(apart(many)[1].raws) == 101
    assert split(field(1, b"n" * (LONG + 1)), LONG) is None
    dimensions = Input(name="IN", datatype="INT32").SerializeToString() + b"\x18\1" * 100
    assert split(field(5, dimensions), LONG) is None
    with pytest.raises(ManyFieldsError, match="the request has more than 32768 fields"):
        split(b"\xf8\x7f\x01" * 40_000)


def test_split_contents_take_long_by_their_bytes() -> None:
    contents = pb.InferTensorContents(int_contents=range(40_000))
    message = from_protobuf(*apart(pb.ModelInferRequest(inputs=[Input(contents=contents)]).SerializeToString()))
    assert message.split
    [size] = [len(each.contents) for each in message.head.inputs if each.contents is not None]
    assert not grpc_messages.is_long(message, False, size, size)
    assert grpc_messages.is_long(message, False, size - 1, size)
    assert grpc_messages.is_long(message, False, size, size - 1)
