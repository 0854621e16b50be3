"""One inference over HTTP: decode, submit, encode. No task, no future, no framework object."""

import asyncio
import logging
import time
from collections.abc import Callable

from modserve.core.errors import ModserveError, internal, invalid
from modserve.core.inflight import Inflight
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse
from modserve.core.servable import Servable
from modserve.protocol import http_infer
from modserve.protocol.http_infer import Body, Reply
from modserve.server import Server

_log = logging.getLogger(__name__)

_LARGE_JSON = 256 * 1024
"""Longer JSON is decoded on a thread, so that the other connections do not wait for it."""


class InferCall:
    """One request, and the sink of its answer: `done` is called once with its body, or the error.

    It is never called before `start` returns, unless `start` itself fails the request.
    """

    __slots__ = ("_done", "_inflight", "_over", "_reply")

    def __init__(self, done: Callable[[Body | ModserveError], None]) -> None:
        self._done = done
        self._inflight: Inflight | None = None
        self._reply = Reply()
        self._over = False

    def start(
        self,
        server: Server,
        model: str,
        version: int | None,
        body: bytes,
        header_length: bytes | None,
        max_json: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Take the request. Never raises."""
        now_ns = time.monotonic_ns()
        try:
            servable = server.model(model, version)
            json_length = http_infer.header_length(header_length, len(body))
            check_json_size(len(body) if json_length is None else json_length, max_json)
            if (len(body) if json_length is None else json_length) > _LARGE_JSON:
                decoding = loop.run_in_executor(
                    None, http_infer.decode_request, model, version, body, json_length, now_ns
                )
                decoding.add_done_callback(lambda future: self._decoded(servable, future, now_ns))
                return
            request, self._reply = http_infer.decode_request(model, version, body, json_length, now_ns)
            self._inflight = servable.submit(request, self, now_ns)
        except Exception as error:
            self._finish(border(error))

    def cancel(self) -> None:
        """The client has gone; nothing is said any more."""
        self._over = True
        if self._inflight is not None:
            self._inflight.cancel()

    def respond(self, response: InferenceResponse, final: bool) -> None:
        if self._over:
            return
        try:
            self._finish(http_infer.encode_response(response, self._reply))
        except Exception as error:
            self._finish(border(error))

    def fail(self, error: ModserveError) -> None:
        self._finish(error)

    def _decoded(
        self, servable: Servable, decoding: "asyncio.Future[tuple[InferenceRequest, Reply]]", now_ns: int
    ) -> None:
        if self._over:
            decoding.exception()  # looked at, so that nobody warns of it
            return
        try:
            request, self._reply = decoding.result()
            self._inflight = servable.submit(request, self, now_ns)
        except Exception as error:
            self._finish(border(error))

    def _finish(self, outcome: Body | ModserveError) -> None:
        if not self._over:
            self._over = True
            self._done(outcome)


def check_json_size(size: int, limit: int) -> None:
    """Raises INVALID_ARG for more JSON than the server's limit."""
    if size > limit:
        raise invalid(
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )


def border(error: Exception) -> ModserveError:
    """What the client is told of any failure; an unforeseen one is logged, and is ours."""
    if isinstance(error, ModserveError):
        return error
    _log.error("an inference request failed unforeseen", exc_info=error)
    return internal(f"unforeseen {type(error).__name__}: {error}")
