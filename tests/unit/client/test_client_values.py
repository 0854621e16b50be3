"""What users may write for an input, and what they read of a result."""

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from modserve.client.errors import ClientError, ClientTimeoutError, from_status
from modserve.client.facade import Client
from modserve.client.input_values import (
    FINAL,
    ClientCall,
    ModelMetadata,
    Result,
    TensorMetadata,
    Value,
    metadata_of,
    needs_metadata,
    to_tensors,
)
from modserve.client.transport import ControlCall
from modserve.core.errors import Code
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor

METADATA = ModelMetadata(
    "model",
    ("1",),
    "",
    (
        TensorMetadata("INT", "INT32", (-1, 2)),
        TensorMetadata("UINT", "UINT8", (-1,)),
        TensorMetadata("FLOAT", "FP16", (-1, -1, 3)),
        TensorMetadata("BOOL", "BOOL", (1, 1)),
        TensorMetadata("TEXT", "BYTES", (-1, 1)),
        TensorMetadata("FIXED", "FP32", (2, 4)),
        TensorMetadata("STRANGE", "FP8", (1,)),
    ),
    (),
)


@pytest.mark.parametrize(
    ("name", "value", "datatype", "shape", "elements"),
    [
        ("INT", [1, 2], dtypes.INT32, (1, 2), [[1, 2]]),
        ("INT", [[1, 2], [3, 4]], dtypes.INT32, (2, 2), [[1, 2], [3, 4]]),
        ("UINT", np.int64(3), dtypes.UINT8, (1,), [3]),
        ("UINT", 7, dtypes.UINT8, (1,), [7]),
        ("UINT", [], dtypes.UINT8, (0,), []),
        ("FLOAT", [1, 2.5, 3], dtypes.FP16, (1, 1, 3), [[[1, 2.5, 3]]]),
        ("BOOL", True, dtypes.BOOL, (1, 1), [[True]]),
        ("TEXT", "ü", dtypes.BYTES, (1, 1), [["ü".encode()]]),
        ("TEXT", [["a"], [b"\xff"]], dtypes.BYTES, (2, 1), [[b"a"], [b"\xff"]]),
        ("FIXED", [1, 2, 3, 4], dtypes.FP32, (4,), [1, 2, 3, 4]),
    ],
)
def test_plain_values(
    name: str, value: Value, datatype: dtypes.Datatype, shape: tuple[int, ...], elements: object
) -> None:
    assert needs_metadata({name: value})
    tensor = to_tensors({name: value}, METADATA)[name]
    assert (tensor.datatype, tensor.shape, tensor.array.tolist()) == (datatype, shape, elements)


def test_arrays_go_as_they_are() -> None:
    array, tensor = np.ones((3,), np.float32), Tensor.from_raw(dtypes.INT8, (1,), b"\1")
    inputs: dict[str, Value] = {"a": array, "b": tensor, "c": np.array(["x"])}
    assert not needs_metadata(inputs)
    tensors = to_tensors(inputs, None)
    assert tensors["a"].array is array
    assert tensors["b"] is tensor
    assert tensors["c"].array.tolist() == [b"x"]


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("FIXED", np.arange(8.0).reshape(2, 4), np.float32),
        ("FIXED", np.arange(8).reshape(2, 4), np.float32),
        ("FIXED", np.full((2, 4), 1e300), np.float32),
        ("INT", np.array([[1, -2]]), np.int32),
        ("INT", np.array([1, 2]), np.int32),
    ],
)
def test_arrays_of_default_types_are_converted(name: str, array: Any, expected: type) -> None:
    assert needs_metadata({name: array})
    tensor = to_tensors({name: array}, METADATA)[name]
    assert (tensor.array.dtype, tensor.shape) == (expected, array.shape)
    with np.errstate(over="ignore"):
        assert (tensor.array == array.astype(expected)).all()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("INT", np.array([[1.5, 2]]), "input 'INT' takes INT32; got 1.5"),
        ("UINT", np.array([1, 300, -1]), "input 'UINT' takes UINT8; got 300"),
        ("MISSING", np.zeros(2), "model 'model' has no input 'MISSING'; it has: INT, UINT"),
        ("INT", [1.5, 2], "input 'INT' takes INT32; got 1.5"),
        ("INT", ["1", "2"], "input 'INT' takes INT32; got '1'"),
        ("INT", [[1], [2, 3]], "input 'INT' takes INT32; setting an array element with a sequence"),
        ("UINT", [256], "input 'UINT' takes UINT8; Python integer 256 out of bounds"),
        ("BOOL", 1, "input 'BOOL' takes BOOL; got 1"),
        ("FLOAT", [True], "input 'FLOAT' takes FP16; got True"),
        ("TEXT", {"a": 1}, "input 'TEXT' takes BYTES; element 0 of a BYTES tensor is of type 'dict'"),
        ("OTHER", 1, "model 'model' has no input 'OTHER'; it has: INT, UINT, FLOAT, BOOL, TEXT, FIXED, STRANGE"),
        ("STRANGE", 1, "input 'STRANGE' of model 'model' has the unknown datatype FP8"),
    ],
)
def test_no_value_is_changed_to_fit(name: str, value: Value, message: str) -> None:
    with pytest.raises(ClientError) as caught:
        to_tensors({name: value}, METADATA)
    assert caught.value.message.startswith(message)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.status is None


def test_a_result_is_a_mapping_of_arrays() -> None:
    tensors = {
        "N": Tensor.from_array(np.array([[1, 2]], np.int32)),
        "T": Tensor.from_array(np.array([[b"\xc3\xbc"]], dtype=object)),
    }
    result = Result("model", 3, tensors, "id", {"p": 1})
    assert (result.model, result.version, result.id, result.parameters) == ("model", 3, "id", {"p": 1})
    assert list(result) == ["N", "T"]
    assert len(result) == 2
    assert result["N"].tolist() == [[1, 2]]
    assert result.datatype("T") == "BYTES"
    assert result.plain("N") == [[1, 2]]
    assert result.plain("T") == "ü"
    assert "NO" not in result
    with pytest.raises(KeyError, match="NO: the outputs of model 'model' here are N, T"):
        result["NO"]
    assert repr(result) == "Result(model, version 3, {N: Tensor(INT32, [1, 2]), T: Tensor(BYTES, [1, 1])})"
    assert Result("m", None, {}, parameters={FINAL: True}).is_bare_end
    assert not result.is_bare_end


def test_metadata_as_servers_write_it() -> None:
    row = {"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}
    metadata = metadata_of({"name": "m", "versions": [2], "inputs": [row]})
    assert metadata == ModelMetadata("m", ("2",), "", (TensorMetadata("x", "FP32", (-1, 4)),), ())


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, Code.INVALID_ARG),
        (404, Code.NOT_FOUND),
        (403, Code.INVALID_ARG),
        (429, Code.UNAVAILABLE),
        (500, Code.INTERNAL),
        (501, Code.UNSUPPORTED),
        (502, Code.UNKNOWN),
        (503, Code.UNAVAILABLE),
    ],
)
def test_what_a_status_says(status: int, code: Code) -> None:
    error = from_status(status, "text")
    assert (error.code, error.status, error.message) == (code, status, "text")
    assert not isinstance(error, TimeoutError)


def test_a_time_out_is_both() -> None:
    error = from_status(503, "Request timeout expired")
    assert isinstance(error, ClientTimeoutError)
    assert isinstance(error, TimeoutError)
    assert str(error) == "Request timeout expired"
    assert error.__reduce__()[1] == (Code.UNAVAILABLE, "Request timeout expired", 503)


class Streaming:
    """A transport of one response that is marked as the last."""

    def start(self) -> None: ...

    def call(self, control: ControlCall) -> Any: ...

    def infer(self, call: ClientCall) -> Result:
        return Result(call.model, 1, {}, parameters={"triton_final_response": True, "other": 1})

    def stream(self, call: ClientCall) -> Generator[Result]:
        yield self.infer(call)

    def close(self) -> None: ...


def test_responses_of_a_stream_do_not_have_its_mark() -> None:
    [result] = Client(Streaming()).stream("m", {})
    assert result.parameters == {"other": 1}
