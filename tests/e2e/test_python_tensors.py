"""Models written in Python: what goes in and what comes out, be it tensors, parameters or errors."""

import json
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from python_models import EVERY_MODE, infer, serving_python, tensors, write_python
from repositories import CONFIG_TYPES
from wire import http

ADD_SUB = """
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.types = [
            pb_utils.triton_string_to_numpy(pb_utils.get_output_config_by_name(config, name)["data_type"])
            for name in ("OUTPUT0", "OUTPUT1")
        ]

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[
                pb_utils.Tensor("OUTPUT0", (a + b).astype(self.types[0])),
                pb_utils.Tensor("OUTPUT1", (a - b).astype(self.types[1])),
            ]))
        return responses
"""

IDENTITY = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([self.output(pb_utils.get_input_tensor_by_name(request, "IN"))])
            for request in requests
        ]

    def output(self, tensor):
        return {}
"""
AGAIN = IDENTITY.format('pb_utils.Tensor("OUT", tensor.as_numpy())')
BY_DLPACK = IDENTITY.format('pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack())')
BY_NUMPY = IDENTITY.format('pb_utils.Tensor.from_dlpack("OUT", np.from_dlpack(tensor) + 1)')
STRIDED = IDENTITY.format('pb_utils.Tensor("OUT", np.repeat(tensor.as_numpy(), 2, axis=-1)[..., ::2])')

SEEN = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.array([self.seen(each)], np.object_))])
                for each in requests]

    def seen(self, request):
        return json.dumps({
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "timeout": request.timeout(),
            "flags": request.flags(),
            "parameters": json.loads(request.parameters()),
            "outputs": sorted(request.requested_output_names()),
            "inputs": {
                one.name(): [one.shape(), str(one.as_numpy().dtype), one.is_cpu()]
                for one in request.inputs()
            },
            "missing": pb_utils.get_input_tensor_by_name(request, "NONE"),
            "cancelled": request.is_cancelled(),
        })
"""

TWO = """
class TritonPythonModel:
    def execute(self, requests):
        made = [pb_utils.Tensor("A", np.array([1], np.int32)), pb_utils.Tensor("B", np.array([2], np.int32)),
                pb_utils.Tensor("C", np.array([3], np.int32))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""
PARAMETERS = TWO.replace("(made)", '(made, parameters={"n": 7, "yes": True, "text": "é"})')

ERRORS = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            how = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy().ravel()[0].decode()
            output = pb_utils.Tensor("OUT", np.array([[1]], np.int32))
            if how == "raise":
                raise pb_utils.TritonModelException("it was raised")
            if how == "value":
                raise ValueError("a plain one")
            if how == "many":
                return [pb_utils.InferenceResponse([output])] * (len(requests) + 1)
            if how == "text":
                return "text"
            if how == "strings":
                return ["text" for _ in requests]
            if how == "default":
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("no code")))
            elif how == "both":
                error = pb_utils.TritonError("the outputs do not count")
                responses.append(pb_utils.InferenceResponse(output_tensors=[output], error=error))
            elif how == "good":
                responses.append(pb_utils.InferenceResponse([output]))
            else:
                error = pb_utils.TritonError("error code: " + how, getattr(pb_utils.TritonError, how))
                responses.append(pb_utils.InferenceResponse(error=error))
        return responses
"""

OPTIONAL = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = [pb_utils.get_input_tensor_by_name(request, name) for name in ("A", "B")]
            total = sum(100 if value is None else int(value.as_numpy()[0]) for value in values)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([total], np.int32))]))
        return responses
"""

EMPTY = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((0, 3), np.float32)),
                pb_utils.Tensor("TEXT", np.array([], np.object_))]) for _ in requests]
"""

MISFITS = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            how = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy().ravel()[0].decode()
            a = np.zeros((1, 2), np.int64 if how == "type" else np.int32)
            a = np.zeros((3, 2), np.int32) if how == "rows" else a
            made = [pb_utils.Tensor("A", a), pb_utils.Tensor("B", np.zeros((1, 2), np.int32))]
            made += [pb_utils.Tensor("C", np.zeros((1, 2), np.int32))] if how == "more" else []
            responses.append(pb_utils.InferenceResponse(made[1:] if how == "missing" else made))
        return responses
"""

CODES = {
    "UNKNOWN": ("400", "UNKNOWN"),
    "INTERNAL": ("500", "INTERNAL"),
    "NOT_FOUND": ("404", "NOT_FOUND"),
    "INVALID_ARG": ("400", "INVALID_ARGUMENT"),
    "UNAVAILABLE": ("503", "UNAVAILABLE"),
    "UNSUPPORTED": ("501", "UNIMPLEMENTED"),
    "ALREADY_EXISTS": ("400", "ALREADY_EXISTS"),
    "CANCELLED": ("400", "CANCELLED"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    repository = tmp_path_factory.mktemp("python_tensors")
    numbers = dict.fromkeys(("INPUT0", "INPUT1"), "FP32 4")
    write_python(
        repository,
        "add_sub",
        ADD_SUB,
        tensors("input", **numbers) + tensors("output", OUTPUT0="FP32 4", OUTPUT1="FP32 4"),
        modes=EVERY_MODE,
    )
    for datatype in CONFIG_TYPES:
        code = BY_DLPACK if datatype == "BF16" else AGAIN
        config = tensors("input", IN=f"{datatype} -1") + tensors("output", OUT=f"{datatype} -1")
        write_python(repository, f"identity_{datatype}", code, config + " max_batch_size: 8", modes=modes_of(datatype))
    plain = tensors("input", IN="FP32 -1 -1") + tensors("output", OUT="FP32 -1 -1")
    write_python(repository, "dlpack", BY_DLPACK, plain, modes=EVERY_MODE)
    write_python(repository, "dlpack_numpy", BY_NUMPY, plain, modes=EVERY_MODE)
    write_python(repository, "strided", STRIDED, plain, modes=EVERY_MODE)
    write_python(
        repository, "seen", SEEN, tensors("input", IN="INT32 -1") + tensors("output", SEEN="BYTES 1"), modes=EVERY_MODE
    )
    three = tensors("output", A="INT32 1", B="INT32 1", C="INT32 1")
    write_python(repository, "two", TWO, tensors("input", IN="INT32 -1") + three, modes=EVERY_MODE)
    write_python(repository, "parameters", PARAMETERS, tensors("input", IN="INT32 -1") + three, modes=EVERY_MODE)
    how = tensors("input", HOW="BYTES 1") + tensors("output", OUT="INT32 1")
    write_python(repository, "errors", ERRORS, how + "max_batch_size: 8 dynamic_batching { }", modes=EVERY_MODE)
    optional = tensors("input", A="INT32 1 optional", B="INT32 1 optional") + tensors("output", OUT="INT32 1")
    write_python(repository, "optional", OPTIONAL, optional, modes=EVERY_MODE)
    empty = tensors("input", IN="INT32 -1") + tensors("output", OUT="FP32 -1 3", TEXT="BYTES -1")
    write_python(repository, "empty", EMPTY, empty, modes=EVERY_MODE)
    config = tensors("input", HOW="BYTES 1") + tensors("output", A="INT32 2", B="INT32 2") + " max_batch_size: 8"
    write_python(repository, "misfits", MISFITS, config, modes=EVERY_MODE)
    with serving_python(repository, errors=["Traceback"]) as running:
        yield running


@pytest.fixture(params=EVERY_MODE)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def modes_of(datatype: str) -> tuple[str, ...]:
    """Each datatype has a process, but only three of them the other modes, too: their code is the same."""
    return EVERY_MODE if datatype in ("FP32", "BYTES", "BF16") else ("process",)


# The first example: sums and differences


def test_add_sub(server: Any, mode: str, protocol: str) -> None:
    a, b = np.array([1, 2, 3, 4], np.float32), np.array([0.5, 0, -3, 1], np.float32)
    response = infer(server, protocol, f"add_sub_{mode}", {"INPUT0": a, "INPUT1": b}, id_of(protocol))
    assert (response["OUTPUT0"], response["OUTPUT1"]) == ([1.5, 2, 0, 5], [0.5, 2, 6, 3])


def id_of(protocol: str) -> tuple[str, ...]:
    return ("OUTPUT0", "OUTPUT1") if protocol == "http" else ()


# Datatypes


def values(datatype: str) -> Any:
    if datatype == "BYTES":
        return np.array([[b"", b"a\0b", "été".encode(), b"x" * 1000]], np.object_)
    if datatype == "BOOL":
        return np.array([[True, False, True, True]])
    if datatype == "BF16":
        return np.array([[0.0, 1.0, -2.5, 1e30]], ml_dtypes.bfloat16)
    if datatype.startswith("FP"):
        return np.array([[0, 1.5, -2, np.inf]], f"float{datatype[2:]}")
    numbers = np.iinfo(datatype.lower())
    return np.array([[0, 1, numbers.min, numbers.max]], datatype.lower())


@pytest.mark.parametrize(
    ("datatype", "mode"), [(datatype, mode) for datatype in CONFIG_TYPES for mode in modes_of(datatype)]
)
def test_every_datatype(server: Any, protocol: str, datatype: str, mode: str) -> None:
    sent = values(datatype)
    response = infer(server, protocol, f"identity_{datatype}_{mode}", {"IN": sent})
    assert response["OUT"] == sent.tolist()
    assert response.outputs["OUT"].dtype == sent.dtype


@pytest.mark.parametrize("name", ["", "été", "a" * 70_000])
def test_texts_of_json(server: Any, mode: str, name: str) -> None:
    document = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1, 2], "data": [name, "b"]}]}
    response = http(server.http_port, "POST", f"/v2/models/identity_BYTES_{mode}/infer", json.dumps(document).encode())
    assert response.json["outputs"][0]["data"] == [name, "b"]


@pytest.mark.parametrize("count", [0, 1, 1000, 300_000, 4_000_000])
def test_sizes(server: Any, mode: str, protocol: str, count: int) -> None:
    """Nothing, what goes along in one message, and what goes through shared memory."""
    sent = np.arange(count, dtype=np.float32).reshape(1, count)
    for _ in range(2):
        response = infer(server, protocol, f"identity_FP32_{mode}", {"IN": sent})
        assert not response.message
        assert np.array_equal(response.outputs["OUT"], sent)


def test_empty_texts(server: Any, mode: str, protocol: str) -> None:
    response = infer(server, protocol, f"identity_BYTES_{mode}", {"IN": np.zeros((1, 0), np.object_)})
    assert (response["OUT"], response.outputs["OUT"].shape) == ([[]], (1, 0))


def test_empty_outputs(server: Any, mode: str, protocol: str) -> None:
    response = infer(server, protocol, f"empty_{mode}", {"IN": [1]})
    assert [response.outputs["OUT"].shape, response.outputs["TEXT"].shape] == [(0, 3), (0,)]


def test_memory_that_is_not_in_order(server: Any, mode: str, protocol: str) -> None:
    sent = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert infer(server, protocol, f"strided_{mode}", {"IN": sent})["OUT"] == sent.tolist()


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (1000, 300)])
def test_dlpack(server: Any, mode: str, protocol: str, shape: tuple[int, int]) -> None:
    sent = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    response = infer(server, protocol, f"dlpack_{mode}", {"IN": sent})
    assert np.array_equal(response.outputs["OUT"], sent)
    response = infer(server, protocol, f"dlpack_numpy_{mode}", {"IN": sent})
    assert not response.message
    assert np.array_equal(response.outputs["OUT"], sent + 1)


# Inputs that may be absent, outputs that were not requested


def test_optional_inputs(server: Any, mode: str, protocol: str) -> None:
    model = f"optional_{mode}"
    sums = [infer(server, protocol, model, each)["OUT"] for each in ({"A": [1], "B": [2]}, {"B": [2]}, {"A": [1]})]
    assert sums == [[3], [102], [101]]


def test_requested_outputs(server: Any, mode: str, protocol: str) -> None:
    model = f"two_{mode}"
    assert set(infer(server, protocol, model, {"IN": [1]}).outputs) == {"A", "B", "C"}
    response = infer(server, protocol, model, {"IN": [1]}, ["C", "A"])
    assert {name: response[name] for name in response.outputs} == {"A": [1], "C": [3]}


# What a request says


def test_what_a_request_says(server: Any, mode: str, protocol: str) -> None:
    how: dict[str, Any] = {"request_id": "me", "timeout": 5_000_000, "parameters": {"a": 1, "b": "two", "c": True}}
    response = infer(server, protocol, f"seen_{mode}", {"IN": [1, 2, 3]}, ["SEEN"], **how)
    seen = json.loads(response["SEEN"][0])
    assert response.id == "me"
    assert seen == {
        "id": "me",
        "correlation_id": 0,
        "timeout": 5_000_000,
        "flags": 0,
        "parameters": {"a": 1, "b": "two", "c": True},
        "outputs": ["SEEN"],
        "inputs": {"IN": [[3], "int32", True]},
        "missing": None,
        "cancelled": False,
    }


def test_what_a_plain_request_says(server: Any, mode: str, protocol: str) -> None:
    seen = json.loads(infer(server, protocol, f"seen_{mode}", {"IN": [1]})["SEEN"][0])
    assert (seen["id"], seen["timeout"], seen["parameters"], seen["outputs"]) == ("", 0, {}, ["SEEN"])


@pytest.mark.parametrize(("id", "flags"), [(7, 3), ("seven", 1), (2**63 - 1, 2)])
def test_sequence_of_a_request(server: Any, mode: str, protocol: str, id: Any, flags: int) -> None:
    how = {"sequence_id": id, "sequence_start": bool(flags & 1), "sequence_end": bool(flags & 2)}
    seen = json.loads(infer(server, protocol, f"seen_{mode}", {"IN": [1]}, **how)["SEEN"][0])
    assert (seen["correlation_id"], seen["flags"], seen["parameters"]) == (id, flags, {})


def test_parameters_of_a_response(server: Any, mode: str, protocol: str) -> None:
    parameters = infer(server, protocol, f"parameters_{mode}", {"IN": [1]}).parameters
    assert parameters == {"n": 7, "yes": True, "text": "é"}


# Errors


def how_inputs(how: str) -> dict[str, Any]:
    return {"HOW": np.array([[how]], np.object_)}


@pytest.mark.parametrize("code", CODES)
def test_error_codes(server: Any, mode: str, protocol: str, code: str) -> None:
    response = infer(server, protocol, f"errors_{mode}", how_inputs(code))
    assert (response.status, response.message) == (CODES[code][protocol == "grpc"], f"error code: {code}")


@pytest.mark.parametrize(("how", "message"), [("default", "no code"), ("both", "the outputs do not count")])
def test_errors_without_code(server: Any, mode: str, protocol: str, how: str, message: str) -> None:
    response = infer(server, protocol, f"errors_{mode}", how_inputs(how))
    assert (response.status, response.message) == (CODES["INTERNAL"][protocol == "grpc"], message)


@pytest.mark.parametrize(
    ("how", "texts"),
    [
        ("raise", ["Failed to process the request(s) for model 'errors_", "it was raised", "model.py(", "): execute"]),
        ("value", ["ValueError: a plain one", "model.py("]),
        ("many", ["Number of InferenceResponse objects do not match the number of InferenceRequest objects"]),
        ("text", ["Expected a list in the execute return, found type '<class 'str'>'"]),
        ("strings", ["Expected an 'InferenceResponse' object in the execute function return list, found type"]),
    ],
)
def test_what_execute_does_wrong(server: Any, mode: str, protocol: str, how: str, texts: list[str]) -> None:
    response = infer(server, protocol, f"errors_{mode}", how_inputs(how))
    assert response.status == CODES["INTERNAL"][protocol == "grpc"]
    for text in texts:
        assert text in response.message
    assert infer(server, protocol, f"errors_{mode}", how_inputs("good"))["OUT"] == [[1]]


@pytest.mark.parametrize(("how", "kind", "shape"), [("type", np.int64, (1, 2)), ("rows", np.int32, (3, 2))])
def test_outputs_that_do_not_fit_are_handed_on(
    server: Any, mode: str, protocol: str, how: str, kind: Any, shape: tuple[int, int]
) -> None:
    response = infer(server, protocol, f"misfits_{mode}", how_inputs(how))
    assert (response.message, response.outputs["A"].dtype, response.outputs["A"].shape) == ("", kind, shape)
    assert response["B"] == [[0, 0]]


def test_outputs_that_are_left_out(server: Any, mode: str, protocol: str) -> None:
    assert set(infer(server, protocol, f"misfits_{mode}", how_inputs("missing")).outputs) == {"B"}


def test_outputs_that_nobody_knows(server: Any, mode: str, protocol: str) -> None:
    assert set(infer(server, protocol, f"misfits_{mode}", how_inputs("more")).outputs) == {"A", "B"}
