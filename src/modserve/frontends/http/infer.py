"""One inference over HTTP: decode, submit, encode. No task, no future, no framework object."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

from modserve.core import dtypes
from modserve.core.errors import ModserveError, internal, invalid
from modserve.core.inflight import Inflight
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse, SingleResponseSink
from modserve.core.servable import Handle, Servable, submit_traced
from modserve.core.shared_memory import Lend, RegionLease
from modserve.core.tensor import LONG_BYTES, Buffer, count_ahead, digest_ahead, long_texts
from modserve.core.tracing import RequestTrace
from modserve.frontends.threads import RequestMemory
from modserve.protocol import classification, compression, failures, header_forwarding, shared_memory
from modserve.protocol.classification import MANY_ELEMENTS
from modserve.protocol.compression import Inflater
from modserve.protocol.http import deadlines, infer_request, infer_response, server_timing
from modserve.protocol.http.infer_request import Reply
from modserve.protocol.http.infer_response import Body
from modserve.server import Server

from . import tracing
from .options import HttpOptions
from .wire.head import RequestHead

_log = logging.getLogger(__name__)

LARGE_JSON = 256 * 1024
"""Longer JSON is decoded on a thread, so that the other connections do not wait for it."""


_LONG_TO_DECOMPRESS = 16 * 1024
_FROM_JSON = 4
"""Bytes of tensors that come of a byte of JSON, at most: ``1,`` may be a number of 64 bits."""
_TEXT = 64
"""Bytes that each element of BYTES takes beside its own once an engine reads it."""
_LONG_TO_COMPRESS = 16 * 1024


class InferCall(SingleResponseSink):
    """One request, and the sink of its answer: `done` is called once with its body, or the error.

    It is never called before `start` returns, unless `start` itself fails the request.
    """

    __slots__ = (
        "_done",
        "_encoding",
        "_inflight",
        "_lease",
        "_loop",
        "_memory",
        "_over",
        "_reply",
        "_servable",
        "_server",
        "_timed",
        "_trace",
        "_writing",
    )

    def __init__(self, done: Callable[[Body | ModserveError], None]) -> None:
        super().__init__()
        self._done = done
        self._inflight: Inflight | None = None
        self._reply = Reply()
        self._servable: Servable | None = None
        self._over = False
        self._encoding: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._lease: RegionLease | None = None
        """Of requests with tensors in shared memory."""
        self._memory: RequestMemory | None = None
        """Of requests that are read on a thread."""
        self._trace: RequestTrace | None = None
        self._timed = False
        self._writing = False
        """On a thread, which may use the shared memory until it is done."""

    def start(
        self,
        server: Server,
        model: str,
        version: int | None,
        head: RequestHead,
        body: Buffer,
        options: HttpOptions,
        loop: asyncio.AbstractEventLoop,
        received_ns: int = 0,
    ) -> None:
        """Take the request, which began to come in at `received_ns` if that is known. Never raises."""
        now_ns = time.monotonic_ns()
        self._encoding = head.response_encoding
        self._loop = loop
        self._server = server
        self._timed = options.server_timing
        request: InferenceRequest | None = None
        try:
            servable = self._servable = server.model(model, version)
            if server.tracer.on:
                self._trace = tracing.begun(server, servable, received_ns or now_ns, now_ns)
            opened: Buffer | Inflater = body
            if head.content_encoding is not None:
                opened = inflated(head.content_encoding, bytes(body), options.max_json)
            if is_long(servable, head, opened):
                self._memory = RequestMemory(server.memory, loop)
                reading = loop.run_in_executor(
                    None, read_request, servable, version, head, opened, options, now_ns, self._lend, self._memory.take
                )
                borrowed = server.borrow(model, version)
                reading.add_done_callback(lambda future: self._submit(borrowed, future, now_ns))
                return
            request, self._reply = read_request(servable, version, head, opened, options, now_ns, self._lend)
            if self._trace is None:
                self._inflight = servable.submit(request, self, now_ns)
            else:
                self._inflight = submit_traced(self._trace, servable, request, self, now_ns)
        except Exception as error:
            self._fail(border(error), model, version, "" if request is None else request.id)

    def cancel(self) -> None:
        """The client has gone; nothing is said any more."""
        self._over = True
        if self._inflight is not None:
            if not self._writing:
                self._release()
            self._inflight.cancel()
        if self._trace is not None:
            self._trace.end()

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        if isinstance(outcome, ModserveError):
            self._fail_later(outcome)
        else:
            self._answer(outcome)
        if self._inflight is not None:
            self._inflight.cancel()  # a decoupled model may want to say more

    def _answer(self, response: InferenceResponse) -> None:
        if self._over:
            return
        try:
            if is_long_to_write(response, self._reply):
                self._on_thread(lambda: _compressed(self._written(response), self._encoding))
                return
            body = self._written(response)
            if self._encoding is not None and sum(map(len, body.parts)) > _LONG_TO_COMPRESS:
                self._on_thread(lambda: _compressed(body, self._encoding))
            else:
                self._finish(_compressed(body, self._encoding))
        except Exception as error:
            self._fail_later(border(error))

    def _written(self, response: InferenceResponse) -> Body:
        if self._reply.places:
            assert self._lease is not None, "there are places of outputs only with a lease: this is a bug"
            response = shared_memory.moved(response, self._reply.places, self._lease)
        if self._reply.classes:
            assert self._servable is not None, "set before the request was submitted: this is a bug"
            response = classification.classified(response, self._reply.classes, self._servable)
        body = infer_response.encode_response(response, self._reply)
        if self._timed and self._inflight is not None:
            body = replace(body, server_timing=server_timing.value(self._inflight))
        return body

    def _on_thread(self, write: Callable[[], Body]) -> None:
        assert self._loop is not None, "set before the request was submitted: this is a bug"

        def written(writing: "asyncio.Future[Body]") -> None:
            self._writing = False
            failure = writing.exception()
            if self._over:
                self._release()
                return
            if failure is None:
                self._finish(writing.result())
            else:
                self._fail_later(border(failure))

        self._writing = True
        self._loop.run_in_executor(None, write).add_done_callback(written)

    def _submit(self, borrowed: Handle, reading: "asyncio.Future[tuple[InferenceRequest, Reply]]", now_ns: int) -> None:
        """What was read on a thread goes on here, also if its model has been replaced meanwhile."""
        request: InferenceRequest | None = None
        try:
            # Not raised here: the traceback would have this frame, and that has `reading`, which has the exception.
            failure = reading.exception()
            if self._over:
                self._release()
                return
            if failure is not None:
                self._fail_later(border(failure))
                return
            request, self._reply = reading.result()
            if self._trace is None:
                self._inflight = borrowed.servable.submit(request, self, now_ns)
            else:
                self._inflight = submit_traced(self._trace, borrowed.servable, request, self, now_ns)
        except Exception as error:
            self._fail_later(border(error), "" if request is None else request.id)
        finally:
            borrowed.release()

    def _finish(self, outcome: Body | ModserveError) -> None:
        if not self._over:
            self._over = True
            self._release()
            if self._trace is None:
                self._done(outcome)
                return
            self._trace.stamp("HTTP_SEND_START")
            self._done(outcome)
            self._trace.stamp("HTTP_SEND_END")
            self._trace.end()

    def _fail_later(self, error: ModserveError, request_id: str = "") -> None:
        """A request that reached its model, or was read on a thread."""
        assert self._servable is not None, "set before the request was read: this is a bug"
        inflight = self._inflight
        model = self._servable.id
        self._fail(error, model.name, model.version, request_id if inflight is None else inflight.request.id)

    def _fail(self, error: ModserveError, model: str, version: int | None, request_id: str) -> None:
        if not self._over:
            assert self._server is not None, "set first of all: this is a bug"
            status = failures.spelling(error).http
            self._server.failure_log.record("HTTP", model, version, request_id, status, error.message)
            self._finish(error)

    def _lend(self) -> RegionLease:
        assert self._server is not None, "set before the request was read: this is a bug"
        lease = self._lease = self._server.shared_memory.lease()
        return lease

    def _release(self) -> None:
        """What memory there was, shared or not, is no longer used: called before the client can hear of the end."""
        if self._lease is not None:
            self._lease.release()
        if self._memory is not None:
            self._memory.release()


def inflated(encoding: bytes, body: bytes, limit: int) -> bytes | Inflater:
    """The body as it was before its ``Content-Encoding``, if that is soon known; a long one is left to a thread."""
    begun = compression.begin(body, encoding.decode("latin-1"), limit)
    if isinstance(begun, Inflater) and len(body) <= _LONG_TO_DECOMPRESS:
        whole = begun.read(LARGE_JSON)
        return begun if whole is None else whole
    return begun


def is_long(servable: Servable, head: RequestHead, body: Buffer | Inflater) -> bool:
    """Whether reading the body takes so long that the other connections should not wait for it."""
    if isinstance(body, Inflater):
        return True
    if len(body) <= LARGE_JSON:
        return False
    if servable.config.cached:  # a hash is reckoned of all of it
        return True
    length = infer_request.header_length(head.header_length, len(body))
    # Binary data is only looked at later, but texts are counted.
    if length is None or length > LARGE_JSON:
        return True
    return len(body) - length > LONG_BYTES and b'"BYTES"' in bytes(body[:length])


def read_request(
    servable: Servable,
    version: int | None,
    head: RequestHead,
    body: Buffer | Inflater,
    options: HttpOptions,
    now_ns: int,
    lend: Lend,
    take: Callable[[int], None] | None = None,
) -> tuple[InferenceRequest, Reply]:
    """The request in a body, and how its answer is to look. Raises what is wrong with it; `lend` may be called.

    `take` is called with the bytes of memory that are needed next, on a thread, where long requests are read.
    """
    if isinstance(body, Inflater):
        body = body.read_all() if take is None else body.read_all(take)
    length = infer_request.header_length(head.header_length, len(body))
    json_size = len(body) if length is None else length
    check_json_size(json_size, options.max_json)
    if take is not None and json_size > LARGE_JSON:
        take(_FROM_JSON * json_size)
    config = servable.config
    deadline_ns = deadlines.deadline_ns(head.timeouts, now_ns)
    if length == 0:
        _check_raw_size(len(body), options.max_json)
        request, reply = infer_request.decode_raw(config, version, body, deadline_ns)
    else:
        name, limit = config.name, options.max_json
        request, reply = infer_request.decode_request(name, version, body, length, deadline_ns, lend, limit)
        if len(body) > LONG_BYTES:
            texts = long_texts(request.inputs.values())
            if take is not None and texts:
                take(_TEXT * sum(min(math.prod(tensor.shape), tensor.size // 4) for tensor in texts))
            count_ahead(texts)
            if config.cached:
                digest_ahead(request.inputs.values())
    return header_forwarding.with_headers(request, head.forwarded), reply


def is_long_to_write(response: InferenceResponse, reply: Reply) -> bool:
    """Whether writing the answer takes so long that the other connections should not wait for it.

    Of outputs that go into shared memory the elements count as well: they are copied.
    """
    for tensor in response.outputs.values():
        if tensor.datatype is dtypes.BYTES and math.prod(tensor.shape) > MANY_ELEMENTS:
            return True
    if reply.all_binary and not reply.classes:
        return False
    binary, classes = reply.binary, reply.classes
    return response.elements(name for name in response.outputs if name in classes or name not in binary) > MANY_ELEMENTS


def _compressed(body: Body, encoding: str | None) -> Body:
    if encoding is None:
        return body
    return replace(body, parts=[compression.encode(body.parts, encoding)], encoding=encoding)


def check_json_size(size: int, limit: int) -> None:
    """Raises INVALID_ARG for more JSON than the server's limit."""
    if size > limit:
        raise invalid(
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )


def _check_raw_size(size: int, limit: int) -> None:
    if size > limit:
        raise invalid(
            f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )


def border(error: BaseException) -> ModserveError:
    """What the client is told of any failure; an unforeseen one is logged, and is ours.

    Its traceback, whose frames have the whole request, is dropped.
    """
    if isinstance(error, ModserveError):
        error.__traceback__ = error.__context__ = None
        return error
    _log.error("an inference request failed unforeseen", exc_info=error)
    return internal(f"unforeseen {type(error).__name__}: {error}")
