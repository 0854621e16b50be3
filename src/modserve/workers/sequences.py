"""Sequences stay with one worker: each request goes to the owner of its sequence, wherever it comes in.

The owner follows from the model's name and the correlation id alone, so every worker knows it. A worker has one
connection to each of the others: requests of a sequence stay in the order in which they came.
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
from modserve.core.requests.sequence import SequenceId, membership
from modserve.core.servable import SequenceKeeper, Servable, context_to_pass_on, submit_traced
from modserve.frontends.errors import to_client_error
from modserve.models.serving.wrappers import ModelWrapper
from modserve.server import Server

from . import inference
from .link import Kind, Link
from .place import Place

_log = logging.getLogger(__name__)

MOST_UNSENT: Final = 64 * 1024 * 1024
"""Bytes of requests that wait for another worker to read them. There is no room for more while it does not."""

_HEAD: Final = struct.Struct("<QI")
"""Nanoseconds that the client of a request still waits, 0 for ever; and the bytes of its span, which come first."""


def owner(model: str, id: SequenceId, count: int) -> int:
    """The worker to which a sequence belongs. Ids that are texts have nothing to do with those that are numbers."""
    text = f"{model}\0{type(id).__name__}\0{id}"
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % count


class Forwarding(ModelWrapper):
    """A model with sequences, of which other workers have their part."""

    def __init__(self, servable: Servable, router: "Router") -> None:
        super().__init__(servable)
        self._router = router

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        try:
            id = membership(request).id
        except ModserveError:
            return self._servable.submit(request, sink, now_ns)  # which refuses it
        place = self._router.place
        worker = owner(self.id.name, id, place.count) if id else place.index
        if worker == place.index:
            return self._servable.submit(request, sink, now_ns)
        return self._router.forward(worker, request, sink, now_ns)


class ForwardingKeeper(Forwarding):
    """Implements `core.servable.SequenceKeeper`, too, for the sequences that this worker has."""

    _servable: SequenceKeeper  # type: ignore[assignment]

    @property
    def open_sequences(self) -> int:
        return self._servable.open_sequences

    def has_sequence(self, id: SequenceId) -> bool:
        return self._servable.has_sequence(id)

    def abandon_sequence(self, id: SequenceId) -> None:
        self._servable.abandon_sequence(id)


def with_owners(servable: Servable, router: "Router") -> Servable:
    """The model, or one in front of it that knows whose its sequences are."""
    if servable.config.sequence_batching is None:
        return servable
    kind = ForwardingKeeper if isinstance(servable, SequenceKeeper) else Forwarding
    return kind(servable, router)


class _Way:
    """To another worker: the connection, or what is to be sent once there is one."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.waiting: list[tuple[int, Kind, bytes]] = []
        self.waiting_bytes = 0
        self.requests: dict[int, Inflight] = {}
        self.full = False
        """Requests are refused, and the log says so."""

    @property
    def unsent(self) -> int:
        return self.waiting_bytes if self.link is None else self.link.unsent

    def send(self, number: int, kind: Kind, content: bytes = b"") -> None:
        if self.link is None:
            self.waiting.append((number, kind, content))
            self.waiting_bytes += len(content)
        else:
            self.link.send(number, kind, content)


class Router:
    """Sends requests to the owners of their sequences. For the event loop's thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._ways: dict[int, _Way] = {}
        self._numbers = itertools.count(1)
        self._connecting: set[asyncio.Task[None]] = set()

    def forward(self, worker: int, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        """As `Servable.submit`, at another worker. Raises OverloadedError while that reads nothing."""
        way = self._ways.get(worker)
        if way is not None:
            self._check_room(worker, way, request)
        patience_ns = 0
        if request.deadline_ns:
            patience_ns = max(1, request.deadline_ns - time.monotonic_ns())
        context = context_to_pass_on().encode()
        content = _HEAD.pack(patience_ns, len(context)) + context + inference.write_request(request)
        if way is None:
            way = self._ways[worker] = _Way()
            task = asyncio.get_running_loop().create_task(self._connect(worker, way))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        number = next(self._numbers)
        inflight = Inflight(request, sink, request.inputs, request.outputs, 0, None, now_ns, request.deadline_ns)
        route = way
        inflight.on_cancel = lambda _: self._cancel(route, number)
        way.requests[number] = inflight
        way.send(number, Kind.REQUEST, content)
        return inflight

    def _check_room(self, worker: int, way: _Way, request: InferenceRequest) -> None:
        full = way.unsent > MOST_UNSENT
        if full is not way.full:
            way.full = full
            if full:
                _log.warning(
                    "worker %d does not read what the others send to it, %.0f MB by now: requests of its sequences are "
                    "refused until it does",
                    worker,
                    way.unsent / 1e6,
                )
            else:
                _log.info("worker %d reads again what the others send to it", worker)
        if full:
            raise OverloadedError(
                f"{request.label}worker {worker}, which has the sequence, does not read the requests that it has been "
                "sent: try again later"
            )

    def close(self) -> None:
        for way in list(self._ways.values()):
            if way.link is not None:
                way.link.close()

    async def _connect(self, worker: int, way: _Way) -> None:
        def on_frame(link: Link, number: int, kind: int, content: bytes) -> None:
            self._receive(way, number, Kind(kind), content)

        link = Link(on_frame, lambda _: self._lose(worker, way, "has ended: begin the sequence again"))
        try:
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: link, self.place.sequence_socket(worker))
        except OSError:
            self._lose(worker, way, "is not there at the moment: try again later, from the sequence's beginning on")
            return
        way.link = link
        for frame in way.waiting:
            link.send(*frame)
        way.waiting.clear()
        way.waiting_bytes = 0

    def _lose(self, worker: int, way: _Way, why: str) -> None:
        if self._ways.get(worker) is way:
            del self._ways[worker]
        requests = list(way.requests.values())
        way.requests.clear()
        for inflight in requests:
            inflight.settle(unavailable(f"{inflight.request.label}worker {worker}, which has the sequence, {why}"))

    def _cancel(self, way: _Way, number: int) -> None:
        if way.requests.pop(number, None) is not None:
            way.send(number, Kind.CANCEL)

    def _receive(self, way: _Way, number: int, kind: Kind, content: bytes) -> None:
        final = kind in (Kind.LAST, Kind.LAST_FAILURE, Kind.END)
        inflight = way.requests.pop(number, None) if final else way.requests.get(number)
        if inflight is None:
            return  # cancelled
        outcome: Outcome = None
        if kind in (Kind.RESPONSE, Kind.LAST):
            outcome = inference.read_response(content)
        elif kind in (Kind.FAILURE, Kind.LAST_FAILURE):
            outcome = inference.read_failure(content)
        flow = inflight.flow
        if not final and flow is not None and isinstance(outcome, InferenceResponse):
            flow.given(outcome.size)
        inflight.settle(outcome, final)
        if final:
            return
        if flow is None:
            way.send(number, Kind.ROOM)
        else:
            flow.on_room(lambda: way.send(number, Kind.ROOM))


class Owner:
    """Takes the requests of this worker's sequences from the other workers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._responses = inference.Responses()
        self._requests: dict[Link, dict[int, Inflight]] = {}

    def link(self) -> Link:
        """The protocol of a new connection."""
        return Link(self._receive, self._lost, responds=True)

    def close(self) -> None:
        for link in list(self._requests):
            link.close()

    def _receive(self, link: Link, number: int, kind: int, content: bytes) -> None:
        requests = self._requests.setdefault(link, {})
        if kind == Kind.REQUEST:
            self._begin(link, requests, number, content)
            return
        inflight = requests.get(number)
        if inflight is None:
            return  # settled meanwhile
        if kind == Kind.CANCEL:
            del requests[number]
            inflight.cancel()
        else:
            inflight.sent()

    def _begin(self, link: Link, requests: dict[int, Inflight], number: int, content: bytes) -> None:
        server, now_ns = self._server, time.monotonic_ns()
        try:
            patience_ns, length = _HEAD.unpack_from(content)
            deadline_ns = now_ns + patience_ns if patience_ns else 0
            context, message = content[_HEAD.size : _HEAD.size + length], content[_HEAD.size + length :]
            request = inference.read_request(message, deadline_ns)
            servable = server.model(request.model_name, request.version)
            sink = _Return(link, requests, number, self._responses)
            if context:
                inflight = self._submit_traced(context.decode(), servable, request, sink, now_ns)
            else:
                inflight = servable.submit(request, sink, now_ns)
            requests[number] = inflight
            if servable.config.decoupled:
                server.pace(inflight)
        except Exception as error:
            failure = to_client_error(error, "a request of a sequence")
            link.send(number, Kind.LAST_FAILURE, inference.write_failure(failure))

    def _submit_traced(
        self, context: str, servable: Servable, request: InferenceRequest, sink: ResponseSink, now_ns: int
    ) -> Inflight:
        trace = self._server.tracer.continued(servable, context)
        try:
            return submit_traced(trace, servable, request, sink, now_ns)
        except BaseException:
            trace.end()
            raise

    def _lost(self, link: Link) -> None:
        """The other worker has ended, and so have its clients' connections."""
        for inflight in list(self._requests.pop(link, {}).values()):
            inflight.cancel()


class _Return:
    """Implements `core.requests.response.ResponseSink`: sends the outcomes to the worker that the request came from."""

    __slots__ = ("_link", "_number", "_requests", "_responses")

    def __init__(self, link: Link, requests: dict[int, Inflight], number: int, responses: inference.Responses) -> None:
        self._link = link
        self._requests = requests
        self._number = number
        self._responses = responses

    def settle(self, outcome: Outcome, final: bool) -> None:
        if final:
            self._requests.pop(self._number, None)
        if outcome is None:
            self._link.send(self._number, Kind.END)
        elif isinstance(outcome, ModserveError):
            kind = Kind.LAST_FAILURE if final else Kind.FAILURE
            self._link.send(self._number, kind, inference.write_failure(outcome))
        else:
            kind = Kind.LAST if final else Kind.RESPONSE
            self._link.send(self._number, kind, self._responses.write(outcome))
