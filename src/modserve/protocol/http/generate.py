"""The generate extension: one flat JSON object for a request, one for a response (Triton's HTTP only).

Keys that are names of inputs become tensors, all others parameters of the request, and those in ``parameters`` alike;
``id`` is the request's id, and a parameter too. They are the model's: `priority` and sequence parameters act, in models
that have such; `timeout`, which means other things to language models, does not.
"""

import json
from dataclasses import dataclass, field

import orjson

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.request import InferenceRequest, ParameterValue, label
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Shape, Tensor, format_shape
from modserve.protocol import limits, parameters
from modserve.protocol.control import control_body
from modserve.protocol.http import infer_response
from modserve.protocol.json import json_data
from modserve.protocol.json.json_text import JsonObject, JsonTypeError, describe, type_error
from modserve.protocol.limits import LIMITS

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)
_NESTED = "parameters"


def check_encoding(encoding: str | None) -> None:
    """Check the encoding. Raises INVALID_ARG for any ``Content-Encoding``, which the extension does not have."""
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        raise invalid("Unsupported content-encoding, only 'identity' is supported.")


def decode(config: ModelConfig, version: int | None, body: bytes, max_bytes: int) -> InferenceRequest:
    """Decode the request in `body`; its tensors may have `max_bytes` bytes altogether. Raises INVALID_ARG."""
    if len(body) > LIMITS.parsed_parts:
        limits.check_parts(limits.count_parts(body))
    document = control_body.read(body, most_parts=None)
    request_id = document.get("id", "")
    if type(request_id) is not str:
        raise type_error("id", "string", request_id)
    content = _Content(config, request_id, max_bytes)
    repeated = _repeated(body, config)
    for key, value in json.loads(body, object_pairs_hook=_Pairs).pairs if repeated else document.items():
        if key == _NESTED:
            _take_nested(content, value)
        else:
            content.take(key, value)
    return InferenceRequest(config.name, content.inputs, (), version, request_id, content.parameters)


def encode(response: InferenceResponse) -> bytes:
    """Encode a response as one object: parameters and outputs by name. Raises INVALID_ARG for what JSON cannot carry.

    An output of one element is a scalar, all others flat lists. Keys are in Triton's order, the alphabet's.
    """
    members: JsonObject = {"model_name": response.model_name, "model_version": str(response.model_version)}
    if response.id:
        members["id"] = response.id
    for name, value in response.parameters.items():
        members.setdefault(name, infer_response.convert_parameter(value))
    for name, tensor in response.outputs.items():
        if name in members:
            continue
        try:
            text = json_data.from_tensor(name, tensor)
        except ModserveError as error:
            raise infer_response.text_only(error) from None
        members[name] = orjson.Fragment(text[1:-1] if tensor.array.size == 1 else text)
    return orjson.dumps(members, option=orjson.OPT_SORT_KEYS)


@dataclass(slots=True)
class _Content:
    """Content of the keys read so far."""

    config: ModelConfig
    request_id: str
    max_bytes: int
    inputs: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    size: int = 0
    """Bytes of the tensors."""

    def take(self, key: str, value: object) -> None:
        """Take the value of a key. Raises INVALID_ARG."""
        spec = self.config.inputs_by_name.get(key)
        if spec is None:
            self.parameters[key] = parameters.custom(key, value)
            return
        if key in self.inputs:
            raise invalid(f"{label(self.request_id)}input '{key}' already exists in request")
        count = json_data.element_count(value)
        if spec.datatype.size:
            self._grow(key, count * spec.datatype.size)
        shape = _shape(spec, self.config.full_dims(spec), value, count)
        tensor = self.inputs[key] = _tensor(spec, shape, value, json_data.takes_null(self.config))
        if spec.datatype is dtypes.BYTES:
            self._grow(key, len(tensor.raw))

    def _grow(self, name: str, size: int) -> None:
        if self.size + size > self.max_bytes:
            raise invalid(
                f"request size of {self.size} bytes with input '{name}' of size {size} bytes exceeds the maximum "
                f"allowed input size of {self.max_bytes}. Use --http-max-input-size to increase the limit."
            )
        self.size += size


def _take_nested(content: _Content, value: object) -> None:
    if _NESTED in content.config.inputs_by_name:
        raise invalid(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
    if not isinstance(value, dict | _Pairs):
        detail = f"'{_NESTED}' is {describe(value)}"
        raise invalid(f"Expected JSON object for keyword: '{_NESTED}': {JsonTypeError('object', detail=detail)}")
    pairs = value.pairs if isinstance(value, _Pairs) else value.items()
    for key, element in pairs:
        try:
            content.take(key, element)
        except ModserveError as error:
            raise invalid(f"Converting keyword: '{_NESTED}': {error.message}") from None


def _shape(spec: TensorSpec, dims: Shape, value: object, count: int) -> Shape:
    """Return the shape of a value with `count` elements for an input of these dims, that of a batch included.

    Data nested as deep as the input has dimensions tells its shape. Of other data the innermost variable dimension
    takes all elements that the fixed ones leave over, the others are 1. Raises INVALID_ARG when that does not go up.
    """
    nested: Shape = ()
    first = value
    while isinstance(first, list):
        nested = (*nested, len(first))
        first = first[0] if first else None
    if len(nested) == len(dims) > 1:
        return nested
    shape = list(dims)
    elements = count
    for size in dims:
        if size != -1:
            count, over = divmod(count, size) if size else (count, count)
            if over:
                raise _no_shape(spec, dims, elements)
    for index in reversed(range(len(shape))):
        if shape[index] == -1:
            shape[index], count = count, 1
    if count != 1:
        raise _no_shape(spec, dims, elements)
    return tuple(shape)


def _no_shape(spec: TensorSpec, dims: Shape, elements: int) -> ModserveError:
    return invalid(
        f"The schema can not convert input '{spec.name}' to tensor with proper shape: "
        f"its value has {elements} element{'' if elements == 1 else 's'}, and the input's shape is {format_shape(dims)}"
    )


def _tensor(spec: TensorSpec, shape: Shape, value: object, nulls: bool) -> Tensor:
    """Return the tensor of an input. Raises INVALID_ARG."""
    data = value if isinstance(value, list) else [value]
    return json_data.to_tensor(spec.name, spec.datatype, shape, data, nulls=nulls)


class _Pairs:
    """A JSON object with all its members, though names be equal."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs = pairs


def _repeated(body: bytes, config: ModelConfig) -> bool:
    """True if an object might contain an input twice, of which the JSON library would keep the last."""
    return b"\\u" in body or any(body.count(orjson.dumps(name)) > 1 for name in config.inputs_by_name)
