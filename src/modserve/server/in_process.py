"""Inference without a protocol: makes requests from arrays and awaits their responses."""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence

from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.memory import MemoryBudget, UnsentResponses
from modserve.core.requests.request import InferenceRequest, ParameterValue, label, timeout_ns
from modserve.core.requests.response import InferenceResponse, Outcome, SingleResponseSink
from modserve.core.servable import Submitter
from modserve.core.tensors.tensor import Array, Tensor
from modserve.resources import flow


def make_request(
    model_name: str,
    inputs: Mapping[str, Array | Tensor],
    outputs: Sequence[str],
    version: int | None,
    request_id: str,
    parameters: Mapping[str, ParameterValue] | None,
    timeout: float | None,
    now_ns: int,
) -> InferenceRequest:
    """Return the request of `Server.infer`. Raises INVALID_ARG for arrays and time-outs that no request can have."""
    tensors = {name: value if isinstance(value, Tensor) else Tensor.from_array(value) for name, value in inputs.items()}
    ns = math.inf if timeout is None else timeout * 1e9
    if math.isnan(ns) or ns == -math.inf:
        raise invalid(f"{label(request_id)}timeout is {timeout}, expected a number of seconds; infinity is no limit")
    deadline_ns = 0 if ns == math.inf else now_ns + int(ns)
    values = dict(parameters or {})
    limit_ns = timeout_ns(values)
    return InferenceRequest(model_name, tensors, tuple(outputs), version, request_id, values, deadline_ns, limit_ns)


async def response(servable: Submitter, request: InferenceRequest, now_ns: int) -> InferenceResponse:
    """Submit a request that arrived at `now_ns` and await its response. Raises its failure; cancelling cancels it."""
    sink = _FutureSink(asyncio.get_running_loop())
    inflight = servable.submit(request, sink, now_ns)
    try:
        outcome = await sink.future
    finally:
        inflight.cancel()  # which does nothing to a request that is settled
    if isinstance(outcome, InferenceResponse):
        return outcome
    try:
        raise outcome
    finally:  # its traceback has this frame, which must not lead back to it
        del outcome, sink


async def outcomes(
    servable: Submitter, request: InferenceRequest, now_ns: int, memory: MemoryBudget
) -> AsyncGenerator[InferenceResponse | ModserveError]:
    """Submit a request that arrived at `now_ns` and iterate over its responses; failures come as values.

    Closing the iterator cancels the request. Raises what `submit` raises, before the first response.
    """
    sink = _QueueSink(memory)
    inflight = servable.submit(request, sink, now_ns)
    flow.pace(inflight, memory, asyncio.get_running_loop())
    try:
        while (outcome := await sink.outcomes.get()) is not None:
            yield outcome
            sink.unsent.release_first()
            inflight.on_sent()
    finally:
        inflight.cancel()
        sink.close()


class _FutureSink(SingleResponseSink):
    """Hands the one response of a request to the caller that awaits it."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.future: asyncio.Future[InferenceResponse | ModserveError] = loop.create_future()

    def deliver(self, outcome: InferenceResponse | ModserveError) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class _QueueSink:
    """Hands the outcomes of a request to the caller that iterates over them."""

    def __init__(self, memory: MemoryBudget) -> None:
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self.unsent = UnsentResponses(memory)
        self._closed = False

    def close(self) -> None:
        """Drop outcomes from now on: the iteration has ended."""
        self._closed = True
        self.unsent.release()

    def settle(self, outcome: Outcome, final: bool) -> None:
        if self._closed:
            return
        if outcome is not None:
            self.unsent.add(outcome.size if isinstance(outcome, InferenceResponse) else 0)
            self.outcomes.put_nowait(outcome)
        if final:
            self.outcomes.put_nowait(None)
