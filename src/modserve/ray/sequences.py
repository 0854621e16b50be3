"""Sequences on several replicas: each request goes to the replica that has its sequence, wherever it arrives.

A sequence's name and the current replicas determine where it begins (`sessions.owner`). After new replicas have joined,
that may be another replica, which then asks who has the sequence and forwards the request: a sequence stays where it
began. Its requests are sent one after the other, so that they keep their order.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextvars import ContextVar
from typing import Protocol

from modserve.core.errors import ModserveError, unsupported
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome, ResponseSink
from modserve.core.requests.sequence import SequenceKey, membership
from modserve.core.servable import SequenceKeeper, Servable
from modserve.frontends.errors import to_client_error
from modserve.models.serving.wrappers import ModelWrapper
from modserve.server.local import LocalServer
from modserve.workers import inference, pickles

from .sessions import candidates, direct, session_id

_HERE: ContextVar[bool] = ContextVar("here", default=False)
"""True if the request has reached the replica that has its sequence."""


class SequenceSender(Protocol):
    """Sends requests to the replica of a session; yields outcomes as bytes, with True for the last one."""

    def send(self, session: str, data: bytes) -> AsyncIterator[tuple[bool, bytes]]: ...


class NearSender:
    """Implements `SequenceSender`: requests for this replica bypass Ray.

    That is faster, and in Ray 2.60 a replica that calls itself deadlocks in roughly one of 1,000 calls.
    """

    def __init__(
        self,
        name: str,
        replicas: Callable[[], Collection[str]],
        own: Callable[[bytes], AsyncIterator[tuple[bool, bytes]]],
        others: SequenceSender,
    ) -> None:
        """`replicas`: returns names of current replicas; empty if unknown. `own`: like `receive`."""
        self._name = name
        self._replicas = replicas
        self._own, self._others = own, others

    def send(self, session: str, data: bytes) -> AsyncIterator[tuple[bool, bytes]]:
        replicas = self._replicas()
        if replicas and candidates(session, "", replicas) == [self._name]:
            return self._own(data)
        return self._others.send(session, data)


class HolderSearch(Protocol):
    """Finds the replica that has a sequence, among the others."""

    async def holder(self, model: str, version: int | None, key: SequenceKey) -> str:
        """Return the name of the replica that has the sequence; empty if none has it."""


class SequenceRoutes:
    """Forwards requests of sequences that arrive here to their replicas."""

    def __init__(self, sender: SequenceSender) -> None:
        self._sender = sender
        self._last: dict[str, asyncio.Task[None]] = {}
        """Task of the last unfinished request of each session."""

    def forward(self, session: str, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """Submit like `Servable.submit`, on another replica or, by the same path, on this one."""
        patience_ns = max(1, request.deadline_ns - time.monotonic_ns()) if request.deadline_ns else 0
        data = pickles.dumps((patience_ns, inference.write_request(request)))
        inflight = Inflight(request, sink, request.inputs, request.outputs, 0, None, now_ns, request.deadline_ns)
        task = asyncio.get_running_loop().create_task(self._send(session, data, inflight, self._last.get(session)))
        self._last[session] = task
        inflight.on_cancel = lambda _: _cancel(task)
        task.add_done_callback(lambda _: self._forget(session, task))
        return inflight

    def _forget(self, session: str, task: asyncio.Task[None]) -> None:
        if self._last.get(session) is task:
            del self._last[session]

    async def _send(self, session: str, data: bytes, inflight: Inflight, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            async for final, content in self._sender.send(session, data):
                outcome: Outcome = None
                if content:
                    value = pickles.loads(content)
                    failed = isinstance(value, ModserveError)
                    outcome = value if failed else inference.read_response(value)
                inflight.settle(outcome, final)
        except Exception as error:
            inflight.settle(to_client_error(error, "a request of a sequence"))


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


class SessionModel(ModelWrapper):
    """A model with sequences that are distributed over replicas."""

    def __init__(self, servable: Servable, routes: SequenceRoutes | None) -> None:
        """`routes`: None if owners of sequences are unknown; requests of sequences are then refused."""
        super().__init__(servable)
        self._routes = routes

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if _HERE.get():
            return self._servable.submit(request, sink, now_ns)
        try:
            member = membership(request)
        except ModserveError:
            return self._servable.submit(request, sink, now_ns)  # the model refuses the request
        if not member.id:
            return self._servable.submit(request, sink, now_ns)
        if self._routes is None:
            raise unsupported(
                f"{request.label}requests of sequences are refused, because Ray's HAProxy mode sends them to any "
                "replica; unset RAY_SERVE_ENABLE_HA_PROXY on all nodes"
            )
        return self._routes.forward(session_id(self.id.name, member.key), request, sink, now_ns)

    @property
    def open_sequences(self) -> int:
        return self._servable.open_sequences if isinstance(self._servable, SequenceKeeper) else 0

    def has_sequence(self, key: SequenceKey) -> bool:
        return isinstance(self._servable, SequenceKeeper) and self._servable.has_sequence(key)

    def abandon_sequence(self, key: SequenceKey) -> None:
        if isinstance(self._servable, SequenceKeeper):
            self._servable.abandon_sequence(key)


class _OutcomeSink:
    """Implements `core.requests.response.ResponseSink`: passes outcomes to the generator that returns them."""

    def __init__(self) -> None:
        self.outcomes: asyncio.Queue[tuple[bool, bytes]] = asyncio.Queue()

    def settle(self, outcome: Outcome, final: bool) -> None:
        content = b""
        if isinstance(outcome, InferenceResponse):
            content = pickles.dumps(inference.write_response(outcome))
        elif outcome is not None:
            content = inference.write_failure(outcome)
        self.outcomes.put_nowait((final, content))


def holds(server: LocalServer, model: str, version: int | None, key: SequenceKey) -> bool:
    """True if the sequence has begun on this server and is not finished."""
    try:
        servable = server.model(model, version)
    except ModserveError:
        return False
    return isinstance(servable, SequenceKeeper) and servable.has_sequence(key)


async def receive(
    server: LocalServer, data: bytes, others: HolderSearch, sender: SequenceSender
) -> AsyncGenerator[tuple[bool, bytes]]:
    """Serve a request of a sequence, sent by another replica; yields outcomes like `SequenceSender`."""
    now_ns = time.monotonic_ns()
    patience_ns, message = pickles.loads(data)
    request = inference.read_request(message, now_ns + patience_ns if patience_ns else 0)
    try:
        holder = await _holder_elsewhere(server, request, others)
        if holder:
            async for outcome in sender.send(direct(holder), data):
                yield outcome
            return
        sink = _OutcomeSink()
        mark = _HERE.set(True)
        try:
            inflight = server.model(request.model_name, request.version).submit(request, sink, now_ns)
        finally:
            _HERE.reset(mark)
    except ModserveError as error:
        yield True, inference.write_failure(error)
        return
    try:
        final = False
        while not final:
            final, content = await sink.outcomes.get()
            yield final, content
    finally:
        inflight.cancel()


async def _holder_elsewhere(server: LocalServer, request: InferenceRequest, others: HolderSearch) -> str:
    """Return the other replica that has the sequence of a request, unless it begins one. Raises INVALID_ARG."""
    member, name, version = membership(request), request.model_name, request.version
    if member.start or holds(server, name, version, member.key):
        return ""
    return await others.holder(name, version, member.key)
