"""The four kinds of instance, and how the server drives them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from modserve.core.dtypes import Datatype
from modserve.core.errors import Code, ModserveError
from modserve.core.tensor import Array, Shape

from .requests import EngineRequest


class InstanceLostError(ModserveError):
    """The instance cannot run anything any more: its process has ended, its device is gone.

    An instance on a thread raises it; one on the event loop reports it through its `InstanceHandle`. The requests at
    hand fail with UNAVAILABLE and this text. The server closes the instance and makes another one in its place.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,)


class BackendInstance(Protocol):
    """One executor, used by one thread at a time: always the same, unless its backend says `any_thread`.

    It may have these attributes and methods besides; the other kinds of instance may have all but `data_dependent`:

    `reuses_outputs` (bool, False where it is absent): the engine uses the memory of its outputs again, see `execute`.

    `data_dependent` (bool, True where it is absent): executions of the same shapes may take very different times,
    because of the values in them. Only where it is False, and the backend says `any_thread`, may very short executions
    run on the event loop's thread, where one that takes long stops the whole server.

    ``allocate(name: str, datatype: Datatype, shape: Shape) -> Array | None``: memory of the engine for a merged input,
    see `Allocate`. The server asks for each input of each execution.
    """

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        """Run one batch, blocking.

        `inputs` are arrays as `core.dtypes` maps the datatypes, with the batch dimension if the model has one.
        `outputs` names the requested ones; more may be returned. A model with a batch dimension returns as many rows as
        it gets.

        The engine may read the memory of the inputs until it returns, and hand it back as outputs. It must not write to
        it: arrays over a client's bytes are read-only. The memory of the outputs is the server's from then on, which
        reads it while later batches run: the engine must not write to it any more, or say `reuses_outputs`, and the
        server copies what it needs before the next execution begins.

        When a merged batch fails with INVALID_ARG, INTERNAL or any other exception, the server runs its requests once
        more, one by one, unless the model keeps state.
        """
        ...

    def close(self) -> None:
        """Let go of everything. No execution is under way. May block, and is called for a lost instance, too."""
        ...


Allocate: TypeAlias = Callable[[str, Datatype, Shape], Array | None]
"""Memory of the engine (shared memory, pinned memory) that the server writes an input to.

None leaves the input to the server. The array must be writable, in row-major order, of the shape and of the datatype's
numpy type; the server checks that. It belongs to the execution that it was asked for until that is over. Called on the
thread that merges the batch: the instance's thread, or of an instance on the event loop any thread, one at a time for
each execution. Inputs of BYTES are not asked for.
"""


@runtime_checkable
class RequestInstance(Protocol):
    """An executor that gets the requests of a batch one by one, and responds to each by itself.

    For engines that need more of a request than its tensors, and for decoupled models with any number of responses.
    With `reuses_outputs`, what it gives to `respond` is copied.
    """

    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        """Begin to respond to requests, blocking as long as it keeps the instance busy.

        What it raises is the response to those that have no final one by then.
        """
        ...

    def close(self) -> None:
        """Let go of everything. No execution is under way; requests may still be open at the end of the process."""
        ...


class InstanceHandle(Protocol):
    """What an instance on the event loop has of the server."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def lost(self, error: InstanceLostError) -> None:
        """The instance is gone, whatever it was doing. Any thread; the first call counts.

        All executions under way fail with `error`, and so do the requests that it has not responded to. The server then
        calls `detach` and `close`, and makes another instance.
        """
        ...


BatchDone: TypeAlias = Callable[[Mapping[str, Array] | BaseException], None]
"""The end of an execution: its outputs, or why there are none. Any thread; the first call counts."""
RequestsDone: TypeAlias = Callable[[BaseException | None], None]
"""The end of an execution. An exception is the response to the requests that have no final one by then."""


class _OnLoop(Protocol):
    """What the two kinds of instance on the event loop have in common.

    They may have the attribute `max_in_flight` (int, 1 where it is absent): how many executions may be under way at a
    time. Models with ``sequence_batching`` have one at a time nevertheless.
    """

    def attach(self, handle: InstanceHandle) -> None:
        """Once, before anything is started: the place for `loop.add_reader`. On the event loop's thread.

        What it raises makes the load fail.
        """
        ...

    def detach(self) -> None:
        """Let go of the event loop: nothing more is started. On the event loop's thread, before `close`."""
        ...

    def close(self) -> None:
        """Let go of everything else. May block; on another thread."""
        ...


@runtime_checkable
class AsyncInstance(_OnLoop, Protocol):
    """An executor of merged batches that blocks no thread: behind a pipe or a socket, or with callbacks of its own."""

    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        """Begin an execution and return at once; `done` ends it. Raising ends it as well. On the event loop's thread.

        All else is as in `BackendInstance.execute`: the engine may read the inputs until it calls `done`.
        """
        ...


@runtime_checkable
class AsyncRequestInstance(_OnLoop, Protocol):
    """An executor of single requests that blocks no thread. As `RequestInstance` and `AsyncInstance` together."""

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        """Begin to respond to requests and return at once; after `done` the instance takes others.

        Responses may come before and after that. On the event loop's thread, where `respond` takes ``wait=False``.
        """
        ...


Executor: TypeAlias = BackendInstance | RequestInstance | AsyncInstance | AsyncRequestInstance


def reuses_outputs(executor: Executor) -> bool:
    """Whether the server has to copy what the executor returns."""
    return bool(getattr(executor, "reuses_outputs", False))


def data_dependent(executor: Executor) -> bool:
    """Whether executions of the same shapes may take very different times."""
    return bool(getattr(executor, "data_dependent", True))
