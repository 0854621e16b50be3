"""Models that change while they are used: does one request fail, or get a wrong response?

    python benchmarks/lifecycle.py                    # 100 reloads, 50 changes of instances, 20 versions added, ...
    python benchmarks/lifecycle.py --short
    python benchmarks/lifecycle.py --phase reloads --times 1000

Sixteen clients, half of them over HTTP and half over gRPC, send one request after the other and check every response.
Meanwhile the phases of a table change the models: each has a function that makes one change, and says so if the server
did not say of it what it should have. A line is printed for each phase. Exit code 1 if a request has failed or had a
wrong response, or if there is such a complaint.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import numpy as np
import onnx
import orjson
from onnx import TensorProto, helper

from modserve.pb import inference as pb
from process_tree import end
from side_by_side.running import free_ports, ready

SERVICE = "/inference.GRPCInferenceService/"
CLIENTS = 16
PAUSE_S = 0.004
"""Of each client after a response, so that the load stays the same while a model loads."""
BETWEEN_S = 0.05
"""From the end of one change to the next."""
MOST_SAID = 20
MODEL = "scaled"
"""Its version N returns N times its input, so that a response tells which version it is from."""
_CONFIG = """backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 8 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 8 ] }} ]
version_policy {{ all {{}} }}
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
"""


@dataclass
class Count:
    """Of the requests in one phase."""

    http: int = 0
    grpc: int = 0
    failed: int = 0
    wrong: int = 0
    slowest_ms: float = 0.0
    said: list[str] = field(default_factory=list)
    """The first faults, and what the server said of a change that it should not have said."""

    def complain(self, text: str) -> None:
        if len(self.said) < MOST_SAID:
            self.said.append(text)


class Traffic:
    """The clients. `latest` are the versions that a request without a version may be for at this moment."""

    def __init__(self, http_port: int, grpc_port: int) -> None:
        self._http_port, self._grpc_port = http_port, grpc_port
        self.latest = {1}
        self.count = Count()
        self._ended = False

    def end(self) -> None:
        self._ended = True

    async def run(self) -> None:
        """Until `end`."""
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task((self._over_http if number % 2 else self._over_grpc)(number))

    async def _over_http(self, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._http_port)

        async def send(data: np.ndarray, version: str) -> np.ndarray:
            path = f"/v2/models/{MODEL}{f'/versions/{version}' if version else ''}/infer"
            tensor = {"name": "x", "datatype": "FP32", "shape": data.shape, "data": data.ravel().tolist()}
            status, answer = await call(reader, writer, "POST", path, orjson.dumps({"inputs": [tensor]}))
            if status != 200:
                raise RuntimeError(f"HTTP {status}: {answer[:300]!r}")
            self.count.http += 1
            return np.array(orjson.loads(answer)["outputs"][0]["data"], np.float32)

        try:
            await self._send_on(number, send)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _over_grpc(self, number: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._grpc_port}", options) as channel:
            infer = channel.unary_unary(SERVICE + "ModelInfer", None, None)

            async def send(data: np.ndarray, version: str) -> np.ndarray:
                request = pb.ModelInferRequest(model_name=MODEL, model_version=version)
                request.inputs.add(name="x", datatype="FP32", shape=data.shape)
                request.raw_input_contents.append(data.tobytes())
                try:
                    answer = await infer(request.SerializeToString(), timeout=30)
                except grpc.aio.AioRpcError as error:
                    raise RuntimeError(f"gRPC {error.code()}: {error.details()}") from None
                self.count.grpc += 1
                return np.frombuffer(pb.ModelInferResponse.FromString(answer).raw_output_contents[0], np.float32)

            await self._send_on(number, send)

    async def _send_on(self, number: int, send: Callable[[np.ndarray, str], Awaitable[np.ndarray]]) -> None:
        numbers = np.random.default_rng(number)
        while not self._ended:
            data = numbers.integers(1, 1000, (int(numbers.integers(1, 4)), 8)).astype(np.float32)
            version = "1" if numbers.random() < 0.3 else ""
            allowed, began = set(self.latest), time.perf_counter()
            try:
                received = await send(data, version)
            except (RuntimeError, OSError, EOFError) as error:
                self.count.failed += 1
                self.count.complain(str(error))
                if not isinstance(error, RuntimeError):
                    raise  # the connection has gone
            else:
                self.count.slowest_ms = max(self.count.slowest_ms, (time.perf_counter() - began) * 1e3)
                allowed = {1} if version else allowed | self.latest
                if not any(np.array_equal(received, each * data.ravel()) for each in allowed):
                    self.count.wrong += 1
                    self.count.complain(f"{received[:3]} for {data.ravel()[:3]} of version {version or allowed}")
            await asyncio.sleep(PAUSE_S)


async def call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes = b""
) -> tuple[int, bytes]:
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    head_read = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head_read.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    return int(head_read[9:12]), await reader.readexactly(length)


class Control:
    """Changes the repository, and requests loads."""

    def __init__(self, root: Path, port: int, traffic: Traffic) -> None:
        self.folder = root / MODEL
        self.traffic = traffic
        self._port = port
        self.instances, self.delay_us = 1, 0

    async def load(self, parameters: dict[str, str] | None = None) -> str:
        """The error that the server returns, empty if there is none."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            body = orjson.dumps({"parameters": parameters} if parameters else {})
            status, answer = await call(reader, writer, "POST", f"/v2/repository/models/{MODEL}/load", body)
        finally:
            writer.close()
        return "" if status == 200 else f"{status} {answer.decode()}"

    def write_config(self) -> None:
        text = _CONFIG.format(instances=self.instances, delay_us=self.delay_us)
        place(self.folder / "config.pbtxt", text.encode())

    def write_version(self, version: int) -> None:
        """A whole folder appears at once."""
        hidden = self.folder.parent / f".{version}"
        hidden.mkdir()
        (hidden / "model.onnx").write_bytes(model_of(version))
        hidden.rename(self.folder / str(version))


def place(path: Path, content: bytes) -> None:
    """Put a file in the place of another."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(content)
    hidden.replace(path)


def model_of(factor: int) -> bytes:
    """y = factor * x."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in ("x", "y")]
    value = helper.make_tensor("factor", TensorProto.FLOAT, [1], [float(factor)])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "factor"], ["y"])], "g", tensors[:1], tensors[1:], [value])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


# Phases: what happens at each of their times; the text is a complaint


async def reload(control: Control, time_: int) -> str:
    """The weights are written anew, and the version is loaded beside the one that serves."""
    place(control.folder / "1" / "model.onnx", model_of(1))
    return await control.load()


async def change_instances(control: Control, time_: int) -> str:
    control.instances = (2, 4, 1, 3)[time_ % 4]
    control.write_config()
    return await control.load()


async def change_queue(control: Control, time_: int) -> str:
    control.delay_us = (500, 0, 2000)[time_ % 3]
    control.write_config()
    return await control.load()


async def change_by_call(control: Control, time_: int) -> str:
    """The configuration comes with the call; every third time its file holds again."""
    if time_ % 3 == 2:
        control.write_config()
        return await control.load()
    tensor = {"data_type": "TYPE_FP32", "dims": [8]}
    config = {
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        "version_policy": {"all": {}},
        "instance_group": [{"count": 1 + time_ % 2, "kind": "KIND_CPU"}],
        "dynamic_batching": {},
    }
    return await control.load({"config": json.dumps(config)})


async def add_and_remove(control: Control, time_: int) -> str:
    """A version comes, takes what names no version, and goes again."""
    version, latest = 2 + time_, control.traffic.latest
    control.write_version(version)
    latest.add(version)
    if complaint := await control.load():
        return complaint
    latest.remove(1)
    await asyncio.sleep(0.05)
    latest.add(1)
    shutil.rmtree(control.folder / str(version))
    if complaint := await control.load():
        return complaint
    latest.remove(version)
    return ""


async def break_version(control: Control, time_: int) -> str:
    """A version that is cut off comes, and what serves goes on; then it is repaired by going."""
    folder = control.folder / "99"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model_of(99)[:50])
    complaint = await control.load()
    shutil.rmtree(folder)
    if "99" not in complaint:
        return f"the server took a version that is cut off: {complaint}"
    return await control.load()


@dataclass(frozen=True)
class Phase:
    name: str
    times: int
    change: Callable[[Control, int], Awaitable[str]]
    short: int


PHASES = (
    Phase("reloads", 100, reload, 8),
    Phase("changes of instances", 50, change_instances, 8),
    Phase("changes of the queue", 30, change_queue, 6),
    Phase("configurations with the call", 30, change_by_call, 6),
    Phase("versions added and removed", 20, add_and_remove, 4),
    Phase("versions that are cut off", 20, break_version, 4),
)


async def drive(
    root: Path, http_port: int, grpc_port: int, phases: Sequence[Phase], show: Callable[[str, int, float, Count], None]
) -> list[Count]:
    """The phases one after the other under load; the counts of each."""
    traffic = Traffic(http_port, grpc_port)
    control = Control(root, http_port, traffic)
    counts = []
    async with asyncio.TaskGroup() as group:
        group.create_task(traffic.run())
        try:
            for phase in phases:
                count = traffic.count = Count()
                began = time.monotonic()
                for time_ in range(phase.times):
                    if complaint := await phase.change(control, time_):
                        count.complain(f"{phase.name}, time {time_ + 1}: {complaint}")
                    await asyncio.sleep(BETWEEN_S)
                counts.append(count)
                show(phase.name, phase.times, time.monotonic() - began, count)
        finally:
            traffic.end()
    return counts


def run(
    phases: Sequence[Phase], show: Callable[[str, int, float, Count], None], options: Sequence[str] = ()
) -> list[Count]:
    """A server of its own, and its end in order."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "models"
        (root / MODEL / "1").mkdir(parents=True)
        (root / MODEL / "1" / "model.onnx").write_bytes(model_of(1))
        (root / MODEL / "config.pbtxt").write_text(_CONFIG.format(instances=1, delay_us=0))
        http_port, grpc_port, metrics_port = free_ports(3)
        command = [sys.executable, "-m", "modserve", "serve", "--model-repository", str(root), *options]
        command += ["--model-control-mode=explicit", "--load-model=*"]
        command += [f"--{port}-address=127.0.0.1" for port in ("http", "grpc", "metrics")]
        command += [f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
        log = Path(folder) / "log"
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as process,
        ):
            try:
                deadline = time.monotonic() + 60
                while not ready(http_port):
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise SystemExit(f"the server did not start:\n{log.read_text()}")
                    time.sleep(0.05)
                return asyncio.run(drive(root, http_port, grpc_port, phases, show))
            finally:
                end(process)
                if kept := os.environ.get("LIFECYCLE_LOG"):
                    shutil.copy(log, kept)


def print_line(name: str, times: int, seconds: float, count: Count) -> None:
    print(
        f"{name:<30} {times:5} {seconds:7.1f} {count.http:8,} {count.grpc:8,} {count.failed:7} {count.wrong:6} "
        f"{count.slowest_ms:11.0f}",
        flush=True,
    )
    for text in count.said:
        print(f"    {text}", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few times of each phase")
    parser.add_argument("--phase", action="append", help="only the phases whose names have this in them")
    parser.add_argument("--times", type=int, default=0, help="how often each phase changes something")
    options = parser.parse_args(arguments)
    chosen = [
        Phase(each.name, options.times or (each.short if options.short else each.times), each.change, each.short)
        for each in PHASES
        if not options.phase or any(part in each.name for part in options.phase)
    ]
    print(f"{'phase':<30} {'times':>5} {'s':>7} {'HTTP':>8} {'gRPC':>8} {'failed':>7} {'wrong':>6} {'slowest ms':>11}")
    counts = run(chosen, print_line)
    faults = sum(count.failed + count.wrong + len(count.said) for count in counts)
    requests = sum(count.http + count.grpc for count in counts)
    print(f"{requests:,} responses, {sum(count.failed for count in counts)} failed, ", end="")
    print(f"{sum(count.wrong for count in counts)} wrong")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
