"""The life of an inference call, the same on every wire.

A call begins with the model version that takes its request, and a trace if it is the turn of one. Its request is read,
on the event loop or on a thread: until it is submitted, the call may borrow the model, so that one that is unloaded
meanwhile takes the request all the same. Outcomes come in `settle`. What the call holds (regions of shared memory,
memory of the server) is released before its client can hear of the end, and `close` ends everything else.

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
    """A protocol's name in the log, and Triton's names of its activities in traces."""

    name: str
    received: tuple[str, str]
    sending: str
    sent: str
    attributes: Mapping[str, str]
    """Attributes of spans, and the name of a path or RPC there (OpenTelemetry's semantic conventions)."""
    called: str


HTTP = Wire(
    "HTTP",
    ("HTTP_RECV_START", "HTTP_RECV_END"),
    "HTTP_SEND_START",
    "HTTP_SEND_END",
    {"http.request.method": "POST"},
    "url.path",
)
# A message has been read when we hear of it: its reading takes no time here.
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

    A subclass says in `deliver` where the one response goes; where there are many, it has another `settle`.
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
        """A response that may be the only one."""
        self._delivered = False
        self.server = server
        self.tenant = tenant
        """Tenant of the request; None where the server knows no tenants."""
        self.wire = wire
        self.model = model
        self.version = version
        """Version that the request asks for; once a model version has accepted it, that version."""
        self.id = ""
        """The protocol's."""
        self.request_id = ""
        """Id of the request (`core.requests.request_ids`); empty until it is needed."""
        self.origin: Origin = NOWHERE
        """Origin of the request: its client and call."""
        self.now_ns = 0
        """Time at which the request was complete, in nanoseconds."""
        self.response_form: ResponseForm = response_form.JSON
        self.inflight: Inflight | None = None
        self.trace: RequestTrace | None = None
        self.lease: RegionLease | None = None
        """Lease for tensors in shared memory; None for requests without any."""
        self.memory: RequestMemory | None = None
        """Memory of a request that is submitted in a later turn; None for others."""
        self._handle: Handle | None = None

    def begin(self, servable: Servable, now_ns: int, received_ns: int = 0, headers: TraceHeaders | None = None) -> None:
        """Begin the request, which is complete at `now_ns` and began to come in at `received_ns`, if that is known.

        `headers` say which span of the client's it belongs to.
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
        """Borrow the model for a request that a later turn of the event loop submits; returns its memory.

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
        """Return the lease of the request, made on first use."""
        if self.lease is None:
            self.lease = self.server.shared_memory.lease("" if self.tenant is None else self.tenant.name)
        return self.lease

    def submit(self, request: InferenceRequest) -> None:
        """Hand the request to its model. Raises what keeps it from being accepted."""
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
        """Count a request in, and submit it. Raises what keeps it from being accepted."""
        return self.server.quotas.accept(request, self._rows(request), self._submit)

    def _submit(self, request: InferenceRequest) -> Inflight:
        recorder = self.server.recorder
        submitter: Submitter = self.servable if recorder is None else recorder.sample(self.servable, request)
        if self.trace is None:
            return submitter.submit(request, self, self.now_ns)
        return submit_traced(self.trace, submitter, request, self, self.now_ns)

    def _rows(self, request: InferenceRequest) -> int:
        """Return the number of rows by the first input, which the model has not checked yet."""
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
        if delivery is None or not final or self._held is not None:  # it is rarely so
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
        """Deliver the one response, or the failure. Called until it does not raise; must not block."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the call, whose client has disconnected or whose time is over; nothing more is sent."""
        if self.inflight is not None:
            self.inflight.cancel()

    def give_back_model(self) -> None:
        """Give back the model: the request has been submitted, or never will be."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.release()

    @property
    def on_gpu(self) -> bool:
        """True if the response may have to be copied to a GPU."""
        return bool(self.response_form.places) and self.server.shared_memory.with_cuda

    def render(self, response: InferenceResponse) -> InferenceResponse:
        """Return the response in the form that the client wants. Raises INVALID_ARG; may run on a thread."""
        look = self.response_form
        if look.places or look.classes:
            return look.apply(response, self.servable, self.lease)
        return response

    @property
    def cost(self) -> str:
        """Cost of the request, as text for a header; empty if it has not run."""
        return "" if self.inflight is None else server_timing.value(self.inflight)

    def with_cost(self, response: InferenceResponse) -> InferenceResponse:
        """Return the last response of a stream with the cost of the request."""
        return response if self.inflight is None else server_timing.with_cost(response, self.inflight)

    def record_failure(self, error: ModserveError, status: int | str) -> None:
        """Record that the client is about to get `error`, which the log may report."""
        id, log, trace = self.identify(), self.server.failure_log, self.trace
        known_as = id, self.origin, "" if trace is None else trace.trace_id
        log.record(self.wire.name, self.model, self.version, self.id, status, error.message, *known_as)
        if self.trace is not None:
            self.trace.on_failure(error, status)

    def identify(self) -> str:
        """Return the `request_id`, made now if there is none."""
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
        """Release the shared and other memory of the request; called before the client can hear of its end."""
        if self.lease is not None:
            self.lease.release()
        if self.memory is not None:
            self.memory.release()

    def finish(self) -> None:
        """Finish the call: the response is ready to be sent, or never will be."""
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
        """Close the call: the client has all that it gets, or has disconnected. May be called again."""
        if self.inflight is not None:
            self.inflight.cancel()  # which does nothing to a request that is settled
        self.give_back_model()
        self.release()
        if self.trace is not None:
            self.trace.end()


class FutureCall(InferenceCall):
    """A call whose one response is awaited: `future` gets it, or the failure.

    A failure is a value: the traceback of one that is raised would hold what holds it.
    """

    __slots__ = ("future",)

    def __init__(self, server: Server, wire: Wire, model: str, version: int | None) -> None:
        super().__init__(server, wire, server.tenant, model, version)
        self.future: asyncio.Future[InferenceResponse | ModserveError] = asyncio.get_running_loop().create_future()

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class OutcomeQueue:
    """The outcomes of a call with any number of responses, which wait until they are sent."""

    __slots__ = ("_ended", "_outcomes", "_unsent")

    def __init__(self, memory: MemoryBudget) -> None:
        self._outcomes: deque[tuple[Outcome, bool]] = deque()
        self._unsent = UnsentResponses(memory)
        self._ended = False

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def done(self) -> bool:
        """True if no outcome waits and no more come."""
        return self._ended and not self._outcomes

    def add(self, outcome: Outcome, final: bool) -> bool:
        """Add an outcome. False if the call is over, and the outcome dropped."""
        if self._ended:
            return False
        self._unsent.add(outcome.size if isinstance(outcome, InferenceResponse) else 0)
        self._ended = final
        self._outcomes.append((outcome, final))
        return True

    def pop(self) -> tuple[Outcome, bool]:
        """Return the first of the outcomes, and whether it is the last."""
        return self._outcomes.popleft()

    def on_first_sent(self, inflight: Inflight | None) -> None:
        """Account for the first outcome of a request `inflight`, which has been sent."""
        self._unsent.release_first()
        if inflight is not None:
            inflight.on_sent()

    def close(self) -> None:
        """End the call: no more outcomes are sent."""
        self._ended = True
        self._outcomes.clear()
        self._unsent.release()
