"""Keeps each sequence in one worker: each request goes to the owner of its sequence, wherever it arrives.

The model's name and the correlation id determine the owner, so every worker knows it. A worker has one connection to
each other worker, so that requests of a sequence keep their order.
"""

import asyncio
import itertools
import logging
import struct
import time
import zlib
from typing import Final

from modserve.core.errors import ModserveError, OverloadedError, unavailable
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome, ResponseSink
from modserve.core.requests.sequence import SequenceKey, membership
from modserve.core.runtime.background import Background
from modserve.core.servable import SequenceKeeper, Servable, context_to_pass_on, submit_traced
from modserve.frontends.errors import to_client_error
from modserve.models.serving.wrappers import ModelWrapper
from modserve.server.local import LocalServer

from . import inference
from .identity import WorkerIdentity
from .link import FrameKind, PeerLink

_log = logging.getLogger(__name__)

MOST_UNSENT: Final = 64 * 1024 * 1024
"""Maximum size in bytes of requests that another worker has not read; at the limit, requests are refused."""

_HEAD: Final = struct.Struct("<QI")
"""Nanoseconds until the request's deadline, 0 for none; and the bytes of its span, which come first."""


def owner(model: str, key: SequenceKey, count: int) -> int:
    """Return the worker that owns a sequence. Text ids never equal numeric ids."""
    tenant, id = key if isinstance(key, tuple) else ("", key)
    text = f"{model}\0{type(id).__name__}\0{id}"
    if tenant:
        text += f"\0{tenant}"
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % count


class ForwardingModel(ModelWrapper):
    """A model with sequences that are distributed over workers.

    Implements `core.servable.SequenceKeeper` for this worker's sequences.
    """

    def __init__(self, servable: Servable, forwarder: "SequenceForwarder") -> None:
        super().__init__(servable)
        self._forwarder = forwarder

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        try:
            member = membership(request)
        except ModserveError:
            return self._servable.submit(request, sink, now_ns)  # the model refuses the request
        identity = self._forwarder.identity
        worker = owner(self.id.name, member.key, identity.count) if member.id else identity.index
        if worker == identity.index:
            return self._servable.submit(request, sink, now_ns)
        return self._forwarder.forward(worker, request, sink, now_ns)

    @property
    def open_sequences(self) -> int:
        return self._servable.open_sequences if isinstance(self._servable, SequenceKeeper) else 0

    def has_sequence(self, key: SequenceKey) -> bool:
        return isinstance(self._servable, SequenceKeeper) and self._servable.has_sequence(key)

    def abandon_sequence(self, key: SequenceKey) -> None:
        if isinstance(self._servable, SequenceKeeper):
            self._servable.abandon_sequence(key)


def with_owners(servable: Servable, forwarder: "SequenceForwarder") -> Servable:
    """Return the model; if it has sequences, in a wrapper that forwards requests to their owners."""
    return servable if servable.config.sequence_batching is None else ForwardingModel(servable, forwarder)


class _OwnerLink:
    """Link to another worker: the connection, or the frames to send once there is one."""

    def __init__(self) -> None:
        self.link: PeerLink | None = None
        self.waiting: list[tuple[int, FrameKind, bytes]] = []
        self.waiting_bytes = 0
        self.requests: dict[int, Inflight] = {}
        self.full = False
        """True while requests are refused, which has been logged."""

    @property
    def unsent(self) -> int:
        return self.waiting_bytes if self.link is None else self.link.unsent

    def send(self, number: int, kind: FrameKind, content: bytes = b"") -> None:
        if self.link is None:
            self.waiting.append((number, kind, content))
            self.waiting_bytes += len(content)
        else:
            self.link.send(number, kind, content)


class SequenceForwarder:
    """Sends requests to the owners of their sequences. For the event loop's thread."""

    def __init__(self, identity: WorkerIdentity) -> None:
        self.identity = identity
        self._links: dict[int, _OwnerLink] = {}
        self._numbers = itertools.count(1)
        self._connecting = Background("sequences")

    def forward(self, worker: int, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """Submit like `Servable.submit`, on another worker. Raises OverloadedError while that reads nothing."""
        peer = self._links.get(worker)
        if peer is not None:
            self._check_room(worker, peer, request)
        patience_ns = 0
        if request.deadline_ns:
            patience_ns = max(1, request.deadline_ns - time.monotonic_ns())
        context = context_to_pass_on().encode()
        content = _HEAD.pack(patience_ns, len(context)) + context + inference.write_request(request)
        if peer is None:
            peer = self._links[worker] = _OwnerLink()
            self._connecting.start(self._connect(worker, peer))
        number = next(self._numbers)
        inflight = Inflight(request, sink, request.inputs, request.outputs, 0, None, now_ns, request.deadline_ns)
        route = peer
        inflight.on_cancel = lambda _: self._cancel(route, number)
        peer.requests[number] = inflight
        peer.send(number, FrameKind.REQUEST, content)
        return inflight

    def _check_room(self, worker: int, peer: _OwnerLink, request: InferenceRequest) -> None:
        full = peer.unsent > MOST_UNSENT
        if full is not peer.full:
            peer.full = full
            if full:
                _log.warning(
                    "worker %d does not read the requests that others send to it (%.0f MB so far): requests of "
                    "its sequences are refused until it does",
                    worker,
                    peer.unsent / 1e6,
                )
            else:
                _log.info("worker %d reads again", worker)
        if full:
            raise OverloadedError(
                f"{request.label}worker {worker}, which has the sequence, does not read its requests: try again later"
            )

    def close(self) -> None:
        for peer in list(self._links.values()):
            if peer.link is not None:
                peer.link.close()

    async def _connect(self, worker: int, peer: _OwnerLink) -> None:
        def on_frame(link: PeerLink, number: int, kind: int, content: bytes) -> None:
            self._receive(peer, number, FrameKind(kind), content)

        link = PeerLink(on_frame, lambda _: self._lose(worker, peer, "has ended: start the sequence again"))
        try:
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: link, self.identity.sequence_socket(worker))
        except BaseException as error:  # of any kind: frames waiting for the connection must not wait for ever
            self._lose(worker, peer, "is not available: try again later, from the beginning of the sequence")
            if isinstance(error, OSError):
                return
            raise
        peer.link = link
        for frame in peer.waiting:
            link.send(*frame)
        peer.waiting.clear()
        peer.waiting_bytes = 0

    def _lose(self, worker: int, peer: _OwnerLink, why: str) -> None:
        if self._links.get(worker) is peer:
            del self._links[worker]
        requests = list(peer.requests.values())
        peer.requests.clear()
        for inflight in requests:
            inflight.settle(unavailable(f"{inflight.request.label}worker {worker}, which has the sequence, {why}"))

    def _cancel(self, peer: _OwnerLink, number: int) -> None:
        if peer.requests.pop(number, None) is not None:
            peer.send(number, FrameKind.CANCEL)

    def _receive(self, peer: _OwnerLink, number: int, kind: FrameKind, content: bytes) -> None:
        final = kind in (FrameKind.LAST, FrameKind.LAST_FAILURE, FrameKind.END)
        inflight = peer.requests.pop(number, None) if final else peer.requests.get(number)
        if inflight is None:
            return  # cancelled
        outcome: Outcome = None
        if kind in (FrameKind.RESPONSE, FrameKind.LAST):
            outcome = inference.read_response(content)
        elif kind in (FrameKind.FAILURE, FrameKind.LAST_FAILURE):
            outcome = inference.read_failure(content)
        flow = inflight.flow
        if not final and flow is not None and isinstance(outcome, InferenceResponse):
            flow.on_response(outcome.size)
        inflight.settle(outcome, final)
        if final:
            return
        if flow is None:
            peer.send(number, FrameKind.ROOM)
        else:
            flow.on_room(lambda: peer.send(number, FrameKind.ROOM))


class SequenceReceiver:
    """Receives requests of this worker's sequences from the other workers."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._requests: dict[PeerLink, dict[int, Inflight]] = {}

    def link(self) -> PeerLink:
        """Return the protocol of a new connection."""
        return PeerLink(self._receive, self._on_lost, responds=True)

    def close(self) -> None:
        for link in list(self._requests):
            link.close()

    def _receive(self, link: PeerLink, number: int, kind: int, content: bytes) -> None:
        requests = self._requests.setdefault(link, {})
        if kind == FrameKind.REQUEST:
            self._begin(link, requests, number, content)
            return
        inflight = requests.get(number)
        if inflight is None:
            return  # settled meanwhile
        if kind == FrameKind.CANCEL:
            del requests[number]
            inflight.cancel()
        else:
            inflight.on_sent()

    def _begin(self, link: PeerLink, requests: dict[int, Inflight], number: int, content: bytes) -> None:
        server, now_ns = self._server, time.monotonic_ns()
        try:
            patience_ns, length = _HEAD.unpack_from(content)
            deadline_ns = now_ns + patience_ns if patience_ns else 0
            context, message = content[_HEAD.size : _HEAD.size + length], content[_HEAD.size + length :]
            request = inference.read_request(message, deadline_ns)
            servable = server.model(request.model_name, request.version)
            sink = _Return(link, requests, number)
            if context:
                inflight = self._submit_traced(context.decode(), servable, request, sink, now_ns)
            else:
                inflight = servable.submit(request, sink, now_ns)
            requests[number] = inflight
            if servable.config.decoupled:
                server.pace(inflight)
        except Exception as error:
            failure = to_client_error(error, "a request of a sequence")
            link.send(number, FrameKind.LAST_FAILURE, inference.write_failure(failure))

    def _submit_traced(
        self, context: str, servable: Servable, request: InferenceRequest, sink: ResponseSink, now_ns: int
    ) -> Inflight:
        trace = self._server.tracer.continue_trace(servable, context)
        trace.tenant = "" if request.tenant is None else request.tenant.name
        try:
            return submit_traced(trace, servable, request, sink, now_ns)
        except BaseException:
            trace.end()
            raise

    def _on_lost(self, link: PeerLink) -> None:
        """Handle the end of another worker, which has disconnected its clients."""
        for inflight in list(self._requests.pop(link, {}).values()):
            inflight.cancel()


class _Return:
    """Implements `core.requests.response.ResponseSink`: sends outcomes to the worker that forwarded the request."""

    __slots__ = ("_link", "_number", "_requests")

    def __init__(self, link: PeerLink, requests: dict[int, Inflight], number: int) -> None:
        self._link = link
        self._requests = requests
        self._number = number

    def settle(self, outcome: Outcome, final: bool) -> None:
        if final:
            self._requests.pop(self._number, None)
        if outcome is None:
            self._link.send(self._number, FrameKind.END)
        elif isinstance(outcome, ModserveError):
            kind = FrameKind.LAST_FAILURE if final else FrameKind.FAILURE
            self._link.send(self._number, kind, inference.write_failure(outcome))
        else:
            kind = FrameKind.LAST if final else FrameKind.RESPONSE
            self._link.send(self._number, kind, inference.write_response(outcome))
