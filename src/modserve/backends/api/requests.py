"""A request as an engine sees it that responds to each by itself, and the calls that it makes to other models."""

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
"""Outputs by name. `Tensor` is for engines that have the raw form of the protocol at hand, as of BYTES."""


class FinalResponse(NamedTuple):
    """The one response to a request, for an engine that ends an execution with those of all its requests."""

    outputs: Values
    parameters: Mapping[str, ParameterValue] = MappingProxyType({})


class EngineRequest(Protocol):
    """One request, for engines that respond to each by itself.

    It may be kept after the execution has returned, and be used from any thread, by one at a time. Each must get a
    final response: one that is let go of without it is failed.
    """

    @property
    def id(self) -> str: ...
    @property
    def request_id(self) -> str:
        """By which systems follow it (`core.requests.request_ids`), and not the protocol's `id`: for log lines."""

    @property
    def model_name(self) -> str: ...
    @property
    def model_version(self) -> int: ...
    @property
    def inputs(self) -> Mapping[str, Array]:
        """As `BackendInstance.execute` gets them, of this request alone. Read-only."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The same inputs with their datatypes; `Tensor.raw` is the protocol's raw form, also of BYTES."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The requested ones, and the states of the model; a response may have more."""

    @property
    def parameters(self) -> Mapping[str, ParameterValue]: ...
    @property
    def deadline_ns(self) -> int:
        """When the client stops waiting, on the clock of `time.monotonic_ns`; 0 for never."""

    @property
    def timeout_ns(self) -> int:
        """How long the client lets the request wait in a queue; 0 for ever."""

    @property
    def priority(self) -> int:
        """As the client said it, 1 being the most urgent; 0 if it said nothing."""

    @property
    def correlation_id(self) -> SequenceId:
        """Of the request's sequence; 0 or empty for a request that is in none."""

    @property
    def sequence_start(self) -> bool: ...
    @property
    def sequence_end(self) -> bool: ...
    @property
    def cancelled(self) -> bool:
        """Nobody waits for a response any more. The request must be ended all the same, by `complete` or a response."""

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once if the request is cancelled: on the event loop's thread, which it must not hold up.

        At once, on this thread, if it is cancelled already; never after the final response. Returns a function that
        withdraws the callback. One that refers to the request keeps it from being failed when the engine forgets it.
        """

    def stamp(self, activity: str) -> None:
        """Something happens now: an activity for the trace of the request, if it is traced.

        In mode opentelemetry it is an event, and ``X_START`` and ``X_END`` are the ends of a span ``X``.
        """

    @property
    def trace_context(self) -> str:
        """The request's span as JSON, an object of W3C headers; empty if there is none."""

    def respond(
        self,
        outputs: Values,
        *,
        parameters: Mapping[str, ParameterValue] = MappingProxyType({}),
        final: bool = False,
        wait: bool = True,
    ) -> bool:
        """Give a response. For models that are not decoupled it is the final one. Outputs may be left out.

        `parameters` are those of the response. Returns whether there is room for another one: the client has less than
        64 MiB of this request's responses still to take, or than the server has memory for. Without room, the call
        blocks, unless the response was the final one or `wait` is False, as it must be on the event loop's thread and
        on others that somebody waits for: then the engine goes on by `on_room`, and a response that it gives all the
        same is taken as well. A client gets 10 seconds for some progress each time, and 300 for all of the request;
        then it is given up, and `cancelled` says so. Raises RuntimeError after the final response.
        """

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` when there is room or the request has ended: now, or else on the event loop's thread."""

    def fail(self, error: ModserveError, *, final: bool = True, wait: bool = True) -> bool:
        """Respond with a failure, after which decoupled models may go on if it is not `final`; else as `respond`."""

    def complete(self) -> None:
        """No more responses. Does nothing after the final one."""

    def reschedule(self) -> None:
        """In place of a final response: run the request again in a later execution, with the states it has by then.

        It comes back as another object. For models with ``sequence_batching { iterative_sequence: true }``; raises
        RuntimeError for others, and after the final response.
        """


Parents: TypeAlias = EngineRequest | Sequence[EngineRequest] | None
"""The requests that a call to another model is made for: one, several, or (None, or empty) the batch at hand."""

OnResponse: TypeAlias = Callable[[InferenceResponse | ModserveError | None, bool], None]
"""Takes a response, a failure, or None for an end without either; and whether it is the last that comes.

Called on the event loop's thread, which it must not hold up.
"""


class Call(Protocol):
    """A request to another model. Its methods are for any thread."""

    def cancel(self) -> None:
        """Nobody waits for a response any more. The callback still hears of the end, if it has not."""

    def taken(self) -> None:
        """One of the responses has been used, so that there is room for another: for a call with ``paced=True``."""


class ModelCaller(Protocol):
    """Calls other models of the server, from any thread and from the event loop's.

    A call with a `parent`, the request that the engine is working on, has no more time than that, is cancelled with it,
    appears in its trace, and belongs to its sequence, if `request.parameters` name no other. A call for several
    requests has the time of the one that waits longest, and is cancelled when all of them are; it has the trace and the
    sequence of a single one. Calls in ``execute`` without a parent are for the batch at hand, in the same way, but they
    are not cancelled with it. A call that would wait for itself, through any number of models, fails with UNSUPPORTED.
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
        """Make a call and return at once. What is wrong with it comes as a response.

        `trace` is the `trace_context` of one of several parents, in whose trace the call shall be.

        With `paced`, a decoupled model does not run ahead of `Call.taken` by more than a client's flow control allows.
        """

    def infer(
        self, request: InferenceRequest, *, parent: Parents = None, trace: str = ""
    ) -> "Future[InferenceResponse]":
        """The one response: for threads by ``result()``, which raises `ModserveError`. Cancelling cancels the call."""

    def stream(self, request: InferenceRequest, *, parent: Parents = None) -> Iterator[InferenceResponse]:
        """All responses, blocking, for threads; raises `ModserveError`. Closing the iterator cancels the call."""

    def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> "Future[None]":
        """Load a model, or load it again, as the call of the repository extension does."""

    def unload(self, name: str, unload_dependents: bool = False) -> "Future[None]":
        """Take a model out of service, as the call of the repository extension does."""

    def is_ready(self, name: str, version: int | None = None) -> "Future[bool]":
        """Whether a model (version) takes requests. False for one that is not there."""
