"""Predictions of the v1 protocols: one body of many rows, which may take several requests to its model."""

import asyncio
from collections.abc import Callable

from modserve.core.requests.response import InferenceResponse
from modserve.core.servable import Servable
from modserve.frontends import offload
from modserve.frontends.http.exchange import CompleteRequest, WholeResponse
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.parts import Parts
from modserve.frontends.offload import RequestMemory
from modserve.protocol import compression
from modserve.protocol.compression import Inflater
from modserve.protocol.http import v1_predict_request, v1_predict_response
from modserve.protocol.http.infer_body import check_json_size
from modserve.protocol.http.v1_predict_request import Prediction


async def respond(
    context: CallContext, servable: Servable, version: int | None, request: CompleteRequest, now_ns: int
) -> WholeResponse:
    """Return the response to a prediction that came at `now_ns`, of a model version that is borrowed."""
    coding, limits, max_json = request.head.content_encoding, context.limits, context.max_json
    content = request.body if coding is None else offload.inflate(coding, request.body, max_json, limits)
    memory = RequestMemory(context.server.memory, asyncio.get_running_loop())
    try:
        if isinstance(content, Inflater) or len(content) > limits.json:
            prediction = await offload.on_thread(_read, servable, content, max_json, memory.take)
        else:
            prediction = _read(servable, content, max_json)
        run = Parts(context, request, servable, version, now_ns)
        batches = v1_predict_request.batches(servable.config, prediction.inputs)
        rows = v1_predict_request.row_count(servable.config, prediction.inputs)
        responses = await run.all(batches, lambda response, _: response, rows)
        chosen = request.head.response_encoding
        size = sum(tensor.array.nbytes for response in responses for tensor in response.outputs.values())
        write = responses, prediction.rows, chosen
        if size > (limits.json if chosen is None else limits.compressed):
            written = await offload.on_thread(_write, *write)
        else:
            written = _write(*write)
    finally:
        memory.release()
    headers = [] if chosen is None else [("Content-Encoding", chosen)]
    if run.cost:
        headers.append(("Server-Timing", run.cost))
    return WholeResponse(written, headers=headers)


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
