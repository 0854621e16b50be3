"""The part `chat` of benchmarks/text.py: what OpenAI's routes cost over the other calls of the same model.

The models are functions that take next to no time: one runs on the server's event loop, one gives its words one by one.
One client sends one request after the other over one connection. Counted is the CPU time of all threads of the server's
process, as the scheduler measures it; the calls take turns, and a figure is the median of all turns.
"""

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODELS = """
from collections.abc import Iterator

import modserve


@modserve.model(isolation="inline")
def shout(text: str) -> str:
    return text.upper()


@modserve.model(isolation="thread")
def words(text: str) -> Iterator[str]:
    yield from text.split(" ")
"""
TEXT = "the quick brown fox jumps over the lazy dog and runs " * 6
MESSAGES = [{"role": "user", "content": TEXT}]
STREAMED = {"stream": True, "model": "words"}

TENSORS = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}

CALLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "`/v2/models/…/infer`, JSON": ("/v2/models/shout/infer", TENSORS),
    "`/v2/models/…/generate`": ("/v2/models/shout/generate", {"text": TEXT}),
    "`/v1/completions`": ("/v1/completions", {"model": "shout", "prompt": TEXT}),
    "`/v1/chat/completions`": ("/v1/chat/completions", {"model": "shout", "messages": MESSAGES}),
    "`/v2/models/…/infer_stream`": ("/v2/models/words/infer_stream", TENSORS),
    "`/v2/models/…/generate_stream`": ("/v2/models/words/generate_stream", {"text": TEXT}),
    "`/v1/chat/completions`, `stream`": ("/v1/chat/completions", {**STREAMED, "messages": MESSAGES}),
}
"""By name: path and body."""
PIECES = len(TEXT.split(" "))


@dataclass
class Plan:
    rounds: int = 15
    requests: int = 200
    """Of each call in a round."""


@contextmanager
def functions(source: str, *names: str) -> Iterator[list[str]]:
    """What `serving` takes for functions of this source."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "benchmark_models.py")
        path.write_text(source)
        yield [f"{path}:{name}" for name in names]


@contextmanager
def serving(models: Sequence[str], *options: str, seconds: float = 60.0) -> Iterator[tuple[int, int]]:
    """The port and the process of a server with these models, which is ready within so many seconds."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "modserve", "serve", *models, f"--http-port={port}", *options]
    command += ["--allow-grpc=false", "--allow-metrics=false"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        try:
            wait(port, "/v2/health/ready", seconds)
            yield port, process.pid
        finally:
            process.terminate()


def wait(port: int, path: str, seconds: float) -> None:
    """Until a GET of `path` succeeds. Raises RuntimeError if that takes longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
                client.request("GET", path)
                if client.getresponse().status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {seconds:g} s")


def cpu_us(pid: int) -> float:
    """Microseconds that all threads of a process have run."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((tasks / task / "schedstat").read_text().split()[0]) for task in os.listdir(tasks)) / 1e3


def measure(plan: Plan, calls: Mapping[str, tuple[str, Mapping[str, Any]]], port: int, pid: int) -> dict[str, float]:
    """By call, the microseconds of a request: the median of the rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
        for turn in range(plan.rounds + 1):
            for name, (path, body) in calls.items():
                content = json.dumps(body)
                before = cpu_us(pid)
                for _ in range(plan.requests):
                    client.request("POST", path, content, {"Content-Type": "application/json"})
                    response = client.getresponse()
                    answer = response.read()
                    if response.status != 200:
                        raise RuntimeError(f"the server refuses {path}: {answer.decode()}")
                if turn:  # the first one warms up
                    times[name].append((cpu_us(pid) - before) / plan.requests)
    return {name: statistics.median(each) for name, each in times.items()}


def report(plan: Plan) -> str:
    """A table in Markdown."""
    with functions(MODELS, "shout", "words") as models, serving(models) as (port, pid):
        times = measure(plan, CALLS, port, pid)
    lines = [f"| call of the same function, text of {len(TEXT)} characters | CPU µs a request |", "|---|---|"]
    lines += [f"| {name} | {each:.0f} |" for name, each in times.items() if "stream" not in name]
    lines += ["", f"| the same in {PIECES} pieces | CPU µs a request | a piece |", "|---|---|---|"]
    lines += [f"| {name} | {each:.0f} | {each / PIECES:.1f} |" for name, each in times.items() if "stream" in name]
    return "\n".join(lines)
