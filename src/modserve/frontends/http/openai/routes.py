"""The routes of OpenAI's API: below ``/openai/v1``, and those that generate text below ``/v1``, too."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from modserve.core.errors import Code, ModserveError
from modserve.frontends import offload
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.rest.identified import note_of
from modserve.frontends.http.rest.messages import DirectRoute, json_response, new_router, read_body
from modserve.frontends.http.rest.schemas import FAILURES, body_of, errors_of, response_of
from modserve.frontends.http.rest.streams import Streams
from modserve.frontends.http.rest.tags import TEXT
from modserve.frontends.offload import RequestMemory
from modserve.protocol import failures, limits
from modserve.protocol.control import control_body
from modserve.protocol.http import generate
from modserve.protocol.limits import LIMITS
from modserve.text.chat import requests
from modserve.text.chat.errors import TemplateError, error_document, field_error
from modserve.text.chat.item_requests import ResponseRequest, read_response_request
from modserve.text.chat.item_writer import ItemWriter
from modserve.text.chat.requests import ChatRequest, CompletionRequest
from modserve.text.chat.responses import ChatWriter, CompletionWriter, OpenAIWriter

from .generation import streamed_response, submit, whole_response
from .models import list_json, model_json
from .text_models import TextModels

T = TypeVar("T", ChatRequest, CompletionRequest, ResponseRequest)


@dataclass(frozen=True, slots=True)
class _Surface:
    context: CallContext
    streams: Streams
    models: TextModels


def router(context: CallContext, streams: Streams) -> APIRouter:
    """The routes."""
    server, surface = context.server, _Surface(context, streams, TextModels(context.server, context.limits))
    router = new_router(TEXT)

    async def chat_completions(request: Request) -> Response:
        """Answer a conversation with a model that generates text, as OpenAI's API does; `stream` for events."""
        return await _answered(context, request, lambda: _chat(surface, request))

    async def completions(request: Request) -> Response:
        """Continue a text with a model that generates text, as OpenAI's API does; `stream` for events."""
        return await _answered(context, request, lambda: _complete(surface, request))

    async def responses(request: Request) -> Response:
        """Answer a conversation of items with a model that generates text, as OpenAI's API does; nothing is stored."""
        return await _answered(context, request, lambda: _respond(surface, request))

    async def models() -> Response:
        """The READY models that take text."""
        return json_response(await list_json(server))

    async def model(request: Request, model: str) -> Response:
        """One model, if it is READY."""

        async def known() -> Response:
            server.model(model)
            return json_response(model_json(model))

        return await _answered(context, request, known)

    failures_of = errors_of(*FAILURES, body="OpenAIErrorAnswer")
    for path, handler, body, answer in (
        ("/chat/completions", chat_completions, "ChatRequestBody", "ChatResponseBody"),
        ("/completions", completions, "CompletionRequestBody", "ChatResponseBody"),
        ("/responses", responses, "ItemsRequestBody", "ItemsResponseBody"),
    ):
        options: dict[str, Any] = {
            "methods": ["POST"],
            "responses": {200: response_of(answer), **failures_of},
            "openapi_extra": body_of(body),
            "route_class_override": DirectRoute,
        }
        for prefix in ("/v1", "/openai/v1"):
            router.add_api_route(prefix + path, handler, **options)
    router.add_api_route("/openai/v1/models", models, responses={200: response_of("OpenAIModels")})
    one = {200: response_of("OpenAIModel"), **errors_of(404, 503, body="OpenAIErrorAnswer")}
    router.add_api_route("/openai/v1/models/{model}", model, responses=one)
    return router


async def _chat(surface: _Surface, request: Request) -> Response:
    chat, size = await _read(surface.context, request, requests.read_chat)
    return await _converse(surface, request, chat, size, lambda id: ChatWriter(id, chat.text))


async def _respond(surface: _Surface, request: Request) -> Response:
    read, size = await _read(surface.context, request, read_response_request)
    return await _converse(surface, request, read.chat, size, lambda id: ItemWriter(id, read))


async def _converse(
    surface: _Surface, request: Request, chat: ChatRequest, size: int, writer_of: Callable[[str], OpenAIWriter]
) -> Response:
    """The response to a conversation of `size` bytes, by the writer for its id."""
    text = chat.text
    request.path_params["model"] = text.model  # as in calls that have it in their path
    with surface.streams.begin(request, text.model, None) as call:
        model = await surface.models.of(call.servable)
        model.check(text)
        prompt = await surface.models.prompt(model, chat, size)
        context, streams = surface.context, surface.streams
        generation = await submit(context, streams, request, call, model.contract, text, [prompt], chat.tools)
    writer = writer_of(call.identify())
    if text.stream:
        return await streamed_response(request, generation, writer)
    return await whole_response(context, request, generation, writer)


async def _complete(surface: _Surface, request: Request) -> Response:
    completion, _ = await _read(surface.context, request, requests.read_completion)
    text, prompts = completion.text, completion.prompts
    request.path_params["model"] = text.model
    with surface.streams.begin(request, text.model, None) as call:
        model = await surface.models.of(call.servable)
        model.check(text)
        if model.contract.takes_messages:
            raise field_error("model", f"model '{text.model}' takes messages only: use chat/completions")
        context, streams = surface.context, surface.streams
        generation = await submit(context, streams, request, call, model.contract, text, prompts)
    echoes = [prompt for prompt in prompts for _ in range(text.choices)] if completion.echo else ()
    writer = CompletionWriter(call.identify(), text, echoes)
    if text.stream:
        return await streamed_response(request, generation, writer)
    return await whole_response(context, request, generation, writer)


async def _read(context: CallContext, request: Request, read: Callable[[Mapping[str, Any]], T]) -> tuple[T, int]:
    """The request, and the size of its body in bytes. A long body is read on a thread."""
    generate.check_encoding(request.headers.get("content-encoding"))
    body = await read_body(request, context.max_json)
    if len(body) > LIMITS.parsed_parts:
        limits.check_parts(limits.count_parts(body))
    if len(body) <= context.limits.json:
        return read(control_body.read(body, most_parts=None)), len(body)
    memory = RequestMemory(context.server.memory, asyncio.get_running_loop())

    def read_long() -> T:
        memory.take(limits.parsed_size(body))
        return read(control_body.read(body, most_parts=None))

    try:
        return await offload.on_thread(read_long), len(body)
    finally:
        memory.release()


async def _answered(context: CallContext, request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    """The response, or the failure as OpenAI's clients read it."""
    try:
        return await work()
    except ModserveError as error:
        if error.code is Code.CANCELLED:
            raise
        status, message = failures.spelling(error).http, failures.public_message(error)
        model = request.path_params.get("model", "")
        logged = error.summary if isinstance(error, TemplateError) else error.message  # nothing of the conversation
        context.server.failure_log.record("HTTP", model, None, "", status, logged, note_of(request).request_id)
        response = json_response(error_document(error, status, message), status)
        response.headers.update(failures.headers(error))
        return response
