"""Requests of a worker: calls to other models, loading and unloading, metrics."""

import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from modserve.backends.api import Call, EngineRequest, ModelSource
from modserve.core.errors import ModserveError, from_exception, unsupported
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import Outcome
from modserve.core.tensors.tensor import Tensor

from .controls import CONTROLS, Metrics
from .process import WorkerProcess
from .worker import wire
from .worker.records import OutgoingRecord, Record, Status, write_records
from .worker.wire import Frame, MessageKind

_log = logging.getLogger(__name__)


class WorkerCalls:
    """Calls of one worker. On the event loop's thread.

    ``parents(numbers)`` are the requests for which a call is made. A call is in `_calls` until its last response.
    """

    def __init__(
        self, worker: WorkerProcess, source: ModelSource, parents: Callable[[Sequence[int] | None], list[EngineRequest]]
    ) -> None:
        self._worker = worker
        self._models = source.models
        self._metrics = Metrics(source.metrics)
        self._parents = parents
        self._calls: dict[int, Call] = {}
        self._ended = False
        self.takers: dict[int, Callable[[Frame], None]] = {
            MessageKind.CALL: self._call,
            MessageKind.CANCEL_CALL: lambda frame: self._on(frame, "cancel"),
            MessageKind.TAKEN: lambda frame: self._on(frame, "taken"),
            MessageKind.CONTROL: self._control,
            MessageKind.METRIC: self._change,
            MessageKind.DROP_METRIC: lambda frame: self._metrics.drop(wire.read_json(frame[3])),
        }

    def end(self) -> None:
        """Cancel all calls and refuse new ones: the model is about to be finalized."""
        self._ended = True
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.cancel()

    def close(self) -> None:
        """Cancel the calls and close the metrics, after the worker is gone."""
        self.end()
        self._metrics.close()

    def _check_alive(self) -> None:
        if self._ended:
            raise unsupported("a model cannot call, load or query other models while it is finalized")

    def forget(self) -> None:
        """Drop all references that refer back, after `close`, when no more frames come."""
        self.takers.clear()
        self._parents = _no_parents

    def _call(self, frame: Frame) -> None:
        for record in self._worker.records(frame):
            number = record.number
            respond = functools.partial(self._respond, number)
            try:
                self._check_alive()
                model, version, decoupled, of_batch = record.description.target
                request = _request(record, model, version)
            except Exception as error:
                respond(from_exception(error, "failed to read a call"), True)
                continue
            self._calls[number] = self._models.submit(
                request,
                respond,
                parent=self._parents(None if of_batch else record.extras.get("parents", ())),
                paced=decoupled,
                trace=record.extras.get("trace", ""),
            )

    def _on(self, frame: Frame, method: str) -> None:
        call = self._calls.get(wire.read_number(frame[3]))
        if call is not None:
            getattr(call, method)()

    def _respond(self, number: int, outcome: Outcome, final: bool) -> None:
        worker = self._worker
        if final:
            self._calls.pop(number, None)
        if isinstance(outcome, ModserveError):
            extras = wire.pack({"code": outcome.code.name, "message": outcome.message})
            entry = OutgoingRecord(number, Status.FINAL_ERROR if final else Status.ERROR, extras=extras)
        elif outcome is None:
            entry = OutgoingRecord(number, Status.END)
        else:
            tensors = outcome.outputs
            described = tuple([(name, one.datatype.name, one.shape) for name, one in tensors.items()])
            elements = [one.raw for one in tensors.values()]
            status = Status.FINAL if final else Status.RESPONSE
            extras = wire.pack({"parameters": dict(outcome.parameters)}) if outcome.parameters else b""
            entry = OutgoingRecord(number, status, (described, (), ()), elements, extras=extras)
        worker.send(write_records(worker.descriptions, worker.arena.place, MessageKind.RESPONSE, [entry]))

    def _control(self, frame: Frame) -> None:
        number = frame[2]
        operation, arguments = wire.read_json(frame[3])
        try:
            if operation in CONTROLS:
                self._check_alive()
                future = CONTROLS[operation](self._models, arguments)
                future.add_done_callback(functools.partial(self._on_control_done, number))
            else:
                self._result(number, self._metrics.control(operation, arguments), None)
        except Exception as error:
            self._result(number, None, error)

    def _on_control_done(self, number: int, future: "Future[Any]") -> None:
        error = future.exception()
        value = None if error is not None else future.result()
        try:
            self._worker.loop.call_soon_threadsafe(self._result, number, value, error)
        except RuntimeError:
            pass  # the server has ended, and the worker with it

    def _result(self, number: int, value: Any, error: BaseException | None) -> None:
        if error is None:
            result = {"value": value}
        else:
            failure = from_exception(error, "failed")
            result = {"code": failure.code.name, "message": failure.message}
        self._worker.send(wire.json_frame(MessageKind.RESULT, result, number))

    def _change(self, frame: Frame) -> None:
        """Apply a change of a metric. The worker expects no reply: errors go to the log."""
        try:
            self._metrics.change(*wire.read_json(frame[3]))
        except ModserveError as error:
            _log.error("%s: %s", self._worker.label, error.message)


def _no_parents(numbers: Sequence[int] | None) -> list[EngineRequest]:
    return []


def _request(record: Record, model: str, version: int) -> InferenceRequest:
    _, _, description, extras, id, elements = record
    inputs = {
        name: Tensor.from_raw(datatype, shape, raw)
        for (name, datatype, shape, _), raw in zip(description.tensors, elements, strict=True)
    }
    return InferenceRequest(
        model_name=model,
        inputs=inputs,
        outputs=description.outputs,
        version=None if version < 0 else version,
        id=id,
        parameters=extras.get("parameters", {}),
        timeout_ns=int(extras.get("timeout", 0)) * 1000,
    )
