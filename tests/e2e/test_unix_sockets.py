"""Unix sockets with two workers behind them, and an admin socket: curl, tritonclient, our client and commands."""

import asyncio
import io
import json
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from repositories import EXAMPLES
from server_process import ServerProcess, eventually, serving, started
from tritonclient.utils import InferenceServerException

import modserve
from kept_logging import kept_logging
from modserve import cli
from modserve.client.errors import ClientError

STARTED = r"supervising worker (\d), process (\d+)$"
A, B = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
BODY = {
    "inputs": [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": values.flatten().tolist()}
        for name, values in (("INPUT0", A), ("INPUT1", B))
    ]
}
NAMES = ("http", "grpc", "admin")


class Place(NamedTuple):
    server: ServerProcess
    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.sock")

    def url(self, name: str) -> str:
        return f"unix:{self.path(name)}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def place(folder: Path) -> Iterator[Place]:
    sockets = [f"--{name}-address=unix:{folder / name}.sock" for name in NAMES]
    options = [*sockets, "--workers=2", "--model-control-mode=explicit", "--load-model=simple", "--access-log=all"]
    with closing(socket.socket(socket.AF_UNIX)) as dead:  # what a server leaves that was killed
        dead.bind(str(folder / "http.sock"))
    killed = [r"worker \d, process \d+, was killed by SIGKILL"] * 2
    with serving(EXAMPLES, options=options, errors=killed) as server:
        yield Place(server, folder)
    assert os.listdir(folder) == []


def curl(path: str, target: str, body: object = None, *options: str) -> tuple[int, Any]:
    """The status, and the body: JSON where it is some."""
    words = ["curl", "-sS", "-w", "\n%{http_code}", "--unix-socket", path, *options, f"http://localhost{target}"]
    if body is not None:
        words += ["--json", json.dumps(body)]
    text, _, status = subprocess.run(words, check=True, capture_output=True, text=True).stdout.rpartition("\n")
    return int(status), json.loads(text) if text.startswith(("{", "[")) else text


def command(*words: str) -> str:
    """The command in this process, which has its libraries already; what it prints."""
    printed, wrong = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(wrong), kept_logging():
        ended = cli.main(words)
    assert ended == 0, printed.getvalue() + wrong.getvalue()
    return printed.getvalue()


def test_curl(place: Place) -> None:
    client, operator = place.path("http"), place.path("admin")
    assert f"\n  modserve infer simple --sample --url unix:{client}\n" in place.server.log
    for path in (client, operator):
        status, answer = curl(path, "/v2/models/simple/infer", BODY)
        assert (status, answer["outputs"][0]["data"]) == (200, (A + B).flatten().tolist())
    for target in ("/v2/repository/models/simple/unload", "/v2/logging", "/v2/trace/setting", "/metrics", "/docs"):
        unknown = curl(client, "/nosuch", {})
        assert curl(client, target, {}) == unknown == (404, {"error": "Not Found"}), target
    assert curl(operator, "/v2/repository/models/digits/load", {}) == (200, "")
    assert curl(client, "/v2/models/digits/ready")[0] == 200
    assert curl(operator, "/v2/repository/models/digits/unload", {}) == (200, "")
    status, page = curl(operator, "/metrics")
    assert (status, "modserve_build_info" in page) == (200, True)
    assert "<title>modserve</title>" in curl(operator, "/", None, "-H", "Accept: text/html")[1]
    assert not re.search(r"^metrics listening", place.server.log, re.MULTILINE)
    place.server.wait_for(r"modserve\.worker \d\.access: HTTP unix infer model=simple version=1 status=200")


def test_only_user_and_group_may_connect(place: Place) -> None:
    assert {stat.S_IMODE(os.stat(place.path(name)).st_mode) for name in NAMES} == {0o660}


def inputs(module: Any) -> list[Any]:
    tensors = []
    for name, values in (("INPUT0", A), ("INPUT1", B)):
        tensors.append(module.InferInput(name, [1, 16], "INT32"))
        tensors[-1].set_data_from_numpy(values)
    return tensors


def test_tritonclient(place: Place) -> None:
    with tritonclient.grpc.InferenceServerClient(place.url("grpc")) as client:
        assert client.is_server_ready()
        result = client.infer("simple", inputs(tritonclient.grpc))
        assert (result.as_numpy("OUTPUT0") == A + B).all()
        for call in (lambda: client.unload_model("simple"), client.get_log_settings, client.get_model_repository_index):
            with pytest.raises(InferenceServerException) as caught:
                call()
            assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
        assert client.is_model_ready("simple")
    place.server.wait_for(r"access: gRPC unix ModelInfer model=simple")

    async def infer() -> Any:
        async with tritonclient.grpc.aio.InferenceServerClient(place.url("grpc")) as client:
            return (await client.infer("simple", inputs(tritonclient.grpc.aio))).as_numpy("OUTPUT0")

    assert (asyncio.run(infer()) == A + B).all()


def test_our_client(place: Place) -> None:
    with modserve.connect(place.url("http")) as client:
        for _ in range(2):  # on a connection that was kept
            assert (client.infer("simple", {"INPUT0": A, "INPUT1": B})["OUTPUT0"] == A + B).all()
        with pytest.raises(ClientError, match="Not Found"):
            client.unload("simple")

    async def infer() -> Any:
        async with modserve.connect_async(place.url("http")) as client:
            return (await client.infer("simple", {"INPUT0": A, "INPUT1": B}))["OUTPUT0"]

    assert (asyncio.run(infer()) == A + B).all()
    absent = place.url("nosuch")
    with modserve.connect(absent) as client, pytest.raises(ClientError, match=f"cannot reach a server at {absent}: "):
        client.infer("simple", {"INPUT0": A, "INPUT1": B})


def test_our_commands(place: Place) -> None:
    shown = command("status", "--url", place.url("admin"))
    assert shown.startswith(f"{place.url('admin')}: modserve ")
    assert re.search(r"^models +5, versions: 1 READY", shown, re.MULTILINE)
    assert "not shown: Not Found" in command("status", "--url", place.url("http"))
    assert "OUTPUT0" in command("infer", "simple", "--sample", "--url", place.url("http"))
    short = "--window-requests=20", "--windows=3", "--warm-up-secs=0.1", "--stability=1000"
    assert "requests/s" in command("bench", "simple", "--url", place.url("http"), *short)
    report = command("doctor", "--security", "--url", place.url("http"))
    assert re.search(r'^ok +model control +not served: {"error":"Not Found"}', report, re.MULTILINE)
    report = command("doctor", "--security", "--url", place.url("admin"))
    assert re.search(r"^warning +model control +open: ", report, re.MULTILINE)
    assert re.search(r"^warning +metrics +open at this port: ", report, re.MULTILINE)
    top = command("top", "--plain", "--count=1", "--url", place.url("admin"))
    assert (" MiB resident" in top, "are missing" in top) == (True, False)


def test_workers_that_come_back_have_the_sockets(place: Place) -> None:
    """First one dies, then the other: then only those are left that were started again."""
    for count in (2, 3):
        worker = re.findall(STARTED, place.server.log, re.MULTILINE)[count - 2][1]
        os.kill(int(worker), signal.SIGKILL)
        place.server.wait_for(rf"(?s)(supervising worker .*){{{count + 1}}}")
        eventually(lambda: curl(place.path("admin"), "/v2/memory")[0] == 200)
    for name in ("http", "admin"):
        assert curl(place.path(name), "/v2/models/simple/infer", BODY)[0] == 200
    with tritonclient.grpc.InferenceServerClient(place.url("grpc")) as client:
        assert (client.infer("simple", inputs(tritonclient.grpc)).as_numpy("OUTPUT0") == A + B).all()


def test_whoever_reaches_the_operators_socket_drains_the_server(place: Place) -> None:
    """Without keys: a client of a socket is on this machine. The server's other socket has no such call."""
    folder = place.folder / "drained"
    folder.mkdir()
    options = [f"--{name}-address=unix:{folder / name}.sock" for name in NAMES]
    with started(EXAMPLES, options=[*options, "--model-control-mode=explicit"]) as server:
        server.wait_for(r"admin listening on ")
        for _ in range(2):  # the first one comes before there is a framework
            assert curl(str(folder / "http.sock"), "/v2/health/drain", {})[0] == 404
        assert command("drain", "--url", f"unix:{folder / 'admin.sock'}").startswith("drained, after ")
        server.stop()
    folder.rmdir()


def test_a_living_server_keeps_its_socket(place: Place) -> None:
    options = [f"--http-address={place.url('http')}", "--allow-grpc=false", "--allow-metrics=false", "--workers=1"]
    message = f"cannot open the HTTP socket {place.url('http')}: another server listens there; '--http-address' chooses"
    with started(EXAMPLES, options=options) as second:
        second.wait(1, errors=[message])
    assert curl(place.path("http"), "/v2/health/ready")[0] == 200
