"""OpenAPI document of one model: its inference calls, with its tensors as schemas.

Client generators derive types from it: a class for each input and output of ``infer``, and for ``generate`` a flat
object with the inputs by name. Further options of the protocol (nested data, binary data, shared memory,
classification) are only in the server's own document.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.tensors.tensor import Shape
from modserve.protocol import examples
from modserve.protocol.examples import JsonObject, Models
from modserve.protocol.json.json_text import MIME_JSON

from .document import HEALTH, INFERENCE, METADATA
from .schemas import SCHEMAS, errors_of, response_of

_ELEMENTS: Mapping[str, JsonObject] = {
    "BOOL": {"type": "boolean"},
    "FP16": {"type": "number"},
    "BF16": {"type": "number"},
    "FP32": {"type": "number", "format": "float"},
    "FP64": {"type": "number", "format": "double"},
    "BYTES": {"type": "string"},
    **{
        f"{sign}INT{bits}": {
            "type": "integer",
            "minimum": 0 if sign else -(2 ** (bits - 1)),
            "maximum": 2**bits - 1 if sign else 2 ** (bits - 1) - 1,
        }
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
"""JSON schema of an element, by datatype."""


_SEQUENCE_ID: JsonObject = {"type": ["integer", "string"], "minimum": 1, "maximum": 2**64 - 1, "minLength": 1}


def model_document(config: ModelConfig, models: Models, path: str, server_version: str) -> dict[str, Any]:
    """Return the document of the model or version at `path`. `models`: READY models by name."""
    schemas = _schemas(config, models)
    shared = ("ErrorAnswer", "ModelReady", "ModelMetadata", "TensorMetadata")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": config.name,
            "version": server_version,
            "description": f"Inference of model `{config.name}`, served by modserve.",
        },
        "tags": [{"name": INFERENCE}, {"name": HEALTH}, {"name": METADATA}],
        "paths": _paths(config, models, path),
        "components": {"schemas": {**schemas, **{name: SCHEMAS[name] for name in shared}}},
    }


def _paths(config: ModelConfig, models: Models, path: str) -> JsonObject:
    bodies = examples.bodies(config, models)
    stream = examples.decoupled(config, models)
    inference = ("infer_stream", "generate_stream") if stream else ("infer", "generate")
    paths: JsonObject = {}
    for call in inference:
        kind = "Infer" if call.startswith("infer") else "Generate"
        paths[f"{path}/{call}"] = {"post": _inference(call, kind, stream, bodies.get(call))}
    paths[f"{path}/ready"] = {
        "get": _look_up("ready", HEALTH, "Report whether the model is ready for inference.", "ModelReady")
    }
    about = "Return the model's versions, platform, inputs and outputs."
    paths[path] = {"get": _look_up("metadata", METADATA, about, "ModelMetadata")}
    return paths


def _inference(call: str, kind: str, stream: bool, example: object) -> JsonObject:
    content: JsonObject = {"schema": _reference(f"{kind}Request")}
    if example is not None:
        content["example"] = example
    if stream:
        description = "Run inference and stream the responses as server-sent events."
        text = {
            "type": "string",
            "description": f"Each event is a line `data: ` followed by a `{kind}Response` in JSON.",
        }
        answer: JsonObject = {
            "description": "A stream of events, one for each response",
            "content": {"text/event-stream": {"schema": text}},
        }
    else:
        flat = " on a flat JSON object" if kind == "Generate" else ""
        description = f"Run inference{flat}."
        answer = {
            "description": "Successful Response",
            "content": {MIME_JSON: {"schema": _reference(f"{kind}Response")}},
        }
    return {
        "operationId": call,
        "tags": [INFERENCE],
        "summary": call.replace("_", " ").capitalize(),
        "description": description,
        "requestBody": {"required": True, "content": {MIME_JSON: content}},
        "responses": {"200": answer, **_errors(400, 404, 429, 500, 503)},
    }


def _look_up(name: str, tag: str, description: str, schema: str) -> JsonObject:
    return {
        "operationId": name,
        "tags": [tag],
        "summary": name.capitalize(),
        "description": description,
        "responses": {"200": response_of(schema), **_errors(400, 404, 503)},
    }


def _errors(*statuses: int) -> JsonObject:
    return {str(status): response for status, response in errors_of(*statuses).items()}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(config: ModelConfig, models: Models) -> JsonObject:
    """Return the request and response bodies of both kinds of calls, and their tensors."""
    inputs, outputs = _names("Input", config.inputs), _names("Output", config.outputs)
    tensors = {name: _tensor(config, spec) for names in (inputs, outputs) for name, spec in names.items()}
    required = sum(not spec.optional for spec in config.inputs)
    sequence = examples.parameters(config, models)
    own: JsonObject = {
        name: {"type": "boolean"} if isinstance(value, bool) else _SEQUENCE_ID for name, value in sequence.items()
    }
    parameters = _object(
        own, ["sequence_id"] if sequence else [], "Request parameters of the protocol and of the model."
    )
    request = {
        "id": {"type": "string", "description": "The response has the same id."},
        "parameters": parameters,
        "inputs": _list(inputs, required, "One tensor for each input. Optional inputs may be omitted."),
        "outputs": {
            "type": "array",
            "description": "The outputs to return. By default, all outputs.",
            "items": _reference("RequestedOutput"),
        },
    }
    response = {
        "id": {"type": "string"},
        **_ORIGIN,
        "parameters": {"type": "object"},
        "outputs": _list(outputs, 0, "One tensor for each requested output."),
    }
    chosen = {"name": {"type": "string", "enum": [spec.name for spec in config.outputs]}}
    return {
        "InferRequest": _object(request, ["inputs", *(["parameters"] if sequence else [])]),
        "InferResponse": _object(response, ["model_name", "model_version", "outputs"]),
        "RequestedOutput": _object(chosen, ["name"]),
        **tensors,
        "GenerateRequest": _object(
            {**own, **{spec.name: _value(config, spec) for spec in config.inputs}},
            [spec.name for spec in config.inputs if not spec.optional] + (["sequence_id"] if sequence else []),
            "Each field is an input, by name. Other fields are request parameters.",
        ),
        "GenerateResponse": _object(
            {**_ORIGIN, "id": {"type": "string"}, **{spec.name: _value(config, spec) for spec in config.outputs}},
            ["model_name", "model_version"],
            "Each field is an output or a response parameter, by name.",
        ),
    }


_ORIGIN: JsonObject = {"model_name": {"type": "string"}, "model_version": {"type": "string"}}


def _object(properties: Mapping[str, object], required: Iterable[str], description: str = "") -> JsonObject:
    described = {"type": "object", "description": description, "properties": properties, "required": list(required)}
    return {key: value for key, value in described.items() if value}


def _names(suffix: str, specs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    """Return tensors by schema name: restricted to certain characters, and distinct regardless of case."""
    names: dict[str, TensorSpec] = {}
    for spec in specs:
        stem = re.sub(r"\W+", "_", spec.name, flags=re.ASCII).strip("_") or "tensor"
        name, count = f"{stem}_{suffix}", 1
        while name.lower() in (each.lower() for each in names):
            count += 1
            name = f"{stem}_{count}_{suffix}"
        names[name] = spec
    return names


def _list(tensors: Mapping[str, TensorSpec], fewest: int, description: str) -> JsonObject:
    """Describe an array of any of the tensors, distinguished by name."""
    references: list[object] = [_reference(name) for name in tensors]
    items = references[0] if len(references) == 1 else {"oneOf": references} if references else {}
    return {
        "type": "array",
        "description": description,
        "items": items,
        "minItems": fewest,
        "maxItems": len(references),
    }


def _tensor(config: ModelConfig, spec: TensorSpec) -> JsonObject:
    """Describe a tensor of ``infer``, with a fixed name and datatype."""
    dims = config.full_dims(spec)
    count = _count(dims)
    data: JsonObject = {
        "type": "array",
        "items": _ELEMENTS[spec.datatype.name],
        "description": "Elements in row-major order.",
    }
    if count is not None:
        data |= {"minItems": count, "maxItems": count}
    elif fewest := _fewest(config, spec):
        data["minItems"] = fewest
    sizes: JsonObject = {
        "type": "array",
        "description": f"`{list(dims)}`, where -1 is any size{'. The batch comes first' if config.batching else ''}.",
        "items": {"type": "integer", "minimum": 0},
        "minItems": len(dims),
        "maxItems": len(dims),
        "examples": [examples.shape(config, spec)],
    }
    properties: JsonObject = {
        "name": {"type": "string", "const": spec.name},
        "datatype": {"type": "string", "const": spec.datatype.name},
        "shape": sizes,
        "data": data,
    }
    return _object(properties, properties, "This input is optional." if spec.optional else "")


def _value(config: ModelConfig, spec: TensorSpec) -> JsonObject:
    """Describe a tensor of ``generate``; a single element is not a list."""
    element, dims = _ELEMENTS[spec.datatype.name], config.full_dims(spec)
    elements: JsonObject = {"type": "array", "items": element}
    fixed = math.prod(size for size in dims if size >= 0)
    if fixed > 1:
        return {**elements, "minItems": fewest} if (fewest := _fewest(config, spec)) else elements
    return element if _count(dims) == 1 else {"anyOf": [element, elements]}


def _fewest(config: ModelConfig, spec: TensorSpec) -> int:
    """Return the number of elements per row if only the batch size varies; 0 otherwise."""
    return (_count(spec.dims) or 0) if config.batching else 0


def _count(dims: Shape) -> int | None:
    """Return the number of elements; None if it varies."""
    return None if any(size < 0 for size in dims) else math.prod(dims)
