"""Tensors in shared memory: their parameters on both wires, and their data (protocol: shared memory extensions)."""

from collections.abc import Mapping
from dataclasses import replace

from modserve.core.errors import ModserveError, invalid, unsupported
from modserve.core.requests.request import ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.shared_memory import RegionLease, RegionSlice
from modserve.core.tensors.tensor import Buffer, Shape, Tensor
from modserve.protocol.json.json_text import JsonObject, type_error

REGION = "shared_memory_region"
OFFSET = "shared_memory_offset"
BYTE_SIZE = "shared_memory_byte_size"
_HIGHEST = 2**64 - 1


def input_tensor(datatype: Datatype, shape: Shape, place: RegionSlice, lease: RegionLease) -> Tensor:
    """Read an input from a region. Raises as `RegionLease.read` does.

    BYTES are copied: their lengths are checked first and followed later, and the client could change them in between.
    """
    raw: Buffer = lease.read(place)
    return Tensor(datatype, shape, bytes(raw) if datatype is dtypes.BYTES else raw, None)


def move_outputs(
    response: InferenceResponse, places: Mapping[str, RegionSlice], lease: RegionLease
) -> InferenceResponse:
    """Write the outputs that belong into regions there; in the response they are left without data.

    Raises INVALID_ARG, having written nothing, if one is too large. Triton's code for that is INTERNAL, though it was
    the client that chose the size.
    """
    written = [(name, place, response.outputs[name]) for name, place in places.items() if name in response.outputs]
    for name, place, tensor in written:
        size = len(tensor.raw) if tensor.device is None else tensor.size
        if size > place.byte_size:
            raise invalid(
                f"shared memory size specified with the request for output '{name}' ({place.byte_size} bytes) should "
                f"be at least {size} bytes to hold the results"
            )
    outputs = dict(response.outputs)
    for name, place, tensor in written:
        if tensor.device is None or not lease.copy(place, tensor):
            lease.write(place, tensor.raw)
        outputs[name] = Tensor(tensor.datatype, tensor.shape, b"", None)
    return replace(response, outputs=outputs)


def access_error(kind: str, name: str) -> ModserveError:
    """Return the error for a request from a transport without access to regions."""
    return unsupported(f"{kind} '{name}': shared memory is not supported by this call")


def json_place(options: JsonObject) -> RegionSlice:
    """Return the place that a tensor's parameters name. Raises INVALID_ARG; the size defaults to 0, as in Triton."""
    region = options[REGION]
    if type(region) is not str:
        raise type_error(REGION, "string", region)
    return RegionSlice(region, _json_number(options, OFFSET), _json_number(options, BYTE_SIZE))


def _json_number(options: JsonObject, key: str) -> int:
    value = options.get(key, 0)
    if type(value) is not int or not 0 <= value <= _HIGHEST:
        raise type_error(key, "unsigned-integer", value)
    return value


def message_place(name: str, parameters: Mapping[str, tuple[str, ParameterValue | None]]) -> RegionSlice | None:
    """Return the place that the parameters of tensor `name` name, if they do. Raises INVALID_ARG.

    A parameter is the name of a field of ``InferParameter``, and its value.
    """
    if REGION not in parameters:
        for key in (OFFSET, BYTE_SIZE):
            if key in parameters:
                raise invalid(f"'{key}' can not be specified without '{REGION}' parameter for tensor '{name}'")
        return None
    region = parameters[REGION][1]
    if not isinstance(region, str):
        raise _wrong_type(name, REGION, "string_param")
    offset = _message_number(name, parameters, OFFSET) if OFFSET in parameters else 0
    if BYTE_SIZE not in parameters:
        raise invalid(f"'{BYTE_SIZE}' must be specified along with '{REGION}' parameter for tensor '{name}'")
    return RegionSlice(region, offset, _message_number(name, parameters, BYTE_SIZE))


def _message_number(name: str, parameters: Mapping[str, tuple[str, ParameterValue | None]], key: str) -> int:
    choice, value = parameters[key]
    if choice != "int64_param" or not isinstance(value, int):
        raise _wrong_type(name, key, "int64_param")
    return value


def _wrong_type(name: str, key: str, expected: str) -> ModserveError:
    return invalid(f"invalid value type for '{key}' parameter for tensor '{name}', expected {expected}.")
