"""Inference over gRPC: messages in, messages out."""

from typing import Any

import numpy as np
import pytest
from datatype_samples import IDS, SAMPLES, Sample
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.pb import inference as pb
from modserve.protocol.grpc import grpc_messages
from modserve.protocol.grpc.infer_message import InferMessage, from_protobuf
from modserve.protocol.grpc.request_reader import RequestReader
from modserve.protocol.grpc.response_writer import ResponseWriter, encode_stream_error

CONTENTS: dict[str, tuple[str, Any]] = {
    "bool_contents": ("BOOL", [True]),
    "int_contents": ("INT32", [1]),
    "int64_contents": ("INT64", [1]),
    "uint_contents": ("UINT32", [1]),
    "uint64_contents": ("UINT64", [1]),
    "fp32_contents": ("FP32", [1.5]),
    "fp64_contents": ("FP64", [1.5]),
    "bytes_contents": ("BYTES", [b"a"]),
}
"""Field → how Triton's messages call it, and a value for it."""


def tensor(
    name: str = "IN", datatype: str = "INT32", shape: tuple[int, ...] = (1, 2), **contents: Any
) -> pb.ModelInferRequest.InferInputTensor:
    found = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    if contents:
        found.contents.CopyFrom(pb.InferTensorContents(**contents))
    return found


def message(
    *inputs: pb.ModelInferRequest.InferInputTensor, raw: tuple[bytes, ...] = (), **more: Any
) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=raw, **more)


def decode(asked: pb.ModelInferRequest, limit_ns: int = 0) -> InferenceRequest:
    return grpc_messages.decode_request(plain(asked), limit_ns)


def plain(asked: pb.ModelInferRequest) -> InferMessage:
    """As a server reads it: the reader, or protobuf where that leaves it to it."""
    data = asked.SerializeToString()
    return RequestReader().read(data) or from_protobuf(pb.ModelInferRequest.FromString(data))


def error(asked: pb.ModelInferRequest, code: Code = Code.INVALID_ARG) -> str:
    with pytest.raises(ModserveError) as caught:
        decode(asked)
    assert caught.value.code is code
    return caught.value.message


def with_parameter(name: str, **choice: Any) -> pb.ModelInferRequest:
    asked = message()
    asked.parameters[name].CopyFrom(pb.InferParameter(**choice))
    return asked


# Tensors


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_every_datatype_as_raw_contents(sample: Sample) -> None:
    asked = message(tensor(datatype=sample.datatype.name), raw=(sample.raw,))
    got = decode(pb.ModelInferRequest.FromString(asked.SerializeToString())).inputs["IN"]
    assert (got.datatype, got.shape, got.array.tolist()) == (sample.datatype, (1, 2), sample.tensor.array.tolist())


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample.datatype.contents_field], ids=str)
def test_every_datatype_as_typed_contents(sample: Sample) -> None:
    contents: dict[str, Any] = {str(sample.datatype.contents_field): sample.elements}
    asked = message(tensor(datatype=sample.datatype.name, **contents))
    got = decode(pb.ModelInferRequest.FromString(asked.SerializeToString())).inputs["IN"]
    assert (got.datatype, got.shape, bytes(got.raw)) == (sample.datatype, (1, 2), sample.raw)


def test_the_16_bit_float_types_have_no_typed_contents() -> None:
    assert {sample.datatype for sample in SAMPLES if not sample.datatype.contents_field} == {dtypes.FP16, dtypes.BF16}


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_contents_in_a_wrong_field(sample: Sample) -> None:
    for field in CONTENTS.keys() - {sample.datatype.contents_field}:
        spelled, value = CONTENTS[field]
        assert error(message(tensor(datatype=sample.datatype.name, **{field: value}))) == (
            f"unexpected explicit tensor data for input tensor 'IN' for model 'm' of type '{spelled}', "
            f"expected datatype '{sample.datatype}'"
        )


def test_two_kinds_of_contents() -> None:
    assert error(message(tensor(int_contents=[1], fp32_contents=[1.5]))) == (
        "unexpected explicit tensor data for input tensor 'IN' for model 'm', binary data was already supplied."
    )
    assert "of type 'INT32', expected" in error(message(tensor(datatype="FP32", int_contents=[1], fp32_contents=[1.5])))


def test_neither_contents_nor_raw() -> None:
    assert error(message(tensor())) == "unable to find data for input tensor 'IN' for model 'm' in request."


def test_contents_without_elements_are_an_empty_tensor() -> None:
    asked = message(tensor(shape=(1, 0)))
    asked.inputs[0].contents.SetInParent()
    assert bytes(decode(asked).inputs["IN"].raw) == b""


@pytest.mark.parametrize(
    ("datatype", "field", "value", "bounds"),
    [
        ("INT8", "int_contents", 128, "-128 to 127"),
        ("INT16", "int_contents", -32769, "-32768 to 32767"),
        ("UINT8", "uint_contents", 256, "0 to 255"),
        ("UINT16", "uint_contents", 65536, "0 to 65535"),
    ],
)
def test_typed_contents_out_of_range_are_refused_and_do_not_wrap(
    datatype: str, field: str, value: int, bounds: str
) -> None:
    contents: dict[str, Any] = {field: [0, value]}
    assert error(message(tensor(datatype=datatype, **contents))) == (
        f"element 1 of input 'IN' is {value}, {datatype} takes {bounds}"
    )


def test_raw_contents_belong_to_the_inputs_in_their_order() -> None:
    request = decode(message(tensor("B"), tensor("A"), raw=(b"b" * 8, b"a" * 8)))
    assert {name: bytes(got.raw) for name, got in request.inputs.items()} == {"B": b"b" * 8, "A": b"a" * 8}


def test_mixing_raw_and_typed_contents() -> None:
    assert error(message(tensor("A"), tensor("B", int_contents=[1, 2]), raw=(bytes(8), bytes(8)))) == (
        "contents field must not be specified when using raw_input_contents for 'B' for model 'm'"
    )


def test_fewer_raw_contents_than_inputs() -> None:
    assert error(message(tensor("A"), tensor("B"), raw=(bytes(8),))) == (
        "unable to find data for input tensor 'B' for model 'm' in request."
    )


def test_more_raw_contents_than_inputs() -> None:
    assert error(message(tensor(), raw=(bytes(8), bytes(8)))) == (
        "expected 1 raw input buffers for model 'm', got 2: one is needed for each input, in their order"
    )


@pytest.mark.parametrize(("id", "prefix"), [("", "<id_unknown>"), ("7", "7")])
def test_a_duplicate_input(id: str, prefix: str) -> None:
    assert error(message(tensor(), tensor(), raw=(bytes(8), bytes(8)), id=id)) == (
        f"[request id: {prefix}] input 'IN' already exists in request"
    )


def test_an_unknown_datatype_is_left_to_the_model_s_signature() -> None:
    assert decode(message(tensor(datatype="INT23"), raw=(bytes(8),))).inputs["IN"].datatype is dtypes.INVALID
    assert "expected datatype '<invalid>'" in error(message(tensor(datatype="INT23", int_contents=[1])))


# The rest of a request


def test_name_version_and_id() -> None:
    request = decode(message(model_version="3", id="7"))
    assert (request.model_name, request.version, request.id, request.deadline_ns) == ("m", 3, "7", 0)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (
            "x",
            "failed to get model version from specified version string 'x' (details: stol), "
            "version should be an integral value > 0",
        ),
        (
            "\x1f1",
            "failed to get model version from specified version string '\x1f1' (details: stol), "
            "version should be an integral value > 0",
        ),
        ("0", "invalid model version specified '0' , version should be an integral value > 0"),
        ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
    ],
)
def test_a_version_that_is_none(version: str, text: str) -> None:
    assert error(message(model_version=version)) == text


def test_requested_outputs_as_they_are_asked_for() -> None:
    outputs = [pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in "BAB"]
    assert decode(message(outputs=outputs)).outputs == ("B", "A", "B"), "the model refuses what is there twice"


def outputs_with(*classification: tuple[str, dict[str, Any]]) -> pb.ModelInferRequest:
    asked = message()
    for name, choice in classification:
        output = asked.outputs.add(name=name)
        output.parameters["binary_data"].bool_param = True
        if choice:
            output.parameters["classification"].CopyFrom(pb.InferParameter(**choice))
    return asked


def test_class_counts() -> None:
    rows: list[tuple[str, dict[str, Any]]] = [("B", {"int64_param": 3}), ("A", {}), ("C", {"int64_param": 0})]
    asked = outputs_with(*rows)
    assert grpc_messages.class_counts(plain(asked)) == {"B": 3}
    assert decode(asked).outputs == ("B", "A", "C")


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"string_param": "3"}, "invalid value type for 'classification' parameter, expected int64_param"),
        ({"uint64_param": 3}, "invalid value type for 'classification' parameter, expected int64_param"),
        ({"int64_param": -1}, "invalid value for 'classification' parameter, expected >= 0"),
    ],
    ids=["string", "uint64", "negative"],
)
def test_class_counts_that_are_none(choice: dict[str, Any], text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        grpc_messages.class_counts(plain(outputs_with(("A", choice))))
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, text)


def test_without_regions_there_is_no_shared_memory() -> None:
    asked = message(tensor())
    asked.inputs[0].parameters["shared_memory_region"].string_param = "r"
    asked.inputs[0].parameters["shared_memory_byte_size"].int64_param = 8
    assert "shared memory is not supported" in error(asked, Code.UNSUPPORTED)


@pytest.mark.parametrize(
    ("name", "choice", "value"),
    [
        ("sequence_id", {"int64_param": 7}, 7),
        ("sequence_id", {"string_param": "s"}, "s"),
        ("sequence_start", {"bool_param": True}, True),
        ("sequence_end", {"bool_param": False}, False),
        ("priority", {"int64_param": 2}, 2),
        ("priority", {"uint64_param": 2}, 2),
        ("timeout", {"int64_param": 3}, 3),
        ("sequence_id", {"int64_param": -1}, 2**64 - 1),
        ("timeout", {"int64_param": -1}, 2**64 - 1),
        ("own", {"string_param": "x"}, "x"),
        ("own", {"int64_param": -1}, -1),
        ("own", {"bool_param": False}, False),
        ("own", {"double_param": 0.5}, 0.5),
        ("own", {"uint64_param": 2**64 - 1}, 2**64 - 1),
    ],
    ids=lambda value: str(value),
)
def test_a_parameter(name: str, choice: dict[str, Any], value: object) -> None:
    assert decode(with_parameter(name, **choice)).parameters == {name: value}


@pytest.mark.parametrize("wanted", [True, False])
def test_the_wish_for_an_empty_final_response_is_no_parameter_of_the_model(wanted: bool) -> None:
    message = with_parameter("triton_enable_empty_final_response", bool_param=wanted)
    assert decode(message).parameters == {}
    assert grpc_messages.wants_empty_final(plain(message)) is wanted


@pytest.mark.parametrize(
    ("name", "choice", "text"),
    [
        (
            "sequence_id",
            {"bool_param": True},
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
        ),
        (
            "sequence_start",
            {"int64_param": 1},
            "invalid value type for 'sequence_start' parameter, expected bool_param.",
        ),
        (
            "sequence_end",
            {"string_param": "x"},
            "invalid value type for 'sequence_end' parameter, expected bool_param.",
        ),
        (
            "priority",
            {"string_param": "1"},
            "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
        ),
        ("priority", {"int64_param": -1}, "invalid value for 'priority', expected value >= 0."),
        ("timeout", {"uint64_param": 1}, "invalid value type for 'timeout' parameter, expected int64_param."),
        ("own", {}, "invalid value type for 'own' parameter, expected int64_param, bool_param, or string_param."),
        (
            "triton_own",
            {"int64_param": 1},
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            "with 'triton_' are allowed: triton_enable_empty_final_response",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_parameter_that_is_refused(name: str, choice: dict[str, Any], text: str) -> None:
    assert error(with_parameter(name, **choice)) == text


@pytest.mark.parametrize(("timeout", "limit_ns"), [(0, 0), (5, 0), (0, 9), (5, 9)])
def test_the_timeout_is_no_deadline(timeout: int, limit_ns: int) -> None:
    request = decode(with_parameter("timeout", int64_param=timeout), limit_ns)
    assert (request.timeout_ns, request.deadline_ns) == (timeout * 1000, limit_ns)


# Answers


def answered(response: InferenceResponse) -> pb.ModelInferResponse:
    return pb.ModelInferResponse.FromString(ResponseWriter().encode(response))


def test_an_answer() -> None:
    outputs = {
        "T": Tensor.from_array(np.array([[b"ab"]], object), dtypes.BYTES),
        "OUT": Tensor.from_array(np.array([[1, 2]], np.int32)),
    }
    given: dict[str, ParameterValue] = {"b": True, "i": -1, "u": 2**63, "l": 2**64, "s": "x", "d": 0.5}
    response = InferenceResponse("m", 2, outputs, "7", given)
    assert answered(response) == pb.ModelInferResponse(
        model_name="m",
        model_version="2",
        id="7",
        parameters={
            "b": pb.InferParameter(bool_param=True),
            "i": pb.InferParameter(int64_param=-1),
            "u": pb.InferParameter(uint64_param=2**63),
            "l": pb.InferParameter(double_param=2.0**64),
            "s": pb.InferParameter(string_param="x"),
            "d": pb.InferParameter(double_param=0.5),
        },
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name="T", datatype="BYTES", shape=[1, 1]),
            pb.ModelInferResponse.InferOutputTensor(name="OUT", datatype="INT32", shape=[1, 2]),
        ],
        raw_output_contents=[b"\x02\0\0\0ab", b"\x01\0\0\0\x02\0\0\0"],
    )


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=3) | st.just("n" * 130),
        st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False)
        | st.text(st.characters(codec="utf-8"), max_size=3)
        | st.just("v" * 300),
        max_size=3,
    ),
    st.sampled_from(["", "7", "i" * 200]),
)
def test_parameters_of_an_answer(given: dict[str, ParameterValue], request_id: str) -> None:
    """Each comes back as it was, but integers of more than 64 bits, which are doubles."""
    answer = answered(InferenceResponse("m", 1, {}, request_id, given))
    assert answer.id == request_id
    values = {}
    for name, parameter in answer.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        assert choice is not None
        values[name] = getattr(parameter, choice)
    expected = {
        name: float(value) if type(value) is int and not -(2**63) <= value < 2**64 else value
        for name, value in given.items()
    }
    assert values == expected
    assert {name: type(value) for name, value in values.items()} == {
        name: type(value) for name, value in expected.items()
    }


def test_tensors_of_many_sizes() -> None:
    writer = ResponseWriter()
    for size in (0, 1, 127, 128, 20_000, *range(5_000), 1):
        raw = bytes(size)
        answer = pb.ModelInferResponse.FromString(
            writer.encode(InferenceResponse("m", 1, {"OUT": Tensor.from_raw(dtypes.UINT8, (size,), raw)}))
        )
        assert (list(answer.outputs[0].shape), list(answer.raw_output_contents)) == ([size], [raw])


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_every_datatype_goes_out_raw(sample: Sample) -> None:
    answer = answered(InferenceResponse("m", 1, {"OUT": sample.tensor}))
    assert (answer.outputs[0].datatype, list(answer.raw_output_contents)) == (sample.datatype.name, [sample.raw])
    assert not answer.outputs[0].HasField("contents")


# On streams


@pytest.mark.parametrize("final", [True, False])
def test_an_answer_on_a_stream_tells_whether_it_is_the_last(final: bool) -> None:
    response = InferenceResponse("m", 1, {}, "7", {"own": 3})
    answer = pb.ModelStreamInferResponse.FromString(b"".join(ResponseWriter().stream_parts(response, final)))
    assert answer.error_message == ""
    assert answer.infer_response == pb.ModelInferResponse(
        model_name="m",
        model_version="1",
        id="7",
        parameters={
            "own": pb.InferParameter(int64_param=3),
            "triton_final_response": pb.InferParameter(bool_param=final),
        },
    )


def test_a_model_cannot_say_that_its_answer_is_the_last() -> None:
    response = InferenceResponse("m", 1, {}, "", {"triton_final_response": "own", "p": 1})
    data = b"".join(ResponseWriter().stream_parts(response, True))
    answer = pb.ModelStreamInferResponse.FromString(data).infer_response
    assert answer.parameters == {
        "p": pb.InferParameter(int64_param=1),
        "triton_final_response": pb.InferParameter(bool_param=True),
    }
    assert data.count(b"triton_final_response") == 1
    assert answered(response).parameters["triton_final_response"].string_param == "own"


@pytest.mark.parametrize("request_id", ["7", ""])
def test_a_failure_on_a_stream_always_has_a_response(request_id: str) -> None:
    answer = encode_stream_error(ModserveError(Code.INTERNAL, "oops"), request_id)
    assert answer.error_message == "oops"
    assert answer.HasField("infer_response")
    assert answer.infer_response == pb.ModelInferResponse(id=request_id)


# Rubbish

PARAMETERS = st.sampled_from(
    [
        pb.InferParameter(),
        pb.InferParameter(bool_param=True),
        pb.InferParameter(int64_param=-3),
        pb.InferParameter(string_param="x"),
    ]
)
NAMES = st.sampled_from(
    ["", "a", "timeout", "priority", "sequence_id", "shared_memory_region", "triton_x", "classification"]
)
TENSORS = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=NAMES,
    datatype=st.sampled_from([*IDS, "", "INT23"]),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    contents=st.none()
    | st.builds(
        pb.InferTensorContents,
        int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2),
        uint_contents=st.lists(st.integers(0, 2**32 - 1), max_size=2),
        fp64_contents=st.lists(st.floats(), max_size=2),
        bytes_contents=st.lists(st.binary(max_size=3), max_size=2),
    ),
)
MESSAGES = st.builds(
    pb.ModelInferRequest,
    model_version=st.sampled_from(["", "1", "-1", "9" * 5000]) | st.text(st.characters(codec="utf-8"), max_size=3),
    id=st.text(st.characters(codec="utf-8"), max_size=3),
    inputs=st.lists(TENSORS, max_size=3),
    raw_input_contents=st.lists(st.binary(max_size=9), max_size=3),
    parameters=st.dictionaries(NAMES, PARAMETERS, max_size=2),
)


@settings(max_examples=40, deadline=None)
@given(MESSAGES)
def test_no_message_brings_the_decoder_down(asked: pb.ModelInferRequest) -> None:
    try:
        names = list(decode(asked).inputs)
    except ModserveError:
        return
    assert names == [given.name for given in asked.inputs]


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_that_are_a_message_bring_the_decoder_down(data: bytes) -> None:
    try:
        decode(pb.ModelInferRequest.FromString(data))
    except (DecodeError, ModserveError):
        pass


@pytest.mark.parametrize(
    ("sent", "raw", "cached", "long"),
    [
        (tensor(int_contents=range(10)), b"", False, False),
        (tensor(int_contents=range(11)), b"", False, True),
        (tensor(datatype="BYTES"), bytes(20), True, False),
        (tensor(datatype="BYTES"), bytes(21), False, True),
        (tensor(), bytes(24), False, False),
        (tensor(), bytes(24), True, True),
    ],
    ids=range(6),
)
def test_which_requests_take_long(
    sent: pb.ModelInferRequest.InferInputTensor, raw: bytes, cached: bool, long: bool
) -> None:
    plain = from_protobuf(message(sent, raw=(raw,) if raw else ()))
    assert grpc_messages.is_long(plain, cached, most_elements=10, most_texts=20) is long
