"""An inference request over HTTP: what its headers say of its body, and the body read by it."""

import math
from collections.abc import Callable

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.request import InferenceRequest, label
from modserve.core.tensors import dtypes
from modserve.core.tensors.shared_memory import LeaseFactory
from modserve.core.tensors.tensor import Buffer, Tensor, encode_elements
from modserve.protocol import header_forwarding, response_form
from modserve.protocol.http import deadlines, infer_request
from modserve.protocol.http.json_heads import JsonHeads
from modserve.protocol.http.request_head import RequestHead
from modserve.protocol.json import json_data
from modserve.protocol.limits import MOST_TENSOR_BYTES
from modserve.protocol.response_form import ResponseForm


def is_long(config: ModelConfig, body: Buffer, json_length: int | None, most_json: int, most_texts: int) -> bool:
    """True if reading a body takes long: more JSON than `most_json`, or more bytes of BYTES than `most_texts`.

    Other binary data is not read, but all of it is hashed for cached models.
    """
    size = len(body)
    if size <= most_json:
        return False
    if config.cached or json_length is None or json_length > most_json:
        return True
    return size - json_length > most_texts and b'"BYTES"' in bytes(body[:json_length])


def read_request(
    config: ModelConfig,
    version: int | None,
    head: RequestHead,
    body: Buffer,
    json_length: int | None,
    max_json: int,
    now_ns: int,
    heads: JsonHeads,
    lend: LeaseFactory,
    reserve: Callable[[int], None] | None = None,
) -> tuple[InferenceRequest, ResponseForm]:
    """Read the request in a body that arrived at `now_ns`, and the form of its response.

    `json_length` is that of `infer_request.header_length`. `lend` is called for requests with tensors in shared
    memory. `reserve`, for bodies that are read on a thread, is called with the bytes of memory that tensors in the
    JSON may need; what it raises comes out here. Raises INVALID_ARG, and NOT_FOUND for unknown regions.
    """
    json_size = len(body) if json_length is None else json_length
    if json_size > max_json:
        raise too_much_json(json_size, max_json)
    if reserve is not None:
        reserve(MOST_TENSOR_BYTES * json_size)
    deadline_ns = deadlines.deadline_ns(head.timeouts, now_ns) if head.timeouts else 0
    if json_length == 0 and len(body) > max_json:
        raise _too_much_raw(len(body), max_json)
    if json_length != 0:
        name, nulls = config.name, json_data.takes_null(config) and b"null" in bytes(body[:json_size])
        request, look = infer_request.decode_request(
            name, version, body, json_length, deadline_ns, lend, max_json, None if nulls else heads, nulls
        )
    else:
        request, look = decode_raw(config, version, body, deadline_ns)
    if head.forwarded:
        request = header_forwarding.with_headers(request, head.forwarded)
    return request, look


def decode_raw(
    config: ModelConfig, version: int | None, body: Buffer, deadline_ns: int = 0
) -> tuple[InferenceRequest, ResponseForm]:
    """Decode a raw binary request: a header length of 0, and the body is the model's one input, of batch size 1.

    The body's size decides one variable dimension; BYTES must be a single element. Raises INVALID_ARG.
    """
    count = len(config.inputs)
    if count != 1:
        raise invalid(
            f"{label('')}Raw request must only have 1 input (found 1) to be deduced but got {count} inputs in "
            f"'{config.name}' model configuration"
        )
    spec = config.inputs[0]
    if spec.dims.count(-1) > 1:
        raise invalid(
            f"{label('')}The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    dims = spec.dims
    if spec.datatype is dtypes.BYTES:
        if dims != (1,):
            raise invalid(f"{label('')}For BYTE datatype raw input '{spec.name}', the model must have input shape [1]")
        body = encode_elements([bytes(body)])
    elif -1 in dims:
        known = math.prod(size for size in dims if size != -1) * spec.datatype.size
        dims = tuple(len(body) // known if size == -1 else size for size in dims)
    shape = (1, *dims) if config.batching else dims
    inputs = {spec.name: Tensor(spec.datatype, shape, body, None)}
    return InferenceRequest(config.name, inputs, (), version, deadline_ns=deadline_ns), response_form.BINARY


def check_json_size(size: int, limit: int) -> None:
    """Check the size. Raises INVALID_ARG for more JSON than the server's limit."""
    if size > limit:
        raise too_much_json(size, limit)


def too_much_json(size: int, limit: int) -> ModserveError:
    return invalid(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def _too_much_raw(size: int, limit: int) -> ModserveError:
    return invalid(
        f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
