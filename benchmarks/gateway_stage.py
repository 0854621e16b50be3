"""Three servers on this machine, and before them a gateway with its configuration in deploy/gateways."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATIONS = ROOT / "deploy" / "gateways"
FILES: Mapping[str, str] = {"envoy": "envoy.yaml", "nginx": "nginx.conf", "haproxy": "haproxy.cfg"}
NAMES = tuple(FILES)
SERVER_COUNT = 3
SLOW_MS = 150
"""What an execution of `paced` takes on the last server."""
_PATIENCE_S = 30.0

_FIRST_PORT, _LAST_PORT = 12_000, 30_000
"""Below those that Linux chooses from: nobody takes the port of a server that is down for a moment."""
_ports = itertools.count(os.getpid() * 61)


def free_port() -> int:
    while True:
        port = _FIRST_PORT + next(_ports) % (_LAST_PORT - _FIRST_PORT)
        with contextlib.suppress(OSError), contextlib.closing(socket.create_server(("127.0.0.1", port))):
            return port


def until(fact: Callable[[], object], why: str, seconds: float = _PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {why}")
        time.sleep(0.02)


def status_of(port: int, path: str = "/v2/health/ready", scheme: str = "http") -> int:
    """The status of a GET; 0 where nobody responds."""
    try:
        with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}{path}", timeout=2) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return int(error.code)
    except OSError:
        return 0


@dataclass
class Program:
    """A process with its log in a file, ended by its process id."""

    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MODSERVE_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(_PATIENCE_S)

    def dispose(self) -> None:
        if self.process is not None and self.running:
            self.process.kill()
            self.process.wait()


@dataclass
class ModelServer:
    """One of the servers behind the gateway. Its ports stay the same when it starts again."""

    repositories: Sequence[Path]
    log: Path
    options: Sequence[str] = ()
    http_port: int = field(default_factory=free_port)
    grpc_port: int = field(default_factory=free_port)
    program: Program = field(init=False)

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "modserve", "serve", "--allow-metrics=false", *self.options]
        command += [f"--http-port={self.http_port}", f"--grpc-port={self.grpc_port}"]
        command += [f"--model-repository={repository}" for repository in self.repositories]
        self.program = Program(command, self.log)

    def start(self) -> None:
        self.program.start()

    def wait_until_ready(self) -> None:
        until(lambda: self.ready or not self.program.running, f"ready: {self.log}")
        if not self.program.running:
            raise RuntimeError(f"the server ended: {self.log.read_text()[-2000:]}")

    @property
    def ready(self) -> bool:
        return status_of(self.http_port) == 200

    def executions(self, model: str) -> int:
        """How many requests its versions have answered."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/models/{model}/stats", timeout=5) as answer:
            document = json.load(answer)
        return sum(int(each["inference_stats"]["success"]["count"]) for each in document["model_stats"])


def write_repositories(directory: Path) -> list[Path]:
    """A repository for each server. `scaled` is the same in all, and `paced` slow in the last. Of `versioned`, the last
    has another version, which would be right nowhere else.
    """
    repositories = []
    for number in range(SERVER_COUNT):
        last = number == SERVER_COUNT - 1
        repository = directory / f"models-{number + 1}"
        _write_identity(repository / "scaled", 0)
        _write_identity(repository / "paced", SLOW_MS if last else 0)
        for version in (1, 2) if last else (1,):
            _write_multiplication(repository / "versioned" / str(version), version)
        repositories.append(repository)
    return repositories


def _write_identity(directory: Path, delay_ms: int) -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(
        'backend: "identity" max_batch_size: 8\n'
        'input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        f'parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}\n'
    )


def _write_multiplication(directory: Path, factor: int) -> None:
    """OUTPUT0 is INPUT0 times the version."""
    node = helper.make_node("Mul", ["INPUT0", "factor"], ["OUTPUT0"])
    tensors = [helper.make_tensor_value_info(name, TensorProto.INT32, ["n", "k"]) for name in ("INPUT0", "OUTPUT0")]
    constant = helper.make_tensor("factor", TensorProto.INT32, [1], [factor])
    graph = helper.make_graph([node], "versioned", tensors[:1], tensors[1:], [constant])
    directory.mkdir(parents=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), directory / "model.onnx"
    )
    (directory.parent / "config.pbtxt").write_text("version_policy: { all {} }\n")


def rendered(
    name: str, addresses: Sequence[tuple[int, int]], own: tuple[int, int], directory: Path, edits: Mapping[str, str]
) -> str:
    """The configuration of a gateway with these servers' ports instead of its example addresses, and ports of its own.

    `edits` are texts of the configuration by what stands there instead; each must be there.
    """
    text = (CONFIGURATIONS / FILES[name]).read_text()
    for before, after in edits.items():
        if before not in text:
            raise ValueError(f"{FILES[name]} has no {before!r}")
        text = text.replace(before, after)
    for number, ports in enumerate(addresses, 1):
        for port, real in zip((8000, 8001), ports, strict=True):
            text = text.replace(f"server-{number}:{port}", f"127.0.0.1:{real}")
            place = f"{{ address: server-{number}, port_value: {port} }}"
            text = text.replace(place, f"{{ address: 127.0.0.1, port_value: {real} }}")
        # The HTTP port, at which Envoy asks for health, stands in the same line as the address of the gRPC port.
        grpc = f"{{ address: 127.0.0.1, port_value: {ports[1]} }} }}, health_check_config: {{ port_value: "
        text = text.replace(f"{grpc}8000", f"{grpc}{ports[0]}")
    for port, real in zip((8000, 8001), own, strict=True):
        for line in ("port_value: {}", "listen {}", "bind :{}"):
            text = text.replace(line.format(port), line.format(real))
    text = text.replace("port_value: 9901", f"port_value: {free_port()}")
    temporary = "".join(
        f"  {kind}_temp_path {directory / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return text.replace("http {\n", f"http {{\n{temporary}", 1) if name == "nginx" else text


def _command(name: str, file: Path) -> list[str]:
    if name == "envoy":
        program = ROOT / ".venv-clients" / "bin" / "envoy"
        return [str(program), "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
    # Debian has them where only root's shell looks.
    program = Path(shutil.which(name) or f"/usr/sbin/{name}")
    if name == "haproxy":
        return [str(program), "-db", "-f", str(file)]
    own = f"daemon off; pid {file.parent / 'nginx.pid'}; worker_processes 1; error_log stderr warn;"
    own += " user root;" if os.geteuid() == 0 else ""  # whose folders others may not enter
    text = file.read_text()
    file.write_text(text.replace("worker_processes auto;\n", ""))
    return [str(program), "-p", str(file.parent), "-e", "stderr", "-c", str(file), "-g", own]


def verdict(name: str, file: Path) -> "subprocess.CompletedProcess[str]":
    """What the program says of its configuration, without running it."""
    words = {"envoy": ["--mode", "validate"], "nginx": ["-t"], "haproxy": ["-c"]}
    return subprocess.run(
        [*_command(name, file), *words[name]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_S,
    )


@dataclass
class Gateway:
    """A gateway that runs. It has the ports that a server has."""

    name: str
    program: Program
    http_port: int
    grpc_port: int

    @property
    def log(self) -> str:
        return self.program.log.read_text()


@contextmanager
def gateway(
    name: str,
    addresses: Sequence[tuple[int, int]],
    directory: Path,
    edits: Mapping[str, str] | None = None,
    seconds: float = _PATIENCE_S,
) -> Iterator[Gateway]:
    """A gateway before the servers at these ports of HTTP and gRPC, once it says that it is ready."""
    directory.mkdir(parents=True, exist_ok=True)
    own = free_port(), free_port()
    file = directory / FILES[name]
    file.write_text(rendered(name, addresses, own, directory, edits or {}))
    program = Program(_command(name, file), directory / f"{name}.log")
    running = Gateway(name, program, *own)
    program.start()
    try:
        until(
            lambda: not program.running or status_of(own[0]) == 200,
            f"{name} answers: {program.log}",
            seconds,
        )
        if not program.running:
            raise RuntimeError(f"{name} does not start: {running.log[-2000:]}")
        yield running
    finally:
        if program.running:
            program.signal(signal.SIGTERM)  # nginx's workers would outlive a killed master
            program.wait()
        program.dispose()


@contextmanager
def servers(directory: Path, extra: Sequence[Path] = (), options: Sequence[str] = ()) -> Iterator[list[ModelServer]]:
    """Three of them, ready."""
    all_servers = [
        ModelServer([*extra, repository], directory / f"server-{number}.log", options)
        for number, repository in enumerate(write_repositories(directory), 1)
    ]
    try:
        for server in all_servers:
            server.start()
        for server in all_servers:
            server.wait_until_ready()
        yield all_servers
    finally:
        for server in all_servers:
            server.program.dispose()
