"""The calls about regions of shared memory, on both wires (protocol: shared memory extensions)."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from modserve.core.errors import invalid
from modserve.core.tensors.shared_memory import CudaRegion, SystemRegion
from modserve.core.wire import base64_text
from modserve.pb import inference as pb
from modserve.protocol.control import control_body
from modserve.protocol.json.json_text import JsonObject

_HIGHEST = 2**64 - 1


def register_system_json(name: str, body: bytes) -> SystemRegion:
    """Return the region that an HTTP body registers. Raises INVALID_ARG."""
    document = control_body.read(body) if body else {}
    key = control_body.check_type(_field(document, "key"), str)
    offset = control_body.check_unsigned(document.get("offset", 0), _HIGHEST)
    return SystemRegion(name, key, offset, control_body.check_unsigned(_field(document, "byte_size"), _HIGHEST))


def register_cuda_json(name: str, body: bytes) -> tuple[CudaRegion, bytes]:
    """Return the region that an HTTP body registers, and the handle of its memory. Raises INVALID_ARG."""
    document = control_body.read(body) if body else {}
    coded = control_body.check_type(_field(control_body.check_type(_field(document, "raw_handle"), dict), "b64"), str)
    byte_size = control_body.check_unsigned(_field(document, "byte_size"), _HIGHEST)
    device_id = control_body.check_unsigned(_field(document, "device_id"), _HIGHEST)
    try:
        handle = base64_text.decode(coded)
    except ValueError:
        handle = b""
    return CudaRegion(name, device_id, byte_size), handle


def _field(document: JsonObject, key: str) -> object:
    if key not in document:
        raise invalid(f"Shared memory register request has no '{key}' field")
    return document[key]


def _describe(region: SystemRegion | CudaRegion) -> dict[str, Any]:
    """Return the region's fields in the protocol."""
    fields = asdict(region)
    del fields["tenant"]
    return fields


def status_json(regions: Sequence[SystemRegion | CudaRegion]) -> list[JsonObject]:
    return [_describe(region) for region in regions]


def system_status_message(regions: Sequence[SystemRegion]) -> pb.SystemSharedMemoryStatusResponse:
    status = pb.SystemSharedMemoryStatusResponse.RegionStatus
    return pb.SystemSharedMemoryStatusResponse(regions={each.name: status(**_describe(each)) for each in regions})


def cuda_status_message(regions: Sequence[CudaRegion]) -> pb.CudaSharedMemoryStatusResponse:
    status = pb.CudaSharedMemoryStatusResponse.RegionStatus
    return pb.CudaSharedMemoryStatusResponse(regions={each.name: status(**_describe(each)) for each in regions})
