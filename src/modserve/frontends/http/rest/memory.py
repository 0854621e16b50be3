"""``GET /v2/memory``: which models are in memory, and how large they are. An addition of ours."""

from fastapi import APIRouter, Response

from modserve.protocol.control import memory
from modserve.server import Server

from .messages import json_response, new_router
from .schemas import responses_of


def router(server: Server) -> APIRouter:
    router = new_router("metadata")

    @router.get("/v2/memory", responses=responses_of("ModelMemory", 503))
    async def model_memory() -> Response:
        """Which models are in memory, how large each is, and what they may hold together."""
        return json_response(memory.json(server.model_memory(), server.models()))

    return router
