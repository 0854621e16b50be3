"""The calls about regions: bodies and messages."""

import base64
import json
from typing import Any

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.tensors.shared_memory import CudaRegion, SystemRegion
from modserve.protocol.control import regions

HANDLE = bytes(range(64))
CODED = {"b64": base64.b64encode(HANDLE).decode()}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_bodies_of_registration() -> None:
    assert regions.register_system_json("r", body(key="/k", byte_size=8)) == SystemRegion("r", "/k", 0, 8)
    asked = body(key="/k", offset=2**63, byte_size=2**64 - 1, other=[])
    assert regions.register_system_json("r", asked) == SystemRegion("r", "/k", 2**63, 2**64 - 1)
    asked = body(raw_handle=CODED, device_id=1, byte_size=8)
    assert regions.register_cuda_json("r", asked) == (CudaRegion("r", 1, 8), HANDLE)


@pytest.mark.parametrize("coded", ["AAAAA", "A\n==", "é", "\u2028", "A" * 63 + "!"])
def test_handles_that_are_not_base64_are_no_handles(coded: str) -> None:
    asked = body(raw_handle={"b64": coded}, device_id=1, byte_size=8)
    assert regions.register_cuda_json("r", asked)[1] == b""


UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("read", "asked", "text"),
    [
        (regions.register_system_json, b"", "Shared memory register request has no 'key' field"),
        (regions.register_system_json, body(), "Shared memory register request has no 'key' field"),
        (regions.register_system_json, body(key="k"), "Shared memory register request has no 'byte_size' field"),
        (regions.register_system_json, body(key=1), "attempt to access JSON non-string as string"),
        (regions.register_system_json, body(key="k", offset=-1, byte_size=1), UNSIGNED),
        (regions.register_system_json, body(key="k", byte_size=2**64), UNSIGNED),
        (regions.register_system_json, body(key="k", byte_size="8"), UNSIGNED),
        (regions.register_system_json, b"[]", "attempt to access JSON non-object as object"),
        (regions.register_cuda_json, b"", "Shared memory register request has no 'raw_handle' field"),
        (regions.register_cuda_json, body(raw_handle=""), "attempt to access JSON non-object as object"),
        (regions.register_cuda_json, body(raw_handle={}), "Shared memory register request has no 'b64' field"),
        (regions.register_cuda_json, body(raw_handle={"b64": 1}), "attempt to access JSON non-string as string"),
        (
            regions.register_cuda_json,
            body(raw_handle=CODED),
            "Shared memory register request has no 'byte_size' field",
        ),
        (
            regions.register_cuda_json,
            body(raw_handle=CODED, byte_size=1),
            "Shared memory register request has no 'device_id' field",
        ),
        (regions.register_cuda_json, body(raw_handle=CODED, byte_size=1, device_id=-1), UNSIGNED),
    ],
)
def test_bodies_that_are_refused(read: Any, asked: bytes, text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        read("r", asked)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, text)


SYSTEM = [SystemRegion("a", "/k", 4, 8), SystemRegion("b", "/l", 0, 2**63)]
CUDA = [CudaRegion("c", 1, 8)]


def test_status_as_json() -> None:
    assert regions.status_json([*SYSTEM, *CUDA]) == [
        {"name": "a", "key": "/k", "offset": 4, "byte_size": 8},
        {"name": "b", "key": "/l", "offset": 0, "byte_size": 2**63},
        {"name": "c", "device_id": 1, "byte_size": 8},
    ]


def test_status_as_messages() -> None:
    system = regions.system_status_message(SYSTEM).regions
    assert {name: SystemRegion(each.name, each.key, each.offset, each.byte_size) for name, each in system.items()} == {
        "a": SYSTEM[0],
        "b": SYSTEM[1],
    }
    cuda = regions.cuda_status_message(CUDA).regions
    assert {name: CudaRegion(each.name, each.device_id, each.byte_size) for name, each in cuda.items()} == {
        "c": CUDA[0]
    }
