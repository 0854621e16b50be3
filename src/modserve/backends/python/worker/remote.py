"""The server, as a worker's model sees it: everything goes over the worker's link."""

import asyncio
import contextvars
import itertools
import sys
from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping, Optional, Tuple

from . import wire
from .errors import ErrorCode, TritonError, TritonModelException
from .link import Link
from .records import OutgoingRecord, Record, Status
from .request import InferenceRequest
from .response import InferenceResponse, ResponseIterator
from .tensor import Tensor
from .wire import Frame, MessageKind

SEQUENCE_START, SEQUENCE_END = 1, 2
"""Flags of a request."""

batch: "contextvars.ContextVar[Tuple[int, ...]]" = contextvars.ContextVar("batch", default=())
"""The numbers of the requests that this thread, or this task, works on."""


class RemoteRequest:
    """Implementation of `response.RequestHandle`."""

    __slots__ = (
        "__weakref__",
        "_known",
        "_server",
        "_watched",
        "cancelled",
        "ended",
        "number",
        "paused",
        "rescheduled",
    )

    def __init__(self, server: "RemoteHost", number: int) -> None:
        self._server = server
        self._known = False
        self._watched = False
        self.number = number
        self.paused = False
        self.cancelled = False
        self.ended = False
        self.rescheduled = False

    def send(self, response: Optional[InferenceResponse], final: bool) -> None:
        server = self._server
        if self.ended:
            if response is None and not server.decoupled:
                return  # its one response was the end
            raise TritonModelException("a request already has its final response")
        final = final or not server.decoupled
        record = entry(self.number, response, final)
        if not final:
            server.requests[self.number] = self
            server.link.look()  # a model that only sends reads nothing else, and would not hear that it shall wait
            if self.paused:
                server.link.wait(lambda: not self.paused)
        server.link.send_records(MessageKind.RESPOND, [record])
        if final:
            self.ended = True
            server.requests.pop(self.number, None)

    def is_cancelled(self) -> bool:
        if self.cancelled or self.ended:
            return self.cancelled
        server = self._server
        if not self._watched:
            # The first time, the server says how it is; from then on it tells when that changes.
            self._watched = True
            server.requests[self.number] = self
            server.link.send(wire.number_frame(MessageKind.WATCH, self.number))
        if self._known:
            server.link.look()
        elif not server.link.holds:  # in a turn of the model's, the next turn knows
            server.link.wait(lambda: self._known)
        return self.cancelled

    def is_paused(self) -> bool:
        if not self.ended:
            self._server.link.look()
        return self.paused and not self.ended

    def reschedule(self) -> None:
        self.rescheduled = True

    def let_go(self) -> None:
        if not self.ended and not self.rescheduled:
            self.ended = True
            self._server.requests.pop(self.number, None)
            self._server.link.send(wire.number_frame(MessageKind.LET_GO, self.number))

    def on_message(self, kind: int) -> None:
        """Apply the server's message about this request."""
        if kind == MessageKind.PAUSE:
            self.paused = True
        else:
            self.cancelled = self.cancelled or kind == MessageKind.CANCELLED
            self.paused = False
            self._known = True


class _Call:
    """A call of another model, or of the server. Its outcomes are in `outcomes`."""

    __slots__ = ("outcomes", "over", "tell")

    def __init__(self) -> None:
        self.outcomes: Deque[Any] = deque()
        self.over = False
        self.tell: Optional[Callable[[], object]] = None

    def is_settled(self) -> bool:
        """Return True if a call with one response is settled: it is over, or has more than one."""
        return self.over or len(self.outcomes) > 1


class RemoteHost:
    """Implementation of `host.Host`. `work` gets the frames that are work for the main thread."""

    def __init__(self, link: Link, work: Callable[[Frame], object]) -> None:
        self.link = link
        self.requests: Dict[int, RemoteRequest] = {}
        self.decoupled = False
        """A request of the model may have any number of responses."""
        self.executing: Tuple[int, ...] = ()
        """The batch that the main thread executes, for threads that the model has started."""
        self.work = work
        self._numbers = itertools.count(1)
        self._calls: Dict[int, _Call] = {}
        link.take = self._take

    def _take(self, frame: Frame) -> None:
        kind = frame[0]
        if kind == MessageKind.RESPONSE:
            for record in self.link.records(frame):
                call = self._calls.get(record.number)
                if call is not None:
                    self._hear(call, record, record.status in _FINAL)
        elif kind == MessageKind.RESULT:
            call = self._calls.get(frame[2])
            if call is not None:
                self._hear(call, wire.read_json(frame[3]), True)
        elif kind in (MessageKind.PAUSE, MessageKind.RESUME, MessageKind.CANCELLED):
            request = self.requests.get(wire.read_number(frame[3]))
            if request is not None:
                request.on_message(kind)
        else:
            self.work(frame)

    def _hear(self, call: _Call, outcome: Any, over: bool) -> None:
        call.outcomes.append(outcome)
        call.over = call.over or over
        if call.tell is not None:
            call.tell()

    # Calls to other models

    def call(self, request: InferenceRequest) -> InferenceResponse:
        number, call = self._begin(request, decoupled=False)
        self.link.wait(call.is_settled)
        return self._single(number, call, request)

    async def call_async(self, request: InferenceRequest) -> InferenceResponse:
        number, call = self._begin(request, decoupled=False)
        try:
            await self._wait_until(call, call.is_settled)
        except BaseException:
            self.cancel(number)
            raise
        return self._single(number, call, request)

    def _single(self, number: int, call: _Call, request: InferenceRequest) -> InferenceResponse:
        """Return the only response of a settled call."""
        if call.over:
            del self._calls[number]
        else:
            self.cancel(number)
        responses = [one for one in call.outcomes if one.status != Status.END]
        if len(responses) == 1 or (responses and responses[-1].status in _ERRORS):
            return _response(responses[-1])
        label = f"model '{request.model_name}'"
        if not responses:
            error = TritonError(f"{label} sent no response", ErrorCode.INTERNAL)
        else:
            error = TritonError(
                f"{label} responded more than once; use exec(decoupled=True) or async_exec(decoupled=True)",
                ErrorCode.UNSUPPORTED,
            )
        return InferenceResponse.make_unchecked([], error)

    def call_decoupled(self, request: InferenceRequest) -> "RemoteResponses":
        number, call = self._begin(request, decoupled=True)
        return RemoteResponses(self, number, call)

    async def call_decoupled_async(self, request: InferenceRequest) -> "RemoteResponses":
        number, call = self._begin(request, decoupled=True)
        try:
            await self._wait_until(call, lambda: call.outcomes)
        except BaseException:
            self.cancel(number)
            raise
        return RemoteResponses(self, number, call)

    def cancel(self, number: int) -> None:
        if self._calls.pop(number, None) is not None:
            self.link.send(wire.number_frame(MessageKind.CANCEL_CALL, number))

    def over(self, number: int) -> None:
        self._calls.pop(number, None)

    def _begin(self, request: InferenceRequest, decoupled: bool) -> Tuple[int, _Call]:
        number, call = next(self._numbers), _Call()
        inputs = [tensor.seal() for tensor in request.inputs()]
        described = tuple([(one.name(), one.datatype, tuple(one.dims)) for one in inputs])
        numbers = batch.get() or self.executing
        of_batch = numbers is self.executing and bool(numbers)
        target = request.model_name, request.model_version, decoupled, of_batch
        record = OutgoingRecord(
            number,
            Status.OPEN,
            (described, tuple(request._names), target),
            [one.raw_form() for one in inputs],
            request.request_id().encode(),
            _extras(request, () if of_batch else numbers),
        )
        self._calls[number] = call
        try:
            self.link.send_records(MessageKind.CALL, [record])
        except BaseException:
            del self._calls[number]
            raise
        return number, call

    async def _wait_until(self, call: _Call, ready: Callable[[], Any]) -> None:
        """Wait on the running event loop until `ready` is true."""
        if ready():
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if ready() and not future.done():
                future.set_result(None)

        self.link.join(loop)
        call.tell = lambda: loop.call_soon_threadsafe(wake)
        try:
            if not ready():
                await future
        finally:
            call.tell = None
            self.link.leave(loop)

    # The rest

    def log(self, level: str, message: str) -> None:
        if self.link.forked:
            sys.stderr.write(f"{level} {message}\n")
            return
        self.link.send(wire.text_frame(MessageKind.LOG, message, wire.LEVELS.index(level)))

    def control(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        files = arguments.get("files")
        if files:
            arguments = {**arguments, "files": {name: content.hex() for name, content in files.items()}}
        number = next(self._numbers)
        call = self._calls[number] = _Call()
        self.link.send(wire.json_frame(MessageKind.CONTROL, (operation, arguments), number))
        self.link.wait(lambda: call.outcomes)
        del self._calls[number]
        result = call.outcomes.popleft()
        if "code" in result:
            raise TritonModelException(result["message"], code=ErrorCode[result["code"]])
        return result["value"]

    def metric(self, metric: int, operation: str, value: float, times: int) -> None:
        self.link.send(wire.json_frame(MessageKind.METRIC, (metric, operation, value, times)))

    def drop_metric(self, metric: int) -> None:
        self.link.send(wire.json_frame(MessageKind.DROP_METRIC, metric))


class RemoteResponses(ResponseIterator):
    def __init__(self, server: RemoteHost, number: int, call: _Call) -> None:
        super().__init__()
        self._server = server
        self._number = number
        self._call = call

    def _receive(self) -> InferenceResponse:
        call, server = self._call, self._server
        if not call.outcomes and not call.over:
            server.link.wait(lambda: call.outcomes or call.over)
        if not call.outcomes:
            raise StopIteration
        record = call.outcomes.popleft()
        if call.over and not call.outcomes:
            server.over(self._number)
        elif record.status == Status.RESPONSE:
            server.link.send(wire.number_frame(MessageKind.TAKEN, self._number))
        return _response(record)

    def cancel(self) -> None:
        if not self._call.over:
            self._server.link.send(wire.number_frame(MessageKind.CANCEL_CALL, self._number))

    def __del__(self) -> None:
        super().__del__()
        self._server.over(self._number)


_FINAL = frozenset({Status.FINAL, Status.FINAL_ERROR, Status.END})
_ERRORS = frozenset({Status.ERROR, Status.FINAL_ERROR})


def entry(number: int, response: Optional[InferenceResponse], final: bool) -> OutgoingRecord:
    """Convert a response to a record."""
    if response is None:
        return OutgoingRecord(number, Status.END)
    error = response.error()
    if error is not None:
        extras = wire.pack({"code": ErrorCode(error.code()).name, "message": error.message()})
        return OutgoingRecord(number, Status.FINAL_ERROR if final else Status.ERROR, extras=extras)
    tensors = response.output_tensors()
    described = tuple([(one.name(), one.datatype, tuple(one.dims)) for one in tensors])
    extras = wire.pack({"parameters": response.values}) if response.values else b""
    elements = [one.raw_form() for one in tensors]
    return OutgoingRecord(
        number, Status.FINAL if final else Status.RESPONSE, (described, (), ()), elements, extras=extras
    )


def _response(record: Record) -> InferenceResponse:
    _, status, description, extras, _, elements = record
    if status in _ERRORS:
        return InferenceResponse.make_unchecked([], TritonError(extras["message"], ErrorCode[extras["code"]]))
    outputs = [
        Tensor.make_unchecked(name, datatype, shape, raw)
        for (name, datatype, shape, _), raw in zip(description.tensors, elements)
    ]
    return InferenceResponse.make_unchecked(outputs, None, extras.get("parameters"))


def _extras(request: InferenceRequest, parents: Tuple[int, ...]) -> bytes:
    """Encode the rarely used members of a call; empty if it has none."""
    extras = {
        "parameters": call_parameters(request),
        "timeout": request.timeout(),
        "parents": parents,
        "trace": request.trace().get_context() or "",
    }
    return wire.pack(extras) if any(extras.values()) else b""


def call_parameters(request: InferenceRequest) -> Dict[str, Any]:
    """Return the parameters of a call, with the members that identify its sequence."""
    parameters = dict(request.values or {})
    if request.correlation_id():
        parameters["sequence_id"] = request.correlation_id()
        parameters["sequence_start"] = bool(request.flags() & SEQUENCE_START)
        parameters["sequence_end"] = bool(request.flags() & SEQUENCE_END)
    return parameters
