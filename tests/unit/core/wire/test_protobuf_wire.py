"""Protobuf's wire format without its library, which says what is right."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from modserve.core.wire import protobuf_wire
from modserve.core.wire.protobuf_wire import WireError, WireField
from modserve.pb import inference as pb

Tensor = pb.ModelInferRequest.InferInputTensor
Contents = pb.InferTensorContents


@given(st.integers(0, 2**64 - 1))
def test_a_number_comes_back(number: int) -> None:
    data = b"x" + protobuf_wire.varint(number) + b"x"
    assert protobuf_wire.read_varint(data, 1) == (number, len(data) - 1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_written_as_protobuf_writes_them(number: int) -> None:
    assert pb.InferParameter.FromString(protobuf_wire.number_field(2, number)).int64_param == number
    assert protobuf_wire.number_field(2, number) == pb.InferParameter(int64_param=number).SerializeToString()


@given(st.binary(max_size=300))
def test_bytes_are_written_as_protobuf_writes_them(content: bytes) -> None:
    message = pb.ModelInferRequest(raw_input_contents=[content])
    assert protobuf_wire.bytes_field(7, content) == message.SerializeToString()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.booleans())
def test_integers_packed_or_not(values: list[int], packed: bool) -> None:
    if packed:
        data = Tensor(shape=values).SerializeToString()
    else:
        data = b"".join(protobuf_wire.number_field(3, value) for value in values)
    rows = [protobuf_wire.integers(data, field) for field in protobuf_wire.fields(data)]
    assert [value for row in rows for value in row] == values


def test_fields_of_every_kind() -> None:
    data = b"\x08\x96\x01" + b"\x11" + bytes(8) + b"\x1a\x02ab" + b"\x25" + bytes(4)
    assert list(protobuf_wire.fields(data)) == [
        WireField(1, 0, 0, 1, 3),
        WireField(2, 1, 3, 4, 12),
        WireField(3, 2, 12, 14, 16),
        WireField(4, 5, 16, 17, 21),
    ]
    assert [field.number for field in protobuf_wire.fields(data, 12)] == [3, 4]
    assert [field.number for field in protobuf_wire.fields(data, 3, 16)] == [2, 3]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x0a\x02a", "a field extends beyond its message"),
        (b"\x09" + bytes(7), "a field extends beyond its message"),
        (b"\x00\x00", "a field has the number 0"),
        (b"\x0b\x08\x01", "a field has wire type 3"),
        (b"\x0e", "a field has wire type 6"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "a number has more than ten bytes"),
    ],
)
def test_what_is_no_message(data: bytes, text: str) -> None:
    with pytest.raises(DecodeError):
        Contents.FromString(data)
    with pytest.raises(WireError, match=text):
        list(protobuf_wire.fields(data))


@pytest.mark.parametrize("data", [b"\x08", b"\x08\x80", b"\x80", b"\x0a"])
def test_a_number_that_ends_early(data: bytes) -> None:
    with pytest.raises(IndexError):
        list(protobuf_wire.fields(data))
