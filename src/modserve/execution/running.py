"""Requests in the hands of an engine that answers each by itself, as often as it likes, from any thread."""

import enum
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from modserve.core.errors import ModserveError, forget_frames, from_exception, internal
from modserve.core.inflight import Inflight
from modserve.core.model_config import ModelConfig
from modserve.core.request import ParameterValue
from modserve.core.response import InferenceResponse
from modserve.core.tensor import Array

from .batch import checked, copied, single


class Again(enum.Enum):
    """The engine wants to execute a request again."""

    AGAIN = enum.auto()


class Answer(NamedTuple):
    """What an engine said of a request. Stamps as for statistics.

    A response, a failure, None for the end alone, or AGAIN for the end of this execution only.
    """

    what: InferenceResponse | ModserveError | Again | None
    final: bool
    start_ns: int
    output_start_ns: int
    end_ns: int


class Running:
    """The event loop's side: how far a request has come."""

    __slots__ = ("again", "answers", "ended", "error", "executed", "filler", "inflight")

    def __init__(self, inflight: Inflight) -> None:
        self.inflight = inflight
        self.answers = 0
        self.executed = False
        """The engine's execution is over; answers may still come."""
        self.ended = False
        """The engine has given its final answer."""
        self.error: ModserveError | None = None
        """What it ended with, if that was a failure."""
        self.again = False
        """The engine asked for another execution in place of a final answer."""
        self.filler = False
        """Nobody's request: nobody hears of it, and it counts nowhere."""


Tell = Callable[[Running, Answer], None]
"""Brings an answer to the event loop's thread, from any thread and in order."""


class RunningRequest:
    """Implements `backends.api.EngineRequest`: the engine's side."""

    def __init__(
        self, running: Running, config: ModelConfig, version: int, tell: Tell, reuses_outputs: bool = False
    ) -> None:
        inflight = running.inflight
        self.id = inflight.request.id
        self.outputs = inflight.output_names
        self.parameters: Mapping[str, ParameterValue] = MappingProxyType(dict(inflight.request.parameters))
        self.inputs: Mapping[str, Array] = {name: tensor.array for name, tensor in inflight.inputs.items()}
        self._running = running
        self._config = config
        self._version = version
        self._tell = tell
        self._reuses_outputs = reuses_outputs
        self._last_ns = time.monotonic_ns()
        self._ended = False

    def __repr__(self) -> str:
        return f"RunningRequest({self._config.name}, {self.id!r})"

    @property
    def cancelled(self) -> bool:
        return self._running.inflight.cancelled

    def respond(
        self,
        outputs: Mapping[str, Array],
        *,
        parameters: Mapping[str, ParameterValue] = MappingProxyType({}),
        final: bool = False,
    ) -> None:
        output_start_ns = time.monotonic_ns()
        what: InferenceResponse | ModserveError
        try:
            outputs = (copied if self._reuses_outputs else checked)(outputs, self._config)
            what = single(outputs, self._running.inflight, self._config, self._version, parameters)
            if self._running.inflight.states is not None:
                self._running.inflight.states.keep(self._config.name, outputs, some=True)
        except Exception as error:
            what = from_exception(error, f"model '{self._config.name}'")
            forget_frames(what)
        # What is not decoupled has one response.
        self._say(what, final or not self._config.decoupled, output_start_ns)

    def fail(self, error: ModserveError, *, final: bool = True) -> None:
        self._say(error, final or not self._config.decoupled, time.monotonic_ns())

    def complete(self) -> None:
        if not self._ended:
            self._say(None, True, time.monotonic_ns())

    def reschedule(self) -> None:
        batching = self._config.sequence_batching
        if batching is None or not batching.iterative:
            raise RuntimeError(
                f"{self!r} can not run again: that takes sequence_batching {{ iterative_sequence: true }}"
            )
        self._say(Again.AGAIN, True, time.monotonic_ns())

    def _say(self, what: InferenceResponse | ModserveError | Again | None, final: bool, output_start_ns: int) -> None:
        if self._ended:
            raise RuntimeError(f"{self!r} has had its final response")
        self._ended = final
        flow = None if final else self._running.inflight.flow
        if flow is not None:
            flow.given(what.size if isinstance(what, InferenceResponse) else 0)
        start_ns, self._last_ns = self._last_ns, time.monotonic_ns()
        self._tell(self._running, Answer(what, final, start_ns, output_start_ns, self._last_ns))
        if flow is not None:
            flow.wait()

    def __del__(self) -> None:
        # An engine that lets go of a request can not answer it any more, and somebody waits.
        if not getattr(self, "_ended", True):
            self.fail(internal(f"model '{self._config.name}' let go of a request without a final response"))
