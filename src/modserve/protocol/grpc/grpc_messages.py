"""Decodes ``ModelInferRequest`` messages of gRPC to core values."""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.request import InferenceRequest, ParameterValue, RequestForm, label, timeout_ns
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.shared_memory import LeaseFactory, RegionSlice
from modserve.core.tensors.tensor import Buffer, Tensor, encode_elements
from modserve.protocol import limits, parameters, shared_memory
from modserve.protocol.grpc import typed_contents
from modserve.protocol.grpc.infer_message import CLASSIFICATION, GrpcInput, InferMessage
from modserve.protocol.grpc.typed_contents import ElementsError, FieldError, narrow_elements
from modserve.protocol.limits import LIMITS
from modserve.protocol.response_form import BINARY, ResponseForm

_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_ALLOWED_RESERVED: Final = frozenset({_EMPTY_FINAL})


def decode_request(
    message: InferMessage,
    deadline_ns: int = 0,
    lend: LeaseFactory | None = None,
    take: Callable[[int], None] = lambda size: None,
) -> InferenceRequest:
    """Decode an inference request. Raises INVALID_ARG with Triton's texts, and NOT_FOUND for unknown regions.

    `deadline_ns`: the RPC's deadline on the monotonic clock, 0 without one. `lend`: called for inputs in shared memory,
    which raise UNSUPPORTED without it; the caller releases the lease. `take`: called with the bytes of memory needed
    next for elements that protobuf has not parsed; its errors propagate.
    """
    head = message.head
    if head.output_count > LIMITS.tensors:
        raise limits.too_many_tensors("outputs", head.output_count)
    values = _parameters(message) if message.parameter_count else {}
    raws = message.raws
    inputs: dict[str, Tensor]
    form: RequestForm | None = None
    if head.bare_inputs and len(raws) == head.input_count:
        inputs = {}
        for index, sent in enumerate(head.inputs):
            inputs[sent.name] = Tensor(sent.datatype, sent.shape, raws[index], None)
        form = head.form_of(raws)
    else:
        inputs = _inputs(message, lend, take)
    version = message.parse_version() if message.model_version else None
    limit_ns = timeout_ns(values) if values else 0
    return InferenceRequest(
        message.model_name, inputs, head.output_names, version, message.id, values, deadline_ns, limit_ns, form
    )


def read_response_form(message: InferMessage, lend: LeaseFactory) -> ResponseForm:
    """Read the form of the response. Raises as `output_places` and `class_counts` do."""
    if message.head.bare_outputs:
        return BINARY
    places = output_places(message, lend)
    return ResponseForm(all_binary=True, classes=class_counts(message), places=places)


def output_places(message: InferMessage, lend: LeaseFactory) -> dict[str, RegionSlice]:
    """Reserve shared-memory regions for outputs and return them by output. Raises INVALID_ARG and NOT_FOUND."""
    places: dict[str, RegionSlice] = {}
    for output in message.head.outputs:
        if not output.parameters:
            continue
        place = shared_memory.message_place(output.name, output.parameters)
        if place is None:
            continue
        if CLASSIFICATION in output.parameters:
            raise invalid("output can't set both 'shared_memory_region' and 'classification'")
        lend().reserve(place)
        places.setdefault(output.name, place)
    return places


def class_counts(message: InferMessage) -> dict[str, int]:
    """Return the number of top classes that the client requests, by output. Raises INVALID_ARG."""
    counts: dict[str, int] = {}
    for output in message.head.outputs:
        if CLASSIFICATION not in output.parameters:
            continue
        choice, count = output.parameters[CLASSIFICATION]
        if choice != "int64_param" or not isinstance(count, int):
            raise invalid("invalid value type for 'classification' parameter, expected int64_param")
        if count < 0:
            raise invalid("invalid value for 'classification' parameter, expected >= 0")
        if count:
            counts.setdefault(output.name, count)
    return counts


def wants_empty_final(message: InferMessage) -> bool:
    """True if a stream must report the end of this request's responses even without a response."""
    return message.parameters.get(_EMPTY_FINAL) == ("bool_param", True)


def is_long(message: InferMessage, cached: bool, most_elements: int, most_texts: int) -> bool:
    """True if decoding takes long: more than `most_elements` typed elements (in a split message, more bytes of them),
    or a raw tensor of more than `most_texts` bytes with BYTES elements to count.

    Other raw tensors are not read, except that tensors for a `cached` model are hashed.
    """
    inputs, raws = message.head.inputs, message.raws
    if any(len(raw) > most_texts for raw in raws):
        return cached or any(each.datatype is dtypes.BYTES for each in inputs)
    all_contents = [each.contents for each in inputs if each.contents is not None]
    if message.split:
        sizes = [len(contents) for contents in all_contents]
        return sum(sizes) > most_elements or any(size > most_texts for size in sizes)
    if raws:
        return False
    return sum(len(values) for contents in all_contents for _, values in contents.ListFields()) > most_elements


def _inputs(message: InferMessage, lend: LeaseFactory | None, take: Callable[[int], None]) -> dict[str, Tensor]:
    raws, model, count = message.raws, message.model_name, message.head.input_count
    if count > LIMITS.tensors:
        raise limits.too_many_tensors("inputs", count)
    inputs: dict[str, Tensor] = {}
    elsewhere = 0
    for position, sent in enumerate(message.head.inputs):
        name, typed = sent.name, sent.contents is not None
        if name in inputs:
            raise invalid(f"{label(message.id)}input '{name}' already exists in request")
        if len(sent.shape) > LIMITS.rank:
            raise limits.too_many_dimensions(name, len(sent.shape))
        if sent.parameters:
            place = shared_memory.message_place(name, sent.parameters)
            if place is not None:
                inputs[name] = _read_shared_input(sent, place, model, lend)
                elsewhere += 1
                continue
        raw: Buffer
        if raws:
            if typed:
                raise invalid(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{name}' for model '{model}'"
                )
            index = position - elsewhere  # inputs in shared memory have none
            if index >= len(raws):
                raise invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
            raw = raws[index]
        elif not typed:
            raise invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
        elif message.split:
            raw = _long_contents(sent, message, take)
        else:
            raw = _contents(sent, model)
        inputs[name] = Tensor(sent.datatype, sent.shape, raw, None)
    expected = count - elsewhere
    if len(raws) > expected:
        raise invalid(
            f"expected {expected} raw input buffers for model '{model}', got {len(raws)}: "
            "one is needed for each input, in their order"
        )
    return inputs


def _read_shared_input(sent: GrpcInput, place: RegionSlice, model: str, lend: LeaseFactory | None) -> Tensor:
    if sent.contents is not None:
        raise invalid(
            f"unexpected 'content' provided when using shared memory for input tensor '{sent.name}' for model '{model}'"
        )
    if lend is None:
        raise shared_memory.access_error("input", sent.name)
    return shared_memory.input_tensor(sent.datatype, sent.shape, place, lend())


def _contents(sent: GrpcInput, model: str) -> Buffer:
    """Return the raw form of typed contents."""
    raw: Buffer | None = None
    datatype = sent.datatype
    for field, values in sent.contents.ListFields():
        if raw is not None or field.name != datatype.contents_field:
            raise _field_error("" if raw is not None else field.name, sent.name, datatype, model)
        raw = encode_elements(values) if datatype is dtypes.BYTES else _numbers(sent.name, datatype, values)
    return b"" if raw is None else raw


def _long_contents(sent: GrpcInput, message: InferMessage, take: Callable[[int], None]) -> Buffer:
    """Decode contents that protobuf has not parsed, like `_contents`."""
    name, datatype, model, count = sent.name, sent.datatype, message.model_name, math.prod(sent.shape)
    try:
        raw = typed_contents.decode(sent.contents, datatype, count, name, take)
    except FieldError as error:
        raise _field_error(error.field, name, datatype, model) from None
    except ElementsError as wrong:
        raise invalid(
            f"{label(message.id)}input byte size mismatch for input '{name}' for model '{model}'. "
            f"Expected {count * datatype.size}, got {wrong.count * datatype.size}"
        ) from None
    except DecodeError as unread:
        raise invalid(f"Unable to parse request: the contents of input '{name}': {unread}") from None
    return b"" if raw is None else raw


def _field_error(field: str, name: str, datatype: Datatype, model: str) -> ModserveError:
    """Return the error for an unexpected field; `field` is empty for several fields."""
    where = f"for input tensor '{name}' for model '{model}'"
    if not field:
        return invalid(f"unexpected explicit tensor data {where}, binary data was already supplied.")
    return invalid(
        f"unexpected explicit tensor data {where} of type '{typed_contents.FIELDS[field]}', "
        f"expected datatype '{datatype.name}'"
    )


def _numbers(name: str, datatype: Datatype, values: Any) -> bytes:
    # Typed: otherwise numpy converts 64-bit integers to floats. Only 8- and 16-bit integers come in a wider field.
    wide = np.array(list(values), dtype=np.int64 if datatype.size < 4 else datatype.numpy)
    return (narrow_elements(name, datatype, wide, 0) if datatype.size < 4 else wide).tobytes()


def _parameters(message: InferMessage) -> dict[str, ParameterValue]:
    limits.check_parameters(message.parameter_count)
    values: dict[str, ParameterValue] = {}
    for name, (choice, value) in message.parameters.items():
        parameters.check_name(name, _ALLOWED_RESERVED)
        expected = _TYPED_PARAMETERS.get(name, _ANY)
        if value is None or choice not in expected:
            raise invalid(f"invalid value type for '{name}' parameter, expected {_list_choices(expected)}.")
        if name in _TYPED_PARAMETERS and type(value) is int and value < 0:
            if name == "priority":
                raise invalid(f"invalid value for '{name}', expected value >= 0.")
            value += 2**64  # Triton's are unsigned, and clients number sequences by signed hashes
        if name != _EMPTY_FINAL:  # for the stream, not for the model
            values[name] = value
    return values


_ANY: Final = ("int64_param", "bool_param", "string_param", "double_param", "uint64_param")
_TYPED_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    _EMPTY_FINAL: ("bool_param",),
}


def _list_choices(choices: tuple[str, ...]) -> str:
    if len(choices) == len(_ANY):
        choices = _ANY[:3]  # Triton's text names no more
    if len(choices) < 3:
        return " or ".join(choices)
    return f"{', '.join(choices[:-1])}, or {choices[-1]}"
