"""Calls of engines to other models of the server.

A call is made on any thread, and begins on the event loop's: there it borrows the model and submits the request, and
there its responses come. It holds the borrowed model until its last response, or until it is refused; after that it
holds no references. Each request knows the models that wait for it (`Inflight.callers`), so that none waits for itself.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from modserve.backends.api import OnResponse, Parents
from modserve.core.errors import Code, ModserveError, cancelled, from_exception, internal, unavailable, unsupported
from modserve.core.requests import request_ids
from modserve.core.requests.inflight import Inflight, RequestTrace
from modserve.core.requests.memory import MemoryBudget
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.servable import Borrow, Handle, Servable, submit_traced
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.execution.instance import InstanceThread
from modserve.execution.running import RunningRequest
from modserve.resources import flow

_log = logging.getLogger(__name__)

_SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")

T = TypeVar("T")


class CallControl(Protocol):
    """Calls by which engines control the models of the server; implemented by `server.Server`."""

    @property
    def memory(self) -> MemoryBudget: ...

    async def load_model(
        self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None: ...
    async def unload_model(self, name: str, unload_dependents: bool = False) -> None: ...
    async def check_callable(self, name: str, version: int | None) -> bool: ...


class ModelCalls:
    """Implements `backends.api.ModelCaller` for the engine of `model`."""

    def __init__(
        self,
        model: ModelId,
        borrow: Borrow,
        control: CallControl | None,
        loop: asyncio.AbstractEventLoop,
        statistics: ModelStatistics | None = None,
    ) -> None:
        self.model = model
        self.borrow = borrow
        self.memory = MemoryBudget() if control is None else control.memory
        self.loop = loop
        self.statistics = statistics or ModelStatistics()
        self._control = control
        self._tasks: set[asyncio.Task[None]] = set()
        # It is made on the event loop's thread.
        self._thread = threading.get_ident()

    def __repr__(self) -> str:
        return f"ModelCalls(of {self.model.name})"

    def submit(
        self,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        parent: Parents = None,
        paced: bool = False,
        trace: str = "",
    ) -> "RunningCall":
        parents = _requests(parent)
        call = RunningCall(self, request, on_response, [each.inflight for each in parents] or _at_hand(), paced, trace)
        if parents:
            call.withdraw = _on_all_cancelled(parents, call.cancel)
        self.on_loop(call.begin)
        return call

    def infer(
        self, request: InferenceRequest, *, parent: Parents = None, trace: str = ""
    ) -> "Future[InferenceResponse]":
        future: _CallFuture[InferenceResponse] = _CallFuture(self._thread)
        responses: list[InferenceResponse] = []

        def take(outcome: Outcome, final: bool) -> None:
            if isinstance(outcome, InferenceResponse):
                responses.append(outcome)
            if future.done():
                return
            if isinstance(outcome, ModserveError):
                future.set_exception(outcome)
            elif len(responses) > 1:
                who = f"model '{request.model_name}'"
                future.set_exception(unsupported(f"{who} responded more than once; use 'stream'"))
            elif final and responses:
                future.set_result(responses[0])
            elif final:
                future.set_exception(internal(f"model '{request.model_name}' sent no response"))

        call = self.submit(request, take, parent=parent, trace=trace)
        future.add_done_callback(lambda _: call.cancel())  # which does nothing to a call that is over
        return future

    def stream(self, request: InferenceRequest, *, parent: Parents = None) -> Iterator[InferenceResponse]:
        if threading.get_ident() == self._thread:
            raise RuntimeError(_BLOCKING)
        outcomes: queue.SimpleQueue[tuple[Outcome, bool]] = queue.SimpleQueue()
        call = self.submit(request, lambda *outcome: outcomes.put(outcome), parent=parent, paced=True)
        try:
            final = False
            while not final:
                outcome, final = outcomes.get()
                if isinstance(outcome, ModserveError):
                    raise outcome
                if outcome is not None:
                    yield outcome
                    call.taken()
        finally:
            call.cancel()

    def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(self._count(self._server.load_model(name, config, files)), self.loop)

    def unload(self, name: str, unload_dependents: bool = False) -> "Future[None]":
        unloading = self._server.unload_model(name, unload_dependents)
        return asyncio.run_coroutine_threadsafe(self._count(unloading), self.loop)

    async def _count(self, call: Coroutine[Any, Any, None]) -> None:
        self.statistics.calls += 1
        try:
            await call
        finally:
            self.statistics.calls -= 1

    def is_ready(self, name: str, version: int | None = None) -> "Future[bool]":
        future: _CallFuture[bool] = _CallFuture(self._thread)
        server = self._server

        async def look() -> None:
            try:
                ready = await server.check_callable(name, version)
            except asyncio.CancelledError:
                settle(unavailable("the server has ended"))
                raise
            except Exception as error:
                failure = from_exception(error, f"failed to check whether model '{name}' is ready")
                settle(False if failure.code is Code.NOT_FOUND else failure)
            else:
                settle(ready)

        def settle(outcome: bool | ModserveError) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if isinstance(outcome, ModserveError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.on_loop(lambda: self._own(self.loop.create_task(look())))
        return future

    def _own(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it has ended: the event loop does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _server(self) -> CallControl:
        if self._control is None:
            raise unavailable("models cannot be loaded or unloaded by other models here")
        return self._control

    def on_loop(self, callback: Callable[[], object]) -> None:
        """Call back on the event loop's thread: at once if this is it."""
        if threading.get_ident() == self._thread:
            callback()
            return
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError as error:
            raise unavailable("the server has ended") from error


def _nothing() -> None: ...


@dataclass(eq=False, repr=False)
class RunningCall:
    """Implements `backends.api.Call`, and `core.requests.response.ResponseSink` for the model that is called."""

    _calls: ModelCalls
    _request: InferenceRequest
    _on_response: OnResponse
    _parents: list[Inflight]
    _paced: bool
    _context: str = ""
    _inflight: Inflight | None = None
    _handle: Handle | None = None
    _over: bool = False
    withdraw: Callable[[], None] = _nothing
    """Ends the connection with the cancellation of the parents."""

    def __repr__(self) -> str:
        return f"RunningCall({self._calls.model.name} → {self._request.model_name})"

    def cancel(self) -> None:
        if not self._over:
            self._calls.on_loop(self._cancel)

    def taken(self) -> None:
        if not self._over:
            self._calls.on_loop(self._on_taken)

    def begin(self) -> None:
        """Begin the call on the event loop's thread; never raises, and settles nothing before it returns."""
        if self._over:
            return
        request, parents, self._parents = self._request, self._parents, []
        try:
            self._handle = self._calls.borrow(request.model_name, request.version)
            self._calls.statistics.calls += 1
            servable = self._handle.servable
            callers = tuple(dict.fromkeys([*(each for one in parents for each in one.callers), self._calls.model]))
            if servable.id in callers:
                raise _ring((*callers, servable.id))
            request, now_ns = _inherit(request, parents, servable), time.monotonic_ns()
            trace = trace_of_call(parents, self._context, servable.id)
            if trace is None:
                inflight = servable.submit(request, self, now_ns)
            else:
                inflight = submit_traced(trace, servable, request, self, now_ns)
        except Exception as error:
            failure = from_exception(error, f"failed to call model '{request.model_name}'")
            self._calls.loop.call_soon(self.settle, failure, True)
            return
        inflight.callers = callers
        self._inflight = inflight
        if self._paced:
            flow.pace(inflight, self._calls.memory, self._calls.loop)

    def settle(self, outcome: Outcome, final: bool) -> None:
        if self._over:
            return
        on_response = self._on_response
        if final:
            self._end()
        try:
            on_response(outcome, final)
        except Exception as error:
            names = self._calls.model.name, self._request.model_name
            _log.exception("model '%s' failed to take a response of model '%s'", *names)
            if not self._over:
                inflight = self._inflight
                self._end()
                if inflight is not None:
                    inflight.cancel()
            on_response(from_exception(error, f"failed to take a response of model '{names[1]}'"), True)

    def _end(self) -> None:
        self._over = True
        del self._on_response
        self._inflight = None  # which refers to this as its sink
        self.withdraw()
        self.withdraw = _nothing
        if self._handle is not None:
            self._handle.release()
            self._handle = None
            self._calls.statistics.calls -= 1

    def _cancel(self) -> None:
        if self._inflight is not None:
            self._inflight.cancel()
        elif not self._over:  # it has not begun, or is about to hear that it was refused
            self.settle(cancelled(), True)

    def _on_taken(self) -> None:
        if self._inflight is not None:
            self._inflight.on_sent()


class _CallFuture(Future[T]):
    """The outcome of a call. Waiting for it on the event loop's thread would stop the server, so that raises."""

    def __init__(self, loop_thread: int) -> None:
        super().__init__()
        self._loop_thread = loop_thread

    def result(self, timeout: float | None = None) -> T:
        if not self.done() and threading.get_ident() == self._loop_thread:
            raise RuntimeError(_BLOCKING)
        return super().result(timeout)


_BLOCKING = "a call to another model cannot be awaited on the event loop's thread: use 'submit', or a done callback"


def _requests(parent: Parents) -> list[RunningRequest]:
    several = parent if isinstance(parent, Sequence) else (parent,)
    return [each for each in several if isinstance(each, RunningRequest)]


def _at_hand() -> list[Inflight]:
    """Return the batch that runs on this thread."""
    thread = threading.current_thread()
    job = thread.job if isinstance(thread, InstanceThread) else None
    return [] if job is None else job.members


def _on_all_cancelled(requests: list[RunningRequest], callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` when the last of the requests is cancelled; returns a function that withdraws that."""
    if len(requests) == 1:
        return requests[0].on_cancel(callback)
    waiting = len(requests) * [None]

    def one_less() -> None:
        waiting.pop()  # which is atomic: some may be cancelled on this thread, and others on the event loop's meanwhile
        if not waiting:
            callback()

    withdrawals = [each.on_cancel(one_less) for each in requests]

    def withdraw() -> None:
        for each in withdrawals:
            each()

    return withdraw


def trace_of_call(parents: list[Inflight], context: str, model: ModelId) -> RequestTrace | None:
    """Return the trace of a call that is made for `parents`: a child of the only one, or of the one with this context.

    Where traces are spans, a call for several is a child of the first, with links to the others.
    """
    traces = [parent.trace for parent in parents if parent.trace is not None]
    if len(parents) > 1:
        traces = [trace for trace in traces if trace.context]
        traces = [trace for trace in traces if context and trace.context == context] or traces
    if not traces:
        return None
    child = traces[0].child(model)
    for other in traces[1:]:
        child.link(other)
    return child


def _inherit(request: InferenceRequest, parents: list[Inflight], servable: Servable) -> InferenceRequest:
    """Return the request with what it has from its parents: their time and tenant, and the sequence of the only one."""
    if len(parents) == 1 and not request.request_id:
        request.request_id = request_ids.of(parents[0].request)
    tenants = [parent.request.tenant for parent in parents]
    if tenants and request.tenant is None and tenants[0] is not None and tenants.count(tenants[0]) == len(tenants):
        request = replace(request, tenant=tenants[0])
    deadlines = [parent.deadline_ns for parent in parents]
    if deadlines and all(deadlines):
        deadline_ns = max(deadlines)
        if not request.deadline_ns or deadline_ns < request.deadline_ns:
            request = replace(request, deadline_ns=deadline_ns)
    config = servable.config
    if len(parents) == 1 and (config.sequence_batching is not None or config.ensemble is not None):
        parameters = parents[0].request.parameters
        if parameters.get("sequence_id") and not any(name in request.parameters for name in _SEQUENCE_PARAMETERS):
            sequence = {name: parameters[name] for name in _SEQUENCE_PARAMETERS if name in parameters}
            request = replace(request, parameters={**request.parameters, **sequence})
    return request


def _ring(models: tuple[ModelId, ...]) -> ModserveError:
    chain = " → ".join(f"'{name}' version {version}" for name, version in models)
    return unsupported(f"a model would wait for itself: {chain}")
