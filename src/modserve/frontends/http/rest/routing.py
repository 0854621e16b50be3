"""The calls about the routing between the versions of a model: an extension of ours."""

from fastapi import APIRouter, Request, Response

from modserve.protocol.control import control_body
from modserve.server import Server

from .messages import json_response, new_router, read_body
from .schemas import SCHEMAS, body_of, responses_of

_PATH = "/v2/models/{model}/routing"


def router(server: Server, max_json: int) -> APIRouter:
    router = new_router("routing")

    async def routing(model: str) -> Response:
        """How requests that name no version are divided between the model's versions, and what came of it."""
        return json_response(await server.routing(model))

    async def change(request: Request, model: str) -> Response:
        """Set the whole routing, in place of the one there is; null deletes it."""
        body = await read_body(request, max_json)
        if body.strip() == b"null":
            return await _delete(model)
        await server.set_routing(model, control_body.read(body))
        return json_response(await server.routing(model))

    async def delete(model: str) -> Response:
        """Go back to the routing of the model's configuration, if it has one."""
        return await _delete(model)

    async def _delete(model: str) -> Response:
        await server.set_routing(model, None)
        return json_response({})

    report = responses_of("RoutingReport", 400, 404, 503)
    router.add_api_route(_PATH, routing, responses=report)
    router.add_api_route(_PATH, change, methods=["POST"], responses=report, openapi_extra=body_of(SCHEMAS["Routing"]))
    router.add_api_route(_PATH, delete, methods=["DELETE"], responses=responses_of("object", 404, 503))
    return router
