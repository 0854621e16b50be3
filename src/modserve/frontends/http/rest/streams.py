"""Responses that are streams, for ASGI."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from fastapi import Request
from starlette.responses import StreamingResponse

from modserve.core.errors import ModserveError
from modserve.frontends.http.exchange import Note, ResponseStream, next_message
from modserve.protocol import failures

from .disconnect import unless_disconnected


class StreamedResponse(StreamingResponse):
    """The HTTP response of a call, from its first message on. It ends early when the client goes away."""

    def __init__(self, response: ResponseStream, note: Note) -> None:
        super().__init__(self._frames(), response.status, dict(response.headers), response.framing.content_type)
        note.count = 0
        self._note = note
        self._respond = response

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with suppress(ModserveError):  # the client has gone, and reads nothing
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
                call.sending()
                frame, size = response.framing.frame(message.data), call.limits.part
                for start in range(0, len(frame), size):  # in parts, so that a slow reader is seen to read
                    yield frame[start : start + size]
                    call.sent_some()
                call.sent()
                self._note.count += 1
            if message.final:
                return
            message = await next_message(call, response.encode)
