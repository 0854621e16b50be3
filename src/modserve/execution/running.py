"""Requests of an engine that responds to each separately, any number of times, from any thread."""

import enum
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from mypy_extensions import mypyc_attr

from modserve.backends.api import Values
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, forget_frames, from_exception, internal
from modserve.core.requests import request_ids
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.sequence import SequenceId
from modserve.core.tensors.tensor import Array, Tensor

from .batch import check_outputs, copy_outputs, on_host, single

_log = logging.getLogger(__name__)


class Again(enum.Enum):
    """Outcome of an execution that asks for another execution of the request."""

    AGAIN = enum.auto()


_NO_PARAMETERS: Mapping[str, ParameterValue] = MappingProxyType({})


class Stamp(NamedTuple):
    """An activity in the trace of a request."""

    activity: str
    ns: int


class RequestReport(NamedTuple):
    """Report of an engine about a request, with stamps for statistics.

    `what` is a response, a failure, None for the end only, or AGAIN for the end of this execution.
    """

    what: InferenceResponse | ModserveError | Again | None
    final: bool
    start_ns: int
    output_start_ns: int
    end_ns: int


class RequestProgress:
    """The event loop's side of a request: its progress. `home` has the requests that the engine may still answer."""

    def __init__(self, inflight: Inflight, home: "dict[RequestProgress, None]") -> None:
        self.inflight = inflight
        self.home = home
        self.responses = 0
        self.executed = False
        """True if the engine's execution has ended. Responses may follow."""
        self.ended = False
        """True if the engine has sent the final response."""
        self.error: ModserveError | None = None
        """Final failure of the request."""
        self.rerun_requested = False
        """True if the engine asked for another execution instead of sending a final response."""
        self.trace_id = ""
        """Trace id, stored at the first response because the final one releases the trace; empty if not traced."""
        self.filler = False
        """True for fillers and warm-up requests, which do not count. Only a warm-up receives outcomes."""


Deliver: TypeAlias = Callable[[RequestProgress, RequestReport | Stamp], None]
"""Delivers an engine's reports to the event loop's thread in order. Any thread."""


class _Cancellation:
    """Cancellation callbacks of a request. Replaces `Inflight.on_cancel`, and calls the former callback.

    It does not reference the engine's side of the request, which fails when the engine releases it.
    """

    def __init__(self, inflight: Inflight) -> None:
        self._before = inflight.on_cancel
        self.callbacks: list[Callable[[], None]] = []

    def __call__(self, inflight: Inflight) -> None:
        if self._before is not None:
            self._before(inflight)
        self.call()

    def call(self) -> None:
        with suppress(IndexError):
            while True:
                callback = self.callbacks.pop()  # atomic, so that each callback is called once
                try:
                    callback()
                except Exception:
                    _log.exception("an engine failed to handle the cancellation of a request")


@mypyc_attr(native_class=False)  # supports weak references by engines
class RunningRequest:
    """The engine's side of a request. Implements `backends.api.EngineRequest`."""

    def __init__(
        self,
        running: RequestProgress,
        config: ModelConfig,
        version: int,
        deliver: Deliver,
        reuses_outputs: bool = False,
    ) -> None:
        self._running = running
        self._config = config
        self._deliver = deliver
        self._reuses_outputs = reuses_outputs
        self._last_ns = time.monotonic_ns()
        self._ended = False
        self._cancellation: _Cancellation | None = None
        self.inflight = running.inflight
        self.model_version = version

    def __repr__(self) -> str:
        return f"RunningRequest({self._config.name}, {self.id!r})"

    @property
    def id(self) -> str:
        return self.inflight.request.id

    @property
    def request_id(self) -> str:
        return request_ids.of(self.inflight.request)

    @property
    def model_name(self) -> str:
        return self._config.name

    @cached_property
    def inputs(self) -> Mapping[str, Array]:
        return {name: tensor.array for name, tensor in self.inflight.inputs.items()}

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.inflight.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        names, states = self.inflight.output_names, self._config.state_outputs
        return tuple(dict.fromkeys((*names, *states))) if states else names

    @property
    def parameters(self) -> Mapping[str, ParameterValue]:
        parameters = self.inflight.request.parameters
        return MappingProxyType(parameters) if parameters else _NO_PARAMETERS

    @property
    def deadline_ns(self) -> int:
        return self.inflight.deadline_ns

    @property
    def timeout_ns(self) -> int:
        return self.inflight.request.timeout_ns

    @property
    def priority(self) -> int:
        priority = self.parameters.get("priority", 0)
        return priority if type(priority) is int else 0

    @property
    def correlation_id(self) -> SequenceId:
        # Models without sequence batching get the unchanged parameter.
        sequence_id = self.parameters.get("sequence_id", 0)
        return sequence_id if isinstance(sequence_id, int | str) else 0

    @property
    def sequence_start(self) -> bool:
        return self.parameters.get("sequence_start") is True

    @property
    def sequence_end(self) -> bool:
        return self.parameters.get("sequence_end") is True

    @property
    def cancelled(self) -> bool:
        return self.inflight.cancelled

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        if self._ended:
            return _nothing
        if self._cancellation is None:
            self._cancellation = self.inflight.on_cancel = _Cancellation(self.inflight)
        callbacks = self._cancellation.callbacks
        callbacks.append(callback)
        if self.inflight.cancelled:
            self._cancellation.call()
        return partial(_withdraw, callbacks, callback)

    @property
    def trace_context(self) -> str:
        trace = self.inflight.trace
        return "" if trace is None else trace.context

    def stamp(self, activity: str) -> None:
        self._deliver(self._running, Stamp(activity, time.monotonic_ns()))

    def respond(
        self,
        outputs: Values,
        *,
        parameters: Mapping[str, ParameterValue] = MappingProxyType({}),
        final: bool = False,
        wait: bool = True,
    ) -> bool:
        output_start_ns = time.monotonic_ns()
        what: InferenceResponse | ModserveError
        try:
            values: Values = check_outputs(outputs, self._config)
            if self._reuses_outputs:
                values = copy_outputs(outputs, self._config)
            what = single(values, self.inflight, self._config, self.model_version, parameters)
            states = self.inflight.states
            if states is not None:
                states.keep(self._config.name, on_host(values), some=True)
        except Exception as error:
            what = from_exception(error, f"model '{self._config.name}'")
            forget_frames(what)
        # The only response of a model that is not decoupled is final.
        return self._say(what, final or not self._config.decoupled, output_start_ns, wait)

    def on_room(self, callback: Callable[[], None]) -> None:
        flow = self.inflight.flow
        if flow is None or self._ended:
            callback()
        else:
            flow.on_room(callback)

    def fail(self, error: ModserveError, *, final: bool = True, wait: bool = True) -> bool:
        return self._say(error, final or not self._config.decoupled, time.monotonic_ns(), wait)

    def complete(self) -> None:
        if not self._ended:
            self._say(None, True, time.monotonic_ns())

    def end(self) -> None:
        """Mark the request as ended: its final response is delivered with the batch's."""
        self._ended = True
        if self._cancellation is not None:
            self._cancellation.callbacks.clear()

    def reschedule(self) -> None:
        batching = self._config.sequence_batching
        if batching is None or not batching.iterative:
            needs = "sequence_batching { iterative_sequence: true }"
            raise RuntimeError(f"{self!r} cannot run again: that needs {needs}")
        self._say(Again.AGAIN, True, time.monotonic_ns())

    def _say(
        self,
        outcome: InferenceResponse | ModserveError | Again | None,
        final: bool,
        output_start_ns: int,
        wait: bool = True,
    ) -> bool:
        if self._ended:
            raise RuntimeError(f"{self!r} already has its final response")
        self._ended = final
        if final and self._cancellation is not None:
            self._cancellation.callbacks.clear()
        flow = None if final else self.inflight.flow
        if flow is not None:
            flow.on_response(outcome.size if isinstance(outcome, InferenceResponse) else 0)
        start_ns, self._last_ns = self._last_ns, time.monotonic_ns()
        self._deliver(self._running, RequestReport(outcome, final, start_ns, output_start_ns, self._last_ns))
        if flow is None:
            return not final
        if wait:
            flow.wait()
        return flow.room

    def __del__(self) -> None:
        # The engine released the request and can no longer respond, but the client waits.
        if not getattr(self, "_ended", True):
            self.fail(internal(f"model '{self._config.name}' released a request without a final response"))


def _withdraw(callbacks: list[Callable[[], None]], callback: Callable[[], None]) -> None:
    if callback in callbacks:
        callbacks.remove(callback)


def _nothing() -> None: ...
