"""Concurrent execution of several inferences for one request body, up to a limit."""

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight, RequestPermit
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.servable import Servable
from modserve.core.tensors.tensor import Tensor
from modserve.frontends.call import HTTP, InferenceCall
from modserve.frontends.http.infer import CallContext
from modserve.protocol import header_forwarding
from modserve.protocol.http import deadlines

from .exchange import CompleteRequest


class Parts:
    """Inferences of a request that arrived at `now_ns`, on a borrowed servable. Empty `outputs` request all outputs.

    `cost`: cost of the inference that ended last; empty unless responses report it. Raises INVALID_ARG for invalid
    headers.
    """

    __slots__ = (
        "_caller",
        "_deadline_ns",
        "_end",
        "_failure",
        "_finish",
        "_most",
        "_names",
        "_now_ns",
        "_request",
        "_results",
        "_running",
        "_servable",
        "_server",
        "_tenant",
        "_timed",
        "_version",
        "_waiting",
        "cost",
    )

    def __init__(
        self,
        context: CallContext,
        request: CompleteRequest,
        servable: Servable,
        version: int | None,
        now_ns: int,
        outputs: tuple[str, ...] = (),
    ) -> None:
        self._caller = contextvars.copy_context()
        """Context with the caller. The engine completes inferences in another context."""
        self._server = context.server
        self._tenant = context.server.tenant  # the caller is not known in later contexts
        self._most = context.limits.parts
        self._timed = context.server_timing
        self._request = request
        self._servable = servable
        self._version = version
        self._now_ns = now_ns
        self._names = outputs
        self._deadline_ns = deadlines.deadline_ns(request.head.timeouts, now_ns)
        self._waiting: Iterator[tuple[int, Mapping[str, Tensor]]] = iter(())
        self._finish: Callable[[InferenceResponse, int], Any] | None = None
        self._running: set[_Part] = set()
        self._results: dict[int, Any] = {}
        self._failure: Exception | None = None
        self._end: asyncio.Future[None] | None = None
        self.cost = ""

    async def all(
        self,
        inputs: Iterable[Mapping[str, Tensor]],
        finish: Callable[[InferenceResponse, int], Any],
        rows: int,
        tokens: int = 0,
    ) -> list[Any]:
        """Run the inferences. Return the results of `finish`, called on the event loop with each response and index.

        A tenant pays for one request with these `rows` and `tokens`. Raises the first failure and cancels the others.
        """
        self._waiting, self._finish = enumerate(inputs), finish
        self._end = asyncio.get_running_loop().create_future()
        quotas, tenant = self._server.quotas, self._server.tenant
        permit: RequestPermit | None = None
        try:
            if quotas.limits(tenant):
                whole = InferenceRequest(self._servable.config.name, {})
                whole.tenant = tenant
                with quotas.submission(whole, rows) as permit:
                    self._begin_first()
                quotas.spend_tokens(tenant, tokens)
            else:
                self._begin_first()
            await self._end
        finally:
            if permit is not None:
                permit.release()
            self._finish, self._waiting = None, iter(())
            for part in list(self._running):
                part.close()
            self._running.clear()
        self._raise()
        results = self._results
        return [results[index] for index in range(len(results))]

    def _raise(self) -> None:
        """Raise the failure, if there is one."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:  # the failure's traceback refers to this frame
            del failure

    def _begin_first(self) -> None:
        while len(self._running) < self._most and self._begin_next():
            pass

    def _begin_next(self) -> bool:
        """Submit the next inference, if there is one."""
        following = next(self._waiting, None)
        if following is None:
            if not self._running:
                self._over()
            return False
        index, inputs = following
        name, head = self._servable.config.name, self._request.head
        request = InferenceRequest(name, inputs, self._names, self._version, deadline_ns=self._deadline_ns)
        part = _Part(self, index, name, self._version)
        self._request.note.add_call(part)
        self._running.add(part)
        part.begin(self._servable, self._now_ns, 0, head.trace_headers)
        part.submit(header_forwarding.with_headers(request, head.forwarded))
        return True

    def on_outcome(self, part: "_Part", outcome: InferenceResponse | ModserveError) -> None:
        """Handle the outcome of an inference."""
        finish = self._finish
        if finish is None:
            return
        self._running.discard(part)
        if self._timed:
            self.cost = part.cost
        part.on_sending()  # the time for sending is unknown here
        part.on_sent()
        part.close()
        try:
            if isinstance(outcome, ModserveError):
                self._fail(outcome)
            else:
                self._results[part.index] = finish(outcome, part.index)
                self._caller.run(self._begin_next)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._finish = None
        self._failure = error
        self._over()

    def _over(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)


class _Part(InferenceCall):
    __slots__ = ("_parts", "index")

    def __init__(self, parts: Parts, index: int, model: str, version: int | None) -> None:
        super().__init__(parts._server, HTTP, parts._tenant, model, version)
        self._parts = parts
        self.index = index

    def accept(self, request: InferenceRequest) -> Inflight:
        """Return the inflight request without counting it: the whole call is counted as one."""
        return self._submit(request)

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        self._parts.on_outcome(self, outcome)
