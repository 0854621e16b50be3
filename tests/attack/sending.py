"""Bytes to a server and what comes back, spelled out: what no client library lets one send."""

import gzip
import http.client
import io
import itertools
import json
import os
import random
import re
import socket
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final

import grpc
from server_process import ServerProcess
from wire import HOST, Answer, infer_path, statistics

SECONDS: Final = 120.0
"""Longest time of an answer, in seconds: on the busiest machine, what `Limits.cpu_seconds` allows."""

MEMORY_LIMIT: Final = 512 * 1024 * 1024
OPTIONS: Final = (
    "--model-control-mode=explicit",
    "--load-model=*",
    f"--request-memory-limit={MEMORY_LIMIT}",
)

REFUSALS: Final = frozenset({400, 413, 431, 503})
"""The statuses of a request that is too much, for itself or at this moment."""

INFER: Final = infer_path("simple")


def chances(seed: int, count: int) -> Iterator[random.Random]:
    """The same source of chance, `count` times; with ATTACK_SECONDS for so long, and with ATTACK_SEED another one."""
    choose = random.Random(int(os.environ.get("ATTACK_SEED", seed)))
    seconds = float(os.environ.get("ATTACK_SECONDS", 0))
    end = time.monotonic() + seconds
    done = 0
    while time.monotonic() < end if seconds else done < count:
        yield choose
        done += 1


def healthy(server: ServerProcess) -> bool:
    """It answers over both protocols."""
    if not server.running:
        return False
    try:
        with closing(http.client.HTTPConnection(HOST, server.http_port, timeout=SECONDS)) as connection:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status != 200:
                return False
        with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive", None, None)
            live(b"", timeout=SECONDS)
    except (OSError, http.client.HTTPException, grpc.RpcError):
        return False
    return True


def post(
    server: ServerProcess, path: str, body: bytes, headers: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> Answer:
    """One POST on a connection of its own; raises `TimeoutError` when there is no answer."""
    with closing(http.client.HTTPConnection(HOST, server.http_port, timeout=seconds)) as connection:
        connection.request("POST", path, body, dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers.items()), response.read())


def executed(server: ServerProcess) -> int:
    """Number of requests to `numbers` the server has executed."""
    return int(statistics(server, "numbers")["inference_count"])


def gzipped(parts: Iterable[bytes], level: int = 9) -> bytes:
    """Compressed without ever being whole: there are gigabytes in a few kilobytes.

    What is repeated is compressed once: behind a full flush, equal bytes become equal blocks.
    """
    packer = zlib.compressobj(level, wbits=-15)
    made, checksum, size = [b"\x1f\x8b\x08\0\0\0\0\0\2\xff"], 0, 0
    for part, equals in itertools.groupby(parts):
        count = 0
        for each in equals:
            checksum = zlib.crc32(each, checksum)
            count += 1
        size += count * len(part)
        if count > 1:
            made.append(packer.flush(zlib.Z_FULL_FLUSH))
            made.append((packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)) * count)
        else:
            made.append(packer.compress(part))
    return b"".join([*made, packer.flush(), struct.pack("<II", checksum, size % (1 << 32))])


def repeated(element: bytes, count: int, before: bytes, after: bytes) -> Iterator[bytes]:
    """``before``, then ``count`` elements between commas, then ``after``, in parts of a bearable size."""
    yield before
    block = 4096
    blocks, rest = divmod(count - 1, block)
    whole = (element + b",") * block
    for _ in range(blocks):
        yield whole
    yield (element + b",") * rest + element + after


@contextmanager
def dialled(port: int, seconds: float = SECONDS) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, port), timeout=seconds) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the server closes, or resets."""
    found = io.BytesIO()
    try:
        while data := connection.recv(1 << 16):
            found.write(data)
    except ConnectionError:
        pass
    return found.getvalue()


def exchange(port: int, data: bytes, *, more: bool = False) -> bytes:
    """All that a server answers to these bytes on a connection of their own, until it closes.

    Without `more`, it is told that no more bytes come; with it, the server must close by itself.
    """
    with dialled(port) as connection:
        try:
            connection.sendall(data)
            if not more:
                connection.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # refused before all was sent
        return read_to_end(connection)


def statuses(answer: bytes) -> list[int]:
    """Of the responses in what came back, in order, without 100 Continue."""
    found = [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]
    return [status for status in found if status != 100]


def json_input(shape: object, data: object, name: str = "INPUT0", datatype: str = "INT32") -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


ONES: Final = [1] * 16
GOOD: Final = json.dumps({"inputs": [json_input([1, 16], ONES), json_input([1, 16], ONES, "INPUT1")]}).encode()
"""A good request to `simple`, all JSON."""

GZIP: Final = {"Content-Encoding": "gzip"}


def assert_answers(server: ServerProcess) -> None:
    """A good request is answered rightly."""
    answer = post(server, INFER, GOOD)
    assert answer.status == 200, answer.body[:500]
    outputs = {output["name"]: output["data"] for output in answer.json["outputs"]}
    assert outputs == {"OUTPUT0": [2] * 16, "OUTPUT1": [0] * 16}


def inflated(data: bytes) -> bytes:
    return gzip.decompress(data)
