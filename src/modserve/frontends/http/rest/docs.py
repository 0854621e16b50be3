"""The pages for people with a browser: the REST surface, to read and to try out.

Everything comes from this server, so that it works without the Internet: one HTML file with its style and script, which
reads ``/openapi.json``, and the examples that it fills in for a model.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from fastapi import APIRouter, Response

from modserve.core import residency
from modserve.frontends.offload import on_thread
from modserve.protocol import examples
from modserve.protocol.json.json_text import MIME_JSON
from modserve.server import Server

from .messages import json_response, new_router

_PAGE = resources.files("modserve.frontends.http.rest").joinpath("docs.html").read_bytes()
_SCRIPT = re.search(rb"<script>(.*)</script>", _PAGE, re.DOTALL)
assert _SCRIPT is not None, "the page has one script: this is a bug"

HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT[1]).digest()).decode()}'; "
        "style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Models' names and answers are others' texts: no script but the page's own runs, and it asks this server only."""

_BODIES: Mapping[str, object] = {
    "/v2/repository/index": {"ready": True},
    "/v2/repository/{repository}/index": {"ready": True},
    "/v2/repository/models/{model}/load": {},
    "/v2/repository/models/{model}/unload": {"parameters": {"unload_dependents": False}},
    "/v2/logging": {"log_verbose_level": 0},
    "/v2/trace/setting": {"trace_rate": "1000"},
    "/v2/models/{model}/trace/setting": {"trace_rate": "1000"},
    "/v2/systemsharedmemory/region/{region}/register": {"key": "/my_region", "offset": 0, "byte_size": 64},
    "/v2/systemsharedmemory/register": {"name": "my_region", "key": "/my_region", "offset": 0, "byte_size": 64},
}
"""Examples of bodies that need no model to be looked at, by path."""


def add_examples(document: dict[str, Any]) -> None:
    """Put examples of bodies into an OpenAPI document."""
    for path, body in _BODIES.items():
        operation = document["paths"].get(path, {}).get("post", {})
        content = operation.get("requestBody", {}).get("content", {}).get(MIME_JSON)
        if content is not None:
            content["example"] = body


def router(server: Server, describe: Callable[[], dict[str, Any]]) -> APIRouter:
    """The page, and what it asks for that no client of the protocol does. Not in the OpenAPI document.

    `describe` gives that document, always the same.
    """
    router = new_router(include_in_schema=False)
    documents: list[bytes] = []
    making = asyncio.Lock()

    @router.get("/openapi.json")
    async def document() -> Response:
        """The OpenAPI document, made for the first request: that takes 50 ms, for which no other request waits."""
        async with making:
            if not documents:
                documents.append(await on_thread(lambda: bytes(json_response(describe()).body)))
        return Response(documents[0], media_type=MIME_JSON)

    @router.get("/docs")
    async def page() -> Response:
        """The REST surface for people."""
        return Response(_PAGE, headers=HEADERS, media_type="text/html")

    @router.get("/docs/examples/{model}")
    async def model_examples(model: str) -> Response:
        """Bodies of calls that this model answers, by call."""
        await residency.describe(server.model(model))
        models = {servable.id.name: servable.config for servable in server.models()}
        return json_response(examples.bodies(server.model(model).config, models))

    return router
