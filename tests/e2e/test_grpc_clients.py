"""gRPC by clients on other implementations of HTTP/2 than gRPC's own: grpclib, on the h2 library, and curl."""

import asyncio
import shutil
import subprocess
from typing import Any

import pytest
from grpclib.client import Channel, StreamStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from server_process import ServerProcess
from tritonclient.grpc import service_pb2 as pb
from wire import DIFFERENCE, HOST, SECONDS, SUM, Ask, message

_CURL = ["curl", "-s", "-i", "--http2-prior-knowledge", "-H", "Content-Type: application/grpc", "--data-binary", "@-"]
SERVICE = "/inference.GRPCInferenceService/"


def unary(channel: Channel, name: str) -> Any:
    return UnaryUnaryMethod(channel, SERVICE + name, getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response"))


async def test_grpclib(server: ServerProcess) -> None:
    async with Channel(HOST, server.grpc_port) as channel:
        assert (await unary(channel, "ServerLive")(pb.ServerLiveRequest(), timeout=SECONDS)).live
        infer = unary(channel, "ModelInfer")
        answers = await asyncio.gather(*[infer(message(Ask()), timeout=SECONDS) for _ in range(300)])
        assert all(list(answer.raw_output_contents) == [SUM, DIFFERENCE] for answer in answers)
        with pytest.raises(GRPCError) as raised:
            await infer(message(Ask(model="nosuch")), timeout=SECONDS)
        assert raised.value.status is Status.NOT_FOUND
        assert raised.value.message == "Request for unknown model: 'nosuch' is not found"


async def test_a_stream_of_grpclib(server: ServerProcess) -> None:
    async with Channel(HOST, server.grpc_port) as channel:
        method: Any = StreamStreamMethod(
            channel, SERVICE + "ModelStreamInfer", pb.ModelInferRequest, pb.ModelStreamInferResponse
        )
        answers = await method([message(Ask(id=str(number))) for number in range(50)], timeout=SECONDS)
    assert [answer.infer_response.id for answer in answers] == [str(number) for number in range(50)]


async def test_a_long_message_of_grpclib(server: ServerProcess) -> None:
    """Both ways through windows of 64 KiB."""
    data = bytes(range(256)) * 20_000
    asked = pb.ModelInferRequest(model_name="identity_UINT8")
    asked.inputs.add(name="INPUT0", datatype="UINT8", shape=(1, len(data)))
    asked.raw_input_contents.append(data)
    async with Channel(HOST, server.grpc_port) as channel:
        answer = await unary(channel, "ModelInfer")(asked, timeout=SECONDS)
    assert answer.raw_output_contents[0] == data


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: ServerProcess) -> None:
    done = subprocess.run(
        [*_CURL, f"http://{HOST}:{server.grpc_port}{SERVICE}ServerLive"],
        input=bytes(5),
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout.startswith(b"HTTP/2 200")
    assert b"grpc-status: 0" in done.stdout
    assert b"\0\0\0\0\2\x08\1" in done.stdout
