"""Tensors in shared memory on both wires: which are, where, and what happens to their data."""

import json
from typing import Any

import numpy as np
import pytest

from modserve.core.errors import Code, ModserveError, not_found
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.shared_memory import RegionLease, RegionSlice
from modserve.core.tensors.tensor import Buffer, DeviceTensor, Tensor
from modserve.pb import inference as pb
from modserve.protocol import shared_memory
from modserve.protocol.grpc import grpc_messages
from modserve.protocol.grpc.infer_message import from_protobuf
from modserve.protocol.grpc.response_writer import ResponseWriter
from modserve.protocol.http import infer_request, infer_response
from modserve.protocol.response_form import ResponseForm
from modserve.testing import FakeDevice, FakeDeviceArray

EIGHT = b"\x01\0\0\0\x02\0\0\0"


class OneRegion:
    """The lease of a server whose one region is `r`."""

    def __init__(self, content: bytes = EIGHT * 2) -> None:
        self.content = bytearray(content)
        self.reserved: list[RegionSlice] = []
        self.leases = 0

    def lend(self) -> RegionLease:
        self.leases += 1
        return self

    def read(self, place: RegionSlice) -> Buffer:
        self._check(place)
        return memoryview(self.content)[place.offset : place.offset + place.byte_size]

    def reserve(self, place: RegionSlice) -> None:
        self._check(place)
        self.reserved.append(place)

    def write(self, place: RegionSlice, raw: Buffer) -> None:
        assert place in self.reserved
        self.content[place.offset : place.offset + len(raw)] = raw

    def copy(self, place: RegionSlice, tensor: Tensor) -> bool:
        """Its memory is that of the device whose number is 1."""
        assert place in self.reserved
        if not isinstance(tensor, DeviceTensor) or tensor.device.number != 1:
            return False
        assert isinstance(tensor.source, FakeDeviceArray)
        self.content[place.offset : place.offset + tensor.size] = tensor.source.there.tobytes()
        return True

    def release(self) -> None:
        raise AssertionError("the codecs do not release")

    def _check(self, place: RegionSlice) -> None:
        if place.region != "r":
            raise not_found(f"no {place.region}")


def refusal(call: Any, *arguments: Any) -> tuple[Code, str]:
    with pytest.raises(ModserveError) as caught:
        call(*arguments)
    return caught.value.code, caught.value.message


# HTTP


def json_input(name: str = "IN", datatype: str = "INT32", **parameters: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1, 2], "datatype": datatype, "parameters": parameters}


def json_request(*inputs: dict[str, Any], **outputs: dict[str, Any]) -> bytes:
    wanted = [{"name": name, "parameters": parameters} for name, parameters in outputs.items()]
    return json.dumps({"inputs": inputs, "outputs": wanted}).encode()


def decode(text: bytes, region: OneRegion, binary: bytes = b"") -> tuple[InferenceRequest, ResponseForm]:
    return infer_request.decode_request("m", None, text + binary, len(text), 0, region.lend)


def test_inputs_are_views_of_the_region() -> None:
    region = OneRegion()
    text = json_request(json_input(shared_memory_region="r", shared_memory_offset=8, shared_memory_byte_size=8))
    for _ in range(2):  # the second time, the JSON is known already
        request, _ = decode(text, region)
        assert request.inputs["IN"].array.tolist() == [[1, 2]]
    region.content[8] = 7
    assert request.inputs["IN"].array.tolist() == [[7, 2]]
    assert region.leases == 2


def test_bytes_are_copied_for_the_client_may_change_them() -> None:
    content = b"\x01\0\0\0a\x02\0\0\0bc"
    region = OneRegion(content)
    text = json_request(json_input(datatype="BYTES", shared_memory_region="r", shared_memory_byte_size=11))
    request, _ = decode(text, region)
    region.content[:] = bytes(11)
    assert request.inputs["IN"].array.tolist() == [[b"a", b"bc"]]


def test_inputs_may_come_in_all_ways_at_once() -> None:
    text = json_request(
        json_input("A", binary_data_size=8),
        json_input("B", shared_memory_region="r", shared_memory_byte_size=8),
        {"name": "C", "shape": [1, 2], "datatype": "INT32", "data": [5, 6]},
        json_input("D", binary_data_size=8),
    )
    request, response_form = decode(text, OneRegion(), b"\x03\0\0\0" * 2 + b"\x04\0\0\0" * 2)
    found = {name: tensor.array.tolist() for name, tensor in request.inputs.items()}
    assert found == {"A": [[3, 3]], "B": [[1, 2]], "C": [[5, 6]], "D": [[4, 4]]}
    assert not response_form.places


def test_requests_without_shared_memory_take_no_lease() -> None:
    region = OneRegion()
    decode(json_request(json_input(binary_data_size=8), OUT={"binary_data": True}), region, EIGHT)
    assert region.leases == 0


def test_places_of_outputs() -> None:
    region = OneRegion()
    text = json_request(
        A={"shared_memory_region": "r", "shared_memory_byte_size": 8, "binary_data": False},
        B={"binary_data": True},
        C={},
        D={"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 4},
    )
    request, response_form = decode(text, region)
    assert request.outputs == ("A", "B", "C", "D")
    assert response_form == ResponseForm(
        binary=frozenset("B"), places={"A": RegionSlice("r", 0, 8), "D": RegionSlice("r", 8, 4)}
    )
    assert region.reserved == list(response_form.places.values())


def test_answers_tell_of_outputs_without_their_data() -> None:
    tensors = {name: Tensor(dtypes.INT32, (1, 2), EIGHT, None) for name in "AB"}
    body = infer_response.encode_response(
        InferenceResponse("m", 1, tensors), ResponseForm(places={"A": RegionSlice("r", 0, 8)})
    )
    assert body.header_length is None
    assert json.loads(b"".join(body.parts))["outputs"] == [
        {"name": "A", "datatype": "INT32", "shape": [1, 2]},
        {"name": "B", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]},
    ]


UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (json_request(json_input(shared_memory_region="x")), Code.NOT_FOUND, "no x"),
        (
            json_request(json_input(shared_memory_region=1)),
            Code.INVALID_ARG,
            "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string: "
            "'shared_memory_region' is the number 1",
        ),
        (
            json_request(json_input(shared_memory_region="r", shared_memory_offset=-1)),
            Code.INVALID_ARG,
            f"Unable to parse 'shared_memory_offset': {UNSIGNED}: 'shared_memory_offset' is the number -1",
        ),
        (
            json_request(json_input(shared_memory_region="r", shared_memory_offset=True)),
            Code.INVALID_ARG,
            f"Unable to parse 'shared_memory_offset': {UNSIGNED}: 'shared_memory_offset' is true",
        ),
        (
            json_request(json_input(shared_memory_region="r", shared_memory_byte_size=1.5)),
            Code.INVALID_ARG,
            f"Unable to parse 'shared_memory_byte_size': {UNSIGNED}: 'shared_memory_byte_size' is the number 1.5",
        ),
        (
            json_request(json_input(shared_memory_region="r"), json_input(binary_data_size=8)),
            Code.INVALID_ARG,
            "[request id: <id_unknown>] input 'IN' already exists in request",
        ),
        (
            json_request(json_input(shared_memory_region="r"), json_input(shared_memory_region="r")),
            Code.INVALID_ARG,
            "[request id: <id_unknown>] input 'IN' already exists in request",
        ),
        (
            json_request(OUT={"shared_memory_region": "r", "classification": 1}),
            Code.INVALID_ARG,
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
        (
            json_request(OUT={"shared_memory_region": "r", "binary_data": True}),
            Code.INVALID_ARG,
            "Output can't set both 'shared_memory_region' and 'binary_data'",
        ),
        (
            json_request(OUT={"shared_memory_region": "r", "shared_memory_byte_size": "8"}),
            Code.INVALID_ARG,
            f"Unable to parse 'shared_memory_byte_size': {UNSIGNED}: 'shared_memory_byte_size' is a string",
        ),
        (json_request(OUT={"shared_memory_region": "x"}), Code.NOT_FOUND, "no x"),
    ],
)
def test_json_that_is_refused(text: bytes, code: Code, message: str) -> None:
    assert refusal(decode, text, OneRegion()) == (code, message)


# gRPC


def parameters(**values: Any) -> dict[str, pb.InferParameter]:
    fields: dict[type, str] = {str: "string_param", int: "int64_param", bool: "bool_param"}
    return {name: pb.InferParameter(**{fields[type(value)]: value}) for name, value in values.items()}


def message_input(name: str = "IN", datatype: str = "INT32", **given: Any) -> pb.ModelInferRequest.InferInputTensor:
    return pb.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=(1, 2), parameters=parameters(**given)
    )


def message_output(name: str = "OUT", **given: Any) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters(**given))


SHARED: dict[str, Any] = {"shared_memory_region": "r", "shared_memory_byte_size": 8}


def test_raw_data_is_only_there_for_the_other_inputs() -> None:
    asked = pb.ModelInferRequest(
        model_name="m",
        inputs=[message_input("A"), message_input("B", **SHARED, shared_memory_offset=8), message_input("C")],
        raw_input_contents=[b"\x03\0\0\0" * 2, b"\x04\0\0\0" * 2],
    )
    region = OneRegion()
    found = grpc_messages.decode_request(from_protobuf(asked), 0, lend=region.lend).inputs
    region.content[8] = 9
    assert {name: tensor.array.tolist() for name, tensor in found.items()} == {
        "A": [[3, 3]],
        "B": [[9, 2]],
        "C": [[4, 4]],
    }


def test_typed_contents_and_shared_memory_mix() -> None:
    typed = message_input("A")
    typed.contents.int_contents.extend([5, 6])
    asked = pb.ModelInferRequest(model_name="m", inputs=[message_input("B", **SHARED), typed])
    found = grpc_messages.decode_request(from_protobuf(asked), 0, lend=OneRegion().lend).inputs
    assert [tensor.array.tolist() for tensor in found.values()] == [[[1, 2]], [[5, 6]]]


def test_places_of_outputs_in_a_message() -> None:
    region = OneRegion()
    asked = pb.ModelInferRequest(
        outputs=[message_output("A", **SHARED), message_output("B"), message_output("C", classification=1)]
    )
    assert grpc_messages.output_places(from_protobuf(asked), region.lend) == {"A": RegionSlice("r", 0, 8)}
    assert region.reserved == [RegionSlice("r", 0, 8)]
    assert grpc_messages.class_counts(from_protobuf(asked)) == {"C": 1}


def shared_with_contents() -> pb.ModelInferRequest.InferInputTensor:
    found = message_input(**SHARED)
    found.contents.int_contents.append(1)
    return found


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({**SHARED, "shared_memory_region": "x"}, Code.NOT_FOUND, "no x"),
        (
            {"shared_memory_region": 1},
            Code.INVALID_ARG,
            "invalid value type for 'shared_memory_region' parameter for tensor 'T', expected string_param.",
        ),
        (
            {"shared_memory_region": "r"},
            Code.INVALID_ARG,
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'T'",
        ),
        (
            {**SHARED, "shared_memory_byte_size": "8"},
            Code.INVALID_ARG,
            "invalid value type for 'shared_memory_byte_size' parameter for tensor 'T', expected int64_param.",
        ),
        (
            {**SHARED, "shared_memory_offset": True},
            Code.INVALID_ARG,
            "invalid value type for 'shared_memory_offset' parameter for tensor 'T', expected int64_param.",
        ),
        (
            {"shared_memory_offset": 1},
            Code.INVALID_ARG,
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'T'",
        ),
        (
            {"shared_memory_byte_size": 1},
            Code.INVALID_ARG,
            "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'T'",
        ),
    ],
)
def test_parameters_that_are_refused(given: dict[str, Any], code: Code, message: str) -> None:
    asked = pb.ModelInferRequest(inputs=[message_input("T", **given)], outputs=[message_output("T", **given)])
    assert refusal(grpc_messages.decode_request, from_protobuf(asked), 0, OneRegion().lend) == (code, message)
    assert refusal(grpc_messages.output_places, from_protobuf(asked), OneRegion().lend) == (code, message)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            pb.ModelInferRequest(model_name="m", inputs=[shared_with_contents()]),
            "unexpected 'content' provided when using shared memory for input tensor 'IN' for model 'm'",
        ),
        (
            pb.ModelInferRequest(model_name="m", inputs=[message_input(**SHARED)], raw_input_contents=[EIGHT]),
            "expected 0 raw input buffers for model 'm', got 1: one is needed for each input, in their order",
        ),
        (
            pb.ModelInferRequest(
                model_name="m",
                inputs=[message_input("A"), message_input("B", **SHARED), message_input("C")],
                raw_input_contents=[EIGHT],
            ),
            "unable to find data for input tensor 'C' for model 'm' in request.",
        ),
    ],
    ids=["contents", "a raw buffer too many", "a raw buffer too few"],
)
def test_messages_that_are_refused(asked: pb.ModelInferRequest, message: str) -> None:
    assert refusal(grpc_messages.decode_request, from_protobuf(asked), 0, OneRegion().lend) == (
        Code.INVALID_ARG,
        message,
    )


@pytest.mark.parametrize("count", [0, 1])
def test_classes_do_not_go_into_regions(count: int) -> None:
    asked = pb.ModelInferRequest(outputs=[message_output(**SHARED, classification=count)])
    expected = (Code.INVALID_ARG, "output can't set both 'shared_memory_region' and 'classification'")
    assert refusal(grpc_messages.output_places, from_protobuf(asked), OneRegion().lend) == expected


# Outputs


def response() -> InferenceResponse:
    words = Tensor(dtypes.BYTES, (2,), b"\x01\0\0\0a\x02\0\0\0bc", None)
    outputs = {
        "A": Tensor(dtypes.INT32, (1, 2), EIGHT, None),
        "B": words,
        "C": Tensor(dtypes.INT32, (1,), b"abcd", None),
    }
    return InferenceResponse("m", 1, outputs, "id", {"p": 1})


def test_outputs_are_moved_into_regions() -> None:
    region = OneRegion(bytes(24))
    places = {"B": RegionSlice("r", 8, 12), "A": RegionSlice("r", 0, 8), "not an output": RegionSlice("r", 0, 24)}
    for place in places.values():
        region.reserve(place)
    moved = shared_memory.move_outputs(response(), places, region)
    assert region.content == EIGHT + b"\x01\0\0\0a\x02\0\0\0bc" + bytes(5)
    message = pb.ModelInferResponse.FromString(ResponseWriter().encode(moved))
    assert [(each.name, each.datatype, list(each.shape)) for each in message.outputs] == [
        ("A", "INT32", [1, 2]),
        ("B", "BYTES", [2]),
        ("C", "INT32", [1]),
    ]
    assert list(message.raw_output_contents) == [b"", b"", b"abcd"]
    assert (message.id, message.parameters["p"].int64_param) == ("id", 1)


@pytest.mark.parametrize(("number", "downloads"), [(0, 1), (1, 0)])
def test_an_output_on_a_device_is_copied_there_if_the_region_is(number: int, downloads: int) -> None:
    device, region, place = FakeDevice(number=number), OneRegion(bytes(12)), RegionSlice("r", 4, 8)
    region.reserve(place)
    there = device.tensor(np.array([[7, 8]], np.int32))
    moved = shared_memory.move_outputs(InferenceResponse("m", 1, {"A": there}), {"A": place}, region)
    assert region.content == bytes(4) + np.array([7, 8], np.int32).tobytes()
    assert (moved.outputs["A"].shape, moved.outputs["A"].raw) == ((1, 2), b"")
    assert device.downloads == downloads


def test_an_output_on_a_device_that_does_not_fit_is_not_even_copied() -> None:
    device, region, place = FakeDevice(number=1), OneRegion(), RegionSlice("r", 4, 7)
    region.reserve(place)
    response = InferenceResponse("m", 1, {"A": device.tensor(np.zeros(2, np.int32))})
    code, message = refusal(shared_memory.move_outputs, response, {"A": place}, region)
    assert (code, "(7 bytes) should be at least 8 bytes" in message) == (Code.INVALID_ARG, True)
    assert device.downloads == 0


def test_nothing_is_written_if_an_output_does_not_fit() -> None:
    region = OneRegion(bytes(24))
    places = {"A": RegionSlice("r", 0, 8), "B": RegionSlice("r", 8, 10)}
    for place in places.values():
        region.reserve(place)
    assert refusal(shared_memory.move_outputs, response(), places, region) == (
        Code.INVALID_ARG,
        "shared memory size specified with the request for output 'B' (10 bytes) should be at least 11 bytes to hold "
        "the results",
    )
    assert region.content == bytes(24)
