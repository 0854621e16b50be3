"""The clients of benchmarks/mix.py, each in its own process: tiny requests at a steady rate, and what disturbs them."""

import gzip
import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import grpc
import numpy as np
import orjson

from modserve.pb import inference as pb
from side_by_side.dialects import LENGTH, V2_BINARY, V2_GRPC, Request
from side_by_side.models import MODELS

PAUSE_S = 0.05
"""Between two requests of a disturbance, so that it leaves CPU time to the others."""
SPARE = "encoder"
"""The model that is loaded and unloaded."""


@dataclass(frozen=True)
class Ports:
    http: int
    grpc: int
    metrics: int


def settle() -> None:
    """For a pool to start all its processes: none gets a second of these before each has one."""
    time.sleep(1.0)


# ---- Tiny requests


def tiny(way: str, ports: Ports, begin: float, seconds: float, per_second: float) -> list[float]:
    """Seconds from when each request was due to its response, so that a stall counts for all that it delays.

    `begin` is a time of time.time(). Raises ValueError for a response of another length than the first.
    """
    send = _tiny_http(ports.http) if way == "HTTP" else _tiny_grpc(ports.grpc)
    length = send()
    time.sleep(max(0.0, begin - time.time()))
    start, times = time.perf_counter(), []
    for number in range(int(seconds * per_second)):
        due = start + number / per_second
        time.sleep(max(0.0, due - time.perf_counter()))
        if send() != length:
            raise ValueError(f"a response of another length than the first, {length}")
        times.append(time.perf_counter() - due)
    return times


def _tiny_http(port: int) -> Callable[[], int]:
    request = V2_BINARY.write(MODELS["simple"])
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = [f"{name}: {value}" for name, value in request.headers.items()]
    lines += ["Host: localhost", f"Content-Length: {len(request.body)}"]
    message = "\r\n".join([f"POST {request.path} HTTP/1.1", *lines, "", ""]).encode() + request.body

    def send() -> int:
        connection.sendall(message)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += _some(connection)
        head = data[:end].lower()
        if not head.startswith(b"http/1.1 200"):
            raise ValueError(data.decode(errors="replace"))
        body = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(data) < end + 4 + body:
            data += _some(connection)
        return body

    return send


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ValueError("the server has closed the connection")
    return data


def _tiny_grpc(port: int) -> Callable[[], int]:
    request = V2_GRPC.write(MODELS["simple"])
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    call = channel.unary_unary(request.path, request_serializer=None, response_deserializer=None)

    def send() -> int:
        response: bytes = call(request.body, timeout=30.0)
        return len(response)

    return send


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
