"""Requests and responses of KServe v2 over gRPC, as messages: nothing here waits for anything."""

from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message

from modserve.core import dtypes
from modserve.core.errors import Code
from modserve.core.request import ParameterValue
from modserve.core.tensor import Tensor
from modserve.pb import inference as pb
from modserve.pb.json_message import to_json
from modserve.protocol.failures import STATUS, TOO_MANY

from .address import Access, Address
from .errors import ClientError, reported, timed_out, unreachable
from .transport import INDEX, LOAD, PROBES, SERVER, UNLOAD, Operation, Question
from .values import Call, Result, version_of

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
_CODES = {spelling.grpc_name: code for code, spelling in STATUS.items()}
_OF_NO_MODEL = frozenset({"ServerLive", "ServerReady", SERVER.rpc, INDEX.rpc})


def path(rpc: str) -> str:
    return f"/{pb.SERVICE}/{rpc}"


def credentials(access: Access) -> grpc.ChannelCredentials:
    """Raises OSError for files that cannot be read."""
    roots, key, chain = (
        None if file is None else file.read_bytes()
        for file in (access.root_cert, access.client_key, access.client_cert)
    )
    return grpc.ssl_channel_credentials(roots, key, chain)


def request(question: Question) -> tuple[Message, type[Message]]:
    """The request, and the type of the response."""
    method = pb.METHODS[question.operation.rpc]
    message: Any = method.request()
    if question.operation.rpc not in _OF_NO_MODEL:
        setattr(message, question.operation.name, question.model)
    if question.version is not None:
        message.version = str(question.version)
    if question.operation in (LOAD, UNLOAD):
        for key, value in (question.parameters or {}).items():
            setattr(message.parameters[key], _FIELDS[type(value)], value)
    return message, method.response


def answer(operation: Operation, message: Message) -> Any:
    """The response as HTTP has it."""
    document = to_json(message)
    if operation in PROBES:
        return bool(next(iter(document.values()), False))
    if operation is INDEX:
        rows: Any = document["models"]
        return [{key: value for key, value in row.items() if value != ""} for row in rows]
    return document["config"] if operation.rpc == "ModelConfig" else document


def infer(call: Call) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=call.model, id=call.request_id)
    if call.version is not None:
        message.model_version = str(call.version)
    for key, value in (call.parameters or {}).items():
        setattr(message.parameters[key], _FIELDS[type(value)], value)
    for name in call.outputs:
        message.outputs.add(name=name)
    for name, tensor in call.tensors.items():
        message.inputs.add(name=name, datatype=tensor.datatype.name, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.raw))
    return message


def result(message: pb.ModelInferResponse) -> Result:
    """Raises ClientError."""
    try:
        raws = message.raw_output_contents
        tensors = {
            row.name: _tensor(row, raws[index] if index < len(raws) else None)
            for index, row in enumerate(message.outputs)
        }
    except (KeyError, ValueError) as error:
        raise ClientError(Code.UNKNOWN, f"the response cannot be understood: {error!r}", 200) from error
    return Result(
        message.model_name, version_of(message.model_version), tensors, message.id, _parameters(message.parameters)
    )


def streamed(message: pb.ModelStreamInferResponse) -> Result:
    """Raises the failure that it reports: its text is all there is."""
    if message.error_message:
        raise reported(Code.UNKNOWN, message.error_message, STATUS[Code.UNKNOWN].http)
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


def failure(address: Address, error: grpc.RpcError, timeout: float | None, responded: bool = False) -> ClientError:
    """What a call has raised. `responded`: something had come by then."""
    status, text = error.code(), str(error.details() or "")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return timed_out(timeout)
    if status is grpc.StatusCode.UNAVAILABLE and not responded and "connect" in text.lower():
        return unreachable(str(address), Exception(text))
    if status.name == TOO_MANY.grpc_name:
        return ClientError(Code.UNAVAILABLE, text, TOO_MANY.http)
    code = _CODES.get(status.name, Code.UNKNOWN)
    return reported(code, text or status.name, STATUS[code].http)


def serialised(message: Message) -> bytes:
    return message.SerializeToString()
