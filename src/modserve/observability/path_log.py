"""Log of a request's path, with ``--log-verbose``: a line on acceptance, and one on settlement."""

import logging
import time
from collections.abc import Mapping
from typing import Final

from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import RequestTrace
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId

from .logging import MOST_MESSAGE, escape, quote

_log = logging.getLogger(__name__)

_CLOSED: Final = {
    "full": "it was full",
    "preferred": "it had a preferred size",
    "delay": "its oldest request had waited for the queue delay",
    "idle_instance": "an instance was free",
    "shape": "the other requests have other shapes",
    "deadline": "a request would have been too late",
    "single": "the model takes one request at a time",
    "no_gain": "more requests would gain nothing",
    "refused": "the engine had refused the batch it was in",
}
"""Reasons for closing a batch, as text, by the values of `scheduling.batching.Reason`."""


class PathLog:
    """Implements `core.requests.inflight.RequestTrace`; `trace` is the request's own trace, if any."""

    def __init__(self, request_id: str, model: ModelId, trace: RequestTrace | None, step: bool = False) -> None:
        self.request_id = ""
        """Client-chosen id, from the protocol's field."""
        self._known_as = request_id
        self._model = model
        self._trace = trace
        self._step = step
        self._start_ns = self._queued_ns = 0

    @property
    def trace_id(self) -> str:
        return "" if self._trace is None else self._trace.trace_id

    @property
    def context(self) -> str:
        return "" if self._trace is None else self._trace.context

    def stamp(self, activity: str, ns: int = 0) -> None:
        if self._trace is not None:
            self._trace.stamp(activity, ns)

    def on_submit(self, inputs: Mapping[str, Tensor], start_ns: int, queue_start_ns: int) -> None:
        if self._trace is not None:
            self._trace.request_id = self.request_id
            self._trace.on_submit(inputs, start_ns, queue_start_ns)
        self._start_ns, self._queued_ns = start_ns, queue_start_ns
        size = sum(tensor.size for tensor in inputs.values())
        id = f", id {quote(self.request_id)}" if self.request_id else ""
        after = "begun" if self._step else "received"
        text = (
            f"{after} with {size} bytes of tensors{id}, accepted and queued after {_micros(queue_start_ns - start_ns)}"
        )
        self._say(text)

    def on_settle(self, outcome: Outcome, final: bool, timing: ExecutionTiming | None) -> None:
        if self._trace is not None:
            self._trace.on_settle(outcome, final, timing)
        if isinstance(outcome, InferenceResponse):
            self._model = ModelId(self._model.name, outcome.model_version)
            came = f"a response of {outcome.size} bytes"
        elif isinstance(outcome, ModserveError):
            came = f"failed: {escape(outcome.message, MOST_MESSAGE)}"
        else:
            came = "no more responses"
        if final:
            took = _micros(time.monotonic_ns() - self._start_ns)
            self._say(f"{_describe_execution(timing, self._queued_ns)}; settled {took} after it was received: {came}")
        else:
            self._say(came)

    def on_batch(self, timing: ExecutionTiming) -> None:
        if self._trace is not None:
            self._trace.on_batch(timing)

    def link(self, other: RequestTrace) -> None:
        trace = other._trace if isinstance(other, PathLog) else other
        if self._trace is not None and trace is not None:
            self._trace.link(trace)

    def on_failure(self, error: ModserveError, status: int | str) -> None:
        if self._trace is not None:
            self._trace.on_failure(error, status)

    def child(self, model: ModelId) -> "PathLog":
        return PathLog(self._known_as, model, None if self._trace is None else self._trace.child(model), step=True)

    def end(self) -> None:
        if self._trace is not None:
            self._trace.end()

    def _say(self, text: str) -> None:
        name, version = self._model
        fields = {"model": name, "version": version, "request_id": self._known_as, "id": self.request_id}
        said = "request %s of model '%s', version %d: %s"
        _log.debug(said, self._known_as, name, version, text, extra={"fields": fields})


def _describe_execution(timing: ExecutionTiming | None, queued_ns: int) -> str:
    if timing is None or not timing.compute_start_ns:
        return "not executed here"
    end_ns = timing.compute_end_ns or time.monotonic_ns()
    input_ns = timing.compute_input_end_ns or timing.compute_start_ns
    output_ns = timing.compute_output_start_ns or end_ns
    closed = _CLOSED.get(timing.close_reason, timing.close_reason)
    spans = ((timing.compute_start_ns, input_ns), (input_ns, output_ns), (output_ns, end_ns))
    inputs, engine, outputs = (_micros(max(0, end - start)) for start, end in spans)
    waited = _micros(timing.compute_start_ns - queued_ns)
    batch = f"batch of {timing.batch_size}" + (f" closed because {closed}" if closed else "")
    return f"{batch}, after {waited} in the queue; executed: inputs {inputs}, engine {engine}, outputs {outputs}"


def _micros(ns: int) -> str:
    return f"{ns // 1000} us"
