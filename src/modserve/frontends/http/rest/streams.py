"""Framework-independent calls as FastAPI handlers: streamed responses, and cancellation when clients disconnect."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from modserve.core.errors import ModserveError, cancelled
from modserve.frontends.http.exchange import (
    CompleteRequest,
    Handler,
    RequestInfo,
    ResponseStream,
    WholeResponse,
    next_message,
)
from modserve.protocol import compression, failures
from modserve.settings import HttpSettings

from .identified import request_info
from .messages import infer_head

T = TypeVar("T")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the outcome of `work`; cancel it when the client of `request`, a request with a read body, disconnects.

    A cancelled call raises CANCELLED, which no client sees.
    """
    outcome = await _outcome_unless_disconnected(request, work)
    if not isinstance(outcome, _Failure):
        return outcome
    try:
        raise outcome.error
    finally:  # its traceback refers to this frame
        del outcome


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.error = error


async def _outcome_unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> "T | _Failure":
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(_outcome(work))
        watching = tasks.create_task(_cancel_when_disconnected(request, running))
        running.add_done_callback(lambda _: watching.cancel())
    return _Failure(cancelled()) if running.cancelled() else running.result()


async def _outcome(work: Coroutine[Any, Any, T]) -> T | _Failure:
    """Return the outcome with errors as values: a task group would wrap them."""
    try:
        return await work
    except Exception as error:
        return _Failure(error)


async def _cancel_when_disconnected(request: Request, running: "asyncio.Task[Any]") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    running.cancel()


class StreamedResponse(StreamingResponse):
    """HTTP response of a streaming call, from its first message. Ends early when the client disconnects."""

    def __init__(self, response: ResponseStream, note: RequestInfo) -> None:
        super().__init__(self._frames(), response.status, dict(response.headers), response.framing.content_type)
        note.count = 0
        self._note = note
        self._respond = response

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with suppress(ModserveError):  # the client has disconnected
                await unless_disconnected(Request(scope, receive), self.stream_response(send))
        finally:
            self._respond.call.close()

    async def _frames(self) -> AsyncIterator[bytes]:
        response = self._respond
        call, message = response.call, response.first
        while True:
            if message.error is not None:
                call.record_failure(message.error, failures.spelling(message.error).http)
            if message.data:
                call.on_sending()
                frame, size = response.framing.frame(message.data), call.limits.part
                for start in range(0, len(frame), size):  # in parts, to notice that a slow client reads
                    yield frame[start : start + size]
                    call.on_part_sent()
                call.on_sent()
                self._note.count += 1
            if message.final:
                return
            message = await next_message(call, response.encode)


def endpoint(call: Handler, options: HttpSettings) -> Callable[[Request], Awaitable[Response]]:
    """Return a route's handler, which reads the request itself and cancels `call` if the client disconnects."""

    async def handle(request: Request) -> Response:
        complete = await complete_request(request, options)
        return response_to(request, await unless_disconnected(request, call(complete)))

    return handle


def model_endpoint(call: Handler, options: HttpSettings) -> Callable[[Request, str, int | None], Awaitable[Response]]:
    """Return the handler of a route with a model name in its path; otherwise like `endpoint`."""

    async def handle(request: Request, model: str, version: int | None = None) -> Response:
        complete = await complete_request(request, options)
        complete.head.model, complete.head.model_version = model, version
        return response_to(request, await unless_disconnected(request, call(complete)))

    return handle


async def complete_request(request: Request, options: HttpSettings) -> CompleteRequest:
    """Return the completely received request."""
    encoding = compression.choose(", ".join(request.headers.getlist("accept-encoding")))
    return CompleteRequest(infer_head(request, options, encoding), await request.body(), request_info(request))


def response_to(request: Request, response: WholeResponse | ResponseStream) -> Response:
    """Return the ASGI response for the client of `request`."""
    if isinstance(response, ResponseStream):
        return StreamedResponse(response, request_info(request))
    return Response(response.body, response.status, dict(response.headers), response.content_type)
