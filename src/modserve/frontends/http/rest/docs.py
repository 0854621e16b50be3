"""The API explorer page, and model descriptions for it and for client generators."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response

from modserve.core import residency
from modserve.core.configuration.model_config import ModelConfig
from modserve.frontends.http.single_page import PageResponse, single_page
from modserve.frontends.offload import on_thread
from modserve.protocol import examples, snippets
from modserve.protocol.json.json_text import MIME_JSON
from modserve.server import Server

from .messages import json_response, new_router
from .model_document import model_document

_SCRIPTS = ("elements.js", "schema.js", "call.js", "model.js", "start.js")


@functools.cache
def _page() -> PageResponse:
    return single_page("modserve.frontends.http.explorer", "explorer", _SCRIPTS)


async def model_openapi(server: Server, model: str, version: int | None) -> dict[str, Any]:
    """Return the OpenAPI document of a model's inference calls. Raises what `Server.model` raises."""
    config = await _config(server, model, version)
    path = f"/v2/models/{quote(model, safe='')}" + ("" if version is None else f"/versions/{version}")
    return model_document(config, _models(server), path, server.version)


def router(server: Server, describe: Callable[[], dict[str, Any]]) -> APIRouter:
    """Return the routes of the page and of its own calls. Not in the OpenAPI document.

    `describe` returns that document, which never changes.
    """
    router = new_router(include_in_schema=False)
    documents: list[bytes] = []
    making = asyncio.Lock()

    @router.get("/openapi.json")
    async def document() -> Response:
        """Return the OpenAPI document. The first request creates it on a thread, in about 50 ms."""
        async with making:
            if not documents:
                documents.append(await on_thread(lambda: bytes(json_response(describe()).body)))
        return Response(documents[0], media_type=MIME_JSON)

    @router.get("/docs")
    async def page() -> Response:
        """Return the API explorer."""
        body, headers = _page()
        return Response(body, headers=headers, media_type="text/html")

    @router.get("/docs/examples/{model}")
    async def model_examples(model: str) -> Response:
        """Return example request bodies for the model, by call."""
        return json_response(examples.bodies(await _config(server, model), _models(server)))

    @router.get("/docs/snippets/{model}")
    async def model_snippets(model: str) -> Response:
        """Return example programs that call the model, by client library."""
        return json_response(snippets.snippets(await _config(server, model), _models(server)))

    return router


async def _config(server: Server, model: str, version: int | None = None) -> ModelConfig:
    await residency.describe(server.model(model, version))
    return server.model(model, version).config


def _models(server: Server) -> dict[str, ModelConfig]:
    return {servable.id.name: servable.config for servable in server.models()}
