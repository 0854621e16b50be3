"""Calls that an engine makes to other models of the server."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Protocol, TypeAlias

from modserve.core.errors import ModserveError
from modserve.core.request import InferenceRequest
from modserve.core.response import InferenceResponse

from .requests import EngineRequest

OnResponse: TypeAlias = Callable[[InferenceResponse | ModserveError | None, bool], None]
"""Takes a response, a failure, or None for an end without either; and whether it is the last that comes.

Called on the event loop's thread, which it must not hold up.
"""


class Call(Protocol):
    """A request to another model. Its methods are for any thread."""

    def cancel(self) -> None:
        """Nobody waits for a response any more. The callback still hears of the end, if it has not."""
        ...

    def taken(self) -> None:
        """One of the responses has been used, so that there is room for another: for a call with ``paced=True``."""
        ...


class ModelCaller(Protocol):
    """Calls other models of the server, from any thread and from the event loop's.

    A call with a `parent`, the request that the engine is working on, has no more time than that, is cancelled with it,
    appears in its trace, and belongs to its sequence, if `request.parameters` do not say which it belongs to. In
    ``execute``, which gets no requests, the calls belong to the batch at hand: they have the time of the request that
    waits longest, and the trace and the sequence of a request that is alone.

    A model that calls itself, or one that waits for it, would wait for ever: that call fails with UNSUPPORTED.
    """

    def submit(
        self,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        parent: EngineRequest | None = None,
        paced: bool = False,
    ) -> Call:
        """Make a call and return at once. What is wrong with it comes as a response.

        With `paced`, a decoupled model does not run ahead of `Call.taken` by more than a client's flow control allows.
        """
        ...

    def infer(self, request: InferenceRequest, *, parent: EngineRequest | None = None) -> "Future[InferenceResponse]":
        """The one response: for threads by ``result()``, which raises `ModserveError`. Cancelling cancels the call."""
        ...

    def stream(self, request: InferenceRequest, *, parent: EngineRequest | None = None) -> Iterator[InferenceResponse]:
        """All responses, one after the other, blocking: for threads. Closing the iterator cancels the call.

        Raises `ModserveError` for a failure, which ends it.
        """
        ...

    def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> "Future[None]":
        """Load a model, or load it again, as the call of the repository extension does."""
        ...

    def unload(self, name: str, unload_dependents: bool = False) -> "Future[None]":
        """Take a model out of service, as the call of the repository extension does."""
        ...

    def is_ready(self, name: str, version: int | None = None) -> "Future[bool]":
        """Whether a model (version) takes requests. False for one that is not there."""
        ...
