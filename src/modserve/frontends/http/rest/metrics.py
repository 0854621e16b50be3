"""Where the metrics are, for those who look for them at the HTTP port."""

from fastapi import APIRouter, Response

from modserve.server import Server

from .messages import json_response, new_router


def router(server: Server) -> APIRouter:
    router = new_router(include_in_schema=False)

    @router.get("/metrics")
    async def metrics() -> Response:
        place = server.metrics_place
        where = f"at {place}" if place else "nowhere, since they are switched off (--allow-metrics)"
        return json_response({"error": f"Not Found: the metrics of this server are {where}"}, 404)

    return router
