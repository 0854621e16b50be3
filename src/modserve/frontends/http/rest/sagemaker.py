"""The calls by which Amazon SageMaker loads and unloads models of a multi-model endpoint.

For inference calls, see `wire.platform_paths`.
"""

import asyncio
import logging
from pathlib import Path

from fastapi import APIRouter, Request, Response

from modserve.core.errors import Code, ModserveError, from_exception, invalid, not_found
from modserve.core.lifecycle import LifecycleState
from modserve.frontends.offload import on_thread
from modserve.protocol.control import control_body
from modserve.protocol.failures import NoModelMemoryError, is_memory_failure
from modserve.protocol.json.json_text import MIME_JSON
from modserve.server import Server
from modserve.settings import HttpSettings

from .document import REPOSITORY
from .messages import json_response, new_router, read_body
from .model_links import ModelLinks

_log = logging.getLogger(__name__)

_TARGET = "x-amzn-sagemaker-target-model"
_UNLOAD_S = 350.0
"""Seconds to wait for an unload, 10 s less than SageMaker waits."""
_POLL_S = 0.02
_LOADED_STATES = (LifecycleState.READY, LifecycleState.LOADING, LifecycleState.UNLOADING)


def routers(server: Server, options: HttpSettings) -> list[APIRouter]:
    """Return the router if the server runs on SageMaker; otherwise nothing."""
    routes = options.routes
    return [_router(server, routes.registry, options.max_json)] if routes is not None and routes.registry else []


def _router(server: Server, registry: str, max_json: int) -> APIRouter:
    router = new_router(REPOSITORY, include_in_schema=False)
    links = ModelLinks(Path(registry))

    async def models() -> Response:
        """Return the names and locations of the loaded models."""
        urls = await on_thread(links.urls)
        return json_response({"models": [_describe(name, url) for name, url in urls.items() if _in_use(server, name)]})

    async def model(model: str) -> Response:
        """Return the name and location of a loaded model."""
        return json_response(_describe(model, await _url(links, server, model)))

    async def load(request: Request) -> Response:
        """Load a model from the folder at `url`."""
        document = control_body.read(await read_body(request, max_json))
        name, url = (_text(document.get(key), key) for key in ("model_name", "url"))
        _log.info("SageMaker loads model '%s' (%s) from '%s'", name, request.headers.get(_TARGET, name), url)
        try:
            await link(name, url)
            await server.load_model(name)
        except ModserveError as error:
            if error.code is Code.ALREADY_EXISTS:
                return json_response({"error": error.message}, 409)
            await forget_unused(name)
            raise NoModelMemoryError(error.code, error.message) if is_memory_failure(error) else error from None
        return Response(media_type=MIME_JSON)

    async def link(name: str, url: str) -> None:
        await forget_unused(name)  # left by an earlier server
        try:
            await on_thread(links.add, name, url)
        except OSError as error:
            raise from_exception(error, f"linking the files in '{url}'") from error

    async def forget_unused(name: str) -> None:
        if not _in_use(server, name) and name in await on_thread(links.urls):
            await on_thread(links.remove, name)

    async def unload(request: Request, model: str) -> Response:
        """Unload a model. Responds once it is unloaded, after `_UNLOAD_S` at the latest."""
        await _url(links, server, model)
        _log.info("SageMaker unloads model '%s' (%s)", model, request.headers.get(_TARGET, model))
        await server.unload_model(model, unload_dependents=True)
        for _ in range(round(_UNLOAD_S / _POLL_S)):
            if not _in_use(server, model):
                break
            await asyncio.sleep(_POLL_S)
        else:
            _log.warning("model '%s' still has requests %d s after SageMaker asked to unload it", model, _UNLOAD_S)
        await on_thread(links.remove, model)
        return Response(media_type=MIME_JSON)

    router.add_api_route("/models", models)
    router.add_api_route("/models", load, methods=["POST"])
    router.add_api_route("/models/{model}", model)
    router.add_api_route("/models/{model}", unload, methods=["DELETE"])
    return router


def _describe(name: str, url: str) -> dict[str, str]:
    return {"modelName": name, "modelUrl": url}


def _in_use(server: Server, name: str) -> bool:
    return any(entry.name == name and entry.state in _LOADED_STATES for entry in server.index())


async def _url(links: ModelLinks, server: Server, name: str) -> str:
    """Return the location of a loaded model. Raises NOT_FOUND."""
    url = (await on_thread(links.urls)).get(name)
    if url is None or not _in_use(server, name):
        raise not_found(f"model '{name}' is not loaded")
    return url


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(f"expected a text in '{key}'")
    return value
