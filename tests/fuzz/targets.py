"""What is fuzzed: one function a decoder, from bytes as a client may send them.

Each goes as far as a server would without a backend: decode, check against the model, look at every element, and write
the answer of a model that gives back what it gets. Whatever is wrong with the bytes must come out as a `ModserveError`
whose code blames the client; a target swallows those, and lets everything else out.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import http2_targets
import text_targets
from google.protobuf.message import DecodeError

from modserve import config
from modserve.core.configuration.model_config import TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.normalize import Signature
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.shared_memory import RegionSlice
from modserve.core.tensors.tensor import (
    Buffer,
    Tensor,
    TruncatedError,
    count_elements,
    decode_elements,
    encode_elements,
)
from modserve.pb import inference as pb
from modserve.protocol import classification, compression
from modserve.protocol.control import logging_settings, regions, repository, trace_settings
from modserve.protocol.control.control_body import read as read_object
from modserve.protocol.grpc import grpc_messages, long_messages
from modserve.protocol.grpc.infer_message import InferMessage, from_protobuf
from modserve.protocol.grpc.request_reader import RequestReader
from modserve.protocol.grpc.response_writer import ResponseWriter
from modserve.protocol.http import (
    generate,
    infer_body,
    infer_request,
    infer_response,
    v1_predict_request,
    v1_predict_response,
)
from modserve.protocol.http.json_heads import JsonHeads
from modserve.protocol.json import json_text
from modserve.protocol.response_form import ResponseForm
from modserve.testing import builders
from modserve.text.chat import requests as text_requests
from modserve.text.chat.choice import Delta, TextChoice, usage_of
from modserve.text.chat.contract import Piece
from modserve.text.chat.items import ItemWriter, read_response_request
from modserve.text.chat.prompts import transcript
from modserve.text.chat.responses import ChatWriter, CollectedChoice, CompletionWriter, OpenAIWriter
from modserve.text.chat.tools import ToolChoice

Target = Callable[[bytes], None]

CORPUS = Path(__file__).parent / "corpus"

_BLAMES_CLIENT = frozenset({Code.INVALID_ARG, Code.NOT_FOUND})
_CONTROL = _BLAMES_CLIENT | {Code.UNSUPPORTED, Code.UNAVAILABLE}
"""Triton's 501 for files that may not be set over the network, and 503 for an unknown format of the log."""

_SPECS = (
    *(TensorSpec(each.name, each, (-1,), optional=True) for each in dtypes.ALL),
    TensorSpec("FIXED", dtypes.INT32, (2, 2), optional=True),
    TensorSpec("TWO", dtypes.FP32, (-1, -1), optional=True),
    TensorSpec("RESHAPED", dtypes.INT32, (-1, 2), (2, -1), optional=True),
)
MODEL = builders.config(inputs=_SPECS, outputs=_SPECS)
"""Has an input of every datatype, none of them required."""
RAW = builders.config(inputs=_SPECS[:1], outputs=_SPECS[:1])
_MAX_JSON = 1_000_000
_SIGNATURE = Signature(MODEL)
_RAW_SIGNATURE = Signature(RAW)
_ONE_SECOND_NS = 1_000_000_000


class _Region:
    """Stands for shared memory: one region, of 64 bytes."""

    def __init__(self) -> None:
        self._memory = bytearray(64)

    def _check(self, place: RegionSlice) -> None:
        if place.region != "region":
            raise ModserveError(Code.NOT_FOUND, f"no region {place.region}")
        if not 0 <= place.offset <= place.offset + place.byte_size <= len(self._memory):
            raise ModserveError(Code.INVALID_ARG, "out of the region")

    def read(self, place: RegionSlice) -> Buffer:
        self._check(place)
        return memoryview(self._memory)[place.offset : place.offset + place.byte_size]

    def reserve(self, place: RegionSlice) -> None:
        self._check(place)

    def write(self, place: RegionSlice, raw: Buffer) -> None:
        self._check(place)
        self._memory[place.offset : place.offset + len(raw)] = raw

    def copy(self, place: RegionSlice, tensor: Tensor) -> bool:
        return False

    def release(self) -> None:
        pass


def _echo(request: InferenceRequest, signature: Signature = _SIGNATURE) -> InferenceResponse:
    """The answer of an identity model, every element having been looked at."""
    accepted = signature.accept(request, builders.RecordingSink(), 0)
    for tensor in accepted.inputs.values():
        assert tensor.array.shape == tensor.shape
        assert tensor.array.size == math.prod(tensor.shape)
    wanted = request.outputs or tuple(accepted.inputs)
    outputs = {name: accepted.inputs[name] for name in wanted if name in accepted.inputs}
    return InferenceResponse(request.model_name, 1, outputs, request.id, request.parameters)


def _ranked(response: InferenceResponse, counts: Mapping[str, int]) -> InferenceResponse:
    outputs = {
        name: classification.top_classes(tensor, counts[name], (), True) if name in counts else tensor
        for name, tensor in response.outputs.items()
    }
    return InferenceResponse(response.model_name, 1, outputs, response.id, response.parameters)


def _answer(request: InferenceRequest, reply: ResponseForm) -> None:
    response = _ranked(_echo(request), reply.classes)
    for shape in (reply, ResponseForm(all_binary=True)):
        body = infer_response.encode_response(response, shape)
        if body.header_length is None:
            json_text.parse_object(b"".join(body.parts))


def http_json(data: bytes) -> None:
    """The JSON of an inference request, which says the same when only its numbers are read."""
    heads = JsonHeads()
    requests = [
        infer_request.decode_request("model", None, data, None, _ONE_SECOND_NS, _Region, _MAX_JSON, heads)
        for _ in range(3)
    ]
    first, last = (
        [(name, each.datatype, each.shape, bytes(each.raw)) for name, each in request.inputs.items()]
        for request, _ in (requests[0], requests[-1])
    )
    assert first == last
    _answer(*requests[-1])


def http_json_alike(data: bytes) -> None:
    """Two requests in JSON, a zero byte between them: what is remembered of the first changes nothing of the second.

    Each by itself, and with binary data behind it.
    """
    first, _, second = data.partition(b"\0")
    heads = JsonHeads()
    for length in (None, None, len(first), len(first)):
        try:
            _decoded(first, length, heads)
        except ModserveError:
            continue
    for length in (None, len(second)):
        outcomes: list[object] = []
        for each in (heads, None):
            try:
                request, reply = _decoded(second, length, each)
            except ModserveError as error:
                outcomes.append((error.code, error.message))
                continue
            inputs = [(name, each.datatype, each.shape, bytes(each.raw)) for name, each in request.inputs.items()]
            outcomes.append((inputs, request.outputs, repr(request.parameters), request.id, reply))
        assert outcomes[0] == outcomes[1]
    _decoded(second, None, None)


def _decoded(text: bytes, length: int | None, heads: JsonHeads | None) -> tuple[InferenceRequest, ResponseForm]:
    body = text if length is None else text + bytes(range(16))
    return infer_request.decode_request("model", None, body, length, _ONE_SECOND_NS, _Region, _MAX_JSON, heads)


def http_binary(data: bytes) -> None:
    """A line with the header's length, and a body with binary tensor data."""
    line, _, body = data.partition(b"\n")
    length = infer_request.header_length(line, len(body))
    if length == 0:
        request, reply = infer_body.decode_raw(RAW, None, body)
        infer_response.encode_response(_echo(request, _RAW_SIGNATURE), reply)
        return
    _answer(*infer_request.decode_request("model", None, body, length, _ONE_SECOND_NS, _Region, _MAX_JSON))


def bytes_tensor(data: bytes) -> None:
    """A byte with the number of elements, and raw BYTES."""
    count, raw = data[0] if data else 0, data[1:]
    try:
        elements = decode_elements(raw)
        assert encode_elements(elements) == raw
        assert count_elements(raw) == len(elements)
    except TruncatedError:
        pass
    response = _echo(InferenceRequest("model", {"BYTES": Tensor.from_raw(dtypes.BYTES, (1, count), raw)}))
    assert bytes(response.outputs["BYTES"].raw) == raw
    infer_response.encode_response(response, ResponseForm())


def grpc_message(data: bytes) -> None:
    """A ModelInferRequest, read as a whole and taken apart: which must come to the same."""
    region = _Region()
    apart = _decoded_apart(data, region)
    try:
        message = from_protobuf(pb.ModelInferRequest.FromString(data))
    except DecodeError:
        return
    request = grpc_messages.decode_request(message, 2 * _ONE_SECOND_NS, lambda: region)
    if apart is not None:
        for name, tensor in request.inputs.items():
            found, raw = apart.inputs[name], bytes(tensor.raw)
            if found.datatype is dtypes.BYTES:
                raw = raw[: len(found.raw)]  # of too many texts only one more is read
            assert (found.datatype, found.shape, bytes(found.raw)) == (tensor.datatype, tensor.shape, raw), name
    grpc_messages.output_places(message, lambda: region)
    counts = grpc_messages.class_counts(message)
    grpc_messages.wants_empty_final(message)
    pb.ModelInferResponse.FromString(ResponseWriter().encode(_ranked(_echo(request), counts)))


def _decoded_apart(data: bytes, region: "_Region") -> InferenceRequest | None:
    """As long messages are read; None for what is refused, as the whole is, or may be."""
    try:
        split = long_messages.split(data)
        assert split is not None
        return grpc_messages.decode_request(from_protobuf(*split), 2 * _ONE_SECOND_NS, lambda: region)
    except (DecodeError, ModserveError, long_messages.ManyFieldsError):
        return None


def request_reader(data: bytes) -> None:
    """A ModelInferRequest as the hand-written reader has it: as protobuf has it, or left to that."""
    messages = [RequestReader(most_short).read(data) for most_short in (len(data), len(data) // 2, 40)]
    remembering = RequestReader()
    remembering.read(_USUAL)
    messages += [remembering.read(data), remembering.read(data)]
    try:
        whole = from_protobuf(pb.ModelInferRequest.FromString(data))
    except DecodeError:
        assert messages == [None] * len(messages)
        raise ModserveError(Code.INVALID_ARG, "no message") from None
    for message in messages:
        assert message is None or _values(message) == _values(whole)
    grpc_messages.decode_request(messages[0] or whole, 2 * _ONE_SECOND_NS, _Region)


_USUAL = b"\x0a\x05model\x2a\x0e\x0a\x02IN\x12\x05INT32\x1a\x01\x02\x32\x05\x0a\x03OUT\x3a\x08" + bytes(8)


def _values(message: InferMessage) -> list[object]:
    """All that it says; texts stand for doubles, among which some are not equal to themselves."""
    head = message.head
    contents = [None if each.contents is None else each.contents.SerializeToString() for each in head.inputs]
    return [
        *(message.model_name, message.model_version, message.id, head.input_count, head.output_count),
        *(head.output_names, head.bare_inputs, head.bare_outputs, contents, [bytes(raw) for raw in message.raws]),
        *sorted((name, repr(value)) for name, value in message.parameters.items()),
        *[(each.name, each.datatype, each.shape, repr(each.parameters)) for each in head.inputs],
        *[(each.name, repr(each.parameters)) for each in head.outputs],
    ]


def generate_body(data: bytes) -> None:
    """The body of a generate call."""
    generate.encode(_echo(generate.decode(MODEL, None, data, _MAX_JSON)))


def predict_body(data: bytes) -> None:
    """The body of a KServe v1 or TensorFlow Serving prediction."""
    prediction = v1_predict_request.decode(MODEL, data)
    parts = v1_predict_request.batches(MODEL, prediction.inputs)
    answers = [_echo(InferenceRequest("model", part)).outputs for part in parts]
    if answers:
        v1_predict_response.encode(answers, prediction.rows)


_BODIES: tuple[Callable[[bytes], object], ...] = (
    logging_settings.change_by_json,
    trace_settings.change_by_json,
    repository.only_ready,
    repository.load_json,
    repository.unload_dependents_json,
    lambda body: regions.register_system_json("region", body),
    lambda body: regions.register_cuda_json("region", body),
    lambda body: config.read_override(body.decode(errors="replace"), Path("/nosuch/config.pbtxt"), "model"),
    lambda body: compression.decode(body, "gzip", 100_000),
    lambda body: config.check(config.parse(body.decode("utf-8", "surrogateescape"), Path("/nosuch/config.pbtxt"), "m")),
)


def control_body(data: bytes) -> None:
    """A digit that says of which call, and its body."""
    _BODIES[(data[0] - ord("0") if data else 0) % len(_BODIES)](data[1:])


def chat_body(data: bytes) -> None:
    """The body of ``chat/completions``, and the response of a model that says it back."""
    chat = text_requests.read_chat(read_object(data, most_parts=None))
    transcript(chat.messages)
    _written(ChatWriter("id", chat.text), chat.text, chat.tools, data)


def completion_body(data: bytes) -> None:
    """The body of ``completions``."""
    completion = text_requests.read_completion(read_object(data, most_parts=None))
    _written(CompletionWriter("id", completion.text), completion.text, ToolChoice(), data)


def items_body(data: bytes) -> None:
    """The body of ``responses``."""
    request = read_response_request(read_object(data, most_parts=None))
    transcript(request.chat.messages)
    _written(ItemWriter("id", request), request.chat.text, request.chat.tools, data)


def _written(writer: OpenAIWriter, request: text_requests.TextRequest, tools: ToolChoice, text: bytes) -> None:
    """A stream and a whole response, of a choice whose text is `text` in two pieces."""
    for streams in (True, False):
        choice = TextChoice(0, request, tools)
        whole = CollectedChoice(choice)
        for piece, final in ((text[: len(text) // 2], False), (text[len(text) // 2 :], True)):
            delta: Delta = choice.add(Piece(piece), final)
            whole.add(delta)
            if streams:
                writer.delta(choice, delta)
        if streams:
            writer.end(choice)
            writer.finish([choice], usage_of([choice], 1))
        else:
            writer.whole([whole], usage_of([choice], 1))


_TARGETS: dict[str, tuple[Target, frozenset[Code]]] = {
    "http_json": (http_json, _BLAMES_CLIENT),
    "http_json_alike": (http_json_alike, _BLAMES_CLIENT),
    "http_binary": (http_binary, _BLAMES_CLIENT),
    "bytes_tensor": (bytes_tensor, _BLAMES_CLIENT),
    "grpc_message": (grpc_message, _BLAMES_CLIENT),
    "request_reader": (request_reader, _BLAMES_CLIENT),
    "generate_body": (generate_body, _BLAMES_CLIENT),
    "predict_body": (predict_body, _BLAMES_CLIENT),
    "control_body": (control_body, _CONTROL),
    "http2_connection": (http2_targets.connection, _BLAMES_CLIENT),
    "header_blocks": (http2_targets.header_blocks, _BLAMES_CLIENT),
    "chat_body": (chat_body, _BLAMES_CLIENT),
    "completion_body": (completion_body, _BLAMES_CLIENT),
    "items_body": (items_body, _BLAMES_CLIENT),
    "foreign_text": (text_targets.foreign_text, _BLAMES_CLIENT),
}
NAMES = tuple(_TARGETS)


def run(name: str, data: bytes) -> ModserveError | None:
    """One input; returns the client's mistake, if it is one. Raises whatever should not have come out."""
    target, allowed = _TARGETS[name]
    try:
        target(data)
    except ModserveError as error:
        if error.code not in allowed:
            raise
        mistake = error
    else:
        return None
    assert mistake.message, "a mistake that is not told"
    infer_response.encode_error(mistake)
    return mistake


def corpus(name: str) -> dict[str, bytes]:
    """The kept inputs of a target, by the names of their files."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}
