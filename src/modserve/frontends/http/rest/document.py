"""What FastAPI cannot know of the calls: the OpenAPI document is completed here."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from modserve.protocol.json.json_text import MIME_JSON

from .schemas import SCHEMAS, errors_of
from .tags import TAGS

_VALIDATION = "422"
"""FastAPI's own status for parameters that it refuses; here a path with such parameters is none."""

_HIGHEST = 2**63 - 1
"""Of the numbers of versions."""

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
"""Examples of bodies that need no model to be looked at, by path."""


def complete(document: dict[str, Any]) -> None:
    """Add schemas, groups, examples of bodies, and names for the methods of generated clients."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operation["parameters"] = [_parameter(name) for name in re.findall(r"\{(\w+)\}", path)]
            operation["operationId"] = _name(method, path, methods)
            if "HTTPValidationError" in str(operation["responses"].get(_VALIDATION)):
                del operation["responses"][_VALIDATION]
            if operation["parameters"]:  # a name may have characters that no path may have
                operation["responses"].setdefault("400", errors_of(400)[400])
    for path, body in _BODIES.items():
        document["paths"][path]["post"]["requestBody"]["content"][MIME_JSON]["example"] = body
    used = {tag for operation in _operations(document) for tag in operation["tags"]}
    document["tags"] = [{"name": tag, "description": text} for tag, text in TAGS.items() if tag in used]
    document["components"] = {"schemas": SCHEMAS}


def _parameter(name: str) -> dict[str, Any]:
    """A part of a path. There are no other parameters: queries are ignored."""
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
    """The words of the path: ``/v2/models/{model}/versions/{version}/infer`` is ``model_version_infer``."""
    if path in _NAMES:
        return _NAMES[path][method]
    words = path.removeprefix("/v2").replace("repository/{repository}", "any_repository")
    words = re.sub(r"(\w+?)s?/\{\1\}", r"\1", words)
    verb = {"post": "set", "delete": "delete"}.get(method, "") if len(methods) > 1 else ""
    return "_".join(re.findall(r"[A-Za-z0-9]+", f"{verb} {words}"))


_NAMES: Mapping[str, Mapping[str, str]] = {"/": {"get": "alive", "post": "texts"}, "/v2": {"get": "server"}}
