"""Requests for engines that respond to each separately, and their calls to other models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

from modserve.core.errors import ModserveError
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.sequence import SequenceId
from modserve.core.tensors.tensor import Array, Tensor

Values: TypeAlias = Mapping[str, Array | Tensor]
"""Outputs by name. `Tensor` is for engines that already have the protocol's raw form, for example of BYTES."""


class FinalResponse(NamedTuple):
    """The only response to a request, for engines that end an execution with the responses to all its requests."""

    outputs: Values
    parameters: Mapping[str, ParameterValue] = MappingProxyType({})


class EngineRequest(Protocol):
    """A request, for engines that respond to each one separately.

    It may be kept after the execution has returned, and used from any thread, by one at a time. Each needs a final
    response: a request that is dropped without one fails.
    """

    @property
    def id(self) -> str: ...
    @property
    def request_id(self) -> str:
        """The id for log lines (`core.requests.request_ids`), not the protocol's `id`."""

    @property
    def model_name(self) -> str: ...
    @property
    def model_version(self) -> int: ...
    @property
    def inputs(self) -> Mapping[str, Array]:
        """Inputs of this request alone, in the form that `BackendInstance.execute` gets. Read-only."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Inputs with their datatypes; `Tensor.raw` is the protocol's raw form, also of BYTES."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The requested outputs and the states of the model; a response may have more."""

    @property
    def parameters(self) -> Mapping[str, ParameterValue]: ...
    @property
    def deadline_ns(self) -> int:
        """Time at which the client stops waiting, on the clock of `time.monotonic_ns`; 0 for never."""

    @property
    def timeout_ns(self) -> int:
        """The client's limit for the wait in a queue; 0 for none."""

    @property
    def priority(self) -> int:
        """The client's value, 1 being the most urgent; 0 if unset."""

    @property
    def correlation_id(self) -> SequenceId:
        """The request's sequence; 0 or empty without one."""

    @property
    def sequence_start(self) -> bool: ...
    @property
    def sequence_end(self) -> bool: ...
    @property
    def cancelled(self) -> bool:
        """True if no client waits for a response. The request must still be ended, by `complete` or a response."""

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once if the request is cancelled: on the event loop's thread, which it must not block.

        If it is already cancelled, the call happens now, on this thread. It never happens after the final response.
        Returns a function that withdraws the callback. A callback that refers to the request prevents the automatic
        failure of a forgotten request.
        """

    def stamp(self, activity: str) -> None:
        """Record an activity in the trace of the request, if it is traced.

        In mode opentelemetry it is an event, and ``X_START`` and ``X_END`` are the ends of a span ``X``.
        """

    @property
    def trace_context(self) -> str:
        """The request's span as a JSON object of W3C headers; empty if there is none."""

    def respond(
        self,
        outputs: Values,
        *,
        parameters: Mapping[str, ParameterValue] = MappingProxyType({}),
        final: bool = False,
        wait: bool = True,
    ) -> bool:
        """Give a response. For models that are not decoupled it is the final one. Outputs may be left out.

        `parameters` are the response's. Returns whether there is room for another one: the client has less than 64 MiB
        of this request's responses left to read, and the server's memory suffices. Without room, the call blocks,
        unless the response was final or `wait` is False. `wait` must be False on the event loop's thread and on others
        that must not block. Such an engine continues by `on_room`; a response without room is accepted as well. A
        client must make some progress within 10 seconds each time, and the request may wait 300 seconds in all.
        Otherwise the client is dropped, and `cancelled` is true. Raises RuntimeError after the final response.
        """

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` when there is room or the request has ended: now, or later on the event loop's thread."""

    def fail(self, error: ModserveError, *, final: bool = True, wait: bool = True) -> bool:
        """Respond with a failure. If it is not `final`, decoupled models may continue. Otherwise like `respond`."""

    def complete(self) -> None:
        """End the responses. Does nothing after the final one."""

    def reschedule(self) -> None:
        """Run the request again in a later execution, with its current states, in place of a final response.

        It returns as another object. For models with ``sequence_batching { iterative_sequence: true }``; raises
        RuntimeError for others, and after the final response.
        """


Parents: TypeAlias = EngineRequest | Sequence[EngineRequest] | None
"""The requests that a call to another model is made for: one, several, or (None, or empty) the current batch."""

OnResponse: TypeAlias = Callable[[InferenceResponse | ModserveError | None, bool], None]
"""Receives a response, a failure, or None for an end without either, and whether it is the last.

Called on the event loop's thread, which it must not block.
"""


class Call(Protocol):
    """A request to another model. Its methods work on any thread."""

    def cancel(self) -> None:
        """Cancel the call: no response is wanted any more. The callback still receives the end."""

    def taken(self) -> None:
        """Report that one response has been used, so there is room for another; for a call with ``paced=True``."""


class ModelCaller(Protocol):
    """Caller of other models of the server, from any thread and from the event loop's.

    A call with a `parent`, the engine's current request, shares its deadline, is cancelled with it, appears in its
    trace, and belongs to its sequence unless `request.parameters` name another. A call for several requests has the
    longest of their deadlines, and is cancelled when all of them are; trace and sequence are set only for a single one.
    Calls in ``execute`` without a parent are for the current batch in the same way, but are not cancelled with it. A
    call that would wait for itself, through any number of models, fails with UNSUPPORTED.
    """

    def submit(
        self,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        parent: Parents = None,
        paced: bool = False,
        trace: str = "",
    ) -> Call:
        """Make a call and return at once. Errors arrive as a response.

        `trace` is the `trace_context` of one of several parents; the call appears in its trace.

        With `paced`, a decoupled model does not run further ahead of `Call.taken` than a client's flow control allows.
        """

    def infer(
        self, request: InferenceRequest, *, parent: Parents = None, trace: str = ""
    ) -> "Future[InferenceResponse]":
        """Run a request; the future has its one response, or raises `ModserveError`. Cancelling it cancels the call."""

    def stream(self, request: InferenceRequest, *, parent: Parents = None) -> Iterator[InferenceResponse]:
        """Yield all responses, blocking, for threads; raises `ModserveError`. Closing the iterator cancels the call."""

    def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> "Future[None]":
        """Load a model, or load it again, like the call of the repository extension."""

    def unload(self, name: str, unload_dependents: bool = False) -> "Future[None]":
        """Unload a model, like the call of the repository extension."""

    def is_ready(self, name: str, version: int | None = None) -> "Future[bool]":
        """Return whether a model (version) accepts requests. False for an unknown one."""
