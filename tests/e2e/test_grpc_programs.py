"""gRPC and HTTP/2 by programs of other languages: nghttp2's in C, and gRPC's own client for node.js."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from node_packages import NoPackagesError, node_modules
from server_process import ServerProcess
from wire import HOST, SECONDS, Ask, message

ROOT = Path(__file__).parents[2]
NODE_CLIENT = Path(__file__).with_name("grpc_node.js")
SERVICE = "/inference.GRPCInferenceService/"
GRPC_HEADERS = ["-H", "te: trailers", "-H", "content-type: application/grpc"]


def framed(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


@pytest.fixture
def body(tmp_path: Path) -> Path:
    """A call of ModelInfer as a file."""
    path = tmp_path / "body"
    path.write_bytes(framed(message(Ask()).SerializeToString()))
    return path


def run(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("streams", [1, 100])
def test_h2load(server: ServerProcess, body: Path, streams: int) -> None:
    url = f"http://{HOST}:{server.grpc_port}{SERVICE}ModelInfer"
    output = run("h2load", "-n2000", "-c4", f"-m{streams}", "-d", str(body), *GRPC_HEADERS, url)
    assert re.search(r"2000 succeeded, 0 failed, 0 errored, 0 timeout", output), output
    assert re.search(r"status codes: 2000 2xx", output), output


@pytest.mark.parametrize("window", [10, 16, 30])
def test_nghttp(server: ServerProcess, body: Path, window: int) -> None:
    """With windows of 2^10 - 1, 2^16 - 1 and 2^30 - 1 bytes, and padding; -v shows the frames."""
    url = f"http://{HOST}:{server.grpc_port}{SERVICE}ModelInfer"
    output = run("nghttp", "-nv", f"-w{window}", f"-W{window}", "-d", str(body), "-b30", *GRPC_HEADERS, url)
    assert "grpc-status: 0" in output, output
    assert "GOAWAY frame" not in output.partition("recv")[2].partition("send GOAWAY")[0], output


def test_nghttp_of_what_is_not_there(server: ServerProcess) -> None:
    url = f"http://{HOST}:{server.grpc_port}/"
    assert ":status: 415" in run("nghttp", "-nv", "-H", ":method: POST", url)
    assert ":status: 405" in run("nghttp", "-nv", url)


@pytest.fixture(scope="session")
def node_client() -> Path:
    """The client with its packages."""
    try:
        return node_modules("grpc")
    except NoPackagesError as error:
        pytest.skip(str(error))


def test_node(server: ServerProcess, node_client: Path) -> None:
    proto = ROOT / "protos" / "grpc_service.proto"
    done = subprocess.run(
        ["node", str(NODE_CLIENT), str(server.grpc_port), str(proto)],
        env={**os.environ, "NODE_PATH": str(node_client)},
        capture_output=True,
        text=True,
        timeout=3 * SECONDS,
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["live"] is True
    assert got["ids"] == [str(number) for number in range(300)]
    assert got["values"] == [[8, 2]] * 300
    assert got["streamed"] == [str(number) for number in range(50)]
    assert got["refusal"] == [5, "Request for unknown model: 'nosuch' is not found"]
    assert got["cancelled"] == 1
    assert got["large"] == [2_000_000, 7, 7]
