"""Starting a server, and whether its responses are right."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import process_tree

from .dialects import BINARY, GRPC, Request
from .environments import Unavailable
from .models import DATATYPES, Model, Tensor
from .servers import Peer, Site

READY_S = 120.0
_FAILURES = (OSError, grpc.RpcError, InferenceServerException, ValueError, KeyError, TypeError)


@dataclass
class Running:
    peer: Peer
    process: "subprocess.Popen[bytes]"
    site: Site
    start_seconds: float
    ready_mb: float = 0.0
    idle_cpu: float = 0.0
    """Seconds of CPU time in a second without requests."""
    after_mb: float = 0.0
    response_bytes: dict[str, int] = field(default_factory=dict)
    """By model: the length of a right response's message over gRPC."""
    rates: dict[tuple[str, str, int], float] = field(default_factory=dict)
    """By model, way and connections: requests per second of the latest window."""

    def port(self, way: str) -> int:
        return self.site.grpc if way == GRPC else self.site.http


@contextmanager
def started(peer: Peer, folder: Path, files: Path, models: Sequence[Model], cache: Path) -> Iterator[Running]:
    """The server, from its start to the first right response of its last model. Raises Unavailable."""
    folder.mkdir(parents=True)
    site = Site(folder, files, models, free_ports(5), cache)
    command = peer.prepare(site)
    variables = {**os.environ, "MODELS_FOLDER": str(files), "OMP_NUM_THREADS": "1", **command.variables}
    log = folder / "log"
    began = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command.words,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=variables,
            cwd=folder,
            start_new_session=True,
        )
    try:
        running = Running(peer, process, site, 0.0)
        _wait(running, began + READY_S, log)
        running.start_seconds = time.perf_counter() - began
        _check(running)
        running.ready_mb = process_tree.rss_mb(process.pid)
        yield running
    finally:
        process_tree.end(process)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in opened]


def _wait(running: Running, limit: float, log: Path) -> None:
    """Until each model has answered once, over the first way that the server speaks, and all of its processes can."""
    way = next(iter(running.peer.dialects))
    reason = ""
    for model in running.site.models:
        request = running.peer.dialects[way].write(model)
        while True:
            if running.process.poll() is not None:
                raise Unavailable(f"{running.peer.name} ended with {running.process.returncode}: {_last_lines(log)}")
            if time.perf_counter() > limit:
                raise Unavailable(f"{running.peer.name} was not ready after {READY_S:.0f} s: {reason}")
            try:
                send(running, way, request)
                break
            except (OSError, grpc.RpcError) as error:
                reason = str(error)
                time.sleep(0.02)
    while running.peer.dialects[way].is_v2 and not ready(running.site.http):
        if time.perf_counter() > limit:
            raise Unavailable(f"{running.peer.name} does not say that it is ready")
        time.sleep(0.02)


def _last_lines(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-5:])


def send(running: Running, way: str, request: Request) -> tuple[dict[str, str], bytes]:
    """One request; the response's headers, names in lower case, and body. Raises OSError and grpc.RpcError."""
    address = f"127.0.0.1:{running.port(way)}"
    if way == GRPC:
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            call = channel.unary_unary(request.path, request_serializer=None, response_deserializer=None)
            return {}, call(request.body, timeout=10.0)
    message = urllib.request.Request(f"http://{address}{request.path}", request.body, dict(request.headers))
    try:
        with urllib.request.urlopen(message, timeout=10.0) as response:
            return {name.lower(): value for name, value in response.headers.items()}, response.read()
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"status {error.code}: {error.read(300).decode(errors='replace')}") from None


def _check(running: Running) -> None:
    """The very requests of the measurement, and those of tritonclient. Raises Unavailable for a wrong response."""
    for model in running.site.models:
        expected = model.expected(running.site.files / f"{model.name}.onnx")
        for way, dialect in running.peer.dialects.items():
            place = f"{running.peer.name}, {model.name}, {way}"
            try:
                headers, body = send(running, way, dialect.write(model))
                compare(expected, dialect.read(model, headers, body))
                if dialect.is_v2:
                    compare(expected, _tritonclient(running, way, model))
            except _FAILURES as error:
                raise Unavailable(f"{place}: {type(error).__name__}: {error}") from None
            if way == GRPC:
                running.response_bytes[model.name] = len(body)


def compare(expected: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    """Raises ValueError if the outputs are not the expected ones."""
    for name, values in expected.items():
        if name not in outputs:
            raise ValueError(f"no output {name}")
        if outputs[name].shape != values.shape:
            raise ValueError(f"{name} has shape {outputs[name].shape} and not {values.shape}")
        if not np.allclose(outputs[name], values, rtol=1e-3, atol=1e-4):
            raise ValueError(f"{name} has other values than ONNX Runtime alone")


def _tritonclient(running: Running, way: str, model: Model) -> dict[str, Tensor]:
    """The outputs as that client reads them. Raises InferenceServerException."""
    address = f"127.0.0.1:{running.port(way)}"
    if way == GRPC:
        inputs = [tritonclient.grpc.InferInput(*_signature(name, each)) for name, each in model.inputs.items()]
        for tensor, values in zip(inputs, model.inputs.values(), strict=True):
            tensor.set_data_from_numpy(values)
        with tritonclient.grpc.InferenceServerClient(address) as client:
            result = client.infer(model.name, inputs)
    else:
        binary = way == BINARY
        inputs = [tritonclient.http.InferInput(*_signature(name, each)) for name, each in model.inputs.items()]
        for tensor, values in zip(inputs, model.inputs.values(), strict=True):
            tensor.set_data_from_numpy(values, binary_data=binary)
        outputs = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in model.outputs]
        with tritonclient.http.InferenceServerClient(address) as client:
            headers = {} if binary else {"Content-Type": "application/json"}
            result = client.infer(model.name, inputs, outputs=outputs, headers=headers)
    return {name: result.as_numpy(name) for name in model.outputs}


def _signature(name: str, tensor: Tensor) -> tuple[str, list[int], str]:
    return name, list(tensor.shape), DATATYPES[str(tensor.dtype)]


def ready(port: int) -> bool:
    """Whether a server of the KServe protocol says so."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5.0) as response:
            return bool(response.status == 200)
    except OSError:
        return False
