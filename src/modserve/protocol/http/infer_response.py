"""The body of a response to an inference over HTTP (protocol: inference response JSON object, and the binary tensor
data extension), the messages of ``infer_stream``, and the body of every error.

Messages of ``infer_stream`` are responses as ``infer`` writes them, each with the boolean parameter
``triton_final_response``, as on the streams of gRPC. The last message of every complete stream has it set, be that a
response, an error, or a response without outputs when the end came alone.
"""

import json
import math
from dataclasses import dataclass, replace
from itertools import chain

import orjson

from modserve.core.errors import ModserveError
from modserve.core.request import ParameterValue
from modserve.core.response import InferenceResponse
from modserve.core.tensor import Buffer
from modserve.protocol import failures
from modserve.protocol.json import json_data
from modserve.protocol.json.json_text import JsonObject
from modserve.protocol.reply import Reply

_MAX_DIMENSION = 2**63 - 1
_MAX_UNSIGNED = 2**64 - 1
_FINAL = "triton_final_response"
_LONG = 64 * 1024
_GAP = b"\0"
"""Where JSON goes that is not copied into the rest; no other JSON has this byte."""


@dataclass(init=False, slots=True, eq=False)
class Body:
    """A response body: JSON in one or more parts, and binary ones behind it, where `header_length` is the JSON's.

    `encoding` is how the parts are compressed; `header_length` is the JSON's before that. `server_timing` is what the
    response has cost; empty if that is not sent. Nobody changes one.
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


def encode_response(response: InferenceResponse, reply: Reply) -> Body:
    """The body of a response, whose JSON keys are in Triton's order. Raises INVALID_ARG for what JSON cannot carry."""
    outputs: list[JsonObject] = []
    document: JsonObject = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    if response.parameters:
        document["parameters"] = {key: carried(value) for key, value in response.parameters.items()}
    document["outputs"] = outputs
    binary: list[Buffer] = []
    long: list[Buffer] = []
    for name, tensor in response.outputs.items():
        output: JsonObject = {"name": name, "datatype": tensor.datatype.name, "shape": tensor.shape}
        if reply.all_binary or name in reply.binary:
            raw = tensor.raw
            output["parameters"] = {"binary_data_size": len(raw)}
            if len(raw):  # as in Triton, a response without a byte of binary data is plain JSON
                binary.append(raw)
        elif name not in reply.places:
            data = json_data.from_tensor(name, tensor)
            if len(data) > _LONG:  # many megabytes are better not copied once more
                long.append(data)
                data = _GAP
            output["data"] = orjson.Fragment(data)
        outputs.append(output)
    text = orjson.dumps(document)
    parts: list[Buffer] = [text]
    if long:
        first, *rest = text.split(_GAP)
        parts = [first, *chain.from_iterable(zip(long, rest, strict=True))]
    return Body([*parts, *binary], sum(map(len, parts)) if binary else None)


def carried(value: ParameterValue) -> object:
    """A response's parameter as the JSON library takes it: NaN and infinities are bare, as in tensors."""
    if type(value) is int and not -_MAX_DIMENSION - 1 <= value <= _MAX_UNSIGNED:
        value = float(value)
    if type(value) is float and not math.isfinite(value):
        return orjson.Fragment(json.dumps(value))
    return value


def text_only(error: ModserveError) -> ModserveError:
    """What an encoder raised that has only JSON, with the way that is left."""
    return ModserveError(error.code, f"{error.message}, in a call of infer or over gRPC")


def encode_stream_response(response: InferenceResponse, reply: Reply, final: bool) -> bytes:
    """A response with all its data as JSON, whatever `reply` says of binary. Raises INVALID_ARG."""
    marked = replace(response, parameters={**response.parameters, _FINAL: final})
    try:
        return b"".join(encode_response(marked, Reply(places=reply.places)).parts)
    except ModserveError as error:
        raise text_only(error) from None


def encode_stream_error(error: ModserveError, request_id: str, final: bool) -> bytes:
    """A failure in the stream, which goes on if it is not `final`."""
    named = {"id": request_id} if request_id else {}
    return orjson.dumps({**orjson.loads(encode_error(error)), **named, "parameters": {_FINAL: final}})


def encode_error(error: ModserveError) -> bytes:
    return encode_message(failures.public_message(error))


def encode_message(message: str) -> bytes:
    """The error body: one key, as for every failure over HTTP."""
    try:
        return orjson.dumps({"error": message})
    except TypeError:  # text with lone surrogates, out of a client's bytes
        return orjson.dumps({"error": message.encode(errors="replace").decode()})
