"""An instance of a Python model in its own worker process, driven from the event loop.

A batch is sent to the worker as one frame and returned as one. `_open` indexes the worker's requests by their number in
the frames: until the end of the batch, or for decoupled models until the last response. Large tensors are copied into
shared memory once, on a thread if that takes long. Outputs are sent to clients from the worker's shared memory.
"""

import asyncio
import functools
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modserve.backends.api import (
    EngineRequest,
    FinalResponse,
    InstanceHandle,
    InstanceLostError,
    InstanceSpec,
    ModelSource,
    RequestsDone,
)
from modserve.core.errors import Code, ModserveError, internal, unavailable
from modserve.core.requests import request_ids
from modserve.core.tensors.tensor import Tensor

from .interpreter import Interpreter
from .options import EXECUTION_TIMEOUT, BackendOptions
from .process import WorkerProcess
from .worker import wire
from .worker.errors import describe_forgotten
from .worker.records import INLINE_BYTES, Descriptions, OutgoingRecord, Record, Status, write_records
from .worker.remote import SEQUENCE_END, SEQUENCE_START
from .worker.wire import Frame, Location, MessageKind
from .worker_calls import WorkerCalls

_log = logging.getLogger(__name__)

_LARGE_BYTES = 256 * 1024
"""Batches with more bytes than this are copied on a thread."""
_READY_S = 5.0
_AHEAD = 3
"""Batches queued in the worker's socket while executions are short, so that the worker does not sleep in between."""


class WorkerInstance:
    """Implementation of `backends.api.AsyncRequestInstance`."""

    def __init__(
        self,
        worker: WorkerProcess,
        source: ModelSource,
        options: BackendOptions,
        interpreter: Interpreter,
        execution_timeout_s: float | None,
    ) -> None:
        self.worker = worker
        self.max_ahead = _AHEAD
        self._room = 0
        """Limit of unfinished requests at the worker; 0 if the worker reports when it accepts more."""
        self._full: _Batch | None = None
        """Batch that reached this limit."""
        self._options = options
        self._decoupled = False
        self._interpreter = interpreter
        self._open: dict[int, EngineRequest] = {}
        self._numbers = itertools.count(1)
        self._batches: deque[_Batch] = deque()
        self._handle: InstanceHandle | None = None
        self._lost: str | None = None
        """Reason of the loss of the instance. A text, since a raised exception would keep its stack frames alive."""
        self._execution_timeout_s = execution_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._calls = WorkerCalls(worker, source, self._requests)
        worker.takers |= {
            MessageKind.EXECUTED: self._on_executed,
            MessageKind.RESPOND: self._respond,
            MessageKind.WATCH: self._watch,
            MessageKind.LET_GO: self._let_go,
            MessageKind.LOG: self._write_log,
            **self._calls.takers,
        }
        worker.on_end = self._on_end

    def __repr__(self) -> str:
        return f"WorkerInstance({self.worker!r}, {len(self._open)} requests)"

    @property
    def process_id(self) -> int:
        return self.worker.process.pid

    # Start, on a loading thread. Raises the model's errors, and `InstanceLostError` if the process ends

    def load(self, load: Mapping[str, Any]) -> None:
        """Start the process and load model.py in it."""
        interpreter = self._interpreter
        limit = self._options.start_timeout_s
        try:
            self.worker.spawn(interpreter.python, interpreter.variables)
        except OSError as error:
            raise internal(f"{self.worker.label}: '{interpreter.python}' cannot be run: {error.strerror}") from error
        try:
            self._ask(MessageKind.HELLO, None, limit)
            self._ask(MessageKind.START, load)
        except TimeoutError:
            self.close()
            raise unavailable(
                f"{self.worker.label}: its process did not start within {limit:g} s; "
                "'--backend-config=python,start-timeout-seconds=…' allows more"
            ) from None
        except BaseException:
            self.close()
            raise

    def complete(self, config: str) -> str | None:
        """Complete a configuration with ``auto_complete_config``; None if the model has no such method."""
        completed: str | None = self._ask(MessageKind.COMPLETE, config)
        return completed

    def initialize(self, label: str, spec: InstanceSpec, arguments: Mapping[str, str]) -> None:
        self.worker.rename(label)
        self._decoupled = spec.config.decoupled
        properties = self._ask(MessageKind.INITIALIZE, {"decoupled": self._decoupled, "arguments": arguments})
        if properties["is_ready"]:
            self.check_ready = functools.partial(self.worker.check_ready, _READY_S)
        self._room = properties["room"]
        if self._room:
            self.max_ahead = 0

    def _ask(self, kind: int, value: Any, timeout_s: float | None = None) -> Any:
        try:
            result = self.worker.ask(kind, value, timeout_s)
        except InstanceLostError as error:
            raise InstanceLostError(f"{_DOING[kind]}, {error.message}") from None
        if "code" in result:
            if result["traceback"]:
                _log.error("%s: %s", self.worker.label, result["traceback"])
            raise ModserveError(Code[result["code"]], result["message"])
        return result["value"]

    # On the event loop's thread, except `close`

    def attach(self, handle: InstanceHandle) -> None:
        if self._lost is not None:
            raise InstanceLostError(self._lost)
        self._handle = handle

    def detach(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.worker.end()
        self._open.clear()
        self._calls.end()

    def close(self) -> None:
        self.worker.stop(self._options.stop_timeout_s)
        self._calls.close()
        # Break reference cycles: the cyclic garbage collector may never run.
        self._batches.clear()
        self._calls.forget()
        self._handle = self._timer = None

    def kill_because(self, reason: str) -> None:
        """Kill the process; the instance is lost."""
        self.worker.kill_because(reason)

    def _on_end(self, error: InstanceLostError) -> None:
        self._lost = error.message
        self._calls.close()
        if self._handle is not None:
            self._handle.lost(error)
        self._open.clear()

    # Requests

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        numbers = [next(self._numbers) for _ in requests]
        for index, request in enumerate(requests):
            self._open[numbers[index]] = request
        batch = _Batch(numbers, done)
        self._batches.append(batch)
        if self._execution_timeout_s is not None and len(self._batches) == 1:
            self._watch_time(self._execution_timeout_s)
        worker = self.worker
        size = 0
        for request in requests:
            for tensor in request.tensors.values():
                size += tensor.size
        if size <= _LARGE_BYTES:
            if size > INLINE_BYTES:
                worker.trim_later()
            frame = execute_frame(requests, numbers, worker.descriptions, worker.arena.place)
            (worker.send if len(self._batches) == 1 else worker.send_soon)(frame)
            self._on_sent(batch)
            return
        worker.trim_later()
        writing = worker.loop.run_in_executor(
            None, execute_frame, requests, numbers, worker.descriptions, worker.arena.place
        )
        writing.add_done_callback(functools.partial(self._on_written, batch))

    def _on_sent(self, batch: "_Batch") -> None:
        if self._room:
            self._full = batch
            self._leave_room()

    def _leave_room(self) -> None:
        """Accept further requests below the limit; the worker receives all of them at its next read."""
        if self._full is not None and len(self._open) < self._room:
            batch, self._full = self._full, None
            batch.done(None)

    def _on_written(self, batch: "_Batch", writing: "asyncio.Future[bytes]") -> None:
        if writing.cancelled() or batch not in self._batches:
            return
        if (error := writing.exception()) is not None:
            self._batches.remove(batch)
            for number in batch.numbers:
                self._open.pop(number, None)
            batch.done(error)
        else:
            self.worker.send(writing.result())
            self._on_sent(batch)

    def _requests(self, numbers: Sequence[int] | None) -> list[EngineRequest]:
        """Return the open requests with these numbers, or all if none of them is open. None is the current batch."""
        if numbers is None:
            numbers = self._batches[0].numbers if self._batches else ()
        some = [self._open[number] for number in numbers if number in self._open]
        return some or list(self._open.values())

    # Frames from the worker

    def _on_executed(self, frame: Frame) -> None:
        records = self.worker.records(frame)
        finals = self._finals(records)
        if finals is None:
            for record in records:
                self._give(record)
        batch = self._batches.popleft()
        if self._timer is not None:
            self._timer.cancel()
            if self._batches and self._execution_timeout_s is not None:
                self._watch_time(self._execution_timeout_s)
        if not self._room:
            batch.done(finals)

    def _finals(self, records: list[Record]) -> list[FinalResponse] | None:
        """Return the final responses of the batch if there were no others, which is the usual case."""
        numbers = self._batches[0].numbers
        if len(records) != len(numbers):
            return None
        for index, record in enumerate(records):
            if record.status != Status.FINAL or record.number != numbers[index]:
                return None
        finals = []
        for record in records:
            self._open.pop(record.number, None)
            finals.append(FinalResponse(_outputs(record), record.extras["parameters"] if record.extras else _NOTHING))
        return finals

    def _watch_time(self, limit_s: float) -> None:
        reason = f"an execution took longer than {limit_s:g} s ('{EXECUTION_TIMEOUT}')"
        self._timer = self.worker.loop.call_later(limit_s, self.worker.kill_because, reason)

    def _respond(self, frame: Frame) -> None:
        for record in self.worker.records(frame):
            request = self._open.get(record.number)
            if request is not None and not self._give(record) and record.number in self._open:
                self.worker.send(wire.number_frame(MessageKind.PAUSE, record.number))
                request.on_room(functools.partial(self._resume, record.number))

    def _resume(self, number: int) -> None:
        self.worker.send(wire.number_frame(MessageKind.RESUME, number))

    def _give(self, record: Record) -> bool:
        """Forward a response; returns whether there is room for another. The final one removes the request."""
        number, status, _, extras, _, _ = record
        request = self._open.get(number)
        if request is None:
            return True
        if status == Status.RESCHEDULED:
            del self._open[number]
            request.reschedule()
            return False
        final = status in _FINAL
        if final:
            del self._open[number]
            self._leave_room()
        if status in _ERRORS:
            return request.fail(as_error(extras), final=final, wait=False)
        if status == Status.END:
            request.complete()
            return False
        parameters = extras.get("parameters", _NOTHING)
        return request.respond(_outputs(record), parameters=parameters, final=final, wait=False)

    def _watch(self, frame: Frame) -> None:
        number = wire.read_number(frame[3])
        request = self._open.get(number)
        if request is None or request.cancelled:
            self._on_cancel(number)
        else:
            request.on_cancel(functools.partial(self._on_cancel, number))
            self._resume(number)

    def _on_cancel(self, number: int) -> None:
        self.worker.send(wire.number_frame(MessageKind.CANCELLED, number))

    def _let_go(self, frame: Frame) -> None:
        request = self._open.pop(wire.read_number(frame[3]), None)
        self._leave_room()
        if request is not None:
            request.fail(internal(describe_forgotten(self.worker.label, self._decoupled)), final=True, wait=False)

    def _write_log(self, frame: Frame) -> None:
        level, text, ids = _LEVELS[frame[2]], str(frame[3], "utf-8", "replace"), ""
        if level == logging.ERROR:  # logged before the responses, while its requests are still open
            ids = request_ids.join([request.request_id for request in self._open.values()])
        known_as = f" [X-Request-ID {ids}]" if ids else ""
        _log.log(level, "%s: %s%s", self.worker.label, text, known_as, extra={"fields": {"request_id": ids}})


_DOING = {
    MessageKind.HELLO: "when it started",
    MessageKind.START: "when it loaded model.py",
    MessageKind.COMPLETE: "in auto_complete_config",
    MessageKind.INITIALIZE: "in initialize",
}


class _Batch:
    """Requests that the worker executes together, with the callback for its next batch."""

    def __init__(self, numbers: list[int], done: RequestsDone) -> None:
        self.numbers = numbers
        self.done = done


_FINAL = frozenset({Status.FINAL, Status.FINAL_ERROR, Status.END})
_ERRORS = frozenset({Status.ERROR, Status.FINAL_ERROR})
_NOTHING: Mapping[str, Any] = {}
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


def _outputs(record: Record) -> dict[str, Tensor]:
    elements = record.elements
    outputs: dict[str, Tensor] = {}
    for index, described in enumerate(record.description.tensors):
        outputs[described.name] = Tensor(described.datatype, described.shape, elements[index], None)
    return outputs


def as_error(extras: Mapping[str, Any]) -> ModserveError:
    return ModserveError(Code[extras["code"]], str(extras["message"]))


def execute_frame(
    requests: Sequence[EngineRequest],
    numbers: Sequence[int],
    descriptions: Descriptions,
    place: Callable[[Any, int], Location],
) -> bytes:
    """Encode a batch of requests for the worker; `place` puts large elements into shared memory."""
    entries = []
    for index, request in enumerate(requests):
        tensors = request.tensors
        described = tuple([(name, tensor.datatype.name, tensor.shape) for name, tensor in tensors.items()])
        elements = [tensor.raw for tensor in tensors.values()]
        sort = described, request.outputs, ()
        entries.append(
            OutgoingRecord(numbers[index], Status.OPEN, sort, elements, request.id.encode(), _extras(request))
        )
    return write_records(descriptions, place, MessageKind.EXECUTE, entries)


def _extras(request: EngineRequest) -> bytes:
    """Encode the rarely used members of a request; empty if it has none."""
    parameters, context = request.parameters, request.trace_context
    if not parameters and not request.timeout_ns and not context:
        return b""
    flags = SEQUENCE_START * request.sequence_start + SEQUENCE_END * request.sequence_end
    trace = {"trace": context} if context else {}
    return wire.pack(
        {
            **trace,
            "parameters": {name: value for name, value in parameters.items() if name not in _OF_THE_PROTOCOL},
            "correlation_id": request.correlation_id,
            "flags": flags,
            "timeout": request.timeout_ns // 1000,
            "priority": request.priority,
        }
    )


_OF_THE_PROTOCOL = frozenset({"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"})
"""Parameters that are passed to the model separately, as in Triton."""
