"""Inference over HTTP: literal bodies in, literal bodies out."""

import json
import math
from typing import Any

import numpy as np
import pytest
from datatype_samples import IDS, SAMPLES, Sample
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.configuration.model_config import TensorSpec
from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Tensor
from modserve.protocol.http import infer_body, infer_request, infer_response
from modserve.protocol.http.json_heads import JsonHeads
from modserve.protocol.response_form import ResponseForm
from modserve.testing import config

quick = settings(max_examples=40, deadline=None)
INPUT = '{"name":"IN","shape":[1,2],"datatype":"INT32","data":[1,2]}'
BINARY = '{"name":"IN","shape":[1,2],"datatype":"INT32","parameters":{"binary_data_size":8}}'
EIGHT = b"\x01\0\0\0\x02\0\0\0"


def decode(
    text: str | bytes, binary: bytes | None = None, version: int | None = None
) -> tuple[InferenceRequest, ResponseForm]:
    header = text.encode() if isinstance(text, str) else text
    if binary is None:
        return infer_request.decode_request("m", version, header, None)
    return infer_request.decode_request("m", version, header + binary, len(header))


def error(text: str | bytes, binary: bytes | None = None) -> str:
    with pytest.raises(ModserveError) as caught:
        decode(text, binary)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def with_input(**fields: Any) -> str:
    """A request with one input, whose fields are as given; None leaves a field out."""
    whole = {"name": "IN", "shape": [1, 2], "datatype": "INT32", "data": [1, 2], **fields}
    return json.dumps({"inputs": [{key: value for key, value in whole.items() if value is not None}]})


def with_parameters(parameters: object) -> str:
    return json.dumps({"parameters": parameters, "inputs": []})


# Requests


def test_the_smallest_request() -> None:
    request, response_form = decode('{"inputs":[' + INPUT + "]}", version=3)
    assert (request.model_name, request.version, request.id) == ("m", 3, "")
    assert (request.outputs, request.parameters, request.deadline_ns) == ((), {}, 0)
    assert request.inputs["IN"].datatype is dtypes.INT32
    assert request.inputs["IN"].array.tolist() == [[1, 2]]
    assert response_form == ResponseForm()


def test_a_request_with_everything() -> None:
    request, _ = decode(
        '{"id":"é\\"/","parameters":{"timeout":2000,"a":1,"b":true,"c":"x","d":1.5,"sequence_id":"s",'
        '"sequence_start":true,"sequence_end":false,"priority":2},"outputs":[{"name":"B"},{"name":"A"}],'
        '"inputs":[{"name":"X","shape":[1],"datatype":"BOOL","data":[true]},' + INPUT + '],"unknown":{"key":[]}}'
    )
    assert request.id == 'é"/'
    assert request.outputs == ("B", "A")
    assert list(request.inputs) == ["X", "IN"]
    assert request.timeout_ns == 2_000_000
    assert request.parameters == {
        "timeout": 2000,
        "a": 1,
        "b": True,
        "c": "x",
        "d": 1.5,
        "sequence_id": "s",
        "sequence_start": True,
        "sequence_end": False,
        "priority": 2,
    }


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_every_datatype_as_json(sample: Sample) -> None:
    text = f'{{"inputs":[{{"name":"IN","shape":[1,2],"datatype":"{sample.datatype}","data":{sample.json}}}]}}'
    tensor = decode(text)[0].inputs["IN"]
    assert (tensor.datatype, tensor.shape, bytes(tensor.raw)) == (sample.datatype, (1, 2), sample.raw)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_every_datatype_as_binary_data(sample: Sample) -> None:
    text = with_input(datatype=sample.datatype.name, data=None, parameters={"binary_data_size": len(sample.raw)})
    tensor = decode(text, sample.raw)[0].inputs["IN"]
    assert tensor.array.tolist() == sample.tensor.array.tolist()


def test_binary_data_is_taken_in_the_order_of_the_inputs_beside_json_ones() -> None:
    other = BINARY.replace('"IN"', '"B"')
    request, _ = decode(
        '{"inputs":[' + other + "," + INPUT.replace("IN", "J", 1) + "," + BINARY + "]}", EIGHT + b"\x05" * 8
    )
    assert request.inputs["B"].array.tolist() == [[1, 2]]
    assert request.inputs["J"].array.tolist() == [[1, 2]]
    assert bytes(request.inputs["IN"].raw) == b"\x05" * 8


def test_much_binary_data_is_not_copied() -> None:
    large = BINARY.replace("[1,2]", "[1,4096]").replace('"binary_data_size":8', '"binary_data_size":16384')
    body = ('{"inputs":[' + large + "]}").encode() + bytes(16384)
    request, _ = infer_request.decode_request("m", None, body, len(body) - 16384)
    raw = request.inputs["IN"].raw
    assert isinstance(raw, memoryview)
    assert raw.obj is body


def test_little_binary_data_does_not_keep_its_body() -> None:
    body = ('{"inputs":[' + BINARY + "]}").encode() + EIGHT
    request, _ = infer_request.decode_request("m", None, body, len(body) - 8)
    assert request.inputs["IN"].raw == EIGHT


def test_a_header_seen_before_means_the_same_with_other_binary_data() -> None:
    text = '{"inputs":[' + BINARY + '],"parameters":{"timeout":5,"binary_data_output":true}}'
    for data in (EIGHT, bytes(8), EIGHT):
        request, response_form = decode(text, data)
        assert bytes(request.inputs["IN"].raw) == data
        assert request.timeout_ns == 5_000
        assert response_form.all_binary
    assert "expecting 1 additional" in error(text, bytes(7))
    assert "unexpected additional" in error(text, bytes(9))


def test_the_header_length_covers_requests_without_binary_data() -> None:
    assert decode('{"inputs":[' + INPUT + "]}", b"")[0].inputs["IN"].array.tolist() == [[1, 2]]


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_bare_non_finite_numbers_are_read(literal: str) -> None:
    text = '{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","data":[' + literal + "]}]}"
    assert decode(text)[0].inputs["IN"].array.tolist() == pytest.approx([float(literal)], nan_ok=True)


@pytest.mark.parametrize(
    ("request_part", "all_binary", "binary"),
    [
        ("", False, []),
        (',"outputs":[]', False, []),
        (',"parameters":{"binary_data_output":true}', True, []),
        (',"parameters":{"binary_data_output":true},"outputs":[]', True, []),
        (',"outputs":[{"name":"A","parameters":{"binary_data":true}},{"name":"B"}]', False, ["A"]),
        (',"outputs":[{"name":"A","parameters":{"binary_data":false}}]', False, []),
        # The default that the documents speak of does not exist in the code.
        (',"outputs":[{"name":"A"}],"parameters":{"binary_data_output":true}', False, []),
    ],
    ids=["none", "empty", "default", "default, empty", "one of two", "false", "default, listed"],
)
def test_which_outputs_come_back_as_binary_data(request_part: str, all_binary: bool, binary: list[str]) -> None:
    _, response_form = decode('{"inputs":[]' + request_part + "}")
    assert (response_form.all_binary, sorted(response_form.binary)) == (all_binary, binary)


@pytest.mark.parametrize(
    ("outputs", "classes", "binary"),
    [
        ('{"name":"A","parameters":{"classification":3}},{"name":"B"}', {"A": 3}, []),
        ('{"name":"A","parameters":{"classification":3,"binary_data":true}}', {"A": 3}, ["A"]),
        ('{"name":"A","parameters":{"classification":0}}', {}, []),
        (
            '{"name":"A","parameters":{"classification":1}},{"name":"B","parameters":{"classification":2}}',
            {"A": 1, "B": 2},
            [],
        ),
    ],
    ids=["one of two", "as binary data", "none of it", "both"],
)
def test_of_which_outputs_the_best_classes_come_back(outputs: str, classes: dict[str, int], binary: list[str]) -> None:
    _, response_form = decode('{"inputs":[],"outputs":[' + outputs + "]}")
    assert (response_form.classes, sorted(response_form.binary)) == (classes, binary)


def test_an_output_asked_for_twice_is_there_twice_for_the_model_to_refuse() -> None:
    assert decode('{"inputs":[],"outputs":[{"name":"A"},{"name":"B"},{"name":"A"}]}')[0].outputs == ("A", "B", "A")


@pytest.mark.parametrize(
    ("timeout", "timeout_ns"), [(0, 0), (1, 1_000), (10**15, 10**18)], ids=["none", "1 µs", "long"]
)
def test_the_timeout_counts_microseconds(timeout: int, timeout_ns: int) -> None:
    request, _ = decode(with_parameters({"timeout": timeout}))
    assert (request.timeout_ns, request.deadline_ns) == (timeout_ns, 0)


# Mistakes

ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
MISTAKES = {
    "inputs missing": (
        "{}",
        "Unable to parse 'inputs': attempt to access non-existing object member 'inputs': the request has none",
    ),
    "inputs null": (
        '{"inputs":null}',
        "Unable to parse 'inputs': attempt to access JSON non-array as array: 'inputs' is null",
    ),
    "inputs object": (
        '{"inputs":{}}',
        "Unable to parse 'inputs': attempt to access JSON non-array as array: 'inputs' is an object",
    ),
    "id number": (
        '{"id":5,"inputs":[]}',
        "Unable to parse 'id': attempt to access JSON non-string as string: 'id' is the number 5",
    ),
    "id null": (
        '{"id":null,"inputs":[]}',
        "Unable to parse 'id': attempt to access JSON non-string as string: 'id' is null",
    ),
    "outputs null": (
        '{"inputs":[],"outputs":null}',
        "Unable to parse 'outputs': attempt to access JSON non-array as array: 'outputs' is null",
    ),
    "outputs object": (
        '{"inputs":[],"outputs":{}}',
        "Unable to parse 'outputs': attempt to access JSON non-array as array: 'outputs' is an object",
    ),
    "output name missing": (
        '{"inputs":[],"outputs":[{}]}',
        "Unable to parse 'name': attempt to access non-existing object member 'name': outputs[0] has none",
    ),
    "output parameters list": (
        '{"inputs":[],"outputs":[{"name":"A","parameters":[]}]}',
        "Unable to parse 'parameters': attempt to access JSON non-object as object: "
        "'parameters' of output 'A' is a list",
    ),
    "binary_data number": (
        '{"inputs":[],"outputs":[{"name":"A","parameters":{"binary_data":1}}]}',
        "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean: "
        "'binary_data' of output 'A' is the number 1",
    ),
    "classification negative": (
        '{"inputs":[],"outputs":[{"name":"A","parameters":{"classification":-1}}]}',
        "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer: "
        "'classification' of output 'A' is the number -1",
    ),
    "classification string": (
        '{"inputs":[],"outputs":[{"name":"A","parameters":{"classification":"1"}}]}',
        "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer: "
        "'classification' of output 'A' is a string",
    ),
    "classification boolean": (
        '{"inputs":[],"outputs":[{"name":"A","parameters":{"classification":true}}]}',
        "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer: "
        "'classification' of output 'A' is true",
    ),
    "binary_data_output number": (
        with_parameters({"binary_data_output": 1}),
        "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean: "
        "'binary_data_output' is the number 1",
    ),
    "name number": (
        with_input(name=1),
        "Unable to parse 'name': attempt to access JSON non-string as string: 'name' of inputs[0] is the number 1",
    ),
    "name missing": (
        with_input(name=None),
        "Unable to parse 'name': attempt to access non-existing object member 'name': inputs[0] has none",
    ),
    "datatype number": (
        with_input(datatype=3),
        "Unable to parse 'datatype': attempt to access JSON non-string as string: "
        "'datatype' of inputs[0] is the number 3",
    ),
    "datatype missing": (
        with_input(datatype=None),
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype': inputs[0] has none",
    ),
    "datatype unknown": (
        with_input(datatype="INT23"),
        f"invalid datatype for input IN: 'INT23', there are {', '.join(dtypes.BY_NAME)}",
    ),
    "shape missing": (
        with_input(shape=None),
        "Unable to parse 'shape': attempt to access non-existing object member 'shape': input 'IN' has none",
    ),
    "shape number": (
        with_input(shape=2),
        "Unable to parse 'shape': attempt to access JSON non-array as array: 'shape' of input 'IN' is the number 2",
    ),
    **{
        f"shape of {shape}": (
            with_input(shape=shape),
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer: "
            f"'shape' of input 'IN' has {element}",
        )
        for shape, element in (
            ([1, -2], "the number -2"),
            ([1.0, 2.0], "the number 1.0"),
            (["1"], "a string"),
            ([True, 2], "true"),
            ([None], "null"),
            ([[1], 2], "a list"),
            ([2**63], "the number 9223372036854775808"),
        )
    },
    "duplicate input": (
        '{"inputs":[' + INPUT + "," + INPUT + "]}",
        "[request id: <id_unknown>] input 'IN' already exists in request",
    ),
    "duplicate input with id": (
        '{"id":"7","inputs":[' + INPUT + "," + INPUT + "]}",
        "[request id: 7] input 'IN' already exists in request",
    ),
    "no source": (with_input(data=None), ONE_SOURCE + "no field is set"),
    "no source, empty parameters": (with_input(data=None, parameters={}), ONE_SOURCE + "no field is set"),
    "two sources": (with_input(parameters={"binary_data_size": 8}), ONE_SOURCE + "set 'data' 'binary_data_size'"),
    "three sources": (
        with_input(parameters={"binary_data_size": 8, "shared_memory_region": "r"}),
        ONE_SOURCE + "set 'data' 'binary_data_size' 'shared_memory_region'",
    ),
    "input parameters list": (
        with_input(parameters=[]),
        "Unable to parse 'parameters': attempt to access JSON non-object as object: "
        "'parameters' of input 'IN' is a list",
    ),
    **{
        f"binary_data_size {size!r}": (
            with_input(data=None, parameters={"binary_data_size": size}),
            "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer: "
            f"'binary_data_size' of input 'IN' is {described}",
        )
        for size, described in (
            (-1, "the number -1"),
            (8.0, "the number 8.0"),
            ("8", "a string"),
            (True, "true"),
            (None, "null"),
        )
    },
    "binary without header length": (
        '{"inputs":[' + BINARY + "]}",
        "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' "
        "when passing inputs in binary data format",
    ),
    "timeout negative": (
        with_parameters({"timeout": -1}),
        "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer: "
        "'timeout' is the number -1",
    ),
    "timeout boolean": (
        with_parameters({"timeout": True}),
        "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer: 'timeout' is true",
    ),
    "priority string": (
        with_parameters({"priority": "1"}),
        "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer: "
        "'priority' is a string",
    ),
    "sequence_id boolean": (
        with_parameters({"sequence_id": True}),
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string: 'sequence_id' is true",
    ),
    "sequence_start number": (
        with_parameters({"sequence_start": 1}),
        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean: "
        "'sequence_start' is the number 1",
    ),
    "sequence_end string": (
        with_parameters({"sequence_end": "true"}),
        "Unable to parse 'sequence_end': attempt to access JSON non-boolean as boolean: 'sequence_end' is a string",
    ),
    "reserved parameter": (
        with_parameters({"triton_enable_empty_final_response": True}),
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    **{
        f"parameter of {value}": (
            with_parameters({"k": value}),
            "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'.",
        )
        for value in ([1], {"a": 1}, None)
    },
    "parameters list": (
        with_parameters([]),
        "Unable to parse 'parameters': attempt to access JSON non-object as object: 'parameters' is a list",
    ),
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (2**63, float(2**63)), (2**64 - 1, float(2**64))],
    ids=str,
)
def test_integers_of_custom_parameters_have_64_bits_or_become_doubles(value: int, expected: float) -> None:
    request, _ = decode(with_parameters({"k": value, "nan": math.nan}))
    found = request.parameters["k"]
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("key", ["sequence_id", "priority", "timeout"])
def test_numbers_of_the_protocol_have_64_bits(key: str) -> None:
    request, _ = decode(with_parameters({key: 2**64 - 1, "nan": math.nan}))
    assert request.parameters[key] == 2**64 - 1
    assert f"Unable to parse '{key}'" in error(with_parameters({key: 2**64, "nan": math.nan}))


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_gets_its_text(text: str, message: str) -> None:
    assert error(text) == message


@pytest.mark.parametrize(
    ("binary", "message"),
    [
        (bytes(4), "unexpected size for input 'IN', expecting 4 additional bytes for model 'm'"),
        (b"", "unexpected size for input 'IN', expecting 8 additional bytes for model 'm'"),
        (bytes(9), "unexpected additional input data for model 'm'"),
    ],
    ids=["short", "none", "surplus"],
)
def test_binary_data_of_the_wrong_size(binary: bytes, message: str) -> None:
    assert error('{"inputs":[' + BINARY + "]}", binary) == message


def test_binary_data_after_a_request_that_has_none() -> None:
    assert error('{"inputs":[' + INPUT + "]}", bytes(4)) == "unexpected additional input data for model 'm'"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"  ",
        b"{",
        b'{"inputs" []}',
        b'{"inputs":[],}',
        b"hello",
        b'{"inputs":[]} x',
        b'{"id":"\xff"}',
        b'{"a":"\\x"}',
    ],
    ids=["empty", "blank", "open", "colon", "comma", "word", "surplus", "not UTF-8", "escape"],
)
def test_malformed_json_is_refused(text: bytes) -> None:
    assert error(text).startswith("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("[]", "a list"),
        ("null", "null"),
        ('"a"', "a string"),
        ("1", "the number 1"),
        ("NaN", "the number NaN"),
        ("false", "false"),
    ],
)
def test_json_that_is_no_object_is_refused(text: str, described: str) -> None:
    prefix = "Unable to parse 'inputs': attempt to access JSON non-object as object"
    assert error(text) == f"{prefix}: the request body is {described}"


@pytest.mark.parametrize(
    ("datatype", "hint"),
    [
        ("float32", "did you mean FP32?"),
        ("TYPE_FP32", "did you mean FP32?"),
        ("string", "did you mean BYTES?"),
        ("torch.float32", "did you mean FP32?"),
        ("int8", "did you mean INT8?"),
        ("complex", f"there are {', '.join(dtypes.BY_NAME)}"),
    ],
)
def test_an_unknown_datatype_names_the_right_one(datatype: str, hint: str) -> None:
    assert error(with_input(datatype=datatype)) == f"invalid datatype for input IN: '{datatype}', {hint}"


@pytest.mark.parametrize("size", [100, 100_000])
@pytest.mark.parametrize(
    ("begin", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "a JPEG picture, not JSON: 'modserve infer MODEL @FILE'"),
        (b"\x89PNG\r\n\x1a\n", "a PNG picture, not JSON: 'modserve infer MODEL @FILE'"),
        (b"\x1f\x8b\x08", "gzip data: add the header 'Content-Encoding: gzip'"),
        (b'--x7\r\nContent-Disposition: form-data; name="file"\r\n\r\n\xff', "a multipart form, not JSON: "),
        (b"text_input=hello&n=1", "a form, not JSON: send a JSON object"),
    ],
    ids=["jpeg", "png", "gzip", "multipart", "form"],
)
def test_what_is_often_sent_in_place_of_json_is_named(begin: bytes, kind: str, size: int) -> None:
    assert f": this is {kind}" in error(begin.ljust(size, b"\xff"))


def test_a_lone_surrogate_is_no_text() -> None:
    assert error('{"id":"\\ud800","inputs":[]}') == (
        "failed to parse the request JSON buffer: The surrogate pair in string is invalid."
    )


@pytest.mark.parametrize("shape", [[0, 2**63 - 1], [1] * 64, [2**62, 0, 2**62]], ids=["long", "deep", "both"])
def test_a_shape_beyond_numpy_s_is_left_to_the_model_s_signature(shape: list[int]) -> None:
    size = math.prod(shape)
    tensor = decode(with_input(shape=shape, data=[7] * size))[0].inputs["IN"]
    assert (tensor.shape, len(tensor.raw)) == (tuple(shape), 4 * size)


def test_json_without_end_to_its_nesting_is_refused() -> None:
    assert error("[" * 100_000) == "JSON nesting depth exceeds maximum allowed limit (100)"


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    assert error('{"inputs":[],"parameters":{"k":[NaN,' + "1" * 5000 + "]}}").startswith(
        "failed to parse the request JSON"
    )


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        (with_input(data=None, parameters={"shared_memory_region": "r"}), "shared memory"),
        ('{"inputs":[],"outputs":[{"name":"A","parameters":{"shared_memory_region":"r"}}]}', "output 'A': shared"),
    ],
    ids=["shared memory input", "shared memory output"],
)
def test_without_regions_there_is_no_shared_memory(text: str, feature: str) -> None:
    with pytest.raises(ModserveError, match=feature) as caught:
        decode(text)
    assert caught.value.code is Code.UNSUPPORTED


# Raw binary requests: a header length of 0


@pytest.mark.parametrize(
    ("datatype", "dims", "max_batch_size", "body", "shape"),
    [
        (dtypes.INT32, (2,), 0, b"\1\0\0\0\2\0\0\0", (2,)),
        (dtypes.INT32, (2,), 8, b"\1\0\0\0\2\0\0\0", (1, 2)),
        (dtypes.INT16, (2, -1), 0, bytes(12), (2, 3)),
        (dtypes.INT16, (-1, 2), 4, bytes(12), (1, 3, 2)),
        (dtypes.INT32, (-1,), 0, b"", (0,)),
        (dtypes.BYTES, (1,), 8, b"text", (1, 1)),
    ],
    ids=["fixed", "batching", "variable", "variable and batching", "empty", "string"],
)
def test_a_raw_body_is_the_one_input(
    datatype: Datatype, dims: tuple[int, ...], max_batch_size: int, body: bytes, shape: tuple[int, ...]
) -> None:
    model = config(inputs=(TensorSpec("IN", datatype, dims),), max_batch_size=max_batch_size)
    request, response_form = infer_body.decode_raw(model, None, body)
    tensor = request.inputs["IN"]
    assert (tensor.datatype, tensor.shape) == (datatype, shape)
    assert bytes(tensor.raw) == (body if datatype.size else len(body).to_bytes(4, "little") + body)
    assert response_form.all_binary


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (
            (TensorSpec("A", dtypes.INT32, (1,)), TensorSpec("B", dtypes.INT32, (1,))),
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'model' "
            "model configuration",
        ),
        (
            (TensorSpec("A", dtypes.INT32, (-1, -1)),),
            "The shape of the raw input 'A' can not be deduced because there are more than one "
            "variable-sized dimension",
        ),
        (
            (TensorSpec("A", dtypes.BYTES, (2,)),),
            "For BYTE datatype raw input 'A', the model must have input shape [1]",
        ),
    ],
    ids=["two inputs", "two variable dimensions", "two strings"],
)
def test_a_raw_body_that_tells_too_little(inputs: tuple[TensorSpec, ...], text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        infer_body.decode_raw(config(inputs=inputs), None, b"abcd")
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, f"[request id: <id_unknown>] {text}")


# The header that says where the JSON ends


@pytest.mark.parametrize(
    ("value", "length"),
    [(None, None), (b"0", 0), (b"5", 5), ("5", 5), (b"10", 10), (b" 7 ", 7), ("\x1f7\xa0", 7)],
    ids=str,
)
def test_a_header_length(value: bytes | str | None, length: int | None) -> None:
    assert infer_request.header_length(value, 10) == length


@pytest.mark.parametrize("value", ["11", "-1", "99999999999999999999999", "9" * 10_000], ids=lambda value: value[:12])
def test_a_header_length_out_of_range(value: str) -> None:
    with pytest.raises(ModserveError) as caught:
        infer_request.header_length(value, 10)
    assert caught.value.message == f"inference header size should be in range (0, 10), got: {value}"


@pytest.mark.parametrize("value", ["", "abc", "1.5", "5abc", "- 5", "5 5", "٣", "0x5"])
def test_a_header_length_that_is_no_number(value: str) -> None:
    with pytest.raises(ModserveError) as caught:
        infer_request.header_length(value, 10)
    assert caught.value.message == f"Unable to parse Inference-Header-Content-Length, got: {value}"


# Answers

SUM = Tensor.from_array(np.array([[1, 2]], np.int32))
TEXT = Tensor.from_array(np.array([[b"ab", b""]], object), dtypes.BYTES)


def encode(outputs: dict[str, Tensor], response_form: ResponseForm, **more: Any) -> tuple[bytes, int | None]:
    body = infer_response.encode_response(InferenceResponse("m", 2, outputs, **more), response_form)
    return b"".join(body.parts), body.header_length


def test_no_bytes_of_binary_data_need_no_header_length() -> None:
    empty = '{"name":"IN","shape":[1,0],"datatype":"INT32","parameters":{"binary_data_size":0}}'
    request, _ = decode('{"inputs":[' + empty + "]}")
    assert request.inputs["IN"].array.shape == (1, 0)


def test_parameters_of_an_answer() -> None:
    given = {
        "b": True,
        "i": -(2**63),
        "u": 2**64 - 1,
        "s": "\u00e4",
        "d": 0.5,
        "n": math.nan,
        "f": -math.inf,
        "l": 2**64,
    }
    text, _ = encode({}, ResponseForm(), parameters=given)
    assert (
        text
        == (
            '{"model_name":"m","model_version":"2","parameters":{"b":true,"i":-9223372036854775808,'
            '"u":18446744073709551615,"s":"\u00e4","d":0.5,"n":NaN,"f":-Infinity,"l":1.8446744073709552e+19},"outputs":[]}'
        ).encode()
    )


def test_an_answer_in_json() -> None:
    assert encode({"OUT": SUM, "T": TEXT}, ResponseForm()) == (
        b'{"model_name":"m","model_version":"2","outputs":['
        b'{"name":"OUT","datatype":"INT32","shape":[1,2],"data":[1,2]},'
        b'{"name":"T","datatype":"BYTES","shape":[1,2],"data":["ab",""]}]}',
        None,
    )


def test_an_answer_with_id_and_parameters() -> None:
    body, _ = encode({"OUT": SUM}, ResponseForm(), id='a"b\\é/\n', parameters={"b": True, "i": 1, "s": "x", "d": 0.5})
    assert body == (
        '{"id":"a\\"b\\\\é/\\n","model_name":"m","model_version":"2","parameters":{"b":true,"i":1,"s":"x","d":0.5},'
        '"outputs":[{"name":"OUT","datatype":"INT32","shape":[1,2],"data":[1,2]}]}'.encode()
    )


def test_an_answer_in_binary() -> None:
    header = (
        b'{"id":"7","model_name":"m","model_version":"2","outputs":['
        b'{"name":"OUT","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},'
        b'{"name":"T","datatype":"BYTES","shape":[1,2],"parameters":{"binary_data_size":10}}]}'
    )
    assert encode({"OUT": SUM, "T": TEXT}, ResponseForm(all_binary=True), id="7") == (
        header + EIGHT + b"\x02\0\0\0ab\0\0\0\0",
        len(header),
    )


def test_an_answer_of_both_kinds() -> None:
    header = (
        b'{"model_name":"m","model_version":"2","outputs":['
        b'{"name":"T","datatype":"BYTES","shape":[1,2],"data":["ab",""]},'
        b'{"name":"OUT","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}]}'
    )
    assert encode({"T": TEXT, "OUT": SUM}, ResponseForm(binary=frozenset({"OUT"}))) == (header + EIGHT, len(header))


def test_an_answer_without_a_byte_of_binary_data_is_plain_json() -> None:
    empty = Tensor.from_array(np.empty((1, 0), np.float32))
    assert encode({"OUT": empty}, ResponseForm(all_binary=True)) == (
        b'{"model_name":"m","model_version":"2","outputs":['
        b'{"name":"OUT","datatype":"FP32","shape":[1,0],"parameters":{"binary_data_size":0}}]}',
        None,
    )


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_every_datatype_in_a_json_answer(sample: Sample) -> None:
    body, length = encode({"OUT": sample.tensor}, ResponseForm())
    assert length is None
    assert body == (
        f'{{"model_name":"m","model_version":"2","outputs":[{{"name":"OUT","datatype":"{sample.datatype}",'
        f'"shape":[1,2],"data":{sample.json}}}]}}'.encode()
    )


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_every_datatype_in_a_binary_answer(sample: Sample) -> None:
    body, length = encode({"OUT": sample.tensor}, ResponseForm(all_binary=True))
    assert body[length:] == sample.raw
    assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": len(sample.raw)}


def test_non_finite_numbers_are_bare_literals() -> None:
    numbers = Tensor.from_array(np.array([math.nan, math.inf, -math.inf, 0.5], np.float32))
    assert b'"data":[NaN,Infinity,-Infinity,0.5]' in encode({"OUT": numbers}, ResponseForm())[0]


def test_an_error_body_has_one_key() -> None:
    assert infer_response.encode_error(invalid('say "é"')) == '{"error":"say \\"é\\""}'.encode()


def test_an_error_about_text_that_is_none_can_still_be_sent() -> None:
    assert infer_response.encode_error(invalid("a\ud800b")) == rb'{"error":"a\\ud800b"}'


# Round trips and rubbish


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = draw(st.sampled_from([sample.datatype for sample in SAMPLES]))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = math.prod(shape)
    if datatype is dtypes.BYTES:
        texts = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=count, max_size=count))
        array = np.empty(count, object)
        array[:] = [text.encode() for text in texts]
        return Tensor.from_array(array.reshape(shape), datatype)
    raw = draw(st.binary(min_size=count * datatype.size, max_size=count * datatype.size))
    if datatype is dtypes.BOOL:
        raw = bytes(byte & 1 for byte in raw)
    return Tensor.from_raw(datatype, shape, raw)


@quick
@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), tensors(), max_size=3), st.booleans(), st.data()
)
def test_what_is_encoded_decodes_to_the_same(outputs: dict[str, Tensor], binary: bool, data: st.DataObject) -> None:
    some = frozenset(data.draw(st.sets(st.sampled_from(sorted(outputs))))) if outputs else frozenset[str]()
    body, length = encode(outputs, ResponseForm(all_binary=True) if binary else ResponseForm(binary=some), id="7")
    asked = json.loads(body[:length] if length else body)
    header = json.dumps({"id": asked["id"], "inputs": asked["outputs"]}).encode()
    request, _ = infer_request.decode_request("m", None, header + (body[length:] if length else b""), len(header))
    assert list(request.inputs) == list(outputs)
    for name, tensor in outputs.items():
        back = request.inputs[name]
        assert (back.datatype, back.shape) == (tensor.datatype, tensor.shape)
        assert same_elements(back, tensor)


@pytest.mark.parametrize("binary", [frozenset(), frozenset({"B"})], ids=["JSON", "and binary"])
def test_long_json_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch, binary: frozenset[str]) -> None:
    outputs = {
        "A": Tensor(dtypes.BYTES, (2,), None, np.array([b"\0", b'\\u0000"'], dtype=object)),
        "B": Tensor(dtypes.FP32, (1, 2), None, np.ones((1, 2), np.float32)),
        "C\0": Tensor(dtypes.INT8, (0,), None, np.ones(0, np.int8)),
    }
    response = InferenceResponse("m\0", 2, outputs, "\0", {"p": "\0"})
    whole = infer_response.encode_response(response, ResponseForm(binary=binary))
    monkeypatch.setattr(infer_response, "_LONG", 1)
    parts = infer_response.encode_response(response, ResponseForm(binary=binary))
    assert len(parts.parts) == len(whole.parts) + 2 * (3 - len(binary))
    assert b"".join(parts.parts) == b"".join(whole.parts)
    assert parts.header_length == whole.header_length


def same_elements(left: Tensor, right: Tensor) -> bool:
    """Whether all elements are the same; one NaN is as good as another."""
    if left.datatype.json_kind == "float":
        with np.errstate(invalid="ignore"):
            return np.array_equal(left.array.astype(np.float64), right.array.astype(np.float64), equal_nan=True)
    return bool((left.array == right.array).all())


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([sample.datatype.name for sample in SAMPLES])
)
KEYS = (
    "name",
    "shape",
    "datatype",
    "data",
    "parameters",
    "binary_data_size",
    "binary_data",
    "id",
    "timeout",
    "priority",
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
PIECES = {
    "name": st.text(max_size=3) | VALUES,
    "shape": st.lists(st.integers(0, 4) | st.sampled_from([2**40, 2**63 - 1]), max_size=4) | VALUES,
    "datatype": st.sampled_from([sample.datatype.name for sample in SAMPLES]) | VALUES,
    "data": st.lists(LEAVES, max_size=4) | VALUES,
    "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(0, 9) | VALUES}) | VALUES,
}
INPUTS = st.fixed_dictionaries({}, optional=PIECES) | VALUES
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(max_size=3) | VALUES,
        "parameters": st.dictionaries(st.sampled_from(("timeout", "a", "triton_a", "sequence_id")), VALUES) | VALUES,
        "inputs": st.lists(INPUTS, max_size=3) | VALUES,
        "outputs": st.lists(st.fixed_dictionaries({}, optional=PIECES), max_size=3) | VALUES,
    },
)


@quick
@given(REQUESTS | VALUES, st.binary(max_size=20) | st.none())
def test_no_json_brings_the_decoder_down(document: object, binary: bytes | None) -> None:
    try:
        request, response_form = decode(json.dumps(document), binary)
    except ModserveError as refused:
        body = infer_response.encode_error(refused)
    else:
        body = encode({}, response_form, id=request.id)[0]
    assert isinstance(json.loads(body), dict)


@quick
@given(st.binary(max_size=60), st.integers(0, 60) | st.none())
def test_no_bytes_bring_the_decoder_down(body: bytes, length: int | None) -> None:
    with pytest.raises(ModserveError):
        infer_request.decode_request("m", None, body, length if length is None else min(length, len(body)))


# The memory of requests' JSON

BINARY_TENSOR = b'{%b"inputs":[{"name":"A","shape":[2],"datatype":"UINT8","parameters":{"binary_data_size":2}}]}'


def decode_with(heads: JsonHeads, json: bytes, data: bytes) -> list[int]:
    request, _ = infer_request.decode_request("m", None, json + data, len(json), heads=heads)
    values: list[int] = request.inputs["A"].array.tolist()
    return values


def test_json_that_comes_again_is_bound_to_other_data() -> None:
    heads = JsonHeads()
    for text, data in ((b"", b"\1\2"), (b"", b"\3\4"), (b'"id":"7",', b"\5\6"), (b'"parameters":{"x":1},', b"\7\7")):
        assert decode_with(heads, BINARY_TENSOR % text, data) == list(data)
    assert list(heads.known) == [BINARY_TENSOR[3:-1]]
    with pytest.raises(ModserveError, match="unexpected size"):
        decode_with(heads, BINARY_TENSOR % b"", b"\1")


def test_descriptions_that_come_again_give_the_same_form() -> None:
    heads = JsonHeads()
    first, second, third, fourth, other = (
        infer_request.decode_request(
            "m", None, (BINARY_TENSOR % more) + b"\1\2", len(BINARY_TENSOR % more), heads=heads
        )[0].form
        for more in (b"", b"", b"", b'"id":"7",', b'"more":1,')
    )
    assert first is second is other is None  # it is only known that it comes again when it does
    assert third is not None
    assert third is fourth


@pytest.mark.parametrize(
    "json",
    [BINARY_TENSOR % (b" " * 4096), BINARY_TENSOR.replace(b"%b", b"") + b" "],
    ids=["long", "with a blank behind it"],
)
def test_json_that_is_not_worth_remembering(json: bytes) -> None:
    heads = JsonHeads()
    decode_with(heads, json, b"\1\2")
    assert not heads.known


# What takes long


@pytest.mark.parametrize(
    ("body", "json_length", "cached", "expected"),
    [
        (b"x" * 10, None, False, False),
        (b"x" * 11, None, False, True),
        (b"x" * 100, 11, False, True),
        (b"x" * 100, 10, False, False),
        (b"x" * 100, 10, True, True),
        (b'{"BYTES"}' + b"x" * 20, 9, False, False),
        (b'{"BYTES"}' + b"x" * 21, 9, False, True),
    ],
    ids=["short", "long JSON", "JSON of some length", "binary data", "cached", "texts", "long texts"],
)
def test_which_bodies_take_long(body: bytes, json_length: int | None, cached: bool, expected: bool) -> None:
    assert infer_body.is_long(config(cached=cached), body, json_length, most_json=10, most_texts=20) is expected
