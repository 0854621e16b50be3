"""Inference over HTTP: decode, submit, encode. No task, no future, no framework object."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from modserve.core.errors import ModserveError, not_found
from modserve.core.requests import request_ids
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Buffer
from modserve.frontends.call import HTTP, InferenceCall
from modserve.frontends.errors import to_client_error
from modserve.frontends.offload import in_background, inflate, is_long_response, look_ahead, outcome_of
from modserve.protocol import compression, failures
from modserve.protocol.compression import Inflater
from modserve.protocol.http import infer_response
from modserve.protocol.http.infer_body import is_long, read_request
from modserve.protocol.http.infer_request import header_length
from modserve.protocol.http.infer_response import Body
from modserve.protocol.http.json_heads import JsonHeads
from modserve.protocol.http.request_head import RequestHead
from modserve.protocol.response_form import ResponseForm
from modserve.server import Server
from modserve.settings import HttpSettings

from .wire.responses import CONTINUE

_WHAT = "an inference request"


class CallContext:
    """Shared state of all inference calls over HTTP: the server, its options, and its memory of requests."""

    __slots__ = ("heads", "limits", "max_json", "options", "server", "server_timing", "texts")

    def __init__(self, server: Server, options: HttpSettings) -> None:
        self.server = server
        self.options = options
        self.limits = options.limits
        self.max_json = options.max_json
        self.server_timing = options.server_timing
        self.heads = JsonHeads()


class InferCall(InferenceCall):
    """A request and the sink of its response: `done` is called once with its body, or the error.

    With it comes the id of the request, if it has one. It is never called before `start` returns, unless `start` itself
    fails the request.
    """

    __slots__ = ("_context", "_done", "_encoding", "_over", "_writing")

    def __init__(self, context: CallContext, done: Callable[[Body | ModserveError, str], None]) -> None:
        super().__init__(context.server, HTTP, context.server.tenant)
        self._context = context
        self._done = done
        self._over = False
        self._encoding: str | None = None
        self._writing = False
        """True while a thread writes the response, which may use the shared memory until it is done."""

    def start(self, model: str, version: int | None, head: RequestHead, body: Buffer, received_ns: int = 0) -> None:
        """Serve the request, which began to come in at `received_ns` if that is known. Never raises."""
        now_ns = time.monotonic_ns()
        context, limits = self._context, self._context.limits
        self.model = model
        self.version = version
        self._encoding = head.response_encoding
        if head.request_id:
            self.request_id = request_ids.choose(head.request_id)
        try:
            if head.version_label:
                # Without labels, such a path is none.
                version = self.version = self.server.routings.resolve_label(
                    model, head.version_label, not_found("Not Found")
                )
            servable = self.server.model(model, version)
            self.begin(servable, now_ns, received_ns, head.trace_headers)
            if head.content_encoding is not None:
                inflater = inflate(head.content_encoding, bytes(body), context.max_json, limits)
                if isinstance(inflater, Inflater):
                    self._read_on_thread(version, head, inflater)
                    return
                body = inflater
            length = None if head.header_length is None else header_length(head.header_length, len(body))
            if len(body) > limits.json and is_long(servable.config, body, length, limits.json, limits.texts):
                self._read_on_thread(version, head, body)
                return
            request, self.response_form = read_request(
                servable.config, version, head, body, length, context.max_json, now_ns, context.heads, self.lend
            )
            self.submit(request)
        except Exception as error:
            self._fail(to_client_error(error, _WHAT))

    @property
    def begun(self) -> bool:
        return False

    @property
    def filler(self) -> bytes:
        return CONTINUE

    @property
    def left(self) -> int:
        return 0

    def pause(self) -> None:
        """Do nothing: the response is written as a whole."""

    def resume(self) -> None:
        """Do nothing, as `pause`."""

    def cancel(self) -> None:
        self._over = True
        if self.inflight is not None:
            if not self._writing:
                self.release()
            self.inflight.cancel()
        if self.trace is not None:
            self.trace.end()

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        if isinstance(outcome, ModserveError):
            self._fail(outcome)
        elif not self._over:
            try:
                self._respond(outcome)
            except Exception as error:
                self._fail(to_client_error(error, _WHAT))

    def _read_on_thread(self, version: int | None, head: RequestHead, body: Buffer | Inflater) -> None:
        memory = self.borrow()
        read = partial(read_long_request, self, self._context, version, head, body, memory.take)
        in_background(read).add_done_callback(self._have_read)

    def _have_read(self, reading: "asyncio.Future[tuple[InferenceRequest, ResponseForm]]") -> None:
        try:
            outcome = outcome_of(reading, _WHAT)
            if self._over:
                self.release()
            elif isinstance(outcome, ModserveError):
                self._fail(outcome)
            else:
                request, self.response_form = outcome
                self.submit(request)
        except Exception as error:
            self._fail(to_client_error(error, _WHAT))
        finally:
            self.give_back_model()

    def _respond(self, response: InferenceResponse) -> None:
        context, response_form, encoding = self._context, self.response_form, self._encoding
        if is_long_response(response, response_form, context.limits):
            self._write_on_thread(partial(self._write_long, response))
            return
        body = self._write(response)
        if encoding is None:
            self._finish(body)
        elif sum(map(len, body.parts)) > context.limits.compressed:
            self._write_on_thread(partial(_compress, body, encoding))
        else:
            self._finish(_compress(body, encoding))

    def _write(self, response: InferenceResponse) -> Body:
        body = infer_response.encode_response(self.render(response), self.response_form)
        return replace(body, server_timing=self.cost) if self._context.server_timing else body

    def _write_long(self, response: InferenceResponse) -> Body:
        """Write the whole response, on a thread."""
        return _compress(self._write(response), self._encoding)

    def _write_on_thread(self, write: Callable[[], Body]) -> None:
        self._writing = True
        in_background(write).add_done_callback(self._have_written)

    def _have_written(self, writing: "asyncio.Future[Body]") -> None:
        self._writing = False
        outcome = outcome_of(writing, _WHAT)
        if self._over:
            self.release()
        elif isinstance(outcome, ModserveError):
            self._fail(outcome)
        else:
            self._finish(outcome)

    def _finish(self, outcome: Body | ModserveError) -> None:
        if self._over:
            return
        self._over = True
        if self.lease is not None or self.memory is not None:
            self.release()
        trace = self.trace
        if trace is None:
            self._done(outcome, self.request_id)
            return
        self.on_sending()
        self._done(outcome, self.request_id)
        self.on_sent()
        trace.end()

    def _fail(self, error: ModserveError) -> None:
        if not self._over:
            self.record_failure(error, failures.spelling(error).http)
            self._finish(error)


def read_long_request(
    call: InferenceCall,
    context: CallContext,
    version: int | None,
    head: RequestHead,
    body: Buffer | Inflater,
    reserve: Callable[[int], None],
) -> tuple[InferenceRequest, ResponseForm]:
    """Read a request on a thread, and do in advance all that would take long later. `reserve` holds memory for it."""
    if isinstance(body, Inflater):
        body = body.read_all(reserve)
    length = header_length(head.header_length, len(body))
    config = call.servable.config
    request, response_form = read_request(
        config, version, head, body, length, context.max_json, call.now_ns, context.heads, call.lend, reserve
    )
    look_ahead(request.inputs.values(), config, context.limits, reserve)
    return request, response_form


def _compress(body: Body, encoding: str | None) -> Body:
    if encoding is None:
        return body
    return replace(body, parts=[compression.encode(body.parts, encoding)], encoding=encoding)
