"""The life of an inference call, the same on every wire.

A call begins with the model version that takes its request, and with a trace if the request is sampled. The request is
read on the event loop or on a thread. Until it is submitted, the call may borrow the model, which then accepts the
request even if it is unloaded meanwhile. Outcomes arrive in `settle`. The call's memory (shared-memory regions, server
memory) is released before the client can see the end of the call; `close` ends everything else.

    begin -> [borrow] -> submit -> settle ... -> release -> close
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, cast

from mypy_extensions import mypyc_attr

from modserve.core.errors import ModserveError
from modserve.core.requests import request_ids
from modserve.core.requests.inflight import Inflight, RequestTrace
from modserve.core.requests.memory import MemoryBudget, UnsentResponses
from modserve.core.requests.origin import NOWHERE, Origin
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome, single_outcome
from modserve.core.requests.trace_context import TraceHeaders
from modserve.core.servable import Handle, Servable, Submitter, submit_traced
from modserve.core.tenants import Tenant
from modserve.core.tensors.shared_memory import RegionLease
from modserve.frontends.offload import RequestMemory
from modserve.protocol import response_form
from modserve.protocol.http import server_timing
from modserve.protocol.response_form import ResponseForm
from modserve.server import Server


class Wire(NamedTuple):
    """Name of a protocol in the log, and Triton's names of its activities in traces."""

    name: str
    received: tuple[str, str]
    sending: str
    sent: str
    attributes: Mapping[str, str]
    """Span attributes, and the attribute that holds the path or RPC (OpenTelemetry's semantic conventions)."""
    called: str


HTTP = Wire(
    "HTTP",
    ("HTTP_RECV_START", "HTTP_RECV_END"),
    "HTTP_SEND_START",
    "HTTP_SEND_END",
    {"http.request.method": "POST"},
    "url.path",
)
# gRPC messages are already read when the server sees them: reading takes no time here.
GRPC = Wire(
    "gRPC",
    ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
    "GRPC_SEND_START",
    "GRPC_SEND_END",
    {"rpc.system": "grpc", "rpc.service": "inference.GRPCInferenceService"},
    "rpc.method",
)


@mypyc_attr(allow_interpreted_subclasses=True)
class InferenceCall:
    """A request and the sink of its outcomes.

    Subclasses implement `deliver` for calls with one response, and override `settle` for calls with several.
    """

    __slots__ = (
        "_delivered",
        "_handle",
        "_held",
        "id",
        "inflight",
        "lease",
        "memory",
        "model",
        "now_ns",
        "origin",
        "request_id",
        "response_form",
        "servable",
        "server",
        "tenant",
        "trace",
        "version",
        "wire",
    )

    servable: Servable
    """Set by `begin` and `borrow`."""

    def __init__(
        self, server: Server, wire: Wire, tenant: Tenant | None, model: str = "", version: int | None = None
    ) -> None:
        self._held: InferenceResponse | None = None
        """A response that may turn out to be the only one."""
        self._delivered = False
        self.server = server
        self.tenant = tenant
        """Tenant of the request; None if the server has no tenants."""
        self.wire = wire
        self.model = model
        self.version = version
        """Requested version; once a model version has accepted the request, that version."""
        self.id = ""
        """Client-chosen id, from the protocol's field."""
        self.request_id = ""
        """Id of the request (`core.requests.request_ids`); empty until it is needed."""
        self.origin: Origin = NOWHERE
        """Origin of the request: its client and call."""
        self.now_ns = 0
        """Arrival time of the complete request, in nanoseconds."""
        self.response_form: ResponseForm = response_form.JSON
        self.inflight: Inflight | None = None
        self.trace: RequestTrace | None = None
        self.lease: RegionLease | None = None
        """Lease for tensors in shared memory; None for requests without them."""
        self.memory: RequestMemory | None = None
        """Memory of a request that is submitted in a later turn; None for other requests."""
        self._handle: Handle | None = None

    def begin(self, servable: Servable, now_ns: int, received_ns: int = 0, headers: TraceHeaders | None = None) -> None:
        """Begin a request that was complete at `now_ns` and began to arrive at `received_ns` (0 if unknown).

        `headers` name the client's span that it belongs to.
        """
        self.servable = servable
        self.now_ns = now_ns
        if self.server.tracer.on:
            tracer = self.server.tracer
            sampled = tracer.sample(servable, headers, "" if self.tenant is None else self.tenant.name)
            if sampled is not None:
                sampled.attributes = self._attributes()
            trace: RequestTrace | None = sampled
            if tracer.verbose:
                trace = tracer.follow(servable, self.identify(), trace)
            self.trace = trace
            if trace is not None:
                start, end = self.wire.received
                trace.stamp(start, received_ns or now_ns)
                trace.stamp(end, now_ns)

    def _attributes(self) -> Mapping[str, str]:
        """Return the attributes of the call's span."""
        origin, wire = self.origin, self.wire
        known = {wire.called: origin.call or f"/v2/models/{self.model}/infer", "user_agent.original": origin.agent}
        client = self.server.failure_log.proxies.client(origin)
        known["client.address"] = str(client[0] if isinstance(client, tuple) else client or "")
        known["modserve.request_id"] = self.identify()
        return {**wire.attributes, **{name: value for name, value in known.items() if value}}

    def borrow(self) -> RequestMemory:
        """Borrow the model for a request that is submitted in a later turn of the event loop; return its memory.

        Raises what `Server.model` raises.
        """
        if self._handle is None:
            self._handle = self.server.borrow(self.model, self.version)
            self.servable = self._handle.servable
            self.version = self.servable.id.version
            self.memory = RequestMemory(self.server.memory, asyncio.get_running_loop())
        assert self.memory is not None, "made with the handle: this is a bug"
        return self.memory

    def lend(self) -> RegionLease:
        """Return the lease of the request, created on first use."""
        if self.lease is None:
            self.lease = self.server.shared_memory.lease("" if self.tenant is None else self.tenant.name)
        return self.lease

    def submit(self, request: InferenceRequest) -> None:
        """Submit the request to its model. Raises the reason if it is not accepted."""
        self.id = request.id
        if self.tenant is not None:
            request.tenant = self.tenant
        if self.request_id:
            request.request_id = self.request_id
        servable = self.servable
        if request.tenant is not None or self.server.quotas.most:
            self.inflight = self.accept(request)
        elif self.trace is None and self.server.recorder is None:
            self.inflight = servable.submit(request, self, self.now_ns)
        else:
            self.inflight = self._submit(request)
        self.version = servable.id.version
        if self.response_form.places and self.on_gpu and not servable.config.cached:
            self.inflight.device_outputs = self.response_form.places
        if self._handle is not None:
            self.give_back_model()

    def accept(self, request: InferenceRequest) -> Inflight:
        """Count a request and submit it. Raises the reason if it is not accepted."""
        return self.server.quotas.accept(request, self._rows(request), self._submit)

    def _submit(self, request: InferenceRequest) -> Inflight:
        recorder = self.server.recorder
        submitter: Submitter = self.servable if recorder is None else recorder.sample(self.servable, request)
        if self.trace is None:
            return submitter.submit(request, self, self.now_ns)
        return submit_traced(self.trace, submitter, request, self, self.now_ns)

    def _rows(self, request: InferenceRequest) -> int:
        """Return the number of rows, by the first input; the model has not checked it yet."""
        most = self.servable.config.max_batch_size
        if not most or not request.inputs:
            return 1
        shape = next(iter(request.inputs.values())).shape
        return max(1, min(shape[0], most)) if shape else 1

    def submit_stream(self, request: InferenceRequest) -> None:
        """Submit a request with any number of responses; a decoupled model waits for a slow client."""
        self.submit(request)
        if self.inflight is not None and self.servable.config.decoupled:
            self.server.pace(self.inflight)

    def settle(self, outcome: Outcome, final: bool) -> None:
        """Implement `ResponseSink.settle` for a call with one response."""
        if self._delivered:
            return
        delivery = outcome
        if delivery is None or not final or self._held is not None:  # slow path: several responses, or none
            delivery = single_outcome(self._held, outcome, final)
        if delivery is None:
            self._held = cast(InferenceResponse, outcome)
            return
        self._delivered = True
        self._held = None
        try:
            self.deliver(delivery)
        except Exception:
            self._delivered = False  # an error comes in its place
            raise
        inflight = self.inflight
        if inflight is not None and not inflight.settled:
            inflight.cancel()  # a decoupled model may want to say more

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        """Deliver the one response, or the failure. Called again if it raises; must not block."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the call after a disconnect or at its deadline; nothing more is sent."""
        if self.inflight is not None:
            self.inflight.cancel()

    def give_back_model(self) -> None:
        """Release the borrowed model: the request has been submitted, or never will be."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.release()

    @property
    def on_gpu(self) -> bool:
        """True if the response may have to be copied to a GPU."""
        return bool(self.response_form.places) and self.server.shared_memory.with_cuda

    def render(self, response: InferenceResponse) -> InferenceResponse:
        """Return the response in the form that the client requested. Raises INVALID_ARG; may run on a thread."""
        look = self.response_form
        if look.places or look.classes:
            return look.apply(response, self.servable, self.lease)
        return response

    @property
    def cost(self) -> str:
        """Cost of the request as a header value; empty if it has not run."""
        return "" if self.inflight is None else server_timing.value(self.inflight)

    def with_cost(self, response: InferenceResponse) -> InferenceResponse:
        """Return the last response of a stream with the cost of the request."""
        return response if self.inflight is None else server_timing.with_cost(response, self.inflight)

    def record_failure(self, error: ModserveError, status: int | str) -> None:
        """Record a failure that is about to be sent; the log may report it."""
        id, log, trace = self.identify(), self.server.failure_log, self.trace
        known_as = id, self.origin, "" if trace is None else trace.trace_id
        log.record(self.wire.name, self.model, self.version, self.id, status, error.message, *known_as)
        if self.trace is not None:
            self.trace.on_failure(error, status)

    def identify(self) -> str:
        """Return the `request_id`, created now if there is none."""
        if not self.request_id:
            inflight = self.inflight
            self.request_id = request_ids.make() if inflight is None else request_ids.of(inflight.request)
        return self.request_id

    def on_sending(self) -> None:
        if self.trace is not None:
            self.trace.stamp(self.wire.sending)

    def on_sent(self) -> None:
        if self.trace is not None:
            self.trace.stamp(self.wire.sent)

    def release(self) -> None:
        """Release shared and server memory of the request, before the client can see the end of the call."""
        if self.lease is not None:
            self.lease.release()
        if self.memory is not None:
            self.memory.release()

    def finish(self) -> None:
        """Finish the call: its response is ready to be sent, or never will be."""
        inflight = self.inflight
        if inflight is None:
            self.give_back_model()
        elif not inflight.settled:
            inflight.cancel()
        if self.lease is not None or self.memory is not None:
            self.release()
        if self.trace is not None:
            self.trace.stamp(self.wire.sending)

    def close(self) -> None:
        """Close the call: the client has received everything, or has disconnected. Idempotent."""
        if self.inflight is not None:
            self.inflight.cancel()  # no effect on a settled request
        self.give_back_model()
        self.release()
        if self.trace is not None:
            self.trace.end()


class FutureCall(InferenceCall):
    """A call with one awaited response: `future` receives it, or the failure.

    A failure is stored as a value: the traceback of a raised one would refer to its own owner.
    """

    __slots__ = ("future",)

    def __init__(self, server: Server, wire: Wire, model: str, version: int | None) -> None:
        super().__init__(server, wire, server.tenant, model, version)
        self.future: asyncio.Future[InferenceResponse | ModserveError] = asyncio.get_running_loop().create_future()

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class OutcomeQueue:
    """Outcomes of a call with any number of responses, queued until they are sent."""

    __slots__ = ("_ended", "_outcomes", "_unsent")

    def __init__(self, memory: MemoryBudget) -> None:
        self._outcomes: deque[tuple[Outcome, bool]] = deque()
        self._unsent = UnsentResponses(memory)
        self._ended = False

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def done(self) -> bool:
        """True if no outcome is queued and no more will come."""
        return self._ended and not self._outcomes

    def add(self, outcome: Outcome, final: bool) -> bool:
        """Add an outcome. Return False and drop it if the call is over."""
        if self._ended:
            return False
        self._unsent.add(outcome.size if isinstance(outcome, InferenceResponse) else 0)
        self._ended = final
        self._outcomes.append((outcome, final))
        return True

    def pop(self) -> tuple[Outcome, bool]:
        """Return the first outcome, and whether it is the last."""
        return self._outcomes.popleft()

    def on_first_sent(self, inflight: Inflight | None) -> None:
        """Account for the first outcome of the request `inflight`, which has been sent."""
        self._unsent.release_first()
        if inflight is not None:
            inflight.on_sent()

    def close(self) -> None:
        """End the call: no more outcomes are sent."""
        self._ended = True
        self._outcomes.clear()
        self._unsent.release()
