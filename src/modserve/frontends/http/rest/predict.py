"""Predictions of the v1 protocols: one body of many rows, which may take several requests to its model."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

from fastapi import Request, Response

from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.requests.trace_context import TraceHeaders
from modserve.core.servable import Servable
from modserve.core.tensors.tensor import Tensor
from modserve.frontends import offload
from modserve.frontends.call import HTTP, FutureCall
from modserve.frontends.http.infer import CallContext
from modserve.frontends.offload import RequestMemory
from modserve.protocol import compression, header_forwarding
from modserve.protocol.compression import Inflater
from modserve.protocol.header_forwarding import Forwarded
from modserve.protocol.http import v1_predict_request, v1_predict_response
from modserve.protocol.http.infer_body import check_json_size
from modserve.protocol.http.v1_predict_request import Prediction
from modserve.protocol.json.json_text import MIME_JSON

from .identified import begun
from .messages import deadline_ns, forwarded_headers, trace_headers


async def respond(
    context: CallContext, servable: Servable, version: int | None, request: Request, body: bytes, now_ns: int
) -> Response:
    """The response to a prediction that came at `now_ns`, of a model version that is borrowed."""
    coding, limits, max_json = request.headers.get("content-encoding"), context.limits, context.max_json
    content = body if coding is None else offload.inflated(coding.encode("latin-1"), body, max_json, limits)
    memory = RequestMemory(context.server.memory, asyncio.get_running_loop())
    try:
        if isinstance(content, Inflater) or len(content) > limits.json:
            prediction = await offload.on_thread(_read, servable, content, max_json, memory.take)
        else:
            prediction = _read(servable, content, max_json)
        ends_ns, forwarded = deadline_ns(request, now_ns), forwarded_headers(request, context.options)
        run = _Run(context, request, servable, version, now_ns, ends_ns, forwarded, trace_headers(request))
        responses = await run.all(v1_predict_request.batches(servable.config, prediction.inputs))
        chosen = compression.choose(", ".join(request.headers.getlist("accept-encoding")))
        size = sum(tensor.array.nbytes for response in responses for tensor in response.outputs.values())
        write = responses, prediction.rows, chosen
        if size > (limits.json if chosen is None else limits.compressed):
            written = await offload.on_thread(_write, *write)
        else:
            written = _write(*write)
    finally:
        memory.release()
    headers = {} if chosen is None else {"Content-Encoding": chosen}
    if context.server_timing and run.cost:
        headers["Server-Timing"] = run.cost
    return Response(written, headers=headers, media_type=MIME_JSON)


def _read(
    servable: Servable, body: bytes | Inflater, max_json: int, reserve: Callable[[int], None] | None = None
) -> Prediction:
    if isinstance(body, Inflater):
        body = body.read_all() if reserve is None else body.read_all(reserve)
    check_json_size(len(body), max_json)
    if reserve is not None:
        reserve(v1_predict_request.memory(body))
    return v1_predict_request.decode(servable.config, body)


def _write(responses: list[InferenceResponse], rows: bool, coding: str | None) -> bytes:
    content = v1_predict_response.encode([response.outputs for response in responses], rows)
    return content if coding is None else compression.encode([content], coding)


@dataclass(slots=True)
class _Run:
    """The requests that a prediction takes, a limited number at a time. `cost` is that of the one that ended last."""

    context: CallContext
    request: Request
    servable: Servable
    version: int | None
    now_ns: int
    deadline_ns: int
    forwarded: Forwarded
    trace_headers: TraceHeaders | None
    cost: str = ""

    async def all(self, parts: Iterator[Mapping[str, Tensor]]) -> list[InferenceResponse]:
        """The responses to all parts, in order. Raises the first failure; the other requests are cancelled."""
        first = list(islice(parts, 2))
        if len(first) == 1:
            return [await self._one(first[0])]
        waiting = enumerate(chain(first, parts))
        responses: dict[int, InferenceResponse] = {}
        failures: list[Exception] = []
        running: list[asyncio.Task[None]] = []

        async def run_some() -> None:
            try:
                for index, inputs in waiting:
                    responses[index] = await self._one(inputs)
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
        return [responses[index] for index in range(len(responses))]

    async def _one(self, inputs: Mapping[str, Tensor]) -> InferenceResponse:
        name = self.servable.config.name
        request = InferenceRequest(name, inputs, (), self.version, deadline_ns=self.deadline_ns)
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
