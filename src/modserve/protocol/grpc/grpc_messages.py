"""Inference over gRPC: ``ModelInferRequest`` to core values, a response to ``ModelInferResponse``."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from modserve.core import dtypes
from modserve.core.dtypes import Datatype
from modserve.core.errors import ModserveError, invalid
from modserve.core.protobuf_wire import varint
from modserve.core.request import InferenceRequest, ParameterValue, label, timeout_ns
from modserve.core.response import InferenceResponse
from modserve.core.shared_memory import LeaseFactory, Place
from modserve.core.tensor import Buffer, Shape, Tensor, encode_elements
from modserve.core.version import parse_requested
from modserve.pb import inference as pb
from modserve.protocol import failures, limits, parameters, shared_memory
from modserve.protocol.grpc import typed_contents
from modserve.protocol.grpc.long_messages import Tensors
from modserve.protocol.grpc.typed_contents import ElementsError, FieldError, narrowed
from modserve.protocol.limits import LIMITS
from modserve.protocol.reply import Reply

_EMPTY_FINAL = "triton_enable_empty_final_response"
_ALLOWED_RESERVED = frozenset({_EMPTY_FINAL})
_FINAL = "triton_final_response"


def decode_request(
    message: pb.ModelInferRequest,
    deadline_ns: int = 0,
    lend: LeaseFactory | None = None,
    tensors: Tensors | None = None,
    take: Callable[[int], None] = lambda size: None,
) -> InferenceRequest:
    """An inference request. Raises INVALID_ARG with Triton's texts, and NOT_FOUND for unknown regions.

    `deadline_ns` is the RPC's own on the monotonic clock, 0 without one. `lend` is called for inputs in shared memory,
    which raise UNSUPPORTED without it; the lease is the caller's to release. `tensors` are those of a message that was
    split, and `take` is called with the bytes of memory that are needed next for them; what it raises comes out here.
    """
    if len(message.outputs) > LIMITS.tensors:
        raise limits.too_many_tensors("outputs", len(message.outputs))
    values = _parameters(message.parameters) if message.parameters else {}
    inputs = _inputs(message, lend, tensors, take)
    outputs = tuple(output.name for output in message.outputs) if message.outputs else ()
    version = parse_requested(message.model_version) if message.model_version else None
    limit_ns = timeout_ns(values) if values else 0
    return InferenceRequest(message.model_name, inputs, outputs, version, message.id, values, deadline_ns, limit_ns)


def read_reply(message: pb.ModelInferRequest, lend: LeaseFactory) -> Reply:
    """How the response is to look. Raises as `output_places` and `class_counts` do."""
    places = output_places(message, lend)
    return Reply(all_binary=True, classes=class_counts(message), places=places)


def output_places(message: pb.ModelInferRequest, lend: LeaseFactory) -> dict[str, Place]:
    """Which outputs go where in shared memory; the regions are reserved. Raises INVALID_ARG and NOT_FOUND."""
    places: dict[str, Place] = {}
    for output in message.outputs:
        if not output.parameters:
            continue
        place = shared_memory.message_place(output.name, output.parameters)
        if place is None:
            continue
        if "classification" in output.parameters:
            raise invalid("output can't set both 'shared_memory_region' and 'classification'")
        lend().reserve(place)
        places.setdefault(output.name, place)
    return places


def class_counts(message: pb.ModelInferRequest) -> dict[str, int]:
    """How many best classes the client requests, by output. Raises INVALID_ARG."""
    counts: dict[str, int] = {}
    for output in message.outputs:
        if "classification" not in output.parameters:
            continue
        parameter = output.parameters["classification"]
        if parameter.WhichOneof("parameter_choice") != "int64_param":
            raise invalid("invalid value type for 'classification' parameter, expected int64_param")
        if parameter.int64_param < 0:
            raise invalid("invalid value for 'classification' parameter, expected >= 0")
        if parameter.int64_param:
            counts.setdefault(output.name, parameter.int64_param)
    return counts


def wants_empty_final(message: pb.ModelInferRequest) -> bool:
    """Whether a stream shall tell of the end of this request's responses, if that comes without one."""
    return _EMPTY_FINAL in message.parameters and message.parameters[_EMPTY_FINAL].bool_param


def is_long(
    message: pb.ModelInferRequest, tensors: Tensors | None, cached: bool, most_elements: int, most_texts: int
) -> bool:
    """Whether reading the request takes long: more elements that are not raw than `most_elements` (of a message that
    was split, more bytes of them), or a raw tensor of more bytes than `most_texts` where BYTES are counted.

    Other raw tensors are not read; but those of a `cached` model are hashed.
    """
    raws: Sequence[Buffer] = message.raw_input_contents if tensors is None else tensors.raws
    if any(len(raw) > most_texts for raw in raws):
        return cached or any(tensor.datatype == "BYTES" for tensor in message.inputs)
    if tensors is not None:
        return tensors.typed_bytes > most_elements or any(
            contents is not None and len(contents) > most_texts for contents in tensors.contents
        )
    if raws:
        return False
    contents = (values for tensor in message.inputs for _, values in tensor.contents.ListFields())
    return sum(map(len, contents)) > most_elements


def encode_stream_error(
    error: ModserveError, request_id: str, model_name: str = "", final: bool = True
) -> pb.ModelStreamInferResponse:
    """A request's failure on a stream that goes on.

    `model_name` is that of the model if it had accepted the request: the message then says whether it is the last.
    """
    # An empty text would pass for success.
    message = pb.ModelStreamInferResponse(error_message=failures.public_message(error) or error.code.value)
    message.infer_response.id = request_id
    message.infer_response.SetInParent()
    if model_name:
        message.infer_response.model_name = model_name
        message.infer_response.parameters[_FINAL].bool_param = final
    return message


def _inputs(
    message: pb.ModelInferRequest, lend: LeaseFactory | None, tensors: Tensors | None, take: Callable[[int], None]
) -> Mapping[str, Tensor]:
    raws: Sequence[Buffer] = message.raw_input_contents if tensors is None else tensors.raws
    model = message.model_name
    tensor_messages = message.inputs
    count = len(tensor_messages)
    if count > LIMITS.tensors:
        raise limits.too_many_tensors("inputs", count)
    inputs: dict[str, Tensor] = {}
    elsewhere = 0
    for position, tensor in enumerate(tensor_messages):
        name = tensor.name
        if name in inputs:
            raise invalid(f"{label(message.id)}input '{name}' already exists in request")
        shape = tuple(tensor.shape)
        if len(shape) > LIMITS.rank:
            raise limits.too_many_dimensions(name, len(shape))
        datatype = dtypes.BY_NAME.get(tensor.datatype, dtypes.INVALID)
        typed = tensor.HasField("contents") if tensors is None else tensors.contents[position] is not None
        if tensor.parameters:
            place = shared_memory.message_place(name, tensor.parameters)
            if place is not None:
                inputs[name] = _shared_input(tensor, datatype, place, model, lend, typed)
                elsewhere += 1
                continue
        raw: Buffer
        if raws:
            if typed:
                raise invalid(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{name}' for model '{model}'"
                )
            index = position - elsewhere  # there are none for inputs in shared memory
            if index >= len(raws):
                raise invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
            raw = raws[index]
        elif not typed:
            raise invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
        elif tensors is None:
            raw = _contents(tensor, datatype, model)
        else:
            raw = _long_contents(tensors.contents[position] or b"", message, name, datatype, shape, take)
        inputs[name] = Tensor(datatype, shape, raw, None)
    expected = count - elsewhere
    if len(raws) > expected:
        raise invalid(
            f"expected {expected} raw input buffers for model '{model}', got {len(raws)}: "
            "one is needed for each input, in their order"
        )
    return inputs


def _shared_input(
    tensor: pb.ModelInferRequest.InferInputTensor,
    datatype: Datatype,
    place: Place,
    model: str,
    lend: LeaseFactory | None,
    typed: bool,
) -> Tensor:
    if typed:
        raise invalid(
            "unexpected 'content' provided when using shared memory for input tensor "
            f"'{tensor.name}' for model '{model}'"
        )
    if lend is None:
        raise shared_memory.refused("input", tensor.name)
    return shared_memory.input_tensor(datatype, tuple(tensor.shape), place, lend())


def _contents(tensor: pb.ModelInferRequest.InferInputTensor, datatype: Datatype, model: str) -> Buffer:
    """The raw form of typed contents."""
    raw: Buffer | None = None
    for field, values in tensor.contents.ListFields():
        if raw is not None or field.name != datatype.contents_field:
            raise _unexpected_field("" if raw is not None else field.name, tensor.name, datatype, model)
        raw = encode_elements(values) if datatype is dtypes.BYTES else _numbers(tensor.name, datatype, values)
    return b"" if raw is None else raw


def _long_contents(
    contents: Buffer,
    message: pb.ModelInferRequest,
    name: str,
    datatype: Datatype,
    shape: Shape,
    take: Callable[[int], None],
) -> Buffer:
    """As `_contents`, of those that protobuf has not read."""
    model, count = message.model_name, math.prod(shape)
    try:
        raw = typed_contents.decode(contents, datatype, count, name, take)
    except FieldError as error:
        raise _unexpected_field(error.field, name, datatype, model) from None
    except ElementsError as error:
        raise invalid(
            f"{label(message.id)}input byte size mismatch for input '{name}' for model '{model}'. "
            f"Expected {count * datatype.size}, got {error.count * datatype.size}"
        ) from None
    except DecodeError as error:
        raise invalid(f"Unable to parse request: the contents of input '{name}': {error}") from None
    return b"" if raw is None else raw


def _unexpected_field(field: str, name: str, datatype: Datatype, model: str) -> ModserveError:
    """`field` is empty where there are several."""
    where = f"for input tensor '{name}' for model '{model}'"
    if not field:
        return invalid(f"unexpected explicit tensor data {where}, binary data was already supplied.")
    return invalid(
        f"unexpected explicit tensor data {where} of type '{typed_contents.FIELDS[field]}', "
        f"expected datatype '{datatype.name}'"
    )


def _numbers(name: str, datatype: Datatype, values: Any) -> bytes:
    # Typed, or numpy would make floats of 64-bit integers; only 8- and 16-bit integers come in a wider field.
    wide = np.array(list(values), dtype=np.int64 if datatype.size < 4 else datatype.numpy)
    return (narrowed(name, datatype, wide, 0) if datatype.size < 4 else wide).tobytes()


class ResponseWriter:
    """Writes responses. It remembers the fields that repeat from one to the next, so a front end has one."""

    def __init__(self) -> None:
        self._model_fields = lru_cache(1024)(_model_fields)
        self._output_field = lru_cache(4096)(_output_field)
        self._raw_tag = lru_cache(4096)(_raw_tag)

    def encode(self, response: InferenceResponse) -> bytes:
        """A ``ModelInferResponse``, with all tensors raw and in the order of `outputs`, each copied once."""
        return b"".join(self._parts(response, response.parameters))

    def encode_stream(self, response: InferenceResponse, final: bool) -> bytes:
        """A ``ModelStreamInferResponse``, which says whether the response is the request's last one."""
        parts = self._parts(response, {**response.parameters, _FINAL: final})
        return b"".join((b"\x12", varint(sum(map(len, parts))), *parts))

    def _parts(self, response: InferenceResponse, parameters: Mapping[str, ParameterValue]) -> list[Buffer]:
        """A message, field by field in the order of their numbers; the tensors as they are."""
        parts: list[Buffer] = [self._model_fields(response.model_name, response.model_version)]
        if response.id:
            text = response.id.encode()
            parts += (b"\x1a", varint(len(text)), text)
        if parameters:
            message = pb.ModelInferResponse()
            for name, value in parameters.items():
                setattr(message.parameters[name], _parameter_field(value), value)
            parts.append(message.SerializeToString())
        outputs = response.outputs
        for name, tensor in outputs.items():
            parts.append(self._output_field(name, tensor.datatype.name, tensor.shape))
        for tensor in outputs.values():
            raw = tensor.raw
            parts.append(self._raw_tag(len(raw)))
            parts.append(raw)
        return parts


def _model_fields(name: str, version: int) -> bytes:
    return pb.ModelInferResponse(model_name=name, model_version=str(version)).SerializeToString()


def _output_field(name: str, datatype: str, shape: Shape) -> bytes:
    message = pb.ModelInferResponse()
    message.outputs.add(name=name, datatype=datatype, shape=shape)
    return message.SerializeToString()


def _raw_tag(size: int) -> bytes:
    """What stands before a tensor in ``raw_output_contents``."""
    return b"\x32" + varint(size)


def _parameters(messages: Mapping[str, pb.InferParameter]) -> dict[str, ParameterValue]:
    limits.check_parameters(len(messages))
    values: dict[str, ParameterValue] = {}
    for name, parameter in messages.items():
        parameters.check_name(name, _ALLOWED_RESERVED)
        choice = parameter.WhichOneof("parameter_choice")
        expected = _TYPED_PARAMETERS.get(name, _ANY)
        if choice is None or choice not in expected:
            raise invalid(f"invalid value type for '{name}' parameter, expected {_spelled(expected)}.")
        value: ParameterValue = getattr(parameter, choice)
        if name in _TYPED_PARAMETERS and type(value) is int and value < 0:
            if name == "priority":
                raise invalid(f"invalid value for '{name}', expected value >= 0.")
            value += 2**64  # Triton's own are unsigned, and clients number sequences by signed hashes
        if name != _EMPTY_FINAL:  # the stream's business, not the model's
            values[name] = value
    return values


_ANY = ("int64_param", "bool_param", "string_param", "double_param", "uint64_param")
_TYPED_PARAMETERS = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    _EMPTY_FINAL: ("bool_param",),
}


def _spelled(choices: tuple[str, ...]) -> str:
    if choices is _ANY:
        choices = _ANY[:3]  # Triton's text names no more
    if len(choices) < 3:
        return " or ".join(choices)
    return f"{', '.join(choices[:-1])}, or {choices[-1]}"


_FIELDS_BY_TYPE: dict[type, str] = {bool: "bool_param", float: "double_param", str: "string_param"}


def _parameter_field(value: ParameterValue) -> str:
    if type(value) is not int:
        return _FIELDS_BY_TYPE[type(value)]
    if -(2**63) <= value < 2**63:
        return "int64_param"
    return "uint64_param" if 0 < value < 2**64 else "double_param"
