"""Requests and responses of KServe v2 over gRPC, as messages, without I/O."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message

from modserve.core.errors import Code
from modserve.core.requests.request import ParameterValue
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.pb import inference as pb
from modserve.pb.json_message import to_json
from modserve.protocol.failures import STATUS

from .errors import ClientError, bad_response, make_error
from .input_values import ClientCall, Result, version_of
from .transport import CONFIG, INDEX, SERVER, ControlCall, Operation

_FIELDS: Mapping[type, str] = {
    bool: "bool_param",
    int: "int64_param",
    float: "double_param",
    str: "string_param",
    bytes: "bytes_param",
}
"""Protobuf fields of a parameter by the type of its value."""
_OF_NO_MODEL = frozenset({"ServerLive", "ServerReady", SERVER.rpc, INDEX.rpc})


def path(rpc: str) -> str:
    return f"/{pb.SERVICE}/{rpc}"


def request(control: ControlCall) -> tuple[Message, type[Message]]:
    """Return the request, and the type of the response. Raises UNSUPPORTED for what only HTTP has."""
    if not control.operation.rpc:
        raise ClientError(Code.UNSUPPORTED, f"{control.operation.path.format(model=control.model)} is not in gRPC", 501)
    method = pb.METHODS[control.operation.rpc]
    message: Any = method.request()
    if control.operation.rpc not in _OF_NO_MODEL:
        setattr(message, control.operation.name, control.model)
    if control.version is not None:
        message.version = str(control.version)
    _set(message, control.parameters or {})
    return message, method.response


def answer(operation: Operation, message: Message) -> Any:
    """Return the response as HTTP has it."""
    document = to_json(message)
    if operation.probe:
        return bool(next(iter(document.values()), False))
    if operation is INDEX:
        rows: Any = document["models"]
        return [{key: value for key, value in row.items() if value != ""} for row in rows]
    return document["config"] if operation is CONFIG else document


def infer(call: ClientCall) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=call.model, id=call.request_id)
    if call.version is not None:
        message.model_version = str(call.version)
    _set(message, call.parameters or {})
    for name in call.outputs:
        output = message.outputs.add(name=name)
        if call.classes:
            output.parameters["classification"].int64_param = call.classes
    for name, tensor in call.tensors.items():
        message.inputs.add(name=name, datatype=tensor.datatype.name, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.raw))
    return message


def _set(message: Any, parameters: Mapping[str, ParameterValue | bytes]) -> None:
    for key, value in parameters.items():
        setattr(message.parameters[key], _FIELDS[type(value)], value)


def result(message: pb.ModelInferResponse) -> Result:
    """Raises ClientError."""
    try:
        raws = message.raw_output_contents
        tensors = {
            row.name: _tensor(row, raws[index] if index < len(raws) else None)
            for index, row in enumerate(message.outputs)
        }
    except (KeyError, ValueError) as error:
        raise bad_response(repr(error)) from error
    return Result(
        message.model_name, version_of(message.model_version), tensors, message.id, _parameters(message.parameters)
    )


def parse_streamed(message: pb.ModelStreamInferResponse) -> Result:
    """Raises the failure that it reports: its text is all there is."""
    if message.error_message:
        raise make_error(Code.UNKNOWN, message.error_message, STATUS[Code.UNKNOWN].http)
    return result(message.infer_response)


def _tensor(row: Any, raw: bytes | None) -> Tensor:
    datatype, shape = dtypes.BY_NAME[row.datatype], tuple(row.shape)
    if raw is not None:
        return Tensor.from_raw(datatype, shape, raw)
    contents = list(getattr(row.contents, datatype.contents_field or "bytes_contents"))
    return Tensor.from_array(np.array(contents, datatype.numpy).reshape(shape), datatype)


def _parameters(parameters: Mapping[str, Any]) -> dict[str, ParameterValue]:
    chosen = {name: (value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}
    return {name: getattr(value, field) for name, (value, field) in chosen.items() if field}


def serialise(message: Message) -> bytes:
    return message.SerializeToString()
