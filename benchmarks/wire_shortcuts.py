"""What the short cuts of the HTTP/2 and gRPC front ends gain: the CPU time of a unary inference without each of them.

    python benchmarks/wire_shortcuts.py [--count 3000] [--rounds 7]

One process, one connection whose transport keeps what is written, and a puppet for a model: bytes in, bytes out. Both
ways take turns, and the ratio is that of the medians. Interpreted: of the compiled form nothing can be switched off.
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
from statistics import median
from typing import Any
from unittest import mock

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / part) for part in ("", "unit/frontends", "unit/frontends/grpc")]

from native_client import SERVICE, Client, Port, call_block, framed, request  # noqa: E402
from puppet_server import SIMPLE, PuppetLoader, server_over  # noqa: E402

from http2_client import data, headers  # noqa: E402
from modserve.core.requests.memory import MemoryBudget  # noqa: E402
from modserve.frontends.grpc.server_call import ServerCall  # noqa: E402
from modserve.frontends.grpc.unary import UnaryInferences  # noqa: E402
from modserve.frontends.http2.headers import HeaderBlocks  # noqa: E402
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
    "header blocks that are remembered (HeaderBlocks.known)": without(HeaderBlocks, "known", lambda self, block: None),
    "inferences without a task (UnaryPath)": without(UnaryInferences, "start", lambda self, client, message: False),
    "responses in one piece (Sender.respond)": without(Sender, "respond", respond_in_parts),
    "messages that come as a whole (ServerCall.data_received)": without(ServerCall, "data_received", assembled),
    "one timer for all deadlines (Deadlines)": timers,
}


async def serve(port: Port, client: Client, first: int, count: int, block: bytes) -> float:
    """Microseconds of CPU time a call."""
    body = framed(request())
    numbers = range(first, first + 2 * count, 2)
    sent = [headers(each, block).serialize() + data(each, body, end=True).serialize() for each in numbers]
    connection, written = client.wire.connection, client.wire.transport.written
    gc.collect()
    gc.disable()
    began = time.process_time()
    for piece in sent:
        connection.data_received(piece)
        while connection.streams:  # noqa: ASYNC110  # a turn, no time
            await asyncio.sleep(0)
        written.clear()
        client.wire.connection.windows.left = client.wire.connection.windows.initial
    took = time.process_time() - began
    gc.enable()
    for puppet in port.loader.loaded.values():
        puppet.submitted.clear()
    return took / count * 1e6


async def measure(count: int, rounds: int) -> None:
    loader = PuppetLoader(models={"simple": SIMPLE})
    server = server_over(Path(tempfile.mkdtemp()), loader, memory=MemoryBudget(1 << 30))
    await server.load()
    port = Port(server, loader)
    client, first = port.client(), 1
    for name, switch in ROWS.items():
        block = call_block(SERVICE + "ModelInfer", *(DEADLINE if switch is timers else ()))
        times: tuple[list[float], list[float]] = [], []
        for turn in range(2 * rounds + 2):
            if turn % 2:
                with switch(port):
                    took = await serve(port, client, first, count, block)
            else:
                took = await serve(port, client, first, count, block)
            first += 2 * count
            if turn >= 2:
                times[turn % 2].append(took)
        usual, other = map(median, times)
        print(f"{name}: {usual:.1f} us, without {other:.1f} us ({other / usual:.3f})", flush=True)
    port.port.deadlines.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.count, arguments.rounds))


if __name__ == "__main__":
    main()
