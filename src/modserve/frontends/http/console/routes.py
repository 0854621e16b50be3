"""Calls of the web console only. Not in the OpenAPI document."""

import asyncio
import importlib
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from modserve.core.errors import ModserveError
from modserve.frontends.http.rest.messages import json_response, new_router
from modserve.frontends.http.rest.streams import unless_disconnected
from modserve.protocol.http.framing import EVENTS
from modserve.server import Server
from modserve.settings import HttpSettings

from . import page
from .counters import CounterReader
from .sampler import Page, Sampler

_CREDENTIALS = ("authorization", "x-api-key")
_NO_STORE = {"Cache-Control": "no-store"}


class EventStream(StreamingResponse):
    """Event stream of one page, until the browser disconnects or the server stops."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._page = sampler.open()
        super().__init__(_events(self._page), headers=_NO_STORE, media_type=EVENTS.content_type)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with suppress(ModserveError):  # the browser has disconnected
                await unless_disconnected(Request(scope, receive), self.stream_response(send))
        finally:
            self._sampler.close(self._page)


async def _events(page: Page) -> Any:
    while event := await page.next():
        yield event


def sampler(server: Server) -> Sampler:
    """Return a sampler of this server's figures, and of the other workers'."""
    reader = CounterReader(server)
    return Sampler(server, lambda: server.reading(reader.read))


def router(server: Server, options: HttpSettings) -> APIRouter:
    """Return the console's page and its calls."""
    router = new_router(include_in_schema=False, prefix="/console")
    figures = sampler(server)
    readers: list[Any] = []

    async def reader() -> Any:
        if not readers:
            module = await asyncio.to_thread(importlib.import_module, f"{__package__}.peers")
            readers.append(module.PeerReader(server, options.peers))
        return readers[0]

    @router.get("")
    async def console() -> Response:
        """Return the page of the root path; for servers with a restricted root."""
        return page.response()

    @router.get("/about")
    async def about() -> Response:
        """Return restrictions, model control mode and presence of peers; refusals reveal no less."""
        restricted = {category: each.name for category, each in options.restrictions.items()}
        return json_response(
            {"restricted": restricted, "model_control": server.control_mode, "peers": bool(options.peers)}
        )

    @router.get("/peers")
    async def peers(request: Request) -> Response:
        """Return a row for each server of ``--peers``."""
        credentials = {name: value for name in _CREDENTIALS if (value := request.headers.get(name))}
        return json_response(await (await reader()).rows(credentials))

    @router.get("/events")
    async def events() -> Response:
        """Stream figures as server-sent events, once a second."""
        return EventStream(figures)

    @router.get("/failures")
    async def failures() -> Response:
        """Return the latest failed requests, newest first, with similar failures combined."""
        return json_response(await server.failures())

    @router.get("/texts/{model}")
    async def texts(model: str) -> Response:
        """Describe the text calls that a model supports."""
        from .texts import text_json  # imported with the first model that is viewed

        return json_response(await text_json(server, model))

    return router
