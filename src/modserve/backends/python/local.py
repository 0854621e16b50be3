"""A Python model inside the server, on any thread, without a worker process and without copies.

Inputs are the server's own arrays, read-only over a client's bytes. Returned outputs belong to the server.
"""

import asyncio
import contextvars
import functools
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from modserve.backends.api import EngineRequest, FinalResponse, InstanceSpec, ModelCaller, ModelSource
from modserve.core.errors import Code, ModserveError, internal
from modserve.core.requests import request_ids
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor

from .controls import CONTROLS, Metrics
from .worker import model as python_model
from .worker import request as worker_request
from .worker import response as worker_response
from .worker import tensor as worker_tensor
from .worker.errors import ErrorCode, ModelError, TritonError, TritonModelException, describe_forgotten
from .worker.remote import SEQUENCE_END, SEQUENCE_START, call_parameters

_log = logging.getLogger(__name__)

_batch: "contextvars.ContextVar[tuple[weakref.ref[EngineRequest], ...]]" = contextvars.ContextVar("batch", default=())
"""Requests of the current task. Weak references: a context may outlive its requests."""


class LocalInstance:
    """Instance inside the server.

    ``before_wait(what)`` is called before the model waits for the server, with a name of the operation; it may raise
    `TritonModelException`.
    """

    def __init__(
        self,
        label: str,
        source: ModelSource,
        load: Mapping[str, Any],
        before_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._label = label
        self._name = source.config.name
        self._version = source.version
        self._server = InServerHost(label, source, before_wait)
        self._model: python_model.LoadedModel
        try:
            self._model = python_model.load(of_host=self._server, isolated=True, **load)
        except ModelError as error:
            raise self._report_error(error) from None

    # On loading threads. Raises the model's errors

    def complete(self, config: str) -> str | None:
        """Complete a configuration with ``auto_complete_config``; None if the model has no such method."""
        try:
            return self._model.auto_complete_config(config)
        except ModelError as error:
            raise self._report_error(error) from None

    def initialize(self, label: str, spec: InstanceSpec, arguments: Mapping[str, str]) -> None:
        self._label = self._server.label = label
        self._decoupled = spec.config.decoupled
        try:
            self._model.initialize(dict(arguments))
        except ModelError as error:
            raise self._report_error(error) from None
        if self._model.has_is_ready:
            self.check_ready = self._check_ready

    def close(self) -> None:
        try:
            self._model.finalize()
        except ModelError as error:
            self._report_error(error)
        finally:
            self._server.close()

    async def _check_ready(self) -> bool:
        return await asyncio.get_running_loop().run_in_executor(None, self._model.is_ready)

    def _report_error(self, error: ModelError, requests: Sequence[EngineRequest] = ()) -> ModserveError:
        if error.traceback:
            ids = request_ids.join([request.request_id for request in requests])
            known_as = f" [X-Request-ID {ids}]" if ids else ""
            fields = {"model": self._name, "request_id": ids}
            _log.error("%s: %s%s", self._label, error.traceback, known_as, extra={"fields": fields})
        return ModserveError(Code[error.code], error.message)

    # Executions

    def _execute(self, requests: Sequence[EngineRequest]) -> list[FinalResponse] | None:
        server = self._server
        server.executing, server.thread = requests, threading.get_ident()
        try:
            handles = [LocalRequest(request, self._decoupled) for request in requests]
            try:
                responses = self._model.execute([self._convert_request(handle) for handle in handles])
            except ModelError as error:
                _fail(handles, self._report_error(error, requests))
                return None
            return self._settle(handles, responses)
        finally:
            server.executing = ()

    async def _execute_async(self, requests: Sequence[EngineRequest]) -> list[FinalResponse] | None:
        handles = [LocalRequest(request, self._decoupled) for request in requests]
        _batch.set(tuple([weakref.ref(request) for request in requests]))
        self._server.open.update(requests)
        try:
            responses = await self._model.execute_async([self._convert_request(handle) for handle in handles])
        except ModelError as error:
            _fail(handles, self._report_error(error, requests))
            return None
        return self._settle(handles, responses)

    def _convert_request(self, handle: "LocalRequest") -> worker_request.InferenceRequest:
        request = handle.request
        inputs = [convert_tensor(name, tensor) for name, tensor in request.tensors.items()]
        parameters, timeout_ns, context = request.parameters, request.timeout_ns, request.trace_context
        extras: dict[str, Any] = {}
        if parameters or timeout_ns or context:  # rare
            extras = {
                "correlation_id": request.correlation_id,
                "flags": SEQUENCE_START * request.sequence_start + SEQUENCE_END * request.sequence_end,
                "timeout": timeout_ns // 1000,
                "priority": request.priority,
                "parameters": parameters,
                "trace": worker_request.InferenceTrace(context),
            }
        return worker_request.InferenceRequest.make_unchecked(
            handle,
            inputs,
            request.outputs,
            request.id,
            model_name=self._name,
            model_version=self._version,
            decoupled=self._decoupled,
            **extras,
        )

    def _settle(self, handles: "list[LocalRequest]", responses: python_model.Responses) -> list[FinalResponse] | None:
        """Return all responses together, which is faster; None if some are missing, failed or already sent."""
        finals = []
        for handle, response in zip(handles, responses, strict=True):
            if handle.ended or response is None or response.has_error():
                self._settle_each(handles, responses)
                return None
            finals.append(as_final(response))
        for handle in handles:
            handle.ended = True
        return finals

    def _settle_each(self, handles: "list[LocalRequest]", responses: python_model.Responses) -> None:
        for handle, response in zip(handles, responses, strict=True):
            if handle.ended:
                continue
            if response is None:
                self._server.open.add(handle.request)
            else:
                handle.send(response, True)


def _fail(handles: "list[LocalRequest]", error: ModserveError) -> None:
    for handle in handles:
        if not handle.ended:
            handle.fail(error)


class LocalRequest:
    """Implementation of `worker.response.RequestHandle`."""

    __slots__ = ("_decoupled", "ended", "request")

    def __init__(self, request: EngineRequest, decoupled: bool) -> None:
        self._decoupled = decoupled
        self.request = request
        self.ended = False

    def send(self, response: worker_response.InferenceResponse | None, final: bool) -> None:
        request, error = self.request, None if response is None else response.error()
        outputs = None if response is None or error is not None else as_final(response)
        if final or not self._decoupled:  # the only response of a model that is not decoupled
            self.ended = True
        if error is not None:
            request.fail(ModserveError(Code[error.code().name], error.message()), final=final)
        elif outputs is None:
            request.complete()
        else:
            request.respond(outputs.outputs, parameters=outputs.parameters, final=final)

    def fail(self, error: ModserveError) -> None:
        self.ended = True
        self.request.fail(error)

    def is_cancelled(self) -> bool:
        return self.request.cancelled

    def is_paused(self) -> bool:
        return False  # unknown here; `respond` waits if necessary

    def reschedule(self) -> None:
        self.ended = True
        self.request.reschedule()

    def let_go(self) -> None:
        if not self.ended:
            self.fail(internal(describe_forgotten("the model", self._decoupled)))


_NOTHING: Mapping[str, Any] = {}


def as_final(response: worker_response.InferenceResponse) -> FinalResponse:
    """Convert a response without an error to a final one."""
    return FinalResponse({one._name: as_core(one) for one in response.output_tensors()}, response.values or _NOTHING)


# Tensors, over the same memory


def convert_tensor(name: str, tensor: Tensor) -> worker_tensor.Tensor:
    """Convert a tensor of the server to a model's. Its array is read-only if it lies over a client's bytes."""
    raw = tensor.received
    if raw is None:
        return worker_tensor.Tensor.make_unchecked(name, tensor.datatype.name, tensor.shape, None, tensor.array)
    if type(raw) is not bytes:
        raw = memoryview(raw).toreadonly()
    return worker_tensor.Tensor.make_unchecked(name, tensor.datatype.name, tensor.shape, raw)


def as_core(tensor: worker_tensor.Tensor) -> Tensor:
    """Convert a model's tensor to the server's."""
    datatype, array = dtypes.BY_NAME[tensor.datatype], tensor._array
    if datatype.size and array is not None:
        return Tensor(datatype, array.shape, None, array)  # the datatype always matches the array
    return Tensor(datatype, tuple(tensor.dims), tensor.raw_form(), None)


class InServerHost:
    """Implementation of `worker.host.Host`. ``before_wait`` is as in `LocalInstance`."""

    def __init__(self, label: str, source: ModelSource, before_wait: Callable[[str], None]) -> None:
        self.label = label
        self.executing: Sequence[EngineRequest] = ()
        """Batch executed synchronously on `thread`."""
        self.thread = 0
        self.open: weakref.WeakSet[EngineRequest] = weakref.WeakSet()
        """Requests of tasks, and requests with responses after the execution."""
        self._models = source.models
        self._metrics = Metrics(source.metrics)
        self._before_wait = before_wait

    def close(self) -> None:
        self._metrics.close()

    def log(self, level: str, message: str) -> None:
        _log.log(_LEVELS[level], "%s: %s", self.label, message)

    def call(self, request: worker_request.InferenceRequest) -> worker_response.InferenceResponse:
        self._before_wait("exec()")
        try:
            return _convert_response(self._infer(request).result())
        except ModserveError as error:
            return _failure(error)

    async def call_async(self, request: worker_request.InferenceRequest) -> worker_response.InferenceResponse:
        try:
            return _convert_response(await asyncio.wrap_future(self._infer(request)))
        except ModserveError as error:
            return _failure(error)

    def call_decoupled(self, request: worker_request.InferenceRequest) -> "LocalResponses":
        self._before_wait("exec(decoupled=True)")
        return LocalResponses(self._models, as_call(request), self._parents(), _context(request))

    async def call_decoupled_async(self, request: worker_request.InferenceRequest) -> "LocalResponses":
        self._before_wait("async_exec(decoupled=True)")  # the iterator waits for each response
        responses = LocalResponses(self._models, as_call(request), self._parents(), _context(request))
        await asyncio.wrap_future(responses.begun)
        return responses

    def _infer(self, request: worker_request.InferenceRequest) -> "Future[InferenceResponse]":
        return self._models.infer(as_call(request), parent=self._parents(), trace=_context(request))

    def _parents(self) -> list[EngineRequest]:
        """Return the requests on behalf of which a call is made: the calling execution's batch, or all open ones."""
        if self.executing and self.thread == threading.get_ident():
            return list(self.executing)
        batch = [request for each in _batch.get() if (request := each()) is not None]
        return batch or [*self.executing, *(request for request in self.open if request not in self.executing)]

    def control(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        try:
            if operation in CONTROLS:
                self._before_wait(_WAITS[operation])
                return CONTROLS[operation](self._models, arguments).result()
            return self._metrics.control(operation, arguments)
        except ModserveError as error:
            raise TritonModelException(error.message, code=ErrorCode[error.code.name]) from error

    def metric(self, metric: int, operation: str, value: float, times: int) -> None:
        try:
            self._metrics.change(metric, operation, value, times)
        except ModserveError as error:
            raise TritonModelException(error.message, code=ErrorCode[error.code.name]) from error

    def drop_metric(self, metric: int) -> None:
        self._metrics.drop(metric)


_LEVELS = {"ERROR": logging.ERROR, "WARNING": logging.WARNING, "INFO": logging.INFO, "VERBOSE": logging.DEBUG}
_WAITS = {"load": "load_model()", "unload": "unload_model()", "ready": "is_model_ready()"}


class LocalResponses(worker_response.ResponseIterator):
    """Iterator over the responses of a call that begins at once. `begun` is done at the first outcome."""

    def __init__(
        self, models: ModelCaller, request: InferenceRequest, parents: list[EngineRequest], trace: str
    ) -> None:
        super().__init__()
        self.begun: Future[None] = Future()
        self._outcomes: queue.SimpleQueue[tuple[Outcome, bool]] = queue.SimpleQueue()
        self._over = False
        self._call = models.submit(
            request, functools.partial(_receive, self._outcomes, self.begun), parent=parents, paced=True, trace=trace
        )

    def _receive(self) -> worker_response.InferenceResponse:
        if self._over:
            raise StopIteration
        outcome, self._over = self._outcomes.get()
        self._call.taken()
        if outcome is None:
            return worker_response.InferenceResponse.make_unchecked([])
        return _failure(outcome) if isinstance(outcome, ModserveError) else _convert_response(outcome)

    def cancel(self) -> None:
        self._call.cancel()


def _receive(
    outcomes: "queue.SimpleQueue[tuple[Outcome, bool]]", begun: "Future[None]", outcome: Outcome, final: bool
) -> None:
    """Receive a response. Holds no reference to the iterator, which cancels the call when it is garbage-collected."""
    outcomes.put((outcome, final))
    if not begun.done() and begun.set_running_or_notify_cancel():
        begun.set_result(None)


def _context(request: worker_request.InferenceRequest) -> str:
    """Return the trace context of the request named as the parent of a call."""
    return request.trace().get_context() or ""


def as_call(request: worker_request.InferenceRequest) -> InferenceRequest:
    return InferenceRequest(
        model_name=request.model_name,
        inputs={one._name: as_core(one) for one in [tensor.seal() for tensor in request.inputs()]},
        outputs=tuple(request._names),
        version=None if request.model_version < 0 else request.model_version,
        id=request.request_id(),
        parameters=call_parameters(request),
        timeout_ns=request.timeout() * 1000,
    )


def _convert_response(response: InferenceResponse) -> worker_response.InferenceResponse:
    tensors = [convert_tensor(name, tensor) for name, tensor in response.outputs.items()]
    return worker_response.InferenceResponse.make_unchecked(tensors, None, dict(response.parameters) or None)


def _failure(error: ModserveError) -> worker_response.InferenceResponse:
    return worker_response.InferenceResponse.make_unchecked([], TritonError(error.message, ErrorCode[error.code.name]))
