"""Inference between workers: requests and responses as the messages of gRPC, with raw tensors."""

from collections.abc import Mapping
from dataclasses import replace

from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.pb import inference as pb
from modserve.protocol.grpc import grpc_messages, infer_message
from modserve.protocol.grpc.response_writer import ResponseWriter

_LARGEST_SIGNED = 2**63 - 1
_LARGE = "modserve_large_"
"""How the names of parameters begin whose values gRPC's requests have no room for; they come as texts of digits."""


def write_request(request: InferenceRequest) -> bytes:
    """Raises INVALID_ARG for an input without a datatype."""
    message = pb.ModelInferRequest(
        model_name=request.model_name,
        model_version="" if request.version is None else str(request.version),
        id=request.id,
        outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in request.outputs],
    )
    _write_parameters(message.parameters, request.parameters)
    for name, tensor in request.inputs.items():
        if tensor.datatype is dtypes.INVALID:
            raise invalid(f"{request.label}input '{name}' has no datatype that is known")
        message.inputs.add(name=name, datatype=tensor.datatype.name, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.raw))
    return message.SerializeToString()


def read_request(data: bytes, deadline_ns: int) -> InferenceRequest:
    message = pb.ModelInferRequest.FromString(data)
    large = {name: message.parameters[name].string_param for name in message.parameters if name.startswith(_LARGE)}
    for name in large:
        del message.parameters[name]
    request = grpc_messages.decode_request(infer_message.from_protobuf(message), deadline_ns)
    if not large:
        return request
    values = {name.removeprefix(_LARGE): int(text) for name, text in large.items()}
    return replace(request, parameters={**request.parameters, **values})


class Responses:
    """Writes the responses of one worker."""

    def __init__(self) -> None:
        self._writer = ResponseWriter()

    def write(self, response: InferenceResponse) -> bytes:
        return self._writer.encode(response)


def read_response(data: bytes) -> InferenceResponse:
    message = pb.ModelInferResponse.FromString(data)
    outputs = {
        output.name: Tensor.from_raw(dtypes.BY_NAME[output.datatype], tuple(output.shape), raw)
        for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    }
    parameters: dict[str, ParameterValue] = {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for name, value in message.parameters.items()
    }
    version = int(message.model_version)
    return InferenceResponse(message.model_name, version, outputs, message.id, parameters)


def _write_parameters(target: Mapping[str, pb.InferParameter], parameters: Mapping[str, ParameterValue]) -> None:
    for name, value in parameters.items():
        if type(value) is int and value > _LARGEST_SIGNED:
            target[_LARGE + name].string_param = str(value)
            continue
        parameter = target[name]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = value


def write_failure(error: ModserveError) -> bytes:
    return f"{error.code.name}\0{error.message}".encode("utf-8", "surrogatepass")


def read_failure(data: bytes) -> ModserveError:
    code, _, message = data.decode("utf-8", "surrogatepass").partition("\0")
    return ModserveError(Code[code], message)
