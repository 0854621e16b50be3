"""The clients of benchmarks/gpu.py: processes that send one request after another over HTTP, and time them."""

import json
import multiprocessing
import socket
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

_LEAD_S = 0.05
"""Until all clients of a window have been told when it begins."""


class WrongResponseError(Exception):
    """The server refused a request, or its response cannot be read."""


@dataclass(frozen=True)
class Window:
    """What all clients of one window have seen."""

    requests_per_second: float
    p50_ms: float
    p99_ms: float


def call(port: int, path: str, body: object = None) -> bytes:
    """The body of the response to a GET, or to a POST of `body` as JSON. Raises WrongResponseError."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=120) as answer:
            return bytes(answer.read())
    except OSError as error:
        text = getattr(error, "read", lambda: b"")()
        raise WrongResponseError(f"{path}: {error} {text.decode(errors='replace')}") from None


def request_bytes(model: str, body: bytes, json_length: int) -> bytes:
    """A whole request of the binary form."""
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {json_length}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def exchange(connection: socket.socket, request: bytes) -> tuple[dict[str, str], bytes]:
    """Head, by lower-case names, and body of the response. Raises WrongResponseError for any status but 200."""
    connection.sendall(request)
    received = bytearray()
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += _more(connection)
    status, *lines = received[:end].decode().split("\r\n")
    head = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    whole = end + 4 + int(head["content-length"])
    while len(received) < whole:
        received += _more(connection)
    body = bytes(received[end + 4 : whole])
    if status.split()[1] != "200":
        raise WrongResponseError(f"{status}: {body[:400].decode(errors='replace')}")
    return head, body


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 20)
    if not data:
        raise WrongResponseError("the server closed the connection")
    return data


def closed_loop(port: int, request: bytes, begin: float, seconds: float) -> list[float]:
    """When one client began its first request, and when each ended; `begin` and these by the monotonic clock."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        time.sleep(max(0.0, begin - time.monotonic()))
        times = [time.monotonic()]
        while times[-1] < times[0] + seconds or len(times) == 1:
            exchange(connection, request)
            times.append(time.monotonic())
        return times


def window(pool: ProcessPoolExecutor, port: int, request: bytes, clients: int, seconds: float) -> Window:
    """Raises WrongResponseError if one client's request fails."""
    begin = time.monotonic() + _LEAD_S
    runs = [pool.submit(closed_loop, port, request, begin, seconds) for _ in range(clients)]
    return summary([run.result(seconds + 300) for run in runs])


def summary(runs: Sequence[Sequence[float]]) -> Window:
    """`runs` as `closed_loop` returns them. The rate is that of the time in which all of them ran.

    Of requests on the edge of that time, the part in it counts. If there is no such time, it is that of any of them.
    """
    begin, end = max(run[0] for run in runs), min(run[-1] for run in runs)
    if begin >= end:
        begin, end = min(run[0] for run in runs), max(run[-1] for run in runs)
    latencies, count = [], 0.0
    for run in runs:
        times = np.asarray(run)
        took = np.diff(times)
        inside = np.clip(times, begin, end)
        count += float(np.sum(np.diff(inside) / took))
        latencies.append(took * 1e3)
    p50, p99 = np.percentile(np.concatenate(latencies), (50, 99))
    return Window(count / (end - begin), float(p50), float(p99))


@contextmanager
def client_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """All of them run already, so that the first window is as good as the others."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(count, mp_context=context) as pool:
        barrier = manager.Barrier(count)
        for waiting in [pool.submit(barrier.wait, 300) for _ in range(count)]:
            waiting.result(300)
        yield pool
