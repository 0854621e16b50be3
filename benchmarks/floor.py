"""How far the HTTP front end is from the least that asyncio can do: server CPU a request beside a bare uvloop protocol.

    python benchmarks/floor.py            # about a minute
    python benchmarks/floor.py --write    # and puts the table into benchmarks/results/tables.md

The bare protocol finds the end of each head, reads the length of the body, and writes what modserve responded to
the same request: the same bytes in and out, with no model, no queue and no checks. What is left between the two is what
modserve does for its protocol; what the bare protocol costs belongs to the kernel, the event loop and wrk's requests.
The servers take turns, window by window, under wrk. Afterwards strace counts the system calls of a request at one
connection. Run it with the compiled form on PYTHONPATH to measure that form.
"""

import argparse
import asyncio
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import orjson
import uvloop

from modserve.form import form
from overhead import (
    CONNECTIONS,
    Load,
    ServerProcess,
    http_body,
    median,
    missing_programs,
    put_into_report,
    server,
    tensors,
    write_repository,
    wrk,
)

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
ONES = np.ones((1, 16), "<i4").tobytes()
BODIES = {
    "binary tensors": http_body(tensors(), ONES * 2),
    "JSON": (
        orjson.dumps(
            {
                "inputs": [
                    {"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
                    for name in ("INPUT0", "INPUT1")
                ]
            }
        ),
        None,
    ),
}
"""Requests to `simple` by the name of their form: the body, and the length of its JSON if tensors follow it."""


class BareProtocol(asyncio.Protocol):
    """Answers every POST with the same bytes."""

    def __init__(self, response: bytes) -> None:
        self._response = response
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        while (end := received.find(HEAD_END)) >= 0:
            head = received[:end].lower()
            begin = head.find(LENGTH)
            length = int(head[begin + len(LENGTH) :].split(b"\r\n", 1)[0]) if begin >= 0 else 0
            stop = end + len(HEAD_END) + length
            if len(received) < stop:
                break
            self._transport.write(self._response)
            received = received[stop:]
        self._received = received


async def serve_bytes(response: bytes) -> None:
    """Serve on a free port, which is printed, until the process is ended."""
    bare = await asyncio.get_running_loop().create_server(lambda: BareProtocol(response), "127.0.0.1", 0)
    print(bare.sockets[0].getsockname()[1], flush=True)
    await bare.serve_forever()


@contextmanager
def bare_server(response: bytes) -> Iterator[ServerProcess]:
    """A process with the bare protocol."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(response)
        file.flush()
        command = [sys.executable, __file__, "--serve", file.name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield ServerProcess(process.pid, int(process.stdout.readline()), 0, 0, 0.0, 0.0)
        finally:
            process.terminate()
            process.wait(timeout=60)
            process.stdout.close()


def response_of(port: int, body: bytes, json_length: int | None) -> bytes:
    """The bytes with which a server on this port responds to an inference, head and body."""
    lines = ["POST /v2/models/simple/infer HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(body)}"]
    if json_length is not None:
        lines.append(f"Inference-Header-Content-Length: {json_length}")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        received = b""
        while (end := received.find(HEAD_END)) < 0 or len(received) < _stop(received, end):
            if not (data := connection.recv(65536)):
                raise SystemExit(f"the server closed the connection after {received!r}")
            received += data
    if not received.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the server refused the request: {received!r}")
    return received


def _stop(received: bytes, end: int) -> int:
    head = received[:end].lower()
    return end + len(HEAD_END) + int(head.partition(LENGTH)[2].split(b"\r\n", 1)[0])


def table(rows: Sequence[tuple[str, int, Load, Load, Sequence[float]]]) -> list[str]:
    lines = [
        "| request | connections | modserve | bare protocol | ratio, median (least to most) |",
        "|---|---|---|---|---|",
    ]
    for name, connections, ours, bare, ratios in rows:
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"| {name} | {connections} | {ours.cpu_us:.1f} µs | {bare.cpu_us:.1f} µs | {ratio} |")
    return lines


def system_calls(pid: int, load: Callable[[], Load]) -> dict[str, float]:
    """What a request of `load` costs in system calls, by name, the most frequent first."""
    with tempfile.NamedTemporaryFile("r") as summary:
        command = ["strace", "-f", "-c", "-U", "calls,name", "-o", summary.name, "-p", str(pid)]
        tracing = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
            if tracing.poll() is not None:
                raise SystemExit("strace could not attach to the server")
            time.sleep(0.01)
        count = load().count
        tracing.send_signal(signal.SIGINT)
        tracing.wait()
        return read_calls(summary.read(), count)


def read_calls(summary: str, requests: int) -> dict[str, float]:
    """Calls a request in what strace has counted; without those that fewer than one in a hundred makes."""
    rows = [line.split() for line in summary.splitlines()]
    counts = {row[1]: int(row[0]) / requests for row in rows if len(row) == 2 and row[0].isdigit()}
    counts.pop("total", None)
    return {name: count for name, count in sorted(counts.items(), key=lambda each: -each[1]) if count >= 0.01}


def calls_table(columns: Sequence[tuple[str, dict[str, float]]]) -> list[str]:
    lines = ["| request, server | system calls a request at one connection |", "|---|---|"]
    for name, calls in columns:
        lines.append(f"| {name} | {', '.join(f'{call} {count:.2f}' for call, count in calls.items())} |")
    return lines


def report(runs: int, seconds: int) -> str:
    rows = []
    calls = []
    with tempfile.TemporaryDirectory() as directory, server(write_repository(Path(directory))) as ours:
        for name, (body, json_length) in BODIES.items():
            with bare_server(response_of(ours.http, body, json_length)) as bare:
                for connections in CONNECTIONS:
                    loads: dict[int, list[Load]] = {ours.pid: [], bare.pid: []}
                    for run in range(runs + 1):  # the first one warms
                        for target in (ours, bare) if run % 2 else (bare, ours):
                            loads[target.pid].append(wrk(target, "simple", body, json_length, connections, seconds))
                    mine, theirs = (each[1:] for each in (loads[ours.pid], loads[bare.pid]))
                    ratios = [a.cpu_us / b.cpu_us for a, b in zip(mine, theirs, strict=True)]
                    rows.append((name, connections, median(mine), median(theirs), ratios))
                for label, target in (("modserve", ours), ("bare protocol", bare)):
                    load = partial(wrk, target, "simple", body, json_length, 1, seconds)
                    calls.append((f"{name}, {label}", system_calls(target.pid, load)))
    head = f"Python {platform.python_version()}, {platform.machine()}, modserve {form()}; server CPU a request:"
    return "\n".join([head, "", *table(rows), "", *calls_table(calls)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="windows of each server, of which the median counts")
    parser.add_argument("--seconds", type=int, default=1, help="seconds of each window")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve_bytes(arguments.serve.read_bytes()))
        return
    if missing := missing_programs():
        raise SystemExit(missing)
    if shutil.which("strace") is None:
        raise SystemExit("not installed: strace (Debian: apt-get install strace)")
    text = report(arguments.runs, arguments.seconds)
    print(text)
    if arguments.write:
        put_into_report("floor.py", text)


if __name__ == "__main__":
    main()
