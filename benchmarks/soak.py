"""A server under mixed traffic for as long as one likes: does it grow, leak handles, or become slow?

    python benchmarks/soak.py                     # a minute
    python benchmarks/soak.py --hours 8 --every 300
    python benchmarks/soak.py --json soak.json

Over both protocols and on several connections at a time come tiny requests, requests of 400 KB, JSON, streams,
mistakes, calls that are given up, connections that come and go, health checks and metrics scrapes. At each interval a
line is printed: requests so far, resident memory, open files, threads, and the latency of tiny requests. In the end the
first is compared with the last: exit code 1 if memory, handles or the median latency have grown, or any answer
was wrong.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import orjson

from modserve.pb import inference as pb
from process_tree import end
from side_by_side.running import free_ports, ready

ROOT = Path(__file__).resolve().parent.parent
SERVICE = "/inference.GRPCInferenceService/"
_CONFIG = """name: "identity"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""

MORE_MB = 24.0
"""Resident memory that the last third may have above the first, beside a twentieth."""
MORE_HANDLES = 8
SETTLED_S = 2.0
"""Without a file closed, and the server has closed all that its clients have left."""
SLOWER = 2.0
"""The median latency of the last third, as a multiple of the first's, beside a millisecond."""


@dataclass(frozen=True)
class Sample:
    """At the end of one interval."""

    seconds: float
    requests: int
    rss_mb: float
    files: int
    threads: int
    p50_ms: float
    p99_ms: float


@dataclass
class Tally:
    requests: int = 0
    given_up: int = 0
    wrong: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    """Seconds, of tiny requests since the last sample."""

    def check(self, right: bool, what: str) -> None:
        self.requests += 1
        if not right and len(self.wrong) < 20:
            self.wrong.append(what)


@dataclass(frozen=True)
class Ports:
    http: int
    grpc: int
    metrics: int


def message(width: int, model: str = "identity") -> bytes:
    """A ModelInfer request of so many numbers."""
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=(1, width))
    request.raw_input_contents.append(bytes(4 * width))
    return bytes(request.SerializeToString())


def document(width: int) -> bytes:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, width], "data": [0.5] * width}
    return orjson.dumps({"inputs": [tensor]})


# Clients, each one round


async def http_round(ports: Ports, tally: Tally, choose: random.Random) -> None:
    """A connection with requests of all kinds; one in eight is left in the middle."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ports.http)
    try:
        for _ in range(40):
            width = choose.choice((1, 1, 1, 16, 2_000))
            body = document(width) if choose.random() < 0.95 else b'{"inputs":[{}]}'
            head = b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
            if choose.random() < 0.003:
                writer.write(head + body[: len(body) // 2])
                tally.given_up += 1
                return
            began = time.perf_counter()
            writer.write(head + body)
            status, answer = await _response(reader)
            if width == 1:
                tally.latencies.append(time.perf_counter() - began)
            if len(body) < 20:
                tally.check(status == 400, f"HTTP {status} for a mistake")
            else:
                right = status == 200 and len(orjson.loads(answer)["outputs"][0]["data"]) == width
                tally.check(right, f"HTTP {status}: {answer[:80]!r}")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    return int(head[9:12]), await reader.readexactly(length)


async def scrape_round(ports: Ports, tally: Tally, choose: random.Random) -> None:
    for port, path in (
        (ports.metrics, b"/metrics"),
        (ports.http, b"/v2/health/ready"),
        (ports.http, b"/v2/models/stats"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % path)
        tally.check((await reader.read()).startswith(b"HTTP/1.1 200"), path.decode())
        writer.close()
    await asyncio.sleep(choose.random() * 0.3)


async def grpc_round(ports: Ports, tally: Tally, choose: random.Random) -> None:
    """A channel with calls of all kinds, some at a time, some of them given up."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}", options) as channel:
        infer = channel.unary_unary(SERVICE + "ModelInfer", None, None)
        for _ in range(30):
            await asyncio.gather(*[_call(infer, tally, choose) for _ in range(choose.choice((1, 1, 8)))])
        stream = channel.stream_stream(SERVICE + "ModelStreamInfer", None, None)(iter([message(16)] * 20))
        answers = 0
        async for _ in stream:
            answers += 1
            if choose.random() < 0.02:
                stream.cancel()
                tally.given_up += 1
                return
        tally.check(answers == 20, f"{answers} answers in a stream of 20")


async def _call(infer: Callable[..., Awaitable[bytes]], tally: Tally, choose: random.Random) -> None:
    width = choose.choice((1, 1, 1, 1, 100_000))
    wrong, hurried = choose.random() < 0.05, choose.random() < 0.05
    began = time.perf_counter()
    try:
        answer = await infer(message(width, "nosuch" if wrong else "identity"), timeout=0.001 if hurried else 20)
    except grpc.aio.AioRpcError as error:
        if hurried and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            tally.given_up += 1
        else:
            tally.check(wrong and error.code() is grpc.StatusCode.NOT_FOUND, f"gRPC {error.code()} {error.details()}")
        return
    if width == 1:
        tally.latencies.append(time.perf_counter() - began)
    tally.check(not wrong and len(answer) >= 4 * width, "a response that is too short")


CLIENTS = (http_round, http_round, grpc_round, grpc_round, scrape_round)


async def drive(
    pid: int, ports: Ports, seconds: float, every: float, show: Callable[[Sample], None]
) -> tuple[list[Sample], Tally]:
    """All clients for so long. A sample at rest after a first round, one after each interval, and one at rest."""
    tally, began = Tally(), time.monotonic()
    samples: list[Sample] = []

    def take() -> None:
        samples.append(_sample(pid, time.monotonic() - began, tally))
        show(samples[-1])

    async def go_on(client: Callable[[Ports, Tally, random.Random], Awaitable[None]], seed: int) -> None:
        choose = random.Random(seed)
        while time.monotonic() - began < seconds:
            await client(ports, tally, choose)

    await asyncio.gather(*[client(ports, tally, random.Random(seed)) for seed, client in enumerate(CLIENTS)])
    await _settled(pid)
    take()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(go_on(client, seed)) for seed, client in enumerate(CLIENTS)]
        while not all(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=every)
            take()
    await _settled(pid)
    take()
    return samples, tally


async def _settled(pid: int) -> None:
    """Return when the server has closed what its clients have left, which its open files show: for two seconds none."""
    gc.collect()  # gRPC's client keeps the connections of some channels until then
    fewest, since = _files(pid), time.monotonic()
    while time.monotonic() - since < SETTLED_S:
        await asyncio.sleep(0.1)
        if (files := _files(pid)) < fewest:
            fewest, since = files, time.monotonic()


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _sample(pid: int, seconds: float, tally: Tally) -> Sample:
    latencies, tally.latencies = sorted(tally.latencies) or [0.0], []
    status = Path(f"/proc/{pid}/status").read_text()
    numbers = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return Sample(
        round(seconds, 1),
        tally.requests,
        round(int(numbers["VmRSS"].split()[0]) / 1024, 1),
        _files(pid),
        int(numbers["Threads"]),
        round(statistics.median(latencies) * 1e3, 2),
        round(latencies[int(0.99 * (len(latencies) - 1))] * 1e3, 2),
    )


def growth(samples: Sequence[Sample], slower: float = SLOWER) -> list[str]:
    """What has grown.

    Handles: between the first and the last sample, which are taken at rest, since under load they are as many as the
    clients happen to use. Memory and latency: between the first and the last third of the others.
    """
    load = samples[1:-1]
    third = len(load) // 3
    if not third:
        return [f"{len(samples)} samples are too few to compare: at least 5"]
    first, last = load[:third], load[-third:]
    grown = []
    for name, befores, afters, factor, more in (
        ("rss_mb", first, last, 1.05, MORE_MB),
        ("files", samples[:1], samples[-1:], 1.0, MORE_HANDLES),
        ("threads", samples[:1], samples[-1:], 1.0, MORE_HANDLES),
        ("p50_ms", first, last, slower, 1.0),
    ):
        before, after = (statistics.median(getattr(each, name) for each in part) for part in (befores, afters))
        if after > before * factor + more:
            grown.append(f"{name} has grown from {before:g} to {after:g}")
    return grown


def soak(seconds: float, every: float, show: Callable[[Sample], None]) -> tuple[list[Sample], Tally]:
    """A server of its own, and its end in order."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "identity"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(_CONFIG)
        ports = Ports(*free_ports(3))
        command = [sys.executable, "-m", "modserve", "serve", "--model-repository", folder]
        command += [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process:
            try:
                _wait(process, ports.http)
                return asyncio.run(drive(process.pid, ports, seconds, every, show))
            finally:
                end(process)


def _wait(process: "subprocess.Popen[bytes]", port: int, limit: float = 30.0) -> None:
    deadline = time.monotonic() + limit
    while not ready(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the server did not start")
        time.sleep(0.05)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--every", type=float, default=0, help="seconds of an interval; a twelfth of all without it")
    parser.add_argument("--json", type=Path, help="a file for the samples")
    options = parser.parse_args(arguments)
    seconds = options.hours * 3600 or options.seconds
    print(f"{'s':>8} {'requests':>10} {'MB':>8} {'files':>6} {'threads':>8} {'p50 ms':>8} {'p99 ms':>8}", flush=True)
    show = partial(_show)
    samples, tally = soak(seconds, options.every or seconds / 12, show)
    faults = growth(samples) + tally.wrong
    print(f"{tally.requests:,} requests, {tally.given_up:,} given up; {'; '.join(faults) or 'no growth'}")
    if options.json:
        options.json.write_text(json.dumps([asdict(sample) for sample in samples], indent=1))
    return 1 if faults else 0


def _show(each: Sample) -> None:
    print(
        f"{each.seconds:8.0f} {each.requests:10,} {each.rss_mb:8.1f} {each.files:6} {each.threads:8} "
        f"{each.p50_ms:8.2f} {each.p99_ms:8.2f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
