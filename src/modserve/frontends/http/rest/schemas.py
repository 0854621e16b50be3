"""Documentation of request and response bodies, and of calls."""

from typing import Any

from modserve.protocol.json.json_text import MIME_JSON

_BODIES: dict[str, tuple[str, str]] = {
    "Alive": ("status: string", ""),
    "ChatRequestBody": (
        "model?: string, messages: [object], stream?: boolean, stream_options?: object, "
        "max_completion_tokens?: integer, temperature?: number, top_p?: number, seed?: integer, n?: integer, "
        "stop?: any, logprobs?: boolean, top_logprobs?: integer, response_format?: object, tools?: [object], "
        "tool_choice?: any",
        "Fields of OpenAI's API; others of sampling parameters are in the documentation.",
    ),
    "ChatResponseBody": (
        "id: string, object: string, created: integer, model: string, choices: [object], usage?: object",
        "With `stream`, server-sent events follow instead, each with a chunk.",
    ),
    "CompletionRequestBody": (
        "model?: string, prompt: any, stream?: boolean, stream_options?: object, max_tokens?: integer, "
        "temperature?: number, top_p?: number, seed?: integer, n?: integer, stop?: any, logprobs?: integer, "
        "echo?: boolean, response_format?: object",
        "`prompt` is a string, or a list of strings.",
    ),
    "CudaRegion": (
        "raw_handle: object, device_id: integer, byte_size: integer",
        "`raw_handle` has the handle as `b64`.",
    ),
    "CudaRegionStatus": ("name: string, device_id: integer, byte_size: integer", ""),
    "DocumentsRequestBody": (
        "model?: string, query: string, documents: [any], top_n?: integer, return_documents?: boolean",
        "`documents` are strings, or objects with a member `text`.",
    ),
    "EmbeddingsRequestBody": (
        "model?: string, input: any, dimensions?: integer, encoding_format?: string, prompt_name?: string",
        "`input` is a string, a list of strings, a list of tokens, or a list of lists of tokens.",
    ),
    "Drained": (
        "drained: boolean, in_flight: object, seconds: number",
        "`in_flight` counts the requests by model that are not finished if `drained` is false.",
    ),
    "ErrorAnswer": ("error: string", ""),
    "GenerateRequestBody": (
        "id?: string, text_input?: any, parameters?: object",
        "Names of inputs with their elements, and parameters for the model, here or in `parameters`.",
    ),
    "GenerateResponseBody": (
        "id?: string, model_name: string, model_version: string, text_output?: any",
        "Names of outputs with their elements, and the response's parameters.",
    ),
    "IndexRequestBody": ("ready?: boolean", "`ready` selects the versions that are READY."),
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
        "`input` is a string, or a list of items: messages, calls of functions, and their outputs.",
    ),
    "ItemsResponseBody": (
        "id: string, object: string, created_at: integer, status: string, model: string, output: [object], "
        "usage?: object",
        "With `stream`, server-sent events follow instead, each with its type.",
    ),
    "Live": ("live: boolean", ""),
    "LoadRequestBody": (
        "parameters?: object",
        "`config` is the configuration in JSON, `file:<version>/<path>` a file in base64.",
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
        "What runs a model; engines may add members. `candidates` are those that were measured.",
    ),
    "ModelList": ("models: [string]", ""),
    "ModelLists": (
        "models: [string], object: string, data: [OpenAIModel]",
        "KServe's `models` has all names; `data` is OpenAI's list, of the READY models that take text.",
    ),
    "ModelMemory": (
        "limit: integer, held: integer, models: [object]",
        "Sizes in bytes. The models are those that come into memory and leave it, each with its state.",
    ),
    "ModelMetadata": (
        "name: string, versions: [string], platform: string, inputs: [TensorMetadata], outputs: [TensorMetadata]",
        "",
    ),
    "ModelReady": ("name: string, ready: boolean", ""),
    "ModelStatus": (
        "name: string, ready: boolean, model_version_status: [VersionStatus], error?: string, id: string, "
        "object: string, created: integer, owned_by: string, suggested_sampling?: object",
        "KServe's `name` and `ready` beside TensorFlow Serving's `model_version_status`, the latest version first, and "
        "what OpenAI's API says of a model.",
    ),
    "PredictRequestBody": (
        "signature_name?: string, instances?: [any], inputs?: any",
        "Either `instances` (row format: values, or objects by input name) or `inputs` (column format: an object by "
        "input name, or one tensor).",
    ),
    "PredictResponseBody": (
        "predictions?: [any], outputs?: any",
        "`predictions` answers `instances`, `outputs` answers `inputs`.",
    ),
    "Routing": (
        "labels?: object, split?: object, sticky?: string, shadow?: object, rollback?: object, rolled_back?: object",
        "`labels` are names of versions, `split` has weights of labels and versions.",
    ),
    "RoutingReport": (
        "model: string, source: string, routing: Routing, routes: [object], requests_without_key?: integer, "
        "shadow?: object, rolled_back?: object",
        "The routing, and for each of its routes the version, the share of the requests and their number.",
    ),
    "OpenAIModel": (
        "id: string, object: string, created: integer, owned_by: string, suggested_sampling?: object",
        "`suggested_sampling` has the sampling parameters that suit a model that generates text.",
    ),
    "OpenAIModels": ("object: string, data: [OpenAIModel]", "The READY models that take text."),
    "OpenAIErrorAnswer": ("error: object", "The error has `message`, `type`, `param` and `code`."),
    "RankingRequestBody": (
        "model?: string, query: string, texts?: [string], raw_scores?: boolean, return_text?: boolean, "
        "truncate?: boolean, truncation_direction?: string, documents?: [any]",
        "With `documents` in place of `texts`, as for `/v1/rerank`.",
    ),
    "ReadinessReason": (
        "name: string, version: string, state: string, reason: string",
        "A model version that is not READY. `version` is empty if the model has none.",
    ),
    "Ready": (
        "ready: boolean, reasons?: [ReadinessReason]",
        "`reasons` lists what is in the way when `ready` is false.",
    ),
    "RequestedOutput": ("name: string, parameters?: object", ""),
    "ScoreRequestBody": (
        "model?: string, text_1: any, text_2: any",
        "Strings, or lists of them: one with each of the others, or as many of both, which are pairs.",
    ),
    "ServerMetadata": ("name: string, version: string, extensions: [string]", ""),
    "ServerVersion": ("version: string", ""),
    "SignatureMetadata": ("model_spec: object, metadata: object", ""),
    "SystemRegion": ("key: string, offset?: integer, byte_size: integer", ""),
    "SystemRegionStatus": ("name: string, key: string, offset: integer, byte_size: integer", ""),
    "TensorData": (
        "name: string, shape: [integer], datatype: string, parameters?: object, data?: [any]",
        "A tensor with its elements, nested in any way or flat, or `binary_data_size` among its parameters.",
    ),
    "TensorMetadata": (
        "name: string, datatype: string, shape: [integer]",
        "`shape` has -1 for variable dimensions, the batch dimension among them.",
    ),
    "TextErrorAnswer": ("error: string, error_type: string", ""),
    "TextsRequestBody": (
        "model?: string, inputs: any, truncate?: boolean, truncation_direction?: string, prompt_name?: string, "
        "normalize?: boolean, dimensions?: integer, raw_scores?: boolean, add_special_tokens?: boolean",
        "Each call reads the members that it has a use for.",
    ),
    "TokensRequestBody": ("model?: string, ids: any, skip_special_tokens?: boolean", ""),
    "TraceSettings": (
        "trace_level: [string], trace_rate: string, trace_count: string, log_frequency: string, trace_file: string, "
        "trace_mode: string",
        "Numbers are strings.",
    ),
    "UnloadRequestBody": ("parameters?: object", "The parameter `unload_dependents` is a boolean."),
    "VersionHealth": ("error_code: string, error_message: string", ""),
    "VersionStatus": (
        "version: string, state: string, status: VersionHealth",
        "`state` is START, LOADING, AVAILABLE, UNLOADING or END.",
    ),
    "VersionStatuses": ("model_version_status: [VersionStatus]", ""),
}
"""Members and description by name. A member with ``?`` is optional or null; a type in brackets is an array."""


def _schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a type in this notation."""
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

for _settings in ("LogSettings", "TraceSettings"):  # a change has any subset of the settings
    SCHEMAS[f"{_settings}Change"] = {"type": "object", "properties": SCHEMAS[_settings]["properties"]}


def response_of(name: str, description: str = "Successful Response") -> dict[str, Any]:
    """Document a response: a body of the table, ``object`` for any object, an array in brackets."""
    return {"description": description, "content": {MIME_JSON: {"schema": _schema(name)}}}


_ERRORS = {
    400: "The request is wrong",
    403: "The caller may not do this",
    404: "There is no such model or version",
    413: "Too long, or too many",
    422: "The body is not as the call has it",
    429: "Too many requests wait: try again",
    500: "The model failed",
    501: "Not supported",
    503: "Not ready, or too busy: try again",
}


FAILURES = (400, 404, 429, 500, 503)
"""Statuses of a failed inference."""


def errors_of(*statuses: int, body: str = "ErrorAnswer") -> dict[int | str, dict[str, Any]]:
    """Document a call's failures, all with the same body of the table."""
    return {status: response_of(body, _ERRORS[status]) for status in statuses}


def responses_of(name: str, *errors: int) -> dict[int | str, dict[str, Any]]:
    """Document a call's responses: status 200 as in `response_of`, and `errors` by status."""
    return {200: response_of(name), **errors_of(*errors)}


def body_of(name: str, required: bool = True) -> dict[str, Any]:
    """Document a body that the call itself reads."""
    return {"requestBody": {"required": required, "content": {MIME_JSON: {"schema": _schema(name)}}}}


def empty_of(*errors: int) -> dict[int | str, dict[str, Any]]:
    """Document a call with an empty response, and its failures."""
    return {200: {"description": "Successful Response"}, **errors_of(*errors)}


PLAIN_TEXT = {"description": "Successful Response", "content": {"text/plain": {"schema": {"type": "string"}}}}
INFER_BODY = body_of("InferenceRequestBody")
INFER_BODY["requestBody"]["description"] = (
    "JSON; or JSON of Inference-Header-Content-Length bytes and then binary tensor data"
)
INFER_BODY["requestBody"]["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
