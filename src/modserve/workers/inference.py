"""Inference between workers: requests, responses and failures as `values`, with raw tensors."""

from collections.abc import Mapping
from dataclasses import astuple
from typing import TypeAlias

from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse
from modserve.core.tenants import Tenant
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Shape, Tensor

from . import pickles

_Tensors: TypeAlias = list[tuple[str, str, Shape, bytes]]


def write_request(request: InferenceRequest) -> bytes:
    """Raises INVALID_ARG for an input without a datatype."""
    for name, tensor in request.inputs.items():
        if tensor.datatype is dtypes.INVALID:
            raise invalid(f"{request.label}input '{name}' has an unknown datatype")
    head = request.model_name, request.version, request.id, request.outputs, request.timeout_ns
    tenant = None if request.tenant is None else astuple(request.tenant)
    return pickles.dumps((head, dict(request.parameters), _write(request.inputs), tenant))


def read_request(data: bytes, deadline_ns: int) -> InferenceRequest:
    (model, version, id, outputs, timeout_ns), parameters, inputs, tenant = pickles.loads(data)
    request = InferenceRequest(model, _read(inputs), outputs, version, id, parameters, deadline_ns, timeout_ns)
    request.tenant = None if tenant is None else Tenant(*tenant)
    return request


def write_response(response: InferenceResponse) -> bytes:
    head = response.model_name, response.model_version, response.id, response.skipped, response.waited_ns
    return pickles.dumps((head, dict(response.parameters), _write(response.outputs)))


def read_response(data: bytes) -> InferenceResponse:
    (model, version, id, skipped, waited_ns), parameters, outputs = pickles.loads(data)
    return InferenceResponse(model, version, _read(outputs), id, parameters, skipped, waited_ns)


def write_failure(error: ModserveError) -> bytes:
    return pickles.dumps(pickles.portable_error(error))


def read_failure(data: bytes) -> ModserveError:
    error: ModserveError = pickles.loads(data)
    return error


def _write(tensors: Mapping[str, Tensor]) -> _Tensors:
    return [(name, each.datatype.name, each.shape, bytes(each.raw)) for name, each in tensors.items()]


def _read(tensors: _Tensors) -> dict[str, Tensor]:
    return {name: Tensor.from_raw(dtypes.BY_NAME[datatype], shape, raw) for name, datatype, shape, raw in tensors}
