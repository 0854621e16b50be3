"""Failures of calls over gRPC, and what helps."""

from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from modserve.commands.access import Access, RefusedError, UnreachableError, address
from modserve.commands.grpc_calls import OverGrpc, message
from modserve.commands.infer import over_grpc
from modserve.core.errors import ModserveError
from modserve.core.request import InferenceRequest
from modserve.core.tensor import Tensor

Status = grpc.StatusCode


def failure(status: grpc.StatusCode, text: str) -> UnreachableError | RefusedError:
    remote = OverGrpc(Access(address("grpc://host:1")))
    try:
        return remote._failure(SimpleNamespace(code=lambda: status, details=lambda: text))
    finally:
        remote.close()


@pytest.mark.parametrize(
    ("status", "text", "kind", "helps"),
    [
        (Status.UNAVAILABLE, "failed to connect", UnreachableError, "--url grpc://HOST:PORT names the gRPC port"),
        (Status.UNAVAILABLE, "x CERTIFICATE_VERIFY_FAILED y", UnreachableError, "--ca-file"),
        (Status.DEADLINE_EXCEEDED, "Deadline Exceeded", UnreachableError, "--timeout allows more than 60 s"),
        (Status.UNAVAILABLE, "This protocol is restricted, expecting header 'k'", RefusedError, "--header"),
        (Status.INVALID_ARGUMENT, "it is wrong", RefusedError, ""),
    ],
)
def test_what_helps(status: grpc.StatusCode, text: str, kind: type, helps: str) -> None:
    error = failure(status, text)
    assert type(error) is kind
    assert text in error.message
    assert helps in error.advice


def test_a_request() -> None:
    one = Tensor.from_array(np.array([1], np.int32))
    request = InferenceRequest("m", {"IN": one}, ("OUT",), 3, "id", {"a": True, "b": 2, "c": 0.5, "d": "text"})
    made = message(request, 5)
    assert (made.model_name, made.model_version, made.id) == ("m", "3", "id")
    assert made.raw_input_contents == [b"\x01\0\0\0"]
    assert made.outputs[0].parameters["classification"].int64_param == 5
    assert made.parameters["a"].bool_param
    assert (made.parameters["b"].int64_param, made.parameters["c"].double_param) == (2, 0.5)


def test_headers_also_open_restricted_calls() -> None:
    remote = OverGrpc(Access(address("grpc://host"), {"Key": "v", "triton-grpc-protocol-a": "w"}))
    assert remote._metadata == (("key", "v"), ("triton-grpc-protocol-key", "v"), ("triton-grpc-protocol-a", "w"))
    remote.close()


def test_certificates_are_always_checked() -> None:
    with pytest.raises(ModserveError, match="gRPC always checks certificates; '--ca-file'"):
        OverGrpc(Access(address("grpcs://host"), insecure=True))


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("http://host:8080", "grpc://host:8001"),
        ("https://[::1]", "grpcs://[::1]:8001"),
        ("grpc://host:9", "grpc://host:9"),
    ],
)
def test_the_port_of_grpc(url: str, other: str) -> None:
    assert over_grpc(Access(address(url))).address.url == other
