"""An instance of a Python model in a thread of the server, for trusted, light models: no process, no copies.

Inputs are the arrays that the server has, which are read-only where they lie over a client's bytes; outputs belong to
the server once they are returned.
"""

import asyncio
import functools
import logging
import queue
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from modserve.backends.api import EngineRequest, InstanceSpec, ModelCaller, ModelSource
from modserve.core import dtypes
from modserve.core.errors import Code, ModserveError, internal
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse, Outcome
from modserve.core.tensor import Tensor

from .controls import CONTROLS, Metrics
from .worker import model as python_model
from .worker import request as worker_request
from .worker import response as worker_response
from .worker import tensor as worker_tensor
from .worker.errors import ErrorCode, ModelError, TritonError, TritonModelException
from .worker.remote import SEQUENCE_END, SEQUENCE_START, call_parameters

_log = logging.getLogger(__name__)


class ThreadInstance:
    """Implements `backends.api.RequestInstance`."""

    def __init__(self, who: str, source: ModelSource, load: Mapping[str, Any]) -> None:
        self._who = who
        self._host = LocalServer(who, source)
        self._thread: _LoopThread | None = None
        self._model: python_model.LoadedModel
        try:
            self._model = python_model.load(of_host=self._host, isolated=True, **load)
        except ModelError as error:
            raise self._failed(error) from None

    def complete(self, config: str) -> str | None:
        try:
            return self._model.auto_complete_config(config)
        except ModelError as error:
            raise self._failed(error) from None

    def initialize(self, who: str, spec: InstanceSpec, arguments: Mapping[str, str]) -> None:
        self._who = self._host.who = who
        self._decoupled = spec.config.decoupled
        try:
            self._model.initialize(dict(arguments))
        except ModelError as error:
            raise self._failed(error) from None
        if self._model.has_is_ready:
            self.check_ready = self._check_ready
        if self._model.is_async and self._decoupled:
            self._thread = _LoopThread(who)

    async def _check_ready(self) -> bool:
        return await asyncio.get_running_loop().run_in_executor(None, self._model.is_ready)

    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        handles = [LocalRequest(request) for request in requests]
        received = [self._received(request, handle) for request, handle in zip(requests, handles, strict=True)]
        self._host.open.update(requests)
        if self._thread is not None:
            self._thread.start(self._execute_async(handles, received))
            return
        failure = None
        responses: python_model.Responses = [None] * len(handles)
        try:
            responses = self._model.execute(received)
        except ModelError as error:
            failure = self._failed(error)
        _settle(handles, responses, failure)

    async def _execute_async(
        self, handles: "list[LocalRequest]", received: list[worker_request.InferenceRequest]
    ) -> None:
        failure = None
        responses: python_model.Responses = [None] * len(handles)
        try:
            responses = await self._model.execute_async(received)
        except ModelError as error:
            failure = self._failed(error)
        _settle(handles, responses, failure)

    def _received(self, request: EngineRequest, handle: "LocalRequest") -> worker_request.InferenceRequest:
        inputs = [
            worker_tensor.Tensor.received(
                name, tensor.datatype.name, tensor.shape, raw := tensor.received, tensor.array if raw is None else None
            )
            for name, tensor in request.tensors.items()
        ]
        return worker_request.InferenceRequest.received(
            handle,
            inputs,
            request.outputs,
            request.id,
            request.correlation_id,
            SEQUENCE_START * request.sequence_start + SEQUENCE_END * request.sequence_end,
            request.timeout_ns // 1000,
            request.priority,
            request.parameters,
            model_name=request.model_name,
            model_version=request.model_version,
            decoupled=self._decoupled,
        )

    def _failed(self, error: ModelError) -> ModserveError:
        if error.traceback:
            _log.error("%s: %s", self._who, error.traceback)
        return ModserveError(Code[error.code], error.message)

    def close(self) -> None:
        try:
            self._model.finalize()
        except ModelError as error:
            self._failed(error)
        finally:
            if self._thread is not None:
                self._thread.stop()
            self._host.close()


def _settle(handles: "list[LocalRequest]", responses: python_model.Responses, failure: ModserveError | None) -> None:
    for handle, response in zip(handles, responses, strict=True):
        if handle.ended:
            continue
        if failure is not None:
            handle.fail(failure)
        elif response is not None:
            handle.send(response, True)


class LocalRequest:
    """Implements `worker.host.RequestHandle`."""

    __slots__ = ("_request", "ended")

    def __init__(self, request: EngineRequest) -> None:
        self._request = request
        self.ended = False

    def send(self, response: worker_response.InferenceResponse | None, final: bool) -> None:
        self.ended = self.ended or final
        request = self._request
        if response is None:
            request.complete()
            return
        error = response.error()
        if error is not None:
            request.fail(ModserveError(Code[ErrorCode(error.code()).name], error.message()), final=final)
            return
        outputs = {one.name(): as_core(one) for one in response.output_tensors()}
        request.respond(outputs, parameters=response.values or {}, final=final)

    def fail(self, error: ModserveError) -> None:
        self.ended = True
        self._request.fail(error)

    def is_cancelled(self) -> bool:
        return self._request.cancelled

    def reschedule(self) -> None:
        self.ended = True
        self._request.reschedule()

    def let_go(self) -> None:
        if not self.ended:
            self.fail(internal("the model let go of a request without a final response"))


def as_core(tensor: worker_tensor.Tensor) -> Tensor:
    """A model's tensor as the server has it, over the same memory."""
    datatype = dtypes.BY_NAME[tensor.datatype]
    if datatype.size and tensor._array is not None:
        return Tensor.from_array(tensor._array, datatype)
    return Tensor.from_raw(datatype, tuple(tensor.dims), tensor.raw_form())


class LocalServer:
    """Implements `worker.host.Host`."""

    def __init__(self, who: str, source: ModelSource) -> None:
        self.who = who
        self.open: weakref.WeakSet[EngineRequest] = weakref.WeakSet()
        self._models = source.models
        self._metrics = Metrics(source.metrics)

    def close(self) -> None:
        self._metrics.close()

    def log(self, level: str, message: str) -> None:
        _log.log(_LEVELS[level], "%s: %s", self.who, message)

    def call(self, request: worker_request.InferenceRequest) -> worker_response.InferenceResponse:
        try:
            return _received_response(self._infer(request).result())
        except ModserveError as error:
            return _failure(error)

    async def call_async(self, request: worker_request.InferenceRequest) -> worker_response.InferenceResponse:
        try:
            return _received_response(await asyncio.wrap_future(self._infer(request)))
        except ModserveError as error:
            return _failure(error)

    def call_decoupled(self, request: worker_request.InferenceRequest) -> "LocalResponses":
        return LocalResponses(self._models, as_call(request), list(self.open))

    async def call_decoupled_async(self, request: worker_request.InferenceRequest) -> "LocalResponses":
        responses = self.call_decoupled(request)
        await asyncio.wrap_future(responses.begun)
        return responses

    def _infer(self, request: worker_request.InferenceRequest) -> "Future[InferenceResponse]":
        return self._models.infer(as_call(request), parent=list(self.open))

    def control(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        try:
            if operation in CONTROLS:
                return CONTROLS[operation](self._models, arguments).result()
            return self._metrics.control(operation, arguments)
        except ModserveError as error:
            raise TritonModelException(error.message, code=ErrorCode[error.code.name]) from error

    def metric(self, metric: int, operation: str, value: float) -> None:
        try:
            self._metrics.change(metric, operation, value)
        except ModserveError as error:
            raise TritonModelException(error.message, code=ErrorCode[error.code.name]) from error

    def drop_metric(self, metric: int) -> None:
        self._metrics.drop(metric)


_LEVELS = {"ERROR": logging.ERROR, "WARNING": logging.WARNING, "INFO": logging.INFO, "VERBOSE": logging.DEBUG}


class LocalResponses:
    """Implements `worker.host.ResponseIterator`. The call begins at once; `begun` is done when something has come."""

    def __init__(self, models: ModelCaller, request: InferenceRequest, parents: list[EngineRequest]) -> None:
        self.begun: Future[None] = Future()
        self._outcomes: queue.SimpleQueue[tuple[Outcome, bool]] = queue.SimpleQueue()
        self._before: list[worker_response.InferenceResponse] = []
        self._at = 0
        self._over = False
        self._call = models.submit(
            request, functools.partial(_receive, self._outcomes, self.begun), parent=parents, paced=True
        )

    def __iter__(self) -> "LocalResponses":
        self._at = 0
        return self

    def __next__(self) -> worker_response.InferenceResponse:
        if self._at == len(self._before):
            if self._over:
                raise StopIteration
            outcome, self._over = self._outcomes.get()
            self._call.taken()
            if outcome is None:  # as in Triton, an end that comes alone is a response without outputs
                self._before.append(worker_response.InferenceResponse.received([]))
            elif isinstance(outcome, ModserveError):
                self._before.append(_failure(outcome))
            else:
                self._before.append(_received_response(outcome))
        self._at += 1
        return self._before[self._at - 1]

    def cancel(self) -> None:
        """The responses that have come are still to be had, and then an error that says that it was cancelled."""
        self._call.cancel()

    def __del__(self) -> None:
        self.cancel()


def _receive(
    outcomes: "queue.SimpleQueue[tuple[Outcome, bool]]", begun: "Future[None]", outcome: Outcome, final: bool
) -> None:
    """Take a response of a call; it does not refer to the iterator, which cancels the call when it is forgotten."""
    outcomes.put((outcome, final))
    if not begun.done() and begun.set_running_or_notify_cancel():
        begun.set_result(None)


def as_call(request: worker_request.InferenceRequest) -> InferenceRequest:
    return InferenceRequest(
        model_name=request.model_name,
        inputs={one.name(): as_core(one) for one in request.inputs()},
        outputs=tuple(request._names),
        version=None if request.model_version < 0 else request.model_version,
        id=request.request_id(),
        parameters=call_parameters(request),
        timeout_ns=request.timeout() * 1000,
    )


def _received_response(response: InferenceResponse) -> worker_response.InferenceResponse:
    tensors = [
        worker_tensor.Tensor.received(
            name, tensor.datatype.name, tensor.shape, raw := tensor.received, tensor.array if raw is None else None
        )
        for name, tensor in response.outputs.items()
    ]
    return worker_response.InferenceResponse.received(tensors, None, dict(response.parameters) or None)


def _failure(error: ModserveError) -> worker_response.InferenceResponse:
    return worker_response.InferenceResponse.received([], TritonError(error.message, ErrorCode[error.code.name]))


class _LoopThread:
    """An event loop of the model's own, for coroutines that go on after ``execute`` has returned."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
