"""The body of an inference request over HTTP to core values (protocol: inference request JSON object, and the binary
tensor data extension).
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.request import InferenceRequest, ParameterValue, label, timeout_ns
from modserve.core.tensors import dtypes
from modserve.core.tensors.shared_memory import LeaseFactory, RegionSlice
from modserve.core.tensors.tensor import Buffer, Shape, Tensor
from modserve.protocol import limits, parameters, response_form, shared_memory
from modserve.protocol.http import json_heads
from modserve.protocol.http.json_heads import HttpInput, JsonHeads, RequestDescription, read_numbers
from modserve.protocol.json import json_data, large_json
from modserve.protocol.json.json_text import (
    JsonObject,
    JsonTypeError,
    describe,
    parse_object,
    type_error,
    unable,
)
from modserve.protocol.response_form import ResponseForm

HEADER_LENGTH = "inference-header-content-length"
_MAX_DIMENSION = 2**63 - 1
_MAX_UNSIGNED = 2**64 - 1
_MOST_DIGITS = 1000
"""Python refuses to read much longer numbers."""
_MOST_TENSORS = limits.LIMITS.tensors
_HIGHEST_RANK = limits.LIMITS.rank
_LONGEST_NAME = 32
"""Characters of a datatype that messages repeat."""


def header_length(value: bytes | str | None, body_length: int) -> int | None:
    """Return the body's JSON length from ``Inference-Header-Content-Length``; None without that header.

    Raises INVALID_ARG if it is not a number between 0 and the body's length.
    """
    if value is None:
        return None
    if type(value) is bytes and value.isdigit() and len(value) < _MOST_DIGITS and (length := int(value)) <= body_length:
        return length
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    number = text.strip()
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise invalid(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    length = int(number) if len(number) <= _MOST_DIGITS else -1
    if not 0 <= length <= body_length:
        raise invalid(f"inference header size should be in range (0, {body_length}), got: {number}")
    return length


_SMALL: Final = 16 * 1024
"""Most bytes of a body to copy the tensors from, which costs less than a view of each."""


def decode_request(
    model_name: str,
    version: int | None,
    body: Buffer,
    json_length: int | None,
    deadline_ns: int = 0,
    lend: LeaseFactory | None = None,
    max_json_tensor: int = _MAX_DIMENSION,
    heads: JsonHeads | None = None,
    nulls: bool = False,
) -> tuple[InferenceRequest, ResponseForm]:
    """Decode an inference request and its response form. Raises INVALID_ARG, and NOT_FOUND for unknown regions.

    `json_length` is that of `header_length`; `deadline_ns` is the client's, 0 without one. `lend` is called for
    requests with tensors in shared memory, which raise UNSUPPORTED without it; the lease is the caller's to release,
    even if an error is raised. `max_json_tensor` is the most bytes that a tensor in the JSON may have. With
    `nulls`, which goes without `heads`, null is NaN.
    """
    text = bytes(body if json_length is None else body[:json_length])
    request = None if heads is None else json_heads.cut(text)
    known = None if heads is None or request is None else heads.look_up(request, max_json_tensor)
    inputs = None if known is None or request is None else read_numbers(request, known)
    if known is None or request is None or inputs is None:
        identity, values, binary_output, known = _read(text, max_json_tensor, nulls)
        inputs = {}
        if heads is not None and request is not None:
            heads.remember(request, known)
    else:
        identity = request.request_id
        values, binary_output = _parameters(request.parameters)
    _bind(known.inputs, inputs, body, json_length, model_name)
    limit_ns = timeout_ns(values) if values else 0
    decoded = InferenceRequest(
        model_name, inputs, known.outputs, version, identity, values, deadline_ns, limit_ns, known.form
    )
    look = known.response_form
    if look is None:
        look = response_form.BINARY if binary_output else response_form.JSON
    if known.shared:
        _share(known.places, look.places, inputs, lend)
    return decoded, look


_Document: TypeAlias = tuple[str, dict[str, ParameterValue], bool, RequestDescription]
"""The id, the parameters, whether outputs that are not listed come back as binary data, and the tensors."""


def _read(text: bytes, max_json_tensor: int, nulls: bool) -> _Document:
    if len(text) >= large_json.LARGE:
        try:
            return _document(large_json.parse(text), max_json_tensor, nulls)
        except ModserveError:
            if len(text) > limits.LIMITS.other_json:
                raise
            # The plain way, which sees the whole, names the mistake better.
    return _document(parse_object(text), max_json_tensor, nulls)


def _document(document: JsonObject, max_json_tensor: int, nulls: bool) -> _Document:
    request_id = document.get("id", "")
    if type(request_id) is not str:
        raise type_error("id", "string", request_id)
    values, binary_output = _parameters(document.get("parameters"))
    outputs, look = _outputs(document)
    inputs, places = _inputs(document, request_id, max_json_tensor, nulls)
    shared = bool(places or (look is not None and look.places))
    return request_id, values, binary_output, RequestDescription(inputs, places, outputs, look, shared)


def _bind(
    described: Sequence[HttpInput],
    inputs: dict[str, Tensor],
    body: Buffer,
    json_length: int | None,
    model_name: str,
) -> None:
    """Add the described inputs, with the binary data that follows the JSON."""
    position = length = len(body)
    binary = memoryview(body) if length > _SMALL else body
    if json_length is not None:
        position = json_length
    for name, datatype, shape, size, tensor in described:
        if tensor is not None:
            inputs[name] = tensor
            continue
        if json_length is None:
            if not size:  # nothing can be missing
                inputs[name] = Tensor(datatype, shape, b"", None)
                continue
            raise invalid(
                "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' "
                "when passing inputs in binary data format"
            )
        end = position + size
        if end > length:
            raise invalid(
                f"unexpected size for input '{name}', expecting {end - length} additional bytes "
                f"for model '{model_name}'"
            )
        inputs[name] = Tensor(datatype, shape, binary[position:end], None)
        position = end
    if position != length:
        raise invalid(f"unexpected additional input data for model '{model_name}'")


def _share(
    places: Sequence[tuple[HttpInput, RegionSlice]],
    outputs: Mapping[str, RegionSlice],
    inputs: dict[str, Tensor],
    lend: LeaseFactory | None,
) -> None:
    """Add the inputs that are in shared memory, and reserve the places of the outputs."""
    if lend is None:
        for each, _ in places:
            raise shared_memory.access_error("input", each.name)
        raise shared_memory.access_error("output", next(iter(outputs)))
    lease = lend()
    for each, place in places:
        inputs[each.name] = shared_memory.input_tensor(each.datatype, each.shape, place, lease)
    for place in outputs.values():
        lease.reserve(place)


def _parameters(value: object) -> tuple[dict[str, ParameterValue], bool]:
    """Return the request's parameters, and whether unlisted outputs come back as binary data."""
    if value is None:
        return {}, False
    if type(value) is not dict:
        raise type_error("parameters", "object", value)
    limits.check_parameters(len(value))
    binary_output = False
    values: dict[str, ParameterValue] = {}
    for key, element in value.items():
        if key == "binary_data_output":
            if type(element) is not bool:
                raise type_error(key, "boolean", element)
            binary_output = element
            continue
        check = _TYPED_PARAMETERS.get(key)
        if check is not None:
            types, is_not = check
            if type(element) not in types or (type(element) is int and not 0 <= element <= _MAX_UNSIGNED):
                raise type_error(key, is_not, element)
        else:
            parameters.check_name(key)
            element = parameters.custom(key, element)
        values[key] = element
    return values, binary_output


_TYPED_PARAMETERS: dict[str, tuple[tuple[type, ...], str]] = {
    "sequence_id": ((int, str), "string"),
    "sequence_start": ((bool,), "boolean"),
    "sequence_end": ((bool,), "boolean"),
    "priority": ((int,), "unsigned-integer"),
    "timeout": ((int,), "unsigned-integer"),
}


def _outputs(document: JsonObject) -> tuple[tuple[str, ...], ResponseForm | None]:
    """Return the requested outputs and their forms; None if none is listed."""
    value = document.get("outputs", [])
    if type(value) is not list:
        raise type_error("outputs", "array", value)
    if not value:
        return (), None
    if len(value) > _MOST_TENSORS:
        raise limits.too_many_tensors("outputs", len(value))
    names: list[str] = []  # also what is asked for twice, which the model refuses
    binary: list[str] = []
    classes: dict[str, int] = {}
    places: dict[str, RegionSlice] = {}
    for index, element in enumerate(value):
        name = _string(element, "name", "outputs", index)
        names.append(name)
        options = element.get("parameters")
        if options is None:
            continue
        if type(options) is not dict:
            raise type_error("parameters", "object", options, f"output '{name}'")
        is_binary = options.get("binary_data", False)
        if type(is_binary) is not bool:
            raise type_error("binary_data", "boolean", is_binary, f"output '{name}'")
        if shared_memory.REGION in options:
            for other in ("classification", "binary_data") if is_binary else ("classification",):
                if other in options:
                    raise invalid(f"Output can't set both 'shared_memory_region' and '{other}'")
            places.setdefault(name, shared_memory.json_place(options))
            continue
        if is_binary:
            binary.append(name)
        count = options.get("classification", 0)
        if type(count) is not int or count < 0:
            raise type_error("classification", "unsigned-integer", count, f"output '{name}'", doing="set")
        if count:
            classes.setdefault(name, count)
    if not binary and not classes and not places:
        return tuple(names), response_form.JSON
    return tuple(names), ResponseForm(binary=frozenset(binary), classes=classes, places=places)


def _inputs(
    document: JsonObject, request_id: str, max_json_tensor: int, nulls: bool
) -> tuple[tuple[HttpInput, ...], tuple[tuple[HttpInput, RegionSlice], ...]]:
    """Return the inputs, and separately the inputs in shared memory."""
    value = document.get("inputs")
    if type(value) is not list:
        if "inputs" not in document:
            raise _missing("inputs", "the request")
        raise type_error("inputs", "array", value)
    if len(value) > _MOST_TENSORS:
        raise limits.too_many_tensors("inputs", len(value))
    inputs: dict[str, HttpInput] = {}
    places: dict[str, tuple[HttpInput, RegionSlice]] = {}
    for index, element in enumerate(value):
        name = _string(element, "name", "inputs", index)
        if name in inputs or name in places:
            raise invalid(f"{label(request_id)}input '{name}' already exists in request")
        type_name = _string(element, "datatype", "inputs", index)
        datatype = dtypes.BY_NAME.get(type_name, dtypes.INVALID)
        shape = _shape(name, element)
        size = _binary_size(name, element)
        tensor: Tensor | None = None
        if isinstance(size, RegionSlice):
            places[name] = HttpInput(name, datatype, shape, 0, None), size
            continue
        if size is None:
            if datatype is dtypes.INVALID:
                raise _unknown_datatype(name, type_name)
            tensor = json_data.to_tensor(name, datatype, shape, element["data"], max_json_tensor, nulls)
        inputs[name] = HttpInput(name, datatype, shape, size or 0, tensor)
    return tuple(inputs.values()), tuple(places.values())


def _unknown_datatype(name: str, type_name: str) -> ModserveError:
    """Return INVALID_ARG that names the datatype meant by a name of numpy, PyTorch or model configurations."""
    plain = type_name.lower().removeprefix("torch.").removeprefix("type_")
    hint = next(
        (f"did you mean {each}?" for each in dtypes.ALL if plain in (f"{each}".lower(), str(each.own_numpy))),
        f"did you mean {dtypes.BYTES}?" if plain in ("str", "string") else f"there are {', '.join(dtypes.BY_NAME)}",
    )
    return invalid(f"invalid datatype for input {name}: '{type_name[:_LONGEST_NAME]}', {hint}")


def _string(element: object, key: str, array: str, index: int) -> str:
    """Return the text that is member `key` of ``array[index]``."""
    if type(element) is not dict:
        raise unable(key, JsonTypeError("object", detail=f"{array}[{index}] is {describe(element)}"))
    value = element.get(key)
    if type(value) is not str:
        owner = f"{array}[{index}]"
        raise type_error(key, "string", value, owner) if key in element else _missing(key, owner)
    return value


def _missing(key: str, owner: str) -> ModserveError:
    return unable(key, ValueError(f"attempt to access non-existing object member '{key}': {owner} has none"))


def _shape(name: str, element: JsonObject) -> Shape:
    value = element.get("shape")
    if type(value) is not list:
        owner = f"input '{name}'"
        raise type_error("shape", "array", value, owner) if "shape" in element else _missing("shape", owner)
    if len(value) > _HIGHEST_RANK:
        raise limits.too_many_dimensions(name, len(value))
    for size in value:
        if type(size) is not int or not 0 <= size <= _MAX_DIMENSION:
            detail = f"'shape' of input '{name}' has {describe(size)}"
            raise unable("shape", JsonTypeError("unsigned-integer", detail=detail))
    return tuple(value)


def _binary_size(name: str, element: JsonObject) -> int | RegionSlice | None:
    """Return the bytes of binary data that belong to an input, or its place in shared memory; None for JSON data.

    There must be exactly one source.
    """
    options = element.get("parameters")
    if options is None:
        if "data" in element:
            return None
        options = {}
    if type(options) is not dict:
        raise type_error("parameters", "object", options, f"input '{name}'")
    sources = [key for key in ("binary_data_size", "shared_memory_region") if key in options]
    if "data" in element:
        sources.insert(0, "data")
    if len(sources) != 1:
        fields = "set " + " ".join(f"'{key}'" for key in sources) if sources else "no field is set"
        raise invalid(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But {fields}"
        )
    if sources[0] == "data":
        return None
    if sources[0] == "shared_memory_region":
        return shared_memory.json_place(options)
    size = options["binary_data_size"]
    if type(size) is not int or size < 0:
        raise type_error("binary_data_size", "unsigned-integer", size, f"input '{name}'")
    return size
