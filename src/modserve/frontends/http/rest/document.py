"""Parts of the OpenAPI document that FastAPI cannot generate: groups of calls, examples, and callers' keys."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from modserve.access.authority import Authority
from modserve.access.permissions import CallNeed, CallScope, need_of
from modserve.protocol.json.json_text import MIME_JSON

from .schemas import SCHEMAS, errors_of

INFERENCE = "inference"
TEXT = "text"
HEALTH = "health"
METADATA = "metadata"
STATISTICS = "statistics"
REPOSITORY = "model repository"
ROUTING = "routing"
LOGGING = "logging"
TRACE = "trace"
SHARED_MEMORY = "shared memory"
V1 = "KServe v1, TensorFlow Serving"

TAGS: Mapping[str, str] = {
    INFERENCE: "Run inference on tensors.",
    TEXT: "Generate, embed, rerank and classify text.",
    HEALTH: "Check whether the server or a model is ready for requests.",
    METADATA: "Describe the server and its models.",
    STATISTICS: "Read request counts, durations and memory use.",
    REPOSITORY: "Load and unload models.",
    ROUTING: "Split requests between the versions of a model.",
    LOGGING: "Read and change log settings, and read stack traces.",
    TRACE: "Read and change trace settings.",
    SHARED_MEMORY: "Register memory that client and server share, for the tensors of requests.",
    V1: "Use the same models through older protocols.",
}
"""Groups of calls with descriptions. Inference comes first, as most readers look for it."""


_SCHEMES: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key, or a token from an issuer that the server trusts.",
    },
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_CERTIFICATE: Final = {
    "certificate": {"type": "mutualTLS", "description": "A client certificate that matches a rule of the server."}
}
_CHALLENGE: Final = {"WWW-Authenticate": {"schema": {"type": "string"}}}
_UNAUTHENTICATED: Final = "The request has no valid key"
_FAILURES: Final = ("400", "404", "422", "500", "503")
"""Error statuses; a call has at least one of them, and all have the same body."""


def add_security(document: dict[str, Any], authority: Authority) -> None:
    """Add ways to send a key, calls that need one, and their responses to requests without a key."""
    schemes = {**_SCHEMES, **(_CERTIFICATE if authority.knows_certificates else {})}
    document["components"]["securitySchemes"] = schemes
    for operation, need in _list_secured_operations(document):
        if authority.is_open(need):
            continue
        operation["security"] = [{name: []} for name in schemes]
        responses = operation["responses"]
        bodies = [responses[status]["content"] for status in _FAILURES if "content" in responses.get(status, ())]
        body = bodies[0] if bodies else {}
        responses["401"] = _refusal(_UNAUTHENTICATED, body)
        if need.reach is not CallScope.ANY:
            responses["403"] = _refusal(f"The key lacks the scope '{need.kind}' for this call", body)


def _list_secured_operations(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], CallNeed]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield operation, need_of(method.upper(), path)[0]


def _refusal(description: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "headers": _CHALLENGE, **({"content": body} if body else {})}


_VALIDATION = "422"
"""FastAPI's status for invalid path parameters; here, such a path does not exist."""

_HIGHEST = 2**63 - 1
"""Highest number of a version."""

_BODIES: Mapping[str, object] = {
    "/v2/repository/index": {"ready": True},
    "/v2/repository/{repository}/index": {"ready": True},
    "/v2/repository/models/{model}/load": {},
    "/v2/repository/models/{model}/unload": {"parameters": {"unload_dependents": False}},
    "/v2/logging": {"log_verbose_level": 0},
    "/v2/trace/setting": {"trace_rate": "1000"},
    "/v2/models/{model}/trace/setting": {"trace_rate": "1000"},
    "/v2/systemsharedmemory/region/{region}/register": {"key": "/my_region", "offset": 0, "byte_size": 64},
}
"""Example request bodies that do not depend on a model, by path."""


def complete(document: dict[str, Any]) -> None:
    """Add schemas, groups, examples of bodies, and names for the methods of generated clients."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operation["parameters"] = [_parameter(name) for name in re.findall(r"\{(\w+)\}", path)]
            operation["operationId"] = _name(method, path, methods)
            if "HTTPValidationError" in str(operation["responses"].get(_VALIDATION)):
                del operation["responses"][_VALIDATION]
            if operation["parameters"]:  # a name may contain characters that are invalid in paths
                operation["responses"].setdefault("400", errors_of(400)[400])
    for path, body in _BODIES.items():
        document["paths"][path]["post"]["requestBody"]["content"][MIME_JSON]["example"] = body
    used = {tag for operation in _operations(document) for tag in operation["tags"]}
    document["tags"] = [{"name": tag, "description": text} for tag, text in TAGS.items() if tag in used]
    document["components"] = {"schemas": SCHEMAS}


def _parameter(name: str) -> dict[str, Any]:
    """Describe a part of a path. There are no other parameters: queries are ignored."""
    schema = (
        {"type": "integer", "minimum": 1, "maximum": _HIGHEST}
        if name == "version"
        else {"type": "string", "minLength": 1}
    )
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in document["paths"].values():
        yield from methods.values()


def _name(method: str, path: str, methods: Mapping[str, object]) -> str:
    """Join the words of the path: ``/v2/models/{model}/versions/{version}/infer`` is ``model_version_infer``."""
    if path in _NAMES:
        return _NAMES[path][method]
    words = path.removeprefix("/v2").replace("repository/{repository}", "any_repository")
    words = re.sub(r"(\w+?)s?/\{\1\}", r"\1", words)
    verb = {"post": "set", "delete": "delete"}.get(method, "") if len(methods) > 1 else ""
    return "_".join(re.findall(r"[A-Za-z0-9]+", f"{verb} {words}"))


_NAMES: Mapping[str, Mapping[str, str]] = {"/": {"get": "alive", "post": "texts"}, "/v2": {"get": "server"}}
