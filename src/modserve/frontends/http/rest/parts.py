"""One body that takes several inferences of its model, a limited number at a time."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from fastapi import Request

from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.trace_context import TraceHeaders
from modserve.core.servable import Servable
from modserve.core.tensors.tensor import Tensor
from modserve.frontends.call import HTTP, FutureCall
from modserve.frontends.http.infer import CallContext
from modserve.protocol import header_forwarding
from modserve.protocol.header_forwarding import Forwarded

from .identified import begun
from .messages import deadline_ns, forwarded_headers, trace_headers

Result = TypeVar("Result")


def begin(
    context: CallContext,
    request: Request,
    servable: Servable,
    version: int | None,
    now_ns: int,
    outputs: tuple[str, ...] = (),
) -> "Parts":
    """The inferences of a request that came at `now_ns`, by a servable that is borrowed; `outputs` are all for none.

    Raises INVALID_ARG for headers that are wrong.
    """
    headers = deadline_ns(request, now_ns), forwarded_headers(request, context.options), trace_headers(request)
    return Parts(context, request, servable, version, now_ns, outputs, *headers)


@dataclass(slots=True)
class Parts:
    """`cost` is that of the inference that ended last."""

    context: CallContext
    request: Request
    servable: Servable
    version: int | None
    now_ns: int
    outputs: tuple[str, ...]
    deadline_ns: int
    forwarded: Forwarded
    trace_headers: TraceHeaders | None
    cost: str = ""

    async def all(
        self, inputs: Iterable[Mapping[str, Tensor]], finish: Callable[[InferenceResponse, int], Result]
    ) -> list[Result]:
        """What `finish` makes of each response and its number, in order, on the event loop.

        Raises the first failure; the other inferences are cancelled.
        """
        parts = iter(inputs)
        first = list(islice(parts, 2))
        if len(first) == 1:
            return [finish(await self._one(first[0]), 0)]
        waiting = enumerate(chain(first, parts))
        results: dict[int, Result] = {}
        failures: list[Exception] = []
        running: list[asyncio.Task[None]] = []

        async def run_some() -> None:
            try:
                for index, each in waiting:
                    results[index] = finish(await self._one(each), index)
            except Exception as error:  # a value, since the group would wrap it, and make a cycle
                failures.append(error)
                for task in running:
                    task.cancel()

        async with asyncio.TaskGroup() as tasks:
            running += [tasks.create_task(run_some()) for _ in range(self.context.limits.parts)]
        running.clear()
        if failures:
            failure = failures[0]
            failures.clear()
            try:
                raise failure
            finally:  # its traceback has this frame
                del failure
        return [results[index] for index in range(len(results))]

    async def _one(self, inputs: Mapping[str, Tensor]) -> InferenceResponse:
        name = self.servable.config.name
        request = InferenceRequest(name, inputs, self.outputs, self.version, deadline_ns=self.deadline_ns)
        call = FutureCall(self.context.server, HTTP, name, self.version)
        begun(self.request, call)
        call.begin(self.servable, self.now_ns, 0, self.trace_headers)
        try:
            call.submit(header_forwarding.with_headers(request, self.forwarded))
            outcome = await call.future
            self.cost = call.cost
        finally:
            call.sending()  # how long that takes is not seen from here
            call.sent()
            call.close()
        if isinstance(outcome, InferenceResponse):
            return outcome
        try:
            raise outcome
        finally:  # its traceback has this frame, which must not lead back to it
            del outcome, call
