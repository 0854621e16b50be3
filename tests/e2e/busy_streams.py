"""Busy streams on one gRPC connection, unary calls beside them, and a ping every second: how many calls were lost.

By hand, against a server with the example models: `python tests/e2e/busy_streams.py PORT SECONDS [CLIENT STREAMS]...`
"""

import asyncio
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import grpc
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from wire import HOST, UNLIMITED, Ask, message

PINGS: Final = [
    *UNLIMITED,
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
REQUEST: Final = message(Ask())
AHEAD: Final = 1
"""Requests of a stream that wait for their responses."""

SELDOM: Final = 0.05
"""Seconds between unary calls: each of them makes up for many frames."""


class Tally:
    """Of all streams: they go on until `count` responses have come, or until a time."""

    def __init__(self, count: int = 0, seconds: float = 0.0) -> None:
        self._count = count
        self._end = time.monotonic() + seconds if seconds else 0.0
        self.sent = self.received = self.unary = 0
        self.failures = Counter[str]()

    @property
    def over(self) -> bool:
        done = self.received >= self._count if self._count else time.monotonic() >= self._end
        return done or bool(self.failures)

    def failed(self, error: BaseException) -> None:
        self.failures[f"{type(error).__name__}: {error}"[:300]] += 1

    def __str__(self) -> str:
        return f"{self.received} of {self.sent} responses, {self.unary} unary calls, failures: {dict(self.failures)}"


def sync(port: int, streams: int, tally: Tally) -> None:
    """grpcio's channel: a thread for each stream."""
    with grpc.insecure_channel(f"{HOST}:{port}", PINGS) as opened:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(opened)

        def stream() -> None:
            slots = threading.Semaphore(AHEAD)

            def requests() -> Iterator[service_pb2.ModelInferRequest]:
                while not tally.over:
                    slots.acquire(timeout=60)
                    tally.sent += 1
                    yield REQUEST

            for response in stub.ModelStreamInfer(requests()):
                assert not response.error_message, response.error_message
                tally.received += 1
                slots.release()

        def unary() -> None:
            while not tally.over:
                stub.ModelInfer(REQUEST)
                tally.unary += 1
                time.sleep(SELDOM)

        _on_threads([stream] * streams + [unary], tally)


def triton(port: int, streams: int, tally: Tally) -> None:
    """`tritonclient`: one stream for each client, all of which share the process's channels."""

    def stream() -> None:
        with tritonclient.grpc.InferenceServerClient(f"{HOST}:{port}") as client:
            responses: queue.Queue[Any] = queue.Queue()
            client.start_stream(lambda result, error: responses.put(error or result))
            for _ in range(AHEAD):
                client.async_stream_infer("simple", _inputs(tritonclient.grpc))
                tally.sent += 1
            while True:
                response = responses.get(timeout=60)
                if isinstance(response, Exception):
                    raise response
                tally.received += 1
                if tally.over:
                    break
                client.async_stream_infer("simple", _inputs(tritonclient.grpc))
                tally.sent += 1
            client.stop_stream()
            while not responses.empty():
                assert not isinstance(responses.get(), Exception)
                tally.received += 1

    def unary() -> None:
        with tritonclient.grpc.InferenceServerClient(f"{HOST}:{port}") as client:
            while not tally.over:
                client.infer("simple", _inputs(tritonclient.grpc))
                tally.unary += 1
                time.sleep(SELDOM)

    _on_threads([stream] * streams + [unary], tally)


def aio(port: int, streams: int, tally: Tally) -> None:
    """grpcio on an event loop."""

    async def main() -> None:
        async with grpc.aio.insecure_channel(f"{HOST}:{port}", PINGS) as opened:
            stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(opened)

            async def stream() -> None:
                slots = asyncio.Semaphore(AHEAD)

                async def requests() -> AsyncIterator[service_pb2.ModelInferRequest]:
                    while not tally.over:
                        await asyncio.wait_for(slots.acquire(), 60)
                        tally.sent += 1
                        yield REQUEST

                async for response in stub.ModelStreamInfer(requests()):
                    assert not response.error_message, response.error_message
                    tally.received += 1
                    slots.release()

            async def unary() -> None:
                while not tally.over:
                    await stub.ModelInfer(REQUEST)
                    tally.unary += 1
                    await asyncio.sleep(SELDOM)

            await _together([stream() for _ in range(streams)] + [unary()], tally)

    asyncio.run(main())


def triton_aio(port: int, streams: int, tally: Tally) -> None:
    """`tritonclient` on an event loop."""

    async def main() -> None:
        async with tritonclient.grpc.aio.InferenceServerClient(f"{HOST}:{port}") as client:
            inputs = _inputs(tritonclient.grpc)

            async def stream() -> None:
                slots = asyncio.Semaphore(AHEAD)

                async def requests() -> AsyncIterator[dict[str, Any]]:
                    while not tally.over:
                        await asyncio.wait_for(slots.acquire(), 60)
                        tally.sent += 1
                        yield {"model_name": "simple", "inputs": inputs}

                async for _, error in client.stream_infer(requests()):
                    assert error is None, error
                    tally.received += 1
                    slots.release()

            async def unary() -> None:
                while not tally.over:
                    await client.infer("simple", inputs)
                    tally.unary += 1
                    await asyncio.sleep(SELDOM)

            await _together([stream() for _ in range(streams)] + [unary()], tally)

    asyncio.run(main())


CLIENTS: Final[dict[str, Callable[[int, int, Tally], None]]] = {
    "grpcio": sync,
    "grpcio.aio": aio,
    "tritonclient": triton,
    "tritonclient.aio": triton_aio,
}


def _inputs(library: Any) -> list[Any]:
    inputs = []
    for given in Ask().inputs:
        made = library.InferInput(given.name, list(given.shape), given.datatype)
        made._raw_content = given.raw
        inputs.append(made)
    return inputs


async def _together(works: list[Any], tally: Tally) -> None:
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if outcome is not None:
            tally.failed(outcome)


def _on_threads(works: list[Callable[[], None]], tally: Tally) -> None:
    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            tally.failed(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    port, seconds, *rows = sys.argv[1:]
    pairs = list(zip(rows[::2], rows[1::2], strict=True)) or [
        (client, str(streams)) for client in CLIENTS for streams in (1, 4, 16, 64, 100)
    ]
    for client, streams in pairs:
        counted = Tally(seconds=float(seconds))
        CLIENTS[client](int(port), int(streams), counted)
        print(f"{client}, {streams} streams, {seconds} s: {counted}", flush=True)
