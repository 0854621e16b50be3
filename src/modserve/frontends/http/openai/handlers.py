"""OpenAI's text generation calls, by path."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from modserve.core.errors import Code, ModserveError
from modserve.core.version import without_owner
from modserve.frontends import offload
from modserve.frontends.http.exchange import CompleteRequest, Handler, ResponseStream, WholeResponse
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.streams import HttpStream, Streams
from modserve.frontends.offload import RequestMemory
from modserve.protocol import failures, limits
from modserve.protocol.control import control_body
from modserve.protocol.http import generate
from modserve.protocol.http.infer_body import check_json_size
from modserve.protocol.limits import LIMITS
from modserve.text.chat import requests
from modserve.text.chat.choice import open_thought
from modserve.text.chat.contract import TEXT_INPUT
from modserve.text.chat.errors import TemplateError, field_error, of_engine
from modserve.text.chat.fields import STRUCTURE
from modserve.text.chat.items import ItemWriter, ResponseRequest, read_response_request
from modserve.text.chat.requests import ChatRequest, CompletionRequest, TextRequest
from modserve.text.chat.responses import ChatWriter, CompletionWriter, OpenAIWriter
from modserve.text.openai_errors import RequestFieldError, error_body

from .generation import stream_response, submit, whole_response
from .text_models import TextModels

_CHAT_FIELDS: Mapping[str, str] = {TEXT_INPUT: "messages"}
_COMPLETION_FIELDS: Mapping[str, str] = {TEXT_INPUT: "prompt"}
_RESPONSE_FIELDS: Mapping[str, str] = {TEXT_INPUT: "input", "max_tokens": "max_output_tokens"}
"""Request fields by the engine's field name, where the names differ."""

T = TypeVar("T", ChatRequest, CompletionRequest, ResponseRequest)


@dataclass(frozen=True, slots=True)
class _Surface:
    context: CallContext
    streams: Streams
    models: TextModels


def handlers(context: CallContext, streams: Streams) -> Mapping[str, Handler]:
    """Return the handlers by path."""
    surface = _Surface(context, streams, TextModels(context.server, context.limits))

    async def chat_completions(request: CompleteRequest) -> WholeResponse | ResponseStream:
        name, fields = "", _CHAT_FIELDS
        try:
            chat, size = await _read(context, request, requests.read_chat)
            name, fields = chat.text.model, _fields(_CHAT_FIELDS, chat.text)
            return await _converse(surface, request, chat, size, lambda id: ChatWriter(id, chat.text))
        except ModserveError as error:
            return failure_response(context, request, of_engine(error, fields), name)

    async def completions(request: CompleteRequest) -> WholeResponse | ResponseStream:
        name, fields = "", _COMPLETION_FIELDS
        try:
            completion, _ = await _read(context, request, requests.read_completion)
            name, fields = completion.text.model, _fields(_COMPLETION_FIELDS, completion.text)
            return await _complete(surface, request, completion)
        except ModserveError as error:
            return failure_response(context, request, of_engine(error, fields), name)

    async def responses(request: CompleteRequest) -> WholeResponse | ResponseStream:
        name, fields = "", _RESPONSE_FIELDS
        try:
            read, size = await _read(context, request, read_response_request)
            name, fields = read.chat.text.model, _fields(_RESPONSE_FIELDS, read.chat.text)
            return await _converse(surface, request, read.chat, size, lambda id: ItemWriter(id, read))
        except ModserveError as error:
            return failure_response(context, request, of_engine(error, fields), name)

    calls: dict[str, Handler] = {
        "/chat/completions": chat_completions,
        "/completions": completions,
        "/responses": responses,
    }
    return {prefix + path: call for path, call in calls.items() for prefix in ("/v1", "/openai/v1")}


def _fields(usual: Mapping[str, str], text: TextRequest) -> Mapping[str, str]:
    """Return the field names for `of_engine`. Schemas enforced by `tool_choice` are in the tools."""
    field = text.structure_field
    return {**usual, STRUCTURE: "tools" if field == "tool_choice" else field}


def _begin(surface: _Surface, request: CompleteRequest, text: TextRequest, from_prompt: bool) -> HttpStream:
    """Return the call for the requested model; by default, the only model."""
    text.model = text.model or surface.models.only(from_prompt)
    return surface.streams.begin(request.note, request.head.trace_headers, without_owner(text.model), None)


async def _converse(
    surface: _Surface, request: CompleteRequest, chat: ChatRequest, size: int, writer_of: Callable[[str], OpenAIWriter]
) -> WholeResponse | ResponseStream:
    """Return the response to a conversation of `size` bytes; `writer_of` makes the writer for its id."""
    text = chat.text
    call = _begin(surface, request, text, False)
    try:
        model = await surface.models.of(call.servable)
        model.check(text)
        prompt = await surface.models.prompt(model, chat, size)
        tokenizer = await surface.models.tokenizer(model, text, call.tenant)
        templated = model.template is not None
        close = open_thought(prompt, chat.continued) if templated else ""
        generation = await submit(
            surface.streams, request, call, model.contract, text, [prompt], tokenizer, chat.tools, templated, close
        )
    except BaseException:
        call.close()
        raise
    writer = writer_of(call.identify())
    if text.stream:
        return await stream_response(generation, writer)
    return await whole_response(surface.context, generation, writer)


async def _complete(
    surface: _Surface, request: CompleteRequest, completion: CompletionRequest
) -> WholeResponse | ResponseStream:
    text, prompts = completion.text, completion.prompts
    call = _begin(surface, request, text, True)
    try:
        model = await surface.models.of(call.servable)
        model.check(text)
        if model.contract.takes_messages:
            raise field_error("model", f"model '{text.model}' takes messages only: use chat/completions")
        tokenizer = await surface.models.tokenizer(model, text, call.tenant)
        generation = await submit(surface.streams, request, call, model.contract, text, prompts, tokenizer)
    except BaseException:
        call.close()
        raise
    echoes = [prompt for prompt in prompts for _ in range(text.choices)] if completion.echo else ()
    writer = CompletionWriter(call.identify(), text, echoes)
    if text.stream:
        return await stream_response(generation, writer)
    return await whole_response(surface.context, generation, writer)


async def _read(
    context: CallContext, request: CompleteRequest, read: Callable[[Mapping[str, Any]], T]
) -> tuple[T, int]:
    """Return the request, and the size of its body in bytes. Long bodies are read on a thread."""
    coding, body = request.head.content_encoding, request.body
    generate.check_encoding(None if coding is None else coding.decode("latin-1"))
    check_json_size(len(body), context.max_json)
    if len(body) > LIMITS.parsed_parts:
        limits.check_parts(limits.count_parts(body))
    if len(body) <= context.limits.json:
        return read(control_body.read(body, most_parts=None)), len(body)
    memory = RequestMemory(context.server.memory, asyncio.get_running_loop())

    def read_long() -> T:
        memory.take(limits.estimate_size(body))
        return read(control_body.read(body, most_parts=None))

    try:
        return await offload.on_thread(read_long), len(body)
    finally:
        memory.release()


def failure_response(context: CallContext, request: CompleteRequest, error: ModserveError, model: str) -> WholeResponse:
    """Return a failure of a request for `model`, in OpenAI's format."""
    status, message = failures.spelling(error).http, failures.public_message(error)
    if error.code is not Code.CANCELLED:  # the client has disconnected
        # The log gets no part of the conversation, its tools or formats.
        logged = error.summary if isinstance(error, TemplateError | RequestFieldError) else error.message
        note = request.note
        context.server.failure_log.record("HTTP", model, None, "", status, logged, note.request_id, note.origin)
    document = error_body(error, status, message)
    return WholeResponse(orjson.dumps(document), status, tuple(failures.headers(error).items()))
