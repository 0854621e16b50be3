"""The trace extension's routes."""

from fastapi import APIRouter, Request, Response

from modserve.protocol.control import trace_settings
from modserve.server import Server

from .messages import json_response, read_body
from .schemas import Described, json_body, responses_of


class TraceSettings(Described):
    """Numbers are strings."""

    trace_level: list[str]
    trace_rate: str
    trace_count: str
    log_frequency: str
    trace_file: str
    trace_mode: str


def router(server: Server, max_json: int) -> APIRouter:
    """Settings of all models and of one."""
    routes = APIRouter()

    async def settings(model: str = "") -> Response:
        """Which requests are traced, and what of them."""
        return json_response(trace_settings.json(server.tracer_for(model).settings(model)))

    async def change(request: Request, model: str = "") -> Response:
        """Change any of the settings, at once; null removes a setting of its own. The response has all of them."""
        tracer = server.tracer_for(model)
        tracer.change(trace_settings.change_by_json(await read_body(request, max_json)), model)
        return json_response(trace_settings.json(tracer.settings(model)))

    # Two functions a path: a model's name comes from the path alone, not from the query of the other one.
    @routes.get("/v2/trace/setting", responses=responses_of(TraceSettings))
    async def trace_settings_of_all() -> Response:
        """The settings of all models that have none of their own."""
        return await settings()

    @routes.post(
        "/v2/trace/setting",
        responses=responses_of(TraceSettings, 400, 501),
        openapi_extra=json_body(*TraceSettings.model_fields),
    )
    async def change_trace_settings_of_all(request: Request) -> Response:
        """Change settings of all models that have none of their own; null goes back to those of the start."""
        return await change(request)

    path = "/v2/models/{model}/trace/setting"
    routes.add_api_route(path, settings, methods=["GET"], responses=responses_of(TraceSettings, 400))
    routes.add_api_route(
        path,
        change,
        methods=["POST"],
        responses=responses_of(TraceSettings, 400, 501),
        openapi_extra=json_body(*TraceSettings.model_fields),
    )
    return routes
