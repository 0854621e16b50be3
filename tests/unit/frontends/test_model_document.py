"""The OpenAPI document of a model: valid, with schemas that its requests meet and others do not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from puppet_server import MANY, PuppetLoader, server_over
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import DirectStrategy, SequenceBatching
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape
from modserve.frontends.http.rest.app import create_app
from modserve.frontends.http.rest.document import TAGS
from modserve.frontends.http.rest.model_document import model_document
from modserve.protocol import examples
from modserve.settings import HttpSettings
from modserve.testing import config

PATH = "/v2/models/model"


def document(model: ModelConfig) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(json.dumps(model_document(model, {model.name: model}, PATH, "1.2.3")))
    return written


def assert_valid(openapi: dict[str, Any]) -> None:
    """By OpenAPI's rules and, for schemas, which those leave to JSON Schema, by its rules."""
    validate(openapi)
    for schema in openapi["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    names = [operation["operationId"] for methods in openapi["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)


def problems(openapi: Mapping[str, Any], schema: str, body: object) -> list[str]:
    resource = Resource.from_contents(openapi, default_specification=DRAFT202012)
    registry: Registry[Any] = Registry().with_resource("urn:document", resource)
    place = {"$ref": f"urn:document#/components/schemas/{schema}"}
    return [error.message for error in Draft202012Validator(place, registry=registry).iter_errors(body)]


def image(datatype: Datatype = dtypes.FP32, dims: Shape = (3,), batch: int = 8) -> ModelConfig:
    outputs = (TensorSpec("label", dtypes.INT64, (1,)), TensorSpec("probabilities", dtypes.FP32, (10,)))
    inputs = (
        TensorSpec("A", datatype, dims),
        TensorSpec("B", datatype, dims),
        TensorSpec("C", dtypes.BOOL, (1,), optional=True),
    )
    return config(inputs=inputs, outputs=outputs, max_batch_size=batch)


SEQUENCES = config(sequence_batching=SequenceBatching(DirectStrategy()))
EMPTY = config(inputs=(), max_batch_size=0)
NAMES = ("a/b", "a b", "A_B", "ü", "日本")
NAMED = config(inputs=tuple(TensorSpec(name, dtypes.FP32, (1,)) for name in NAMES))


@pytest.mark.parametrize("model", [image(), MANY, SEQUENCES, EMPTY, NAMED])
def test_it_is_valid(model: ModelConfig) -> None:
    assert_valid(document(model))


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("batch", [0, 8])
@pytest.mark.parametrize("dims", [(), (3,), (-1,), (2, -1, 3)], ids=str)
def test_the_example_of_each_call_meets_its_schema(datatype: Datatype, dims: Shape, batch: int) -> None:
    model = image(datatype, dims, batch)
    described = document(model)
    bodies = examples.bodies(model, {})
    assert problems(described, "InferRequest", bodies["infer"]) == []
    assert problems(described, "GenerateRequest", bodies["generate"]) == []
    for call in ("infer", "generate"):
        content = described["paths"][f"{PATH}/{call}"]["post"]["requestBody"]["content"]["application/json"]
        assert content["example"] == bodies[call]


def test_what_the_schemas_refuse() -> None:
    described = document(image(dtypes.UINT8, (3,), 0))
    fine = {"name": "A", "datatype": "UINT8", "shape": [3], "data": [1, 2, 255]}
    other = {**fine, "name": "B"}
    assert problems(described, "InferRequest", {"inputs": [fine, other]}) == []
    assert problems(described, "InferRequest", {"inputs": [fine, other], "outputs": [{"name": "label"}]}) == []
    for wrong in (
        {"name": "D"},
        {"datatype": "FP32"},
        {"shape": [3, 1]},
        {"data": [1, 2]},
        {"data": [1, 2, 256]},
        {"data": [1, 2, 0.5]},
    ):
        assert problems(described, "InferRequest", {"inputs": [{**fine, **wrong}, other]}), wrong
    assert problems(described, "InferRequest", {"inputs": [fine]}), "B is needed"
    assert problems(described, "InferRequest", {"inputs": [fine, other], "outputs": [{"name": "nosuch"}]})
    assert problems(described, "GenerateRequest", {"A": [1, 2, 3]}), "B is needed"
    assert problems(described, "GenerateRequest", {"A": [1, 2, 3], "B": ["one", "two", "three"]})


def test_fewer_elements_than_a_row_are_refused() -> None:
    described = document(image(dims=(2, 2)))
    body = examples.infer(image(dims=(2, 2)), {})
    assert problems(described, "InferRequest", body) == []
    assert problems(described, "GenerateRequest", {"A": [1, 2, 3], "B": [1, 2, 3, 4]})
    short = json.loads(json.dumps(body))
    short["inputs"][0]["data"].pop()
    assert problems(described, "InferRequest", short)


def test_responses() -> None:
    described = document(image())
    label = {"name": "label", "datatype": "INT64", "shape": [1, 1], "data": [7]}
    response = {"model_name": "model", "model_version": "1", "outputs": [label]}
    assert problems(described, "InferResponse", response) == []
    assert problems(described, "InferResponse", {**response, "outputs": [{**label, "name": "A"}]})
    flat = {"model_name": "model", "model_version": "1", "label": 7, "probabilities": [0.1] * 10}
    assert problems(described, "GenerateResponse", flat) == []
    assert problems(described, "GenerateResponse", {**flat, "label": "seven"})


def test_a_model_with_any_number_of_responses_has_the_calls_that_stream() -> None:
    paths = document(MANY)["paths"]
    assert [path for path in paths if "post" in paths[path]] == [f"{PATH}/infer_stream", f"{PATH}/generate_stream"]
    assert set(paths[f"{PATH}/infer_stream"]["post"]["responses"]["200"]["content"]) == {"text/event-stream"}


def test_a_model_of_sequences_needs_their_id() -> None:
    described = document(SEQUENCES)
    body = dict(examples.infer(SEQUENCES, {}))
    assert problems(described, "InferRequest", body) == []
    assert problems(described, "InferRequest", {**body, "parameters": {"sequence_start": True}})
    assert problems(described, "InferRequest", {**body, "parameters": {"sequence_id": 0}})
    body.pop("parameters")
    assert problems(described, "InferRequest", body)


def test_names_of_any_kind() -> None:
    described = document(NAMED)
    schemas = [name for name in described["components"]["schemas"] if name.endswith("_Input")]
    assert schemas == ["a_b_Input", "a_b_2_Input", "A_B_3_Input", "tensor_Input", "tensor_2_Input"]
    assert [described["components"]["schemas"][name]["properties"]["name"]["const"] for name in schemas] == list(NAMES)


def test_a_model_without_inputs() -> None:
    described = document(EMPTY)
    assert problems(described, "InferRequest", {"inputs": []}) == []


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return create_app(server_over(tmp_path, PuppetLoader()), HttpSettings())


async def test_over_http(tmp_path: Path) -> None:
    server = server_over(tmp_path, PuppetLoader())
    await server.load()
    transport = httpx.ASGITransport(create_app(server, HttpSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for version in ("", "/versions/1"):
            answer = await client.get(f"/v2/models/simple{version}/openapi.json")
            assert answer.status_code == 200
            assert f"/v2/models/simple{version}/infer" in answer.json()["paths"]
            assert_valid(answer.json())
        assert (await client.get("/v2/models/nosuch/openapi.json")).status_code == 404
        assert (await client.get("/v2/models/simple/versions/9/openapi.json")).status_code == 404


def test_the_document_of_the_server_is_valid_and_in_the_order_of_its_groups(app: FastAPI) -> None:
    described = json.loads(json.dumps(app.openapi()))
    assert_valid(described)
    assert [tag["name"] for tag in described["tags"]] == list(TAGS)
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    assert {tag for operation in operations for tag in operation["tags"]} == set(TAGS)
    assert all(len(operation["tags"]) == 1 for operation in operations)


def test_calls_that_are_always_refused_are_in_no_document(app: FastAPI) -> None:
    described = app.openapi()["paths"]
    for path in (
        "/v1/models/{model}:classify",
        "/v1/models/{model}:regress",
        "/v1/models/{model}:explain",
        "/v2/repository/{repository}/models/{model}/load",
        "/v2/systemsharedmemory/register",
    ):
        assert path not in described
    assert all("200" in operation["responses"] for methods in described.values() for operation in methods.values())
