"""The reader of inference requests says what protobuf says, or leaves a message to it."""

import struct
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.wire.protobuf_wire import bytes_field, number_field, varint
from modserve.pb import inference as pb
from modserve.protocol.grpc import request_reader
from modserve.protocol.grpc.infer_message import InferMessage, from_protobuf
from modserve.protocol.grpc.request_reader import RequestReader
from modserve.protocol.limits import LIMITS

Request = pb.ModelInferRequest
Input = pb.ModelInferRequest.InferInputTensor
Output = pb.ModelInferRequest.InferRequestedOutputTensor
Parameter = pb.InferParameter


def simple(**more: Any) -> pb.ModelInferRequest:
    message = Request(model_name="simple", **more)
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(name.encode() * 10)
    for name in ("OUTPUT0", "OUTPUT1"):
        message.outputs.add(name=name)
    return message


USUAL = simple().SerializeToString()
IN = bytes_field(5, Input(name="IN", datatype="INT32", shape=[1]).SerializeToString())
MODEL, RAW = bytes_field(1, b"m"), bytes_field(7, b"1234")


def says(message: InferMessage) -> Any:
    """All of it; texts stand for parameters, since some doubles are not equal to themselves."""
    head = message.head
    return (
        (message.model_name, message.model_version, message.id),
        {name: repr(parameter) for name, parameter in message.parameters.items()},
        [(each.name, each.datatype, each.shape, repr(each.parameters), contents(each)) for each in head.inputs],
        [(each.name, repr(each.parameters)) for each in head.outputs],
        (head.input_count, head.output_count, head.output_names, head.bare_inputs, head.bare_outputs),
        [bytes(raw) for raw in message.raws],
    )


def contents(each: Any) -> bytes | None:
    return None if each.contents is None else each.contents.SerializeToString()


def compared(data: bytes, reader: RequestReader | None = None) -> InferMessage | None:
    """What the reader makes of it, also when it remembers, having been compared with what protobuf does."""
    reader = reader or RequestReader()
    messages = [reader.read(data), reader.read(data)]
    try:
        whole = from_protobuf(Request.FromString(data))
    except DecodeError:
        assert messages == [None, None]
        return None
    for message in messages:
        assert message is None or says(message) == says(whole)
    assert (messages[0] is None) == (messages[1] is None)
    return messages[0]


def with_parameters() -> pb.ModelInferRequest:
    message = simple(id="é7", model_version="3")
    for name, choice in {
        "sequence_id": Parameter(int64_param=-7),
        "sequence_start": Parameter(bool_param=True),
        "sequence_end": Parameter(bool_param=False),
        "priority": Parameter(uint64_param=2**64 - 1),
        "timeout": Parameter(int64_param=2**62),
        "text": Parameter(string_param="ü" * 100),
        "none": Parameter(string_param=""),
        "double": Parameter(double_param=-0.5),
        "": Parameter(int64_param=0),
    }.items():
        message.parameters[name].CopyFrom(choice)
    return message


def in_shared_memory() -> pb.ModelInferRequest:
    message = simple()
    tensors: list[Any] = [*message.inputs, *message.outputs]
    for each in tensors:
        each.parameters["shared_memory_region"].string_param = "r"
        each.parameters["shared_memory_offset"].int64_param = 300
        each.parameters["shared_memory_byte_size"].int64_param = 64
        each.parameters["other"].bool_param = True
    message.ClearField("raw_input_contents")
    return message


def with_classes() -> pb.ModelInferRequest:
    message = simple()
    message.outputs[1].parameters["classification"].int64_param = 3
    message.outputs[1].parameters["binary_data"].bool_param = True
    return message


def typed() -> pb.ModelInferRequest:
    message = simple()
    message.ClearField("raw_input_contents")
    for each in message.inputs:
        each.contents.int_contents.extend([1, 300])
    return message


NOT_PACKED = b"\x0a\x02IN\x12\x05INT32" + number_field(3, 1) + number_field(3, -1) + number_field(3, 300)

READ = {
    "usual": USUAL,
    "with parameters": with_parameters().SerializeToString(),
    "in shared memory": in_shared_memory().SerializeToString(),
    "with classes": with_classes().SerializeToString(),
    "typed": typed().SerializeToString(),
    "no outputs": MODEL + IN + RAW,
    "no inputs": MODEL + RAW,
    "no names": IN + RAW,
    "a name of 200 bytes": bytes_field(1, b"m" * 200) + IN + RAW,
    "names of 400 bytes": bytes_field(1, b"m" * 400) + IN + RAW,
    "only a version": bytes_field(2, b"1") + IN + RAW,
    "an id": MODEL + bytes_field(3, b"7") + IN + RAW,
    "an empty id": MODEL + bytes_field(3, b"") + IN + RAW,
    "outputs first": MODEL + bytes_field(6, b"\x0a\1O") + IN + RAW,
    "an empty input": MODEL + bytes_field(5, b"") + RAW,
    "dimensions of all lengths": MODEL
    + bytes_field(5, Input(shape=[-1, 0, 127, 128, 2**62, -(2**63)]).SerializeToString())
    + RAW,
    "a shape that is not packed": MODEL + bytes_field(5, NOT_PACKED) + RAW,
    "an input's name twice": MODEL + bytes_field(5, b"\x0a\1A\x0a\1B") + RAW,
    "an unknown field of an input": MODEL + bytes_field(5, b"\x0a\1A\x7a\1B") + RAW,
    "65 dimensions": MODEL + bytes_field(5, Input(name="IN", shape=[1] * 65).SerializeToString()) + RAW,
    "the same input twice": MODEL + IN + IN + RAW + RAW,
    "an input of 20,000 bytes": MODEL + bytes_field(5, Input(name="IN" * 10_000).SerializeToString()) + RAW,
    "more inputs than are possible": MODEL + bytes_field(5, b"") * (LIMITS.tensors + 1) + RAW,
    "a number with a byte too many": MODEL + bytes_field(4, b"\x0a\1p\x12\x04\x10\x85\x80\0") + IN + RAW,
}


@pytest.mark.parametrize("data", READ.values(), ids=READ)
def test_what_is_read(data: bytes) -> None:
    assert compared(data) is not None


LEFT = {
    "nothing": b"",
    "only a name": MODEL,
    "raw data first": RAW + MODEL + IN,
    "an id before the name": bytes_field(3, b"7") + MODEL + IN + RAW,
    "two names": MODEL + MODEL + IN + RAW,
    "two ids": MODEL + bytes_field(3, b"7") * 2 + IN + RAW,
    "a parameter behind the inputs": MODEL + IN + bytes_field(4, b"\x0a\1p\x12\2\x08\1") + RAW,
    "an input behind the raw data": MODEL + IN + RAW + IN,
    "an unknown field": MODEL + IN + RAW + b"\x78\1",
    "an unknown field before": b"\x78\1" + MODEL + IN + RAW,
    "another wire type": b"\x08\1" + MODEL + IN + RAW,
    "a key of two bytes": b"\x8a\0\1m" + IN + RAW,
    "a length of two bytes for one": b"\x0a\x81\0m" + IN + RAW,
    "a raw length of two bytes for one": MODEL + IN + b"\x3a\x84\x001234",
    "a parameter twice": MODEL + bytes_field(4, b"\x0a\1p\x12\2\x08\1") * 2 + IN + RAW,
    "a parameter without a value": MODEL + bytes_field(4, b"\x0a\1p\x12\0") + IN + RAW,
    "a parameter of a name alone": MODEL + bytes_field(4, b"\x0a\1p") + IN + RAW,
    "a parameter without a name": MODEL + bytes_field(4, b"\x12\2\x08\1") + IN + RAW,
    "a parameter with its name behind": MODEL + bytes_field(4, b"\x12\2\x08\1\x0a\1p") + IN + RAW,
    "a parameter of two values": MODEL + bytes_field(4, b"\x0a\1p\x12\4\x08\1\x10\1") + IN + RAW,
    "a parameter of an unknown kind": MODEL + bytes_field(4, b"\x0a\1p\x12\2\x38\1") + IN + RAW,
    "a parameter of 70 bits": MODEL + bytes_field(4, b"\x0a\1p\x12\x0b\x10" + b"\xff" * 9 + b"\x7f") + IN + RAW,
    "more parameters than are possible": MODEL
    + b"".join(bytes_field(4, b"\x0a\4%04d\x12\2\x08\1" % number) for number in range(LIMITS.parameters + 1))
    + IN
    + RAW,
    "more raw data than is possible": MODEL + IN + RAW * (LIMITS.tensors + 2),
}


@pytest.mark.parametrize("data", LEFT.values(), ids=LEFT)
def test_what_is_left_to_protobuf(data: bytes) -> None:
    assert compared(data) is None
    Request.FromString(data)


ENDLESS = b"\xff" * 9 + b"\1"
WRONG = {
    "a name that is no text": b"\x0a\1\xff" + IN + RAW,
    "an id with half a surrogate": MODEL + b"\x1a\3\xed\xa0\x80" + IN + RAW,
    "an input's name that is no text": MODEL + bytes_field(5, b"\x0a\1\xff") + RAW,
    "a parameter's name that is no text": MODEL + bytes_field(4, b"\x0a\1\xff\x12\2\x08\1") + IN + RAW,
    "a parameter's text that is none": MODEL + bytes_field(4, b"\x0a\1p\x12\3\x1a\1\xff") + IN + RAW,
    "a name longer than its input": MODEL + bytes_field(5, b"\x0a\5AB") + RAW,
    "a shape longer than its input": MODEL + bytes_field(5, b"\x1a\5\1") + RAW,
    "half a dimension": MODEL + bytes_field(5, b"\x1a\1\x80") + RAW,
    "a dimension that ends behind its input": MODEL + bytes_field(5, b"\x18\x80") + RAW,
    "a double that ends behind its parameter": MODEL + bytes_field(4, b"\x0a\1p\x12\2\x21\1") + IN + RAW,
    "a number of eleven bytes": MODEL + bytes_field(4, b"\x0a\1p\x12\x0c\x10" + b"\xff" * 10 + b"\1") + IN + RAW,
    "a length of eleven bytes": b"\x0a" + b"\xff" * 10 + b"\1" + IN + RAW,
    "a name of 2^64 bytes": b"\x0a" + ENDLESS + IN + RAW,
    "a version of 2^64 bytes": MODEL + b"\x12" + ENDLESS + IN + RAW,
    "an id of 2^64 bytes": MODEL + b"\x1a" + ENDLESS + IN + RAW,
    "a parameter of 2^64 bytes": MODEL + b"\x22" + ENDLESS + IN + RAW,
    "an input of 2^64 bytes": MODEL + b"\x2a" + ENDLESS + RAW,
    "an input's name of 2^64 bytes": MODEL + bytes_field(5, b"\x0a" + ENDLESS) + RAW,
    "raw data of 2^64 bytes": MODEL + IN + b"\x3a" + ENDLESS,
    "a length beyond the end": MODEL + b"\x3a\xff\xff\xff\xff\x07",
    "the field 0": b"\x02\1m" + IN + RAW,
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_left_to_protobuf(data: bytes) -> None:
    with pytest.raises(DecodeError):
        Request.FromString(data)
    assert compared(data) is None


@pytest.mark.parametrize("name", ["usual", "with parameters", "in shared memory", "with classes", "typed"])
def test_what_ends_early(name: str) -> None:
    data = READ[name]
    reader = RequestReader()
    reader.read(data)
    for size in range(len(data)):
        compared(data[:size], reader)


# What it remembers


def test_messages_of_several_kinds_in_turn() -> None:
    reader = RequestReader()
    for _ in range(3):
        for data in READ.values():
            assert compared(data, reader) is not None
        for data in (*LEFT.values(), *WRONG.values()):
            assert compared(data, reader) is None


def test_a_head_that_another_begins_with() -> None:
    reader = RequestReader()
    for inputs in (1, 2, 1, 3):
        message = compared(MODEL + IN * inputs + RAW * inputs, reader)
        assert message is not None
        assert message.head.input_count == inputs


def test_the_head_of_another_model_of_the_same_name() -> None:
    """With other inputs, and the same bytes behind another version."""
    reader = RequestReader()
    heads = set()
    for version in ("", "1", "2", ""):
        message = reader.read(bytes_field(1, b"m") + (bytes_field(2, version.encode()) if version else b"") + IN + RAW)
        assert message is not None
        assert message.model_version == version
        heads.add(message.head)
    assert len(heads) == 1


def test_what_is_remembered_has_a_limit() -> None:
    reader = RequestReader()
    for number in range(3_000):
        names = bytes_field(1, b"%d" % number) + bytes_field(2, b"1")
        tensors = b"".join(bytes_field(5, b"\x0a\6%06d" % (number + each)) for each in range(30))
        message = (
            compared(names + tensors + RAW * 30, reader)
            if number % 100 == 0
            else reader.read(names + tensors + RAW * 30)
        )
        assert message is not None
        assert message.model_name == str(number)
    assert len(reader._names) <= request_reader._MOST_NAMES
    remembered = sum(map(len, reader._heads))
    assert remembered == reader._heads_size <= request_reader._MOST_HEADS


def test_long_heads_and_elements_in_messages_are_not_remembered() -> None:
    reader = RequestReader()
    assert reader.read(MODEL + bytes_field(5, b"\x0a\x82\x20" + b"x" * 4098) + RAW) is not None
    assert reader.read(typed().SerializeToString()) is not None
    assert not reader._heads
    assert reader.read(bytes_field(1, b"m" * 300) + IN + RAW) is not None
    assert all(len(names) < 300 for names in reader._names)


# Long messages


def test_tensors_are_views_of_the_message() -> None:
    message = simple()
    del message.raw_input_contents[:]
    message.raw_input_contents.extend([b"1" * 100, b"2" * 1_000_000])
    data = message.SerializeToString()
    read = compared(data)
    assert read is not None
    assert not read.short
    short, long = read.raws
    assert isinstance(short, bytes)
    assert isinstance(long, memoryview)
    assert long.obj is data


def test_in_a_long_message_only_tensors_may_be_long() -> None:
    reader = RequestReader(most_short=100)
    raw = bytes_field(7, bytes(200))
    assert compared(MODEL + IN + raw, reader) is not None
    text = b"x" * 100
    parameter = Request(parameters={"p": Parameter(string_param=text.decode())}).SerializeToString()
    for data in (
        bytes_field(1, text) + IN,
        MODEL + bytes_field(3, text) + IN,
        MODEL + parameter + IN,
        MODEL + IN * 10,
    ):
        assert compared(data + raw, reader) is None
        assert compared(data + raw) is not None
    assert compared(typed().SerializeToString(), RequestReader(most_short=60)) is None


# Messages of all kinds

NAMES = st.sampled_from(["", "a", "IN", "shared_memory_region", "shared_memory_byte_size", "classification", "x" * 130])
VALUES = st.one_of(
    st.just(Parameter()),
    st.builds(Parameter, bool_param=st.booleans()),
    st.builds(Parameter, int64_param=st.integers(-(2**63), 2**63 - 1)),
    st.builds(Parameter, uint64_param=st.integers(0, 2**64 - 1)),
    st.builds(Parameter, double_param=st.floats()),
    st.builds(Parameter, string_param=st.text(st.characters(codec="utf-8"), max_size=4)),
)
PARAMETERS = st.dictionaries(NAMES, VALUES, max_size=2)
MESSAGES = st.builds(
    Request,
    model_name=NAMES,
    model_version=st.sampled_from(["", "1", "é"]),
    id=st.text(st.characters(codec="utf-8"), max_size=3),
    parameters=PARAMETERS,
    inputs=st.lists(
        st.builds(
            Input,
            name=NAMES,
            datatype=st.sampled_from(["INT32", "BYTES", "", "nonsense"]),
            shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
            parameters=PARAMETERS,
            contents=st.none()
            | st.builds(pb.InferTensorContents, int_contents=st.lists(st.integers(0, 9), max_size=2)),
        ),
        max_size=3,
    ),
    outputs=st.lists(st.builds(Output, name=NAMES, parameters=PARAMETERS), max_size=2),
    raw_input_contents=st.lists(st.binary(max_size=9) | st.just(bytes(600)), max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(MESSAGES)
def test_any_message(message: pb.ModelInferRequest) -> None:
    compared(message.SerializeToString())


@settings(max_examples=150, deadline=None)
@given(MESSAGES, st.data())
def test_changed_messages(message: pb.ModelInferRequest, choose: st.DataObject) -> None:
    """Bytes of it are others, or missing; and the reader remembers the message as it was."""
    data = message.SerializeToString()
    reader = RequestReader()
    reader.read(data)
    changed = bytearray(data)
    for _ in range(choose.draw(st.integers(1, 3))):
        at = choose.draw(st.integers(0, len(changed)))
        changed[at : at + choose.draw(st.integers(0, 2))] = choose.draw(st.binary(max_size=3))
    compared(bytes(changed), reader)


PIECES = st.one_of(
    st.builds(bytes_field, st.integers(1, 8), st.binary(max_size=5)),
    st.builds(number_field, st.integers(1, 8), st.integers(0, 300)),
    st.sampled_from([MODEL, IN, RAW, NOT_PACKED, bytes_field(4, b"\x0a\1p\x12\2\x08\1")]),
    st.builds(lambda value: bytes_field(4, b"\x0a\1d\x12\x09\x21" + struct.pack("<d", value)), st.floats()),
    st.builds(lambda size: b"\x3a" + varint(size) + bytes(min(size, 700)), st.integers(0, 800)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=6), st.booleans())
def test_fields_in_any_order(pieces: list[bytes], ordered: bool) -> None:
    compared(b"".join(sorted(pieces) if ordered else pieces))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    compared(data)
