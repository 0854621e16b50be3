"""The clients of benchmarks/mix.py, each in its own process: tiny requests at a steady rate, and what disturbs them."""

import gzip
import http.client
import json
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import orjson

from modserve.pb import inference as pb
from side_by_side.dialects import LENGTH, V2_BINARY, V2_GRPC, Request
from side_by_side.models import MODELS

CONNECTIONS, WARM_UP = 16, 20
"""Of the tiny requests over HTTP, beforehand; and requests that nobody measures."""
TINY_NICE, HEAVY_NICE = -10, 10
"""Clients share the machine with the server, unlike real ones. So those that measure go before everything else, if they
may, which takes the superuser; and those that disturb go after the server, so that they take no core from it."""
WAIT_S = 30.0
"""For the last responses."""
PAUSE_S = 0.05
"""Between two requests of a disturbance, so that it leaves CPU time to the others."""
SPARE = "encoder"
"""The model that is loaded and unloaded."""


@dataclass(frozen=True)
class Ports:
    http: int
    grpc: int
    metrics: int


def set_nice(nice: int) -> None:
    """Of this process, where it may; it leaves its session, since Linux may share cores out by session, and then has a
    value for each, beside which those of processes in other sessions do not count."""
    with suppress(OSError):
        os.setsid()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def settle() -> None:
    """For a pool to start all its processes: none gets a second of these before each has one."""
    time.sleep(1.0)


# ---- Tiny requests


def tiny(way: str, ports: Ports, begin: float, seconds: float, per_second: float) -> list[float]:
    """Seconds from when each request was due to its response, so that a stall counts for all that it delays.

    An open loop: a request goes out when it is due, whether or not those before it have their responses, as the
    requests of many clients would. Else one connection with too long a response would make all later ones late, and
    the latencies grow for as long as the window lasts. `begin` is a time of time.time(). Raises ValueError for a
    response of another length than the first, and for requests that have no response after WAIT_S.
    """
    client = OpenHttp(ports.http) if way == "HTTP" else OpenGrpc(ports.grpc)
    with closing(client):
        for _ in range(WARM_UP):
            client.send(time.perf_counter())
            client.wait(time.perf_counter() + WAIT_S, all_of_them=True)
        client.times.clear()
        time.sleep(max(0.0, begin - time.time()))
        start = time.perf_counter()
        for number in range(int(seconds * per_second)):
            due = start + number / per_second
            client.wait(due)
            client.send(due)
        client.wait(time.perf_counter() + WAIT_S, all_of_them=True)
        return client.times


class OpenHttp:
    """Sends each request on a connection that has nothing under way, and opens another where there is none."""

    def __init__(self, port: int) -> None:
        self.times: list[float] = []
        request = V2_BINARY.write(MODELS["simple"])
        lines = [f"{name}: {value}" for name, value in request.headers.items()]
        lines += ["Host: localhost", f"Content-Length: {len(request.body)}"]
        self._message = "\r\n".join([f"POST {request.path} HTTP/1.1", *lines, "", ""]).encode() + request.body
        self._port = port
        self._length = 0
        self._idle = [self._connect() for _ in range(CONNECTIONS)]
        self._due: dict[socket.socket, float] = {}
        self._data: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector()
        for each in self._idle:
            self._selector.register(each, selectors.EVENT_READ)

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def send(self, due: float) -> None:
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = self._connect()
            self._selector.register(connection, selectors.EVENT_READ)
        self._due[connection], self._data[connection] = due, b""
        connection.sendall(self._message)

    def wait(self, until: float, all_of_them: bool = False) -> None:
        """Take what comes until then; or, with `all_of_them`, until every request has its response."""
        while (left := until - time.perf_counter()) > 0 and (self._due or not all_of_them):
            for key, _ in self._selector.select(left):
                self._receive(key.fileobj)  # type: ignore[arg-type]
        if all_of_them and self._due:
            raise ValueError(f"{len(self._due)} requests have no response after {WAIT_S:g} s")

    def _receive(self, connection: socket.socket) -> None:
        part = connection.recv(65536)
        if not part:
            raise ValueError("the server has closed a connection")
        data = self._data[connection] = self._data[connection] + part
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        if not data.startswith(b"HTTP/1.1 200"):
            raise ValueError(data.decode(errors="replace"))
        length = int(data[:end].lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(data) < end + 4 + length:
            return
        self.times.append(time.perf_counter() - self._due.pop(connection))
        self._length = check_length(self._length, length)
        self._idle.append(connection)

    def close(self) -> None:
        for connection in [key.fileobj for key in self._selector.get_map().values()]:
            connection.close()  # type: ignore[union-attr]
        self._selector.close()


class OpenGrpc:
    """Sends all requests on one connection, as many at a time as there are."""

    def __init__(self, port: int) -> None:
        self.times: list[float] = []
        request = V2_GRPC.write(MODELS["simple"])
        self._body = request.body
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._call = self._channel.unary_unary(request.path, request_serializer=None, response_deserializer=None)
        self._open: deque[Any] = deque()
        self._length = 0

    def send(self, due: float) -> None:
        future = self._call.future(self._body, timeout=WAIT_S)
        self._open.append(future)
        future.add_done_callback(lambda _: self.times.append(time.perf_counter() - due))

    def wait(self, until: float, all_of_them: bool = False) -> None:
        """Look at what has come, and wait until then; or, with `all_of_them`, until every request has its response."""
        while self._open and (all_of_them or self._open[0].done()):
            self._length = check_length(self._length, len(self._open.popleft().result()))
        if not all_of_them:
            time.sleep(max(0.0, until - time.perf_counter()))

    def close(self) -> None:
        self._channel.close()


def check_length(first: int, length: int) -> int:
    """The length that all responses have: that of the first. Raises ValueError for another."""
    if first not in (0, length):
        raise ValueError(f"a response of {length} bytes, the first had {first}")
    return length


# ---- What disturbs them


def disturb(name: str, ports: Ports, end: float) -> int:
    """Send the requests of DISTURBANCES[name] one after another until `end`, of time.time(); how many there were."""
    send = DISTURBANCES[name](ports)
    count = 0
    while time.time() < end:
        send()
        count += 1
        time.sleep(PAUSE_S)
    return count


def _post(port: int, request: Request, headers: Mapping[str, str] | None = None) -> Callable[[], None]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def send() -> None:
        connection.request("POST", request.path, request.body, {**request.headers, **(headers or {})})
        _read(connection)

    return send


def _read(connection: http.client.HTTPConnection) -> None:
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise ValueError(f"status {response.status}: {body[:200]!r}")


def _values(megabytes: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.random.default_rng(0).random((1, int(megabytes * 1e6) // 4)).astype(np.float32)


@cache
def _json_request(megabytes: float) -> Request:
    """So much text: about 10 characters a number, and a comma."""
    values = _values(megabytes * 4 / 11)
    tensor = {"name": "INPUT", "shape": list(values.shape), "datatype": "FP32", "data": values.ravel().tolist()}
    body = orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Request("/v2/models/identity/infer", body, {"Content-Type": "application/json"})


@cache
def _binary_request(megabytes: float) -> Request:
    values = _values(megabytes)
    tensor = {
        "name": "INPUT",
        "shape": list(values.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": values.nbytes},
    }
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    return Request("/v2/models/identity/infer", text + values.tobytes(), {LENGTH: str(len(text))})


def _json(ports: Ports) -> Callable[[], None]:
    return _post(ports.http, _json_request(5))


def _binary(ports: Ports) -> Callable[[], None]:
    return _post(ports.http, _binary_request(50))


def _compressed(ports: Ports) -> Callable[[], None]:
    plain = _json_request(5)
    request = Request(plain.path, gzip.compress(plain.body, 1), plain.headers)
    return _post(ports.http, request, {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"})


def _large_grpc(ports: Ports) -> Callable[[], None]:
    values = _values(50)
    tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT", datatype="FP32", shape=values.shape)
    message = pb.ModelInferRequest(model_name="identity", inputs=[tensor], raw_input_contents=[values.tobytes()])
    body = message.SerializeToString()
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channel = grpc.insecure_channel(f"127.0.0.1:{ports.grpc}", options=options)
    call = channel.unary_unary(f"/{pb.SERVICE}/ModelInfer", request_serializer=None, response_deserializer=None)

    def send() -> None:
        call(body, timeout=60.0)

    return send


def _loads(ports: Ports) -> Callable[[], None]:
    both = [
        _post(
            ports.http, Request(f"/v2/repository/models/{SPARE}/{action}", b"{}", {"Content-Type": "application/json"})
        )
        for action in ("unload", "load")
    ]

    def send() -> None:
        for each in both:
            each()

    return send


def _scrapes(ports: Ports) -> Callable[[], None]:
    connection = http.client.HTTPConnection("127.0.0.1", ports.metrics, timeout=60)

    def send() -> None:
        connection.request("GET", "/metrics")
        _read(connection)

    return send


def _statistics(ports: Ports) -> Callable[[], None]:
    connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=60)

    def send() -> None:
        for path in ("/v2/models/stats", "/v2/models/simple/config", "/v2/models/simple"):
            connection.request("GET", path)
            _read(connection)

    return send


DISTURBANCES: Mapping[str, Callable[[Ports], Callable[[], None]]] = {
    "5 MB of JSON": _json,
    "5 MB of JSON, gzip both ways": _compressed,
    "50 MB binary": _binary,
    "50 MB over gRPC": _large_grpc,
    "unload and load": _loads,
    "metrics scrapes": _scrapes,
    "statistics and configurations": _statistics,
}


def spin(end: float) -> int:
    """Only CPU time, as much as one busy client may take: what the tiny requests lose to a shared machine."""
    count, text = 0, json.dumps(list(range(1000)))
    while time.time() < end:
        json.loads(text)
        count += 1
    return count
