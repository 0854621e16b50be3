"""What the documentation has people try first, and what they try to break it with."""

import json
import re
import subprocess
import sys
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from server_process import ServerProcess
from wire import HOST, SECONDS, SERVING, channel, fields, health, http, text

import modserve
from modserve.form import form

MIB = 1 << 20


def test_the_content_type_does_not_matter(server: ServerProcess) -> None:
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 2], "data": [7, 8]}]})
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = http(server.http_port, "POST", "/v2/models/identity_INT32/infer", body.encode(), headers)
        assert answer.json["outputs"][0]["data"] == [7, 8]


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--version"]])
def test_version(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "modserve", *arguments], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert done.stdout == f"modserve {modserve.__version__} ({form()})\n"


def test_a_misspelled_option() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "modserve", "--model-repositry=x"], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 2
    assert "did you mean '--model-repository'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_documentation_pages(server: ServerProcess) -> None:
    assert b"<title>modserve" in http(server.http_port, "GET", "/docs").body
    paths = http(server.http_port, "GET", "/openapi.json").json["paths"]
    assert {"/v2", "/v2/health/ready", "/v2/models", "/v2/models/{model}/infer"} <= set(paths)
    assert "simple" in http(server.http_port, "GET", "/v2/models").json["models"]


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "simple"])
def test_grpc_health(server: ServerProcess, service: str) -> None:
    with channel(server.grpc_port) as opened:
        assert health(opened, "Check")(text(1, service), timeout=SECONDS) == SERVING


def test_grpc_health_of_an_unknown_service(server: ServerProcess) -> None:
    with channel(server.grpc_port) as opened, pytest.raises(grpc.RpcError) as raised:
        health(opened, "Check")(text(1, "nosuch"), timeout=SECONDS)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_grpc_health_of_all_services(server: ServerProcess) -> None:
    with channel(server.grpc_port) as opened:
        listed = fields(health(opened, "List")(b"", timeout=SECONDS))
    entries = [dict(fields(entry)) for number, entry in listed if number == 1]
    statuses = {entry.get(1, b""): entry[2] for entry in entries}
    assert {b"", b"inference.GRPCInferenceService", b"simple"} <= set(statuses)
    assert set(statuses.values()) == {SERVING}


class Reflected:
    """A database of files for protobuf's pools that asks the server: a client that knows nothing of the messages."""

    def __init__(self, opened: grpc.Channel, version: str) -> None:
        method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        self._call: Any = opened.stream_stream(method, None, None)

    def ask(self, request: bytes) -> list[tuple[int, bytes]]:
        """The fields of what the server answers to one request."""
        (answer,) = self._call(iter([request]), timeout=SECONDS)
        told = fields(answer)
        assert dict(told)[2] == request
        return told

    def services(self) -> set[str]:
        listed = dict(self.ask(text(7, "*")))[6]
        return {dict(fields(service))[1].decode() for _, service in fields(listed)}

    def _files(self, request: bytes) -> list[FileDescriptorProto]:
        """The file that is asked for, and behind it those that it needs."""
        told = dict(self.ask(request))
        if 7 in told:
            raise KeyError(dict(fields(told[7]))[2].decode())
        return [FileDescriptorProto.FromString(data) for _, data in fields(told[4])]

    def FindFileByName(self, name: str) -> FileDescriptorProto:
        return self._files(text(3, name))[0]

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptorProto:
        return self._files(text(4, symbol))[0]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_grpc_reflection(server: ServerProcess, version: str) -> None:
    with channel(server.grpc_port) as opened:
        database = Reflected(opened, version)
        assert database.services() == {
            "inference.GRPCInferenceService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        assert {"ModelInfer", "ModelStreamInfer", "ServerLive"} <= set(service.methods_by_name)
        assert pool.FindMessageTypeByName("inference.ModelConfig").fields_by_name["max_batch_size"].number == 4
        assert {"Check", "Watch", "List"} == set(pool.FindServiceByName("grpc.health.v1.Health").methods_by_name)
        reflection = pool.FindServiceByName(f"grpc.reflection.{version}.ServerReflection")
        input_type = reflection.methods_by_name["ServerReflectionInfo"].input_type
        assert input_type.full_name == f"grpc.reflection.{version}.ServerReflectionRequest"
        with pytest.raises(KeyError, match="nosuch"):
            database.FindFileContainingSymbol("nosuch.Thing")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_tensor_of_64_mib(server: ServerProcess, protocol: str) -> None:
    """The limit on JSON, which is far below in this server, does not concern binary data."""
    array = np.random.default_rng(1).integers(0, 256, (2, 32 * MIB), dtype=np.uint8)
    module, port = (
        (tritonclient.http, server.http_port) if protocol == "http" else (tritonclient.grpc, server.grpc_port)
    )
    with module.InferenceServerClient(f"{HOST}:{port}") as client:
        given = module.InferInput("INPUT0", array.shape, "UINT8")
        given.set_data_from_numpy(array)
        result = client.infer("identity_UINT8", [given])
    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


def test_the_metrics_page_has_every_version_once(server: ServerProcess) -> None:
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    samples = re.findall(r'^nv_inference_count\{model="(\w+)",version="(\d+)"\} ', page, re.MULTILINE)
    assert {("simple", "1"), ("digits", "1"), ("digits", "2")} <= set(samples)
    assert len(samples) == len(set(samples))
    other = http(server.metrics_port, "GET", "/nosuch")
    places = f"HTTP at port {server.http_port} and gRPC at port {server.grpc_port}"
    text = f"Not Found: this port serves only /metrics, for Prometheus; other calls: {places}"
    assert (other.status, other.json) == (404, {"error": text})
