"""OpenAPI schemas of request and response bodies, and parts of the documentation of calls."""

from typing import Any

from modserve.protocol.json.json_text import MIME_JSON

_BODIES: dict[str, tuple[str, str]] = {
    "Alive": ("status: string", ""),
    "ChatRequestBody": (
        "model?: string, messages: [object], stream?: boolean, stream_options?: object, "
        "max_completion_tokens?: integer, temperature?: number, top_p?: number, seed?: integer, n?: integer, "
        "stop?: any, logprobs?: boolean, top_logprobs?: integer, response_format?: object, tools?: [object], "
        "tool_choice?: any",
        "These are fields of OpenAI's API. The documentation lists further sampling parameters.",
    ),
    "ChatResponseBody": (
        "id: string, object: string, created: integer, model: string, choices: [object], usage?: object",
        "With `stream`, the response consists of server-sent events, each with a chunk.",
    ),
    "CompletionRequestBody": (
        "model?: string, prompt: any, stream?: boolean, stream_options?: object, max_tokens?: integer, "
        "temperature?: number, top_p?: number, seed?: integer, n?: integer, stop?: any, logprobs?: integer, "
        "echo?: boolean, response_format?: object",
        "`prompt` is a string, or a list of strings.",
    ),
    "CudaRegion": (
        "raw_handle: object, device_id: integer, byte_size: integer",
        "`raw_handle` has a field `b64`: the CUDA IPC handle in base64.",
    ),
    "CudaRegionStatus": ("name: string, device_id: integer, byte_size: integer", ""),
    "DocumentsRequestBody": (
        "model?: string, query: string, documents: [any], top_n?: integer, return_documents?: boolean",
        "Each document is a string, or an object with a field `text`.",
    ),
    "EmbeddingsRequestBody": (
        "model?: string, input: any, dimensions?: integer, encoding_format?: string, prompt_name?: string",
        "`input` is a string, a list of strings, a list of tokens, or a list of lists of tokens.",
    ),
    "Drained": (
        "drained: boolean, in_flight: object, seconds: number",
        "If `drained` is false, `in_flight` has the number of unfinished requests by model.",
    ),
    "ErrorAnswer": ("error: string", ""),
    "GenerateRequestBody": (
        "id?: string, text_input?: any, parameters?: object",
        "Each field is an input or a request parameter, by name. The object `parameters` may contain more of them.",
    ),
    "GenerateResponseBody": (
        "id?: string, model_name: string, model_version: string, text_output?: any",
        "Each field is an output or a response parameter, by name.",
    ),
    "IndexRequestBody": ("ready?: boolean", "`ready` limits the index to versions in state READY."),
    "IndexedVersion": (
        "name: string, version?: string, state?: string, reason?: string",
        "A model version; empty members are omitted.",
    ),
    "InferenceRequestBody": ("id?: string, parameters?: object, inputs: [TensorData], outputs?: [RequestedOutput]", ""),
    "InferenceResponseBody": (
        "id?: string, model_name: string, model_version: string, parameters?: object, outputs: [TensorData]",
        "",
    ),
    "ItemsRequestBody": (
        "model?: string, input: any, instructions?: string, stream?: boolean, max_output_tokens?: integer, "
        "temperature?: number, top_p?: number, text?: object, tools?: [object], tool_choice?: any",
        "`input` is a string, or a list of items: messages, function calls and their outputs.",
    ),
    "ItemsResponseBody": (
        "id: string, object: string, created_at: integer, status: string, model: string, output: [object], "
        "usage?: object",
        "With `stream`, the response consists of server-sent events, each with a type.",
    ),
    "Live": ("live: boolean", ""),
    "LoadRequestBody": (
        "parameters?: object",
        "The parameter `config` is a configuration in JSON. `file:<version>/<path>` is a file in base64.",
    ),
    "LogSettings": (
        "log_file: string, log_info: boolean, log_warning: boolean, log_error: boolean, log_verbose_level: integer, "
        "log_format: string",
        "",
    ),
    "ModelEngine": (
        "model_name: string, model_version: string, backend: string, engine: string, instances?: object, "
        "version?: string, precision?: string, device?: string, threads?: integer, reason?: string, "
        "candidates?: [object]",
        "The engine that runs the model. Engines may add fields. `candidates` has the engines that `auto` measured.",
    ),
    "ModelList": ("models: [string]", ""),
    "ModelLists": (
        "models: [string], object: string, data: [OpenAIModel]",
        "`models` has all names, as in KServe. `data` has the READY text models, as in OpenAI's API.",
    ),
    "ModelMemory": (
        "limit: integer, held: integer, models: [object]",
        "Sizes are in bytes. `models` lists the models that the server loads on demand, each with its state.",
    ),
    "ModelMetadata": (
        "name: string, versions: [string], platform: string, inputs: [TensorMetadata], outputs: [TensorMetadata]",
        "",
    ),
    "ModelReady": ("name: string, ready: boolean", ""),
    "ModelStatus": (
        "name: string, ready: boolean, model_version_status: [VersionStatus], error?: string, id: string, "
        "object: string, created: integer, owned_by: string, suggested_sampling?: object",
        "`name` and `ready` are KServe's fields. `model_version_status` is TensorFlow Serving's, latest version first. "
        "`id`, `object`, `created` and `owned_by` are OpenAI's.",
    ),
    "PredictRequestBody": (
        "signature_name?: string, instances?: [any], inputs?: any",
        "`instances` (row format) is a list of values or of objects by input name. `inputs` (column format) is an "
        "object by input name, or one tensor. Set one of them.",
    ),
    "PredictResponseBody": (
        "predictions?: [any], outputs?: any",
        "A request with `instances` gets `predictions`. A request with `inputs` gets `outputs`.",
    ),
    "Routing": (
        "labels?: object, split?: object, sticky?: string, shadow?: object, rollback?: object, rolled_back?: object",
        "`labels` gives names to versions. `split` gives weights to labels and versions.",
    ),
    "RoutingReport": (
        "model: string, source: string, routing: Routing, routes: [object], requests_without_key?: integer, "
        "shadow?: object, rolled_back?: object",
        "The routing in use. Each route has its version, its share of the requests and their number.",
    ),
    "OpenAIModel": (
        "id: string, object: string, created: integer, owned_by: string, suggested_sampling?: object",
        "`suggested_sampling` has the sampling parameters that suit the model. Only models that generate text have it.",
    ),
    "OpenAIModels": ("object: string, data: [OpenAIModel]", "`data` lists the READY text models."),
    "OpenAIErrorAnswer": ("error: object", "The error has `message`, `type`, `param` and `code`."),
    "RankingRequestBody": (
        "model?: string, query: string, texts?: [string], raw_scores?: boolean, return_text?: boolean, "
        "truncate?: boolean, truncation_direction?: string, documents?: [any]",
        "With `documents` in place of `texts`, the call behaves like `/v1/rerank`.",
    ),
    "ReadinessReason": (
        "name: string, version: string, state: string, reason: string",
        "A model version that is not READY. `version` is empty if the model has none.",
    ),
    "Ready": (
        "ready: boolean, reasons?: [ReadinessReason]",
        "If `ready` is false, `reasons` lists the model versions that are not READY.",
    ),
    "RequestedOutput": ("name: string, parameters?: object", ""),
    "ScoreRequestBody": (
        "model?: string, text_1: any, text_2: any",
        "Each field is a string or a list of strings. One `text_1` pairs with every `text_2`. "
        "Lists of the same length pair by position.",
    ),
    "ServerMetadata": ("name: string, version: string, extensions: [string]", ""),
    "ServerVersion": ("version: string", ""),
    "SignatureMetadata": ("model_spec: object, metadata: object", ""),
    "SystemRegion": ("key: string, offset?: integer, byte_size: integer", ""),
    "SystemRegionStatus": ("name: string, key: string, offset: integer, byte_size: integer", ""),
    "TensorData": (
        "name: string, shape: [integer], datatype: string, parameters?: object, data?: [any]",
        "`data` has the elements, flat or nested. Binary tensors have the parameter `binary_data_size` instead.",
    ),
    "TensorMetadata": (
        "name: string, datatype: string, shape: [integer]",
        "In `shape`, -1 stands for a variable dimension, for example the batch dimension.",
    ),
    "TextErrorAnswer": ("error: string, error_type: string", ""),
    "TextsRequestBody": (
        "model?: string, inputs: any, truncate?: boolean, truncation_direction?: string, prompt_name?: string, "
        "normalize?: boolean, dimensions?: integer, raw_scores?: boolean, add_special_tokens?: boolean",
        "Each call ignores the fields that it does not use.",
    ),
    "TokensRequestBody": ("model?: string, ids: any, skip_special_tokens?: boolean", ""),
    "TraceSettings": (
        "trace_level: [string], trace_rate: string, trace_count: string, log_frequency: string, trace_file: string, "
        "trace_mode: string",
        "Numbers are written as strings.",
    ),
    "UnloadRequestBody": ("parameters?: object", "The parameter `unload_dependents` is a boolean."),
    "VersionHealth": ("error_code: string, error_message: string", ""),
    "VersionStatus": (
        "version: string, state: string, status: VersionHealth",
        "`state` is START, LOADING, AVAILABLE, UNLOADING or END.",
    ),
    "VersionStatuses": ("model_version_status: [VersionStatus]", ""),
}
"""Fields and description of each body. ``?`` marks a field that is optional or null. Brackets mark an array."""


def _schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a type in the notation of `_BODIES`."""
    if name.startswith("["):
        return {"type": "array", "items": _schema(name[1:-1])}
    if name[0].isupper():
        return {"$ref": f"#/components/schemas/{name}"}
    return {} if name == "any" else {"type": name}


def _object(members: str, description: str) -> dict[str, Any]:
    properties, required = {}, []
    for name, kind in (member.split(": ") for member in members.split(", ")):
        schema = _schema(kind)
        if not name.endswith("?"):
            required.append(name)
        elif schema:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[name.removesuffix("?")] = schema
    described = {"type": "object", "properties": properties, "description": description, "required": required}
    return {key: value for key, value in described.items() if value}


SCHEMAS = {name: _object(*body) for name, body in _BODIES.items()}

for _settings in ("LogSettings", "TraceSettings"):  # a change may contain any subset of the settings
    SCHEMAS[f"{_settings}Change"] = {"type": "object", "properties": SCHEMAS[_settings]["properties"]}


def response_of(name: str, description: str = "Successful Response") -> dict[str, Any]:
    """Document a response. `name` is a type in the notation of `_BODIES`."""
    return {"description": description, "content": {MIME_JSON: {"schema": _schema(name)}}}


_ERRORS = {
    400: "The request is invalid",
    403: "The caller may not do this",
    404: "The model or version does not exist",
    413: "An input is too long, or there are too many inputs",
    422: "The body is invalid for this call",
    429: "Too many requests wait. Try again later",
    500: "The model failed",
    501: "The server does not support this",
    503: "Not ready or overloaded. Try again later",
}


FAILURES = (400, 404, 429, 500, 503)
"""Statuses of a failed inference."""


def errors_of(*statuses: int, body: str = "ErrorAnswer") -> dict[int | str, dict[str, Any]]:
    """Document the failures of a call. All have the same body."""
    return {status: response_of(body, _ERRORS[status]) for status in statuses}


def responses_of(name: str, *errors: int) -> dict[int | str, dict[str, Any]]:
    """Document the responses of a call: status 200 with the body `name`, and failures."""
    return {200: response_of(name), **errors_of(*errors)}


def body_of(name: str, required: bool = True) -> dict[str, Any]:
    """Document a request body that FastAPI does not read."""
    return {"requestBody": {"required": required, "content": {MIME_JSON: {"schema": _schema(name)}}}}


def empty_of(*errors: int) -> dict[int | str, dict[str, Any]]:
    """Document a call with an empty response, and failures."""
    return {200: {"description": "Successful Response"}, **errors_of(*errors)}


PLAIN_TEXT = {"description": "Successful Response", "content": {"text/plain": {"schema": {"type": "string"}}}}
INFER_BODY = body_of("InferenceRequestBody")
INFER_BODY["requestBody"]["description"] = (
    "JSON, or JSON of Inference-Header-Content-Length bytes followed by binary tensor data"
)
INFER_BODY["requestBody"]["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
