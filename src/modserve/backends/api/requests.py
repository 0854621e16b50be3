"""A request as an engine sees it that responds to each by itself."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

from modserve.core.errors import ModserveError
from modserve.core.request import ParameterValue
from modserve.core.sequence import SequenceId
from modserve.core.tensor import Array, Tensor

Values: TypeAlias = Mapping[str, Array | Tensor]
"""Outputs by name. `Tensor` is for engines that have the raw form of the protocol at hand, as of BYTES."""


class EngineRequest(Protocol):
    """One request, for engines that respond to each by itself.

    It may be kept after the execution has returned, and be used from any thread, by one at a time. Each must get a
    final response: one that is let go of without it is failed.
    """

    @property
    def id(self) -> str: ...

    @property
    def model_name(self) -> str: ...

    @property
    def model_version(self) -> int: ...

    @property
    def inputs(self) -> Mapping[str, Array]:
        """As `BackendInstance.execute` gets them, of this request alone. Read-only."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The same inputs with their datatypes; `Tensor.raw` is the protocol's raw form, also of BYTES."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """The requested ones; a response may have more."""
        ...

    @property
    def parameters(self) -> Mapping[str, ParameterValue]: ...

    @property
    def deadline_ns(self) -> int:
        """When the client stops waiting, on the clock of `time.monotonic_ns`; 0 for never."""
        ...

    @property
    def timeout_ns(self) -> int:
        """How long the client lets the request wait in a queue; 0 for ever."""
        ...

    @property
    def priority(self) -> int:
        """As the client said it, 1 being the most urgent; 0 if it said nothing."""
        ...

    @property
    def correlation_id(self) -> SequenceId:
        """Of the request's sequence; 0 or empty for a request that is in none."""
        ...

    @property
    def sequence_start(self) -> bool: ...

    @property
    def sequence_end(self) -> bool: ...

    @property
    def cancelled(self) -> bool:
        """Nobody waits for a response any more. The request must be ended all the same, by `complete` or a response."""
        ...

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once if the request is cancelled: on the event loop's thread, which it must not hold up.

        It is called at once, on this thread, if the request is cancelled already, and never after the final response.
        Returns a function that withdraws the callback. A callback that refers to the request keeps it from being
        failed when the engine lets go of it.
        """
        ...

    def stamp(self, activity: str) -> None:
        """Something happens now: an activity for the trace of the request, if it is traced."""
        ...

    def respond(
        self,
        outputs: Values,
        *,
        parameters: Mapping[str, ParameterValue] = MappingProxyType({}),
        final: bool = False,
        wait: bool = True,
    ) -> bool:
        """Give a response. For models that are not decoupled it is the final one; decoupled ones may leave outputs out.

        `parameters` are those of the response. Returns whether there is room for another one. Raises RuntimeError after
        the final response.

        There is no room while the client has 64 MiB of this request's responses still to take, or less while the server
        is short of memory. The call then blocks, unless it was the final response or `wait` is False: then the engine
        waits for `on_room`, and a response that it gives without waiting is taken as well. In either case the client
        gets 10 seconds for some progress each time, and 300 for all of the request; then it is given up, and
        `cancelled` says so. With `wait` it is not for a thread that others wait for, and never for the event loop's.
        """
        ...

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when there is room for another response, or the request has ended.

        It is called at once, on this thread, if there is room now; else on the event loop's.
        """
        ...

    def fail(self, error: ModserveError, *, final: bool = True, wait: bool = True) -> bool:
        """Respond with a failure, after which decoupled models may go on if it is not `final`; else as `respond`."""
        ...

    def complete(self) -> None:
        """No more responses. Does nothing after the final one."""
        ...

    def reschedule(self) -> None:
        """In place of a final response: run the request again in a later execution, with the states it has by then.

        It comes back as another object. For models with ``sequence_batching { iterative_sequence: true }``; raises
        RuntimeError for others, and after the final response.
        """
        ...
