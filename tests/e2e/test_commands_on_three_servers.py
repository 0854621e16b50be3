"""Commands over three real servers, of which one has keys and another repository; and what is wrong with one of them.

Their clocks are apart: that of the second is an hour ahead, that of the third an hour behind.

The commands run in this process, but for the one that is interrupted.
"""

import contextlib
import email.utils
import hashlib
import http.client
import http.server
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from authority import Authority
from repositories import copy_example, write_identity
from server_process import LOADED, ServerProcess, free_port, started

from modserve.client.address import Access
from modserve.client.address_list import addresses
from modserve.client.transport import LIVE, SERVER
from modserve.commands import terminal
from modserve.commands.destination import Destination
from modserve.commands.errors import UnreachableError
from modserve.commands.model_state import ModelState, state_of
from modserve.commands.remote_server import connect
from modserve.pb import inference as pb

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SHIFTS = (0, 3600, -3600)
"""Seconds by which the servers' clocks are ahead."""
_CLOCK = """
import os, time
SHIFT = int(os.environ["CLOCK_SHIFT_S"])
seconds, nanoseconds = time.time, time.time_ns
time.time = lambda: seconds() + SHIFT
time.time_ns = lambda: nanoseconds() + SHIFT * 1_000_000_000
"""
VIEWER, ADMIN = "viewer-key-5d1e-long", "admin-key-77aa-long"


class Three(NamedTuple):
    servers: Sequence[ServerProcess]
    port: int
    metrics_port: int
    folders: Sequence[Path]

    @property
    def urls(self) -> list[str]:
        return [f"http://{host}:{self.port}" for host in HOSTS]

    @property
    def url(self) -> str:
        return ",".join(self.urls)

    def state(self, index: int, model: str) -> ModelState:
        address = addresses(self.urls[index])[0]
        with contextlib.closing(connect(Destination(address, Access({"x-api-key": ADMIN})))) as server:
            return state_of(server, model)

    def states(self, model: str) -> list[tuple[str, ...]]:
        """The versions that serve, on each."""
        return [self.state(index, model).versions for index in range(len(HOSTS))]


def repository(folder: Path, versions: int) -> Path:
    """`sum` with some versions, of which the first serves; `late` for loading; `echo`, whose delay can be changed."""
    for name in ("sum", "late"):
        copy_example(folder, "simple", name)
    for version in range(2, versions + 1):
        shutil.copytree(folder / "sum" / "1", folder / "sum" / str(version))
    config = folder / "sum" / "config.pbtxt"
    config.write_text(f"{config.read_text()}\nversion_policy {{ specific {{ versions: 1 }} }}\n")
    write_identity(folder, "echo", "FP32")
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """At the same ports of three addresses. The second has no version 3 of `sum`, the third has `own` and keys."""
    place = tmp_path_factory.mktemp("three")
    port, metrics_port = free_port(), free_port()
    keys = place / "keys.yaml"
    (place / "sitecustomize.py").write_text(_CLOCK)
    clock = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
    digest = hashlib.sha256(VIEWER.encode()).hexdigest()
    keys.write_text(json.dumps({"keys": [{"name": "viewer", "sha256": digest, "scopes": {"*": ["infer", "read"]}}]}))
    with contextlib.ExitStack() as stack:
        servers = []
        folders = [repository(place / str(index), 2 if index == 1 else 3) for index in range(len(HOSTS))]
        for index, (host, folder) in enumerate(zip(HOSTS, folders, strict=True)):
            options = ["--model-control-mode=explicit", "--load-model=sum", "--load-model=echo", f"--http-port={port}"]
            options += [f"--http-address={host}", f"--metrics-port={metrics_port}", f"--metrics-address={host}"]
            if index == 0:
                options.append(f"--peers={','.join(f'http://{each}:{port}' for each in HOSTS)}")
            if index == 2:
                copy_example(folder, "simple", "own")
                options += ["--load-model=own", f"--auth-file={keys}"]
            variables = {"CLOCK_SHIFT_S": str(SHIFTS[index]), "PYTHONPATH": clock}
            if index == 2:
                variables["MODSERVE_API_KEY"] = ADMIN
            servers.append(stack.enter_context(started(folder, options=options, environment=variables)))
        for server in servers:
            server.wait_for(LOADED)
        yield Three(servers, port, metrics_port, folders)
        for server in servers:
            server.stop()


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(three: Three, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MODSERVE_API_KEY", ADMIN)
    monkeypatch.setenv("MODSERVE_METRICS_URL", f"http://any:{three.metrics_port}")
    monkeypatch.setenv("MODSERVE_URL", three.url)

    def command(*words: str) -> Outcome:
        code = terminal.run(words[0], words[1:])
        return Outcome(code, *capsys.readouterr())

    return command


@contextlib.contextmanager
def frozen(server: ServerProcess) -> Iterator[None]:
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


# States and figures


def test_status(run: Any, three: Three) -> None:
    code, out, _ = run("status")
    assert code == 0
    rows = [line.split() for line in out.splitlines()[2:6]]
    assert [row[:2] for row in rows] == [*([url, "ready"] for url in three.urls), ["3", "servers"]]
    assert " 3 ready " in out
    body = json.loads(run("status", "--json").out)
    assert (body["ready"], [row["url"] for row in body["servers"]]) == (True, three.urls)


def test_a_name_for_all(run: Any, three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *words: Any, **named: Any) -> Any:
        if host != "modserve.svc":
            return real(host, port, *words, **named)
        return [row for each in (*HOSTS, HOSTS[0]) for row in real(each, port, *words, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    body = json.loads(run("status", "--json", f"--url=dns:///modserve.svc:{three.port}").out)
    assert [row["url"] for row in body["servers"]] == three.urls
    code, _, err = run("status", "--url=dns:///a..b")
    assert (code, "is not an address" in err) == (1, True)


def test_clocks_that_are_apart(run: Any, three: Three) -> None:
    """Times of servers are told by their own clocks, and limits of calls are no moments of a clock."""
    now = time.time()
    for index, (host, shift) in enumerate(zip(HOSTS, SHIFTS, strict=True)):
        with contextlib.closing(http.client.HTTPConnection(host, three.port, timeout=30)) as connection:
            headers = {"x-api-key": ADMIN, "content-type": "application/json"}
            body = {**json.loads(SUM), "parameters": {"timeout": 20_000_000}}
            connection.request("POST", "/v2/models/sum/infer", json.dumps(body), headers)
            response = connection.getresponse()
            assert (response.status, response.read()[:1]) == (200, b"{")
            date = email.utils.parsedate_to_datetime(response.headers["Date"]).timestamp()
            assert abs(date - now - shift) < 1800
        row = next(line for line in run("models", f"--url={three.urls[index]}").out.splitlines() if "sum" in line)
        last = datetime.strptime(" ".join(row.split()[-2:]), "%Y-%m-%d %H:%M:%SZ").replace(tzinfo=UTC)
        assert abs(last.timestamp() - now - shift) < 1800
    code, out, err = run("top", "--count=10", "--interval=0.1")
    assert code == 0, err
    # A server that is slow to respond has "-" at first.
    rates = {(words[0], words[2]) for line in out.splitlines() if (words := line.split())[:1] and "http://" in words[0]}
    assert {url for url, rate in rates if rate == "0"} == set(three.urls), out
    assert {rate for _, rate in rates} <= {"0", "-"}


def test_what_differs(run: Any, three: Three) -> None:
    code, out, _ = run("models")
    assert code == 0
    assert f"    {three.urls[0]}: not there\n    {three.urls[1]}: not there\n    {three.urls[2]}: READY\n" in out
    assert out.endswith("\n1 model differs between 3 servers\n")
    assert "sum    1        3 of 3 " in out
    body = json.loads(run("models", "--json", "sum").out)
    assert (body["same"], body["models"][0]["states"]) == (True, dict.fromkeys(three.urls, "READY"))


def test_inferences(run: Any, three: Three) -> None:
    code, out, _ = run("infer", "sum", "INPUT0=1", "INPUT1=2")
    assert code == 0
    assert out.count("OUTPUT0  INT32 [1, 16]") == 1
    assert [line.split()[-1] for line in out.splitlines()[-3:]] == ["these", "same", "same"]
    bodies = [json.loads(line) for line in run("infer", "sum", "INPUT0=1", "INPUT1=2", "--json").out.splitlines()]
    assert [(body["url"], body["outputs"][0]["data"][0]) for body in bodies] == [(url, 3) for url in three.urls]
    code, out, _ = run("infer", "own", "INPUT0=1", "INPUT1=2")
    assert (code, out.count(" failed")) == (1, 2)


def test_a_benchmark(run: Any, three: Three, tmp_path: Path) -> None:
    words = ["--window-secs=0.2", "--windows=1", "--warm-up-secs=0.01", "--window-requests=1"]
    code, out, err = run("bench", "sum", "--concurrency=3", *words, f"--json={tmp_path / 'r'}")
    assert code == 0, err
    assert "Each server, client-side latency in ms:" in out
    [row] = json.loads((tmp_path / "r").read_text())["results"]
    assert [each["url"] for each in row["servers"]] == three.urls
    assert all(each["requests"] > 0 for each in row["servers"])
    assert sum(each["requests"] for each in row["servers"]) == row["requests"]
    assert row["server"]["requests"] >= row["requests"] - 3
    code, _, err = run("bench", "own", *words)
    assert (code, f"{three.urls[0]}" in err or "own" in err) == (1, True)


def test_top(run: Any, three: Three) -> None:
    code, out, err = run("top", "--count=1", "--interval=0.1")
    assert code == 0, err
    lines = out.splitlines()
    assert " 3 servers, ready, " in lines[0]
    assert [line.split()[0] for line in lines[3:6]] == three.urls
    assert lines[6].startswith("3 servers ")
    assert "missing" not in out


def test_the_doctor(run: Any, three: Three) -> None:
    _, out, _ = run("doctor", "--security", f"--url={three.url}", "--json")
    rows = json.loads(out)
    control = {row["server"]: row["text"] for row in rows if row["name"] == "model control"}
    assert list(control) == three.urls
    assert control[three.urls[2]] == "refused without a key or header"
    assert control[three.urls[0]].startswith("open: ")


def test_the_console_shows_the_others(three: Three) -> None:
    """With the key of who looks: without one, the third server says nothing."""

    def peers(**headers: str) -> list[list[str]]:
        with contextlib.closing(http.client.HTTPConnection(HOSTS[0], three.port, timeout=30)) as connection:
            connection.request(
                "GET", "/console/peers", headers={name.replace("_", "-"): headers[name] for name in headers}
            )
            rows = json.loads(connection.getresponse().read())
        assert [row[0] for row in rows] == three.urls
        return [row[1:3] for row in rows]

    assert peers(x_api_key=ADMIN) == [["ready", ""], ["ready", ""], ["ready", "own 1"]]
    *others, third = peers()
    assert others == [["ready", ""]] * 2
    assert "needs a key" in third[0]


# Control


def test_load_and_unload(run: Any, three: Three) -> None:
    code, out, _ = run("load", "late")
    assert (code, three.states("late")) == (0, [("1",)] * 3)
    assert out.count("version 1 READY") == 3
    code, out, _ = run("unload", "late")
    assert (code, three.states("late")) == (0, [()] * 3)
    assert out.count("unloaded after ") == 3


def test_one_that_refuses_control(run: Any, three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODSERVE_API_KEY", VIEWER)
    code, out, err = run("load", "late")
    assert (code, three.states("late")) == (1, [()] * 3)
    assert out.count("loaded, and back") == 2
    assert "this call needs the scope" in out
    assert err == "modserve: late: not loaded: 1 of 3 servers failed; no server has changed\n"
    code, out, _ = run("unload", "sum")
    assert (code, three.states("sum")) == (1, [("1",)] * 3)


def test_another_repository(run: Any, three: Three, tmp_path: Path) -> None:
    code, out, err = run("load", "own")
    assert code == 1
    assert out.count("model 'own' does not exist") == 2
    assert "2 of 3 servers failed; no server has changed" in err
    file = tmp_path / "config.json"
    file.write_text('{"backend": "onnxruntime", "version_policy": {"specific": {"versions": [3]}}}')
    code, out, _ = run("load", "sum", f"--config={file}")
    assert (code, three.states("sum")) == (1, [("1",)] * 3)
    assert out.count("loaded, and back") == 2


def test_one_that_is_dead(run: Any, three: Three) -> None:
    url = f"{three.url},http://127.0.0.4:{three.port}"
    code, out, _ = run("load", "late", f"--url={url}")
    assert (code, three.states("late")) == (1, [()] * 3)
    assert out.count("not called") == 3
    assert "Connection refused" in out
    code, out, _ = run("status", f"--url={url}")
    assert (code, out.count(" ready ")) == (1, 4)
    assert f"http://127.0.0.4:{three.port} does not respond:\n    Connection refused" in out
    code, _, err = run("bench", "sum", f"--url={url}")
    assert (code, "127.0.0.4" in err) == (1, True)


def test_one_that_is_frozen(run: Any, three: Three) -> None:
    """It holds nobody but itself, and nobody is changed."""
    with frozen(three.servers[1]):
        for seconds in (0.5, 5, 20):
            code, out, _ = run("status", f"--timeout={seconds:g}")
            if out.count(" ready ") == 3:  # the others are as quick as that on this machine
                break
        assert (code, out.count(" ready ")) == (1, 3)
        assert f"    no response within {seconds:g} s" in out
        code, out, _ = run("load", "late", f"--timeout={seconds:g}")
        assert (code, out.count("not called")) == (1, 2)
        _, out, _ = run("top", "--count=1", "--interval=0.1", "--timeout=5")
        assert out.splitlines()[4].split()[:3] == [three.urls[1], "no", "response"]
    assert three.states("late") == [()] * 3


# Rollouts


@contextlib.contextmanager
def clients(three: Three, model: str, tensor: str) -> Iterator[None]:
    """One for each server, which sends about a hundred requests a second."""
    ended = threading.Event()
    body = json.loads(tensor)

    def send(url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
            headers = {"x-api-key": ADMIN, "content-type": "application/json"}
            while not ended.wait(0.01):
                connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body), headers)
                connection.getresponse().read()

    with futures.ThreadPoolExecutor(3) as threads:
        tasks = [threads.submit(send, url) for url in three.urls]
        try:
            yield
        finally:
            ended.set()
        for task in tasks:
            task.result()


SUM = json.dumps(
    {"inputs": [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for i in range(2)]}
)
ECHO = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})


def test_a_rollout(run: Any, three: Three) -> None:
    with clients(three, "sum", SUM):
        code, out, err = run("rollout", "sum:2", "--yes", "--watch=1", "--requests=10", "--factor=50", "--json")
    assert code == 0, err
    body = json.loads(out)
    assert (body["result"], three.states("sum")) == ("done", [("2",)] * 3)
    assert body["new"]["requests"] >= 10
    with clients(three, "sum", SUM):  # the second server has no version 3
        code, out, _ = run("rollout", "sum:3", "--yes", "--watch=1", "--requests=10", "--factor=50")
    assert (code, three.states("sum")) == (1, [("2",)] * 3)
    assert f"sum: not rolled out: {three.urls[1]} failed: " in out
    assert out.rstrip().endswith("; all servers are as before")
    code, _, err = run("rollout", "sum:1", "--yes", "--watch=0.1", "--requests=0")
    assert (code, three.states("sum")) == (0, [("1",)] * 3), err


def test_a_slower_version_goes_back(run: Any, three: Three, tmp_path: Path) -> None:
    config = {**(three.state(0, "echo").config or {}), "parameters": {"execute_delay_ms": {"string_value": "200"}}}
    file = tmp_path / "slow.json"
    file.write_text(json.dumps(config))
    with clients(three, "echo", ECHO):
        code, out, _ = run("rollout", "echo", f"--config={file}", "--yes", "--watch=3", "--requests=5", "--factor=3")
    assert (code, three.states("echo")) == (1, [("1",)] * 3)
    assert "requests took more than" in out
    config = dict(three.state(0, "echo").config or {})
    assert config["parameters"] == {}


def test_a_later_server_that_gets_worse_once_it_has_loaded(run: Any, three: Three) -> None:
    """Its own repository has a slow configuration of the model, so that the load and the first watch are fine."""
    config = three.folders[1] / "echo" / "config.pbtxt"
    former = config.read_text()
    config.write_text(f'{former}\nparameters {{ key: "execute_delay_ms" value {{ string_value: "200" }} }}\n')
    try:
        with clients(three, "echo", ECHO):
            words = ["--yes", "--watch=2", "--requests=5", "--factor=3", "--json"]
            code, out, _ = run("rollout", "echo", *words)
    finally:
        config.write_text(former)
    body = json.loads(out)
    assert (code, body["result"], three.states("echo")) == (1, "back", [("1",)] * 3)
    assert body["why"].startswith(f"{three.urls[1]}: ")
    assert " took more than " in body["why"]
    assert [row["outcome"] for row in body["servers"]] == ["loaded, and back"] * 3
    assert [(three.state(index, "echo").config or {})["parameters"] for index in range(3)] == [{}] * 3


def test_an_interrupted_rollout(three: Three) -> None:
    words = ["rollout", "sum:2", "--yes", "--watch=60", f"--url={three.url}"]
    command = subprocess.Popen(
        [sys.executable, "-m", "modserve", *words],
        env={**os.environ, "MODSERVE_API_KEY": ADMIN, "MODSERVE_METRICS_URL": f"http://any:{three.metrics_port}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert command.stdout is not None
    for line in command.stdout:
        if line.startswith("watching "):
            break
    assert three.states("sum") == [("2",), ("1",), ("1",)]
    command.send_signal(signal.SIGINT)
    out = command.communicate(timeout=60)[0]
    assert command.returncode == 130, out
    assert three.states("sum") == [("1",)] * 3
    assert out.rstrip().endswith("sum: not rolled out: interrupted; all servers are as before")


# Names in certificates


def test_the_name_in_the_certificates(tmp_path: Path) -> None:
    """A server of a name is called by its address, and has to have a certificate for the name."""
    authority = Authority(tmp_path, "authority")
    pair = authority.issue("server", "DNS:modserve.svc")
    hosts: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hosts.append(self.headers["Host"])
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *words: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    access = Access(root_cert=authority.certificate)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        web.socket = context.wrap_socket(web.socket, server_side=True)
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            port = web.server_port
            [named] = addresses(f"dns+https:///modserve.svc:{port}", lambda name, port: ["127.0.0.1"])
            with contextlib.closing(connect(Destination(named, access, 5))) as remote:
                assert remote.call(SERVER) == {}
            assert hosts == [f"modserve.svc:{port}"]
            [bare] = addresses(f"https://127.0.0.1:{port}")
            with (
                contextlib.closing(connect(Destination(bare, access, 5))) as remote,
                pytest.raises(UnreachableError, match="certificate is not trusted"),
            ):
                remote.call(SERVER)
        finally:
            web.shutdown()
            thread.join()


def test_the_name_in_the_certificates_over_grpc(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    pair = authority.issue("server", "DNS:modserve.svc")

    def live(request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    method = grpc.unary_unary_rpc_method_handler(
        live, pb.ServerLiveRequest.FromString, pb.ServerLiveResponse.SerializeToString
    )
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ServerLive": method}),)
    )
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.certificate.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        [named] = addresses(f"dns+grpcs:///modserve.svc:{port}", lambda name, port: ["127.0.0.1"])
        access = Access(root_cert=authority.certificate)
        remote = connect(Destination(named, access, 5))
        assert remote.call(LIVE) is True
        remote.close()
    finally:
        server.stop(None)
