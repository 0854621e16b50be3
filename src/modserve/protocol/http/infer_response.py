"""The body of a response to an inference over HTTP (protocol: inference response JSON object, and the binary tensor
data extension), the messages of ``infer_stream``, and the body of every error.

Messages of ``infer_stream`` are responses as ``infer`` writes them, each with the boolean parameter
``triton_final_response``, as on the streams of gRPC. The last message of every complete stream has it set, be that a
response, an error, or a response without outputs when the end came alone.
"""

import json
import math
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import orjson

from modserve.core.errors import ModserveError
from modserve.core.requests.request import ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Buffer
from modserve.protocol import failures
from modserve.protocol.json import json_data
from modserve.protocol.json.json_text import JsonObject
from modserve.protocol.response_form import ResponseForm

_MAX_DIMENSION = 2**63 - 1
_MAX_UNSIGNED = 2**64 - 1
_FINAL = "triton_final_response"
_LONG = 64 * 1024
_GAP = b"\0"
"""Placeholder for data; no other JSON has this byte."""
_DATA: Final = orjson.Fragment(_GAP)


@dataclass(init=False, slots=True, eq=False)
class Body:
    """A response body: JSON in one or more parts, and binary ones behind it, where `header_length` is the JSON's.

    `encoding` is how the parts are compressed; `header_length` is the JSON's before that. `server_timing` is what the
    response has cost; empty if that is not sent. Immutable.
    """

    parts: list[Buffer]
    header_length: int | None
    encoding: str | None
    server_timing: str

    def __init__(
        self, parts: list[Buffer], header_length: int | None, encoding: str | None = None, server_timing: str = ""
    ) -> None:
        self.parts = parts
        self.header_length = header_length
        self.encoding = encoding
        self.server_timing = server_timing


Pieces: TypeAlias = tuple[bytes, ...]
"""The JSON of a response without its data: what stands before, between and behind the data of its JSON outputs."""


def encode_response(response: InferenceResponse, response_form: ResponseForm) -> Body:
    """Encode a response; the JSON keys are in Triton's order. Raises INVALID_ARG for what JSON cannot carry."""
    pieces = _pieces(response, response_form)
    first = pieces[0] if not response.id else b'{"id":%b,%b' % (orjson.dumps(response.id), pieces[0][1:])
    binary: list[Buffer] = []
    parts: list[Buffer] = [first]
    place = 0
    long = False
    for name, tensor in response.outputs.items():
        if response_form.all_binary or name in response_form.binary:
            raw = tensor.raw
            if len(raw):  # as in Triton, a response without a byte of binary data is plain JSON
                binary.append(raw)
        elif name not in response_form.places:
            data = json_data.from_tensor(name, tensor)
            long = long or len(data) > _LONG
            place += 1
            parts += (data, pieces[place])
    if place and not long:  # many megabytes are better not copied once more
        parts = [b"".join(parts)]
    if not binary:
        return Body(parts, None)
    length = 0
    for part in parts:
        length += len(part)
    parts += binary
    return Body(parts, length)


def _pieces(response: InferenceResponse, response_form: ResponseForm) -> Pieces:
    """Return the JSON of a response without its id and data."""
    outputs: list[JsonObject] = []
    document: JsonObject = {"model_name": response.model_name, "model_version": str(response.model_version)}
    if response.parameters:
        document["parameters"] = {key: convert_parameter(value) for key, value in response.parameters.items()}
    document["outputs"] = outputs
    for name, tensor in response.outputs.items():
        output: JsonObject = {"name": name, "datatype": tensor.datatype.name, "shape": tensor.shape}
        if response_form.all_binary or name in response_form.binary:
            output["parameters"] = {"binary_data_size": len(tensor.raw)}
        elif name not in response_form.places:
            output["data"] = _DATA
        outputs.append(output)
    return tuple(orjson.dumps(document).split(_GAP))


def convert_parameter(value: ParameterValue) -> object:
    """Return a response's parameter for the JSON library: NaN and infinities are bare, as in tensors."""
    if type(value) is int and not -_MAX_DIMENSION - 1 <= value <= _MAX_UNSIGNED:
        value = float(value)
    if type(value) is float and not math.isfinite(value):
        return orjson.Fragment(json.dumps(value))
    return value


def text_only(error: ModserveError) -> ModserveError:
    """Return the error of an encoder that has only JSON, with the alternative calls."""
    return ModserveError(error.code, f"{error.message}, in a call of infer or over gRPC")


def encode_stream_response(response: InferenceResponse, response_form: ResponseForm, final: bool) -> bytes:
    """Encode a response with all its data as JSON, even if `response_form` is binary. Raises INVALID_ARG."""
    marked = replace(response, parameters={**response.parameters, _FINAL: final})
    try:
        return b"".join(encode_response(marked, ResponseForm(places=response_form.places)).parts)
    except ModserveError as error:
        raise text_only(error) from None


def encode_stream_error(error: ModserveError, request_id: str, final: bool) -> bytes:
    """Encode a failure in the stream, which goes on if it is not `final`."""
    named = {"id": request_id} if request_id else {}
    return orjson.dumps({**orjson.loads(encode_error(error)), **named, "parameters": {_FINAL: final}})


def encode_error(error: ModserveError) -> bytes:
    return encode_message(failures.public_message(error))


def encode_message(message: str) -> bytes:
    """Encode the error body: one key, as for every failure over HTTP."""
    return orjson.dumps({"error": message})
