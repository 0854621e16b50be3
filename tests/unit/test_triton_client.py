"""Code written for tritonclient, with one line changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils

from modserve import triton_client

REPOSITORY = Path(__file__).parents[2] / "model_repository"
ONES = np.ones((1, 16), np.int32)
NAMES = ("INPUT0", "INPUT1")


@pytest.fixture(scope="module")
def client() -> Iterator[triton_client.InferenceServerClient]:
    with triton_client.InferenceServerClient(REPOSITORY) as client:
        yield client


def inputs_of(module: Any, **options: Any) -> list[Any]:
    inputs = [module.InferInput(name, [1, 16], "INT32") for name in NAMES]
    for each in inputs:
        each.set_data_from_numpy(ONES, **options)
    return inputs


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (triton_client, {}),
        (tritonclient.http, {}),
        (tritonclient.http, {"binary_data": False}),
        (tritonclient.grpc, {}),
    ],
    ids=["its own", "http", "http, JSON", "grpc"],
)
def test_inputs_of_all_kinds(
    client: triton_client.InferenceServerClient, module: Any, options: dict[str, bool]
) -> None:
    outputs = [module.InferRequestedOutput("OUTPUT0")]
    result = client.infer("simple", inputs_of(module, **options), "1", outputs, request_id="x")
    array = result.as_numpy("OUTPUT0")
    assert array is not None
    assert array.tolist() == [[2] * 16]
    assert result.as_numpy("OUTPUT1") is None
    assert result.get_output("OUTPUT1") is None
    row = {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16]}
    assert result.get_response() == {"model_name": "simple", "model_version": "1", "id": "x", "outputs": [row]}


def test_texts_in_the_grpc_form(client: triton_client.InferenceServerClient) -> None:
    given = tritonclient.http.InferInput("T", [2], "BYTES")
    given.set_data_from_numpy(np.array([b"a", b""], dtype=object))
    assert triton_client._tensor(given).array.tolist() == [b"a", b""]


def test_failures_are_those_of_the_library(client: triton_client.InferenceServerClient) -> None:
    assert triton_client.InferenceServerException is tritonclient.utils.InferenceServerException
    with pytest.raises(tritonclient.utils.InferenceServerException) as caught:
        client.infer("nosuch", inputs_of(triton_client))
    assert caught.value.message() == "Request for unknown model: 'nosuch' is not found"
    assert caught.value.status() == "404"


def test_control_and_metadata(client: triton_client.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple", "1")
    assert client.get_server_metadata()["name"] == "modserve"
    metadata = client.get_model_metadata("simple")
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    assert client.get_model_config("simple")["name"] == "simple"
    assert {row["name"] for row in client.get_model_repository_index()} >= {"simple"}
    assert client.get_inference_statistics("simple")["model_stats"][0]["name"] == "simple"
    for call in (client.load_model, client.unload_model):
        with pytest.raises(triton_client.InferenceServerException, match="explicit model load / unload"):
            call("simple")


def test_what_it_does_not_do(client: triton_client.InferenceServerClient) -> None:
    refused = triton_client.InferenceServerException
    with pytest.raises(refused, match="does not support classes"):
        triton_client.InferRequestedOutput("x", class_count=2)
    with pytest.raises(refused, match="neither classes nor shared memory"):
        client.infer("simple", inputs_of(triton_client), outputs=[tritonclient.http.InferRequestedOutput("x", True, 2)])
    with pytest.raises(refused, match="neither classes nor shared memory"):
        client.infer("simple", inputs_of(triton_client), outputs=[tritonclient.grpc.InferRequestedOutput("x", 2)])
    with pytest.raises(refused, match="this client does not support shared memory"):
        client.infer("simple", [tritonclient.http.InferInput("INPUT0", [1], "INT32")])
    with pytest.raises(refused, match="model version 'x' is not a number"):
        client.infer("simple", inputs_of(triton_client), "x")


def test_its_own_inputs_are_checked() -> None:
    tensor = triton_client.InferInput("x", [2], "INT32")
    assert (tensor.name(), tensor.shape(), tensor.datatype()) == ("x", [2], "INT32")
    for array, message in (
        (np.ones(2), "got unexpected datatype FP64 from numpy array, expected INT32"),
        (np.ones(2, complex), "got unexpected datatype complex128 from numpy array"),
        (np.ones(3, np.int32), r"got unexpected numpy array shape \[3\], expected \[2\]"),
    ):
        with pytest.raises(triton_client.InferenceServerException, match=message):
            tensor.set_data_from_numpy(array)
    with pytest.raises(triton_client.InferenceServerException, match="input 'x' has no data"):
        tensor.tensor()
    tensor.set_shape([1, 2]).set_data_from_numpy(np.ones((1, 2), np.int32))
    assert tensor.tensor().shape == (1, 2)
