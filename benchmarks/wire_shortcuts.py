"""What the short cuts of the HTTP/2 and gRPC front ends gain, and what metadata cost that differ in each call.

    python benchmarks/wire_shortcuts.py [--count 3000] [--rounds 7]
    PYTHONPATH=build/compiled python benchmarks/wire_shortcuts.py --metadata [--count 250] [--rounds 40]

One process, one connection whose transport keeps what is written, and a puppet for a model: bytes in, bytes out. Both
ways take turns. For short cuts, the ratio is that of the medians; interpreted: of the compiled form nothing can be
switched off. `--metadata` prints the lower quartiles for clients that encode their headers in other ways, each with the
same request id, trace and deadline in all calls, and with others in each.
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest import mock

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / part) for part in ("", "unit/frontends", "unit/frontends/grpc")]

from hpack import Encoder, NeverIndexedHeaderTuple  # noqa: E402
from native_client import SERVICE, Client, Port, call_block, framed, request  # noqa: E402
from puppet_server import SIMPLE, PuppetLoader, server_over  # noqa: E402

from http2_client import data, headers  # noqa: E402
from modserve.core.requests.memory import MemoryBudget  # noqa: E402
from modserve.form import form  # noqa: E402
from modserve.frontends.grpc.server_call import ServerCall  # noqa: E402
from modserve.frontends.grpc.unary import UnaryInferences  # noqa: E402
from modserve.frontends.http2.headers import literal  # noqa: E402
from modserve.frontends.http2.sender import Sender  # noqa: E402
from modserve.frontends.http2.stream import Chunk, Stream  # noqa: E402

DEADLINE = (("grpc-timeout", "1M"),)


def respond_in_parts(
    self: Sender, stream: Stream, headers: bytes, prefix: bytes, body: list[Chunk], size: int, trailers: bytes
) -> None:
    """`Sender.respond` for a response that windows may hold back."""
    stream.send_headers(headers)
    stream.wait_to_send((prefix, *body))
    stream.finish(trailers)


def assembled(self: ServerCall, data: bytes, start: int, end: int) -> None:
    """`ServerCall.data_received` as for messages in parts."""
    message = self._assemble(data, start, end)
    if message is not None:
        self._message, self._full = message, True


@contextmanager
def timers(port: Port) -> Iterator[None]:
    """A timer of the event loop for each call with a deadline."""
    loop, handles = port.port.loop, dict[int, asyncio.TimerHandle]()

    def add(call: Any, deadline_ns: int) -> int:
        handles[id(call)] = loop.call_later((deadline_ns - time.monotonic_ns()) / 1e9, call.on_deadline)
        return 1

    def remove(call: Any, _: int) -> None:
        handles.pop(id(call)).cancel()

    with mock.patch.object(port.port.deadlines, "add", add), mock.patch.object(port.port.deadlines, "remove", remove):
        yield


def without(kind: type, name: str, other: Any) -> Callable[[Port], Any]:
    return lambda _: mock.patch.object(kind, name, other)


ROWS: dict[str, Callable[[Port], Any]] = {
    "inferences without a task (UnaryPath)": without(UnaryInferences, "start", lambda self, client, message: False),
    "responses in one piece (Sender.respond)": without(Sender, "respond", respond_in_parts),
    "messages that come as a whole (ServerCall.data_received)": without(ServerCall, "data_received", assembled),
    "one timer for all deadlines (Deadlines)": timers,
}


CONSTANT = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", (SERVICE + "ModelInfer").encode()),
    (b":authority", b"models.example.com:8001"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-client/1.62.0 (linux)"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
]


def varying(number: int) -> list[tuple[bytes, bytes]]:
    """What a gateway and a tracer add, and what is left of a deadline."""
    unlike = f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}"
    return [
        (b"grpc-timeout", b"%dm" % (9_999 - number % 5_000)),
        (b"x-request-id", f"{unlike[:8]}-{unlike[:4]}-4{unlike[4:7]}-a{unlike[:3]}-{unlike[:12]}".encode()),
        (b"traceparent", f"00-{unlike * 2}-{unlike}-01".encode()),
    ]


def core_block(encoder: Encoder, more: list[tuple[bytes, bytes]]) -> bytes:
    """As gRPC's core: what it knows by name is indexed, other metadata never, and nothing in Huffman's code."""
    return encoder.encode([*CONSTANT, more[0]], huffman=False) + b"".join([literal(*each) for each in more[1:]])


def go_block(encoder: Encoder, more: list[tuple[bytes, bytes]]) -> bytes:
    """As Go: all is indexed, in Huffman's code."""
    return encoder.encode([*CONSTANT, *more])


def netty_block(encoder: Encoder, more: list[tuple[bytes, bytes]]) -> bytes:
    """As Netty: all is indexed; short texts are not in Huffman's code."""
    return encoder.encode([*CONSTANT, *more], huffman=False)


def unindexed_block(encoder: Encoder, more: list[tuple[bytes, bytes]]) -> bytes:
    """As clients without a table: all is sent in full, in Huffman's code."""
    return encoder.encode([NeverIndexedHeaderTuple(*each) for each in (*CONSTANT, *more)])


CLIENTS: dict[str, Callable[[Encoder, list[tuple[bytes, bytes]]], bytes]] = {
    "gRPC core: indexed but metadata, plain": core_block,
    "Go: indexed, Huffman": go_block,
    "Netty: indexed, plain": netty_block,
    "never indexed, Huffman": unindexed_block,
}


class Caller:
    """One connection, and what it has sent."""

    def __init__(self, port: Port, encode: Callable[[Encoder, list[tuple[bytes, bytes]]], bytes], differ: bool) -> None:
        self._encode = encode
        self._differ = differ
        self._encoder = Encoder()
        self._client = port.client()
        self._calls = 0
        self.times: list[float] = []

    async def call(self, port: Port, count: int) -> None:
        numbers = range(self._calls, self._calls + count)
        self._calls += count
        blocks = [self._encode(self._encoder, varying(number if self._differ else 0)) for number in numbers]
        self.times.append(await serve(port, self._client, 2 * numbers[0] + 1, count, blocks))


async def compare_metadata(port: Port, count: int, rounds: int) -> None:
    callers = {name: (Caller(port, encode, False), Caller(port, encode, True)) for name, encode in CLIENTS.items()}
    for _ in range(rounds):
        for pair in callers.values():
            for caller in pair:
                await caller.call(port, count)
    print(f"{form()}; microseconds of CPU a call\n\n{'client':42} {'same':>7} {'differ':>7} {'ratio':>7}")
    for name, pair in callers.items():
        same, differ = (quantiles(caller.times[2:])[0] for caller in pair)
        print(f"{name:42} {same:7.2f} {differ:7.2f} {differ / same:7.3f}", flush=True)


async def serve(port: Port, client: Client, first: int, count: int, blocks: list[bytes]) -> float:
    """Microseconds of CPU time a call; those of all calls have one header block, or one each."""
    body = framed(request())
    numbers = range(first, first + 2 * count, 2)
    each = blocks * count if len(blocks) == 1 else blocks
    sent = [headers(n, b).serialize() + data(n, body, end=True).serialize() for n, b in zip(numbers, each, strict=True)]
    connection, written = client.wire.connection, client.wire.transport.written
    gc.collect()
    gc.disable()
    began = time.process_time_ns()
    for piece in sent:
        connection.data_received(piece)
        while connection.streams:  # noqa: ASYNC110  # a turn, no time
            await asyncio.sleep(0)
        written.clear()
        client.wire.connection.windows.left = client.wire.connection.windows.initial
    took = time.process_time_ns() - began
    gc.enable()
    for puppet in port.loader.loaded.values():
        puppet.submitted.clear()
    return took / count / 1e3


async def measure(count: int, rounds: int, metadata: bool) -> None:
    loader = PuppetLoader(models={"simple": SIMPLE})
    server = server_over(Path(tempfile.mkdtemp()), loader, memory=MemoryBudget(1 << 30))
    await server.load()
    port = Port(server, loader)
    if metadata:
        await compare_metadata(port, count or 250, rounds or 40)
    else:
        await compare_short_cuts(port, count or 3_000, rounds or 7)
    port.port.deadlines.close()


async def compare_short_cuts(port: Port, count: int, rounds: int) -> None:
    client, first = port.client(), 1
    for name, switch in ROWS.items():
        block = call_block(SERVICE + "ModelInfer", *(DEADLINE if switch is timers else ()))
        times: tuple[list[float], list[float]] = [], []
        for turn in range(2 * rounds + 2):
            if turn % 2:
                with switch(port):
                    took = await serve(port, client, first, count, [block])
            else:
                took = await serve(port, client, first, count, [block])
            first += 2 * count
            if turn >= 2:
                times[turn % 2].append(took)
        usual, other = map(median, times)
        print(f"{name}: {usual:.1f} us, without {other:.1f} us ({other / usual:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--metadata", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.count, arguments.rounds, arguments.metadata))


if __name__ == "__main__":
    main()
