"""The clients of `lifecycle.py`: constant load over HTTP and gRPC, and a look at every response."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import grpc.aio
import numpy as np
import orjson

from modserve.pb import inference as pb

SERVICE = "/inference.GRPCInferenceService/"
CLIENTS = 16
PAUSE_S = 0.004
"""Of each client after a response, so that the load stays the same while a model loads."""
MOST_SAID = 20


@dataclass
class Count:
    """Of the requests in one phase."""

    http: int = 0
    grpc: int = 0
    failed: int = 0
    wrong: int = 0
    slowest_ms: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    """What the changes did, in words, and how often."""
    said: list[str] = field(default_factory=list)
    """The first faults, and what the server said of a change that it should not have said."""

    def complain(self, text: str) -> None:
        if len(self.said) < MOST_SAID:
            self.said.append(text)


@dataclass
class Target:
    """A model with an input x of [n, 8] and an output y. Each of its versions multiplies by a number of its own."""

    model: str
    first: int
    """The number of version 1."""
    latest: set[int]
    """The numbers that a request without a version may be multiplied by at this moment."""


class Traffic:
    """The clients. Each request is for a target at random, three of ten for its version 1 by name."""

    def __init__(self, http_port: int, grpc_port: int, targets: Sequence[Target]) -> None:
        self._http_port, self._grpc_port = http_port, grpc_port
        self._targets = targets
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

        async def send(model: str, version: str, data: np.ndarray) -> np.ndarray:
            path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
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

            async def send(model: str, version: str, data: np.ndarray) -> np.ndarray:
                request = pb.ModelInferRequest(model_name=model, model_version=version)
                request.inputs.add(name="x", datatype="FP32", shape=data.shape)
                request.raw_input_contents.append(data.tobytes())
                try:
                    answer = await infer(request.SerializeToString(), timeout=30)
                except grpc.aio.AioRpcError as error:
                    raise RuntimeError(f"gRPC {error.code()}: {error.details()}") from None
                self.count.grpc += 1
                return np.frombuffer(pb.ModelInferResponse.FromString(answer).raw_output_contents[0], np.float32)

            await self._send_on(number, send)

    async def _send_on(self, number: int, send: Callable[[str, str, np.ndarray], Awaitable[np.ndarray]]) -> None:
        numbers = np.random.default_rng(number)
        while not self._ended:
            target = self._targets[int(numbers.integers(len(self._targets)))]
            data = numbers.integers(1, 1000, (int(numbers.integers(1, 4)), 8)).astype(np.float32)
            version = "1" if numbers.random() < 0.3 else ""
            allowed, began = set(target.latest), time.perf_counter()
            try:
                received = await send(target.model, version, data)
            except (RuntimeError, OSError, EOFError) as error:
                self.count.failed += 1
                self.count.complain(f"{target.model}: {error}")
                if not isinstance(error, RuntimeError):
                    raise  # the connection has gone
            else:
                self.count.slowest_ms = max(self.count.slowest_ms, (time.perf_counter() - began) * 1e3)
                allowed = {target.first} if version else allowed | target.latest
                if not any(np.array_equal(received, each * data.ravel()) for each in allowed):
                    self.count.wrong += 1
                    text = f"{received[:3]} for {data.ravel()[:3]} times one of {allowed}"
                    self.count.complain(f"{target.model}, version {version or 'not named'}: {text}")
            await asyncio.sleep(PAUSE_S)


async def call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes = b""
) -> tuple[int, bytes]:
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    head_read = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head_read.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    if not length and path.endswith("/infer"):
        raise RuntimeError(f"a response without a body: {head_read!r}")
    return int(head_read[9:12]), await reader.readexactly(length)
