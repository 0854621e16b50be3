"""Many gRPC calls at once, calls that end without a message, and messages larger than the server's memory."""

import asyncio
import signal
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from repositories import EXAMPLES, HELD, write_held, write_identity
from server_here import serving_here
from server_process import ServerProcess, eventually, started
from tritonclient.grpc import service_pb2, service_pb2_grpc
from wire import HOST, SECONDS, UNLIMITED, Ask, Input, channel, message, metric, stub

OK = grpc.StatusCode.OK
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
CANCELLED = grpc.StatusCode.CANCELLED
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
SERVICE = "/inference.GRPCInferenceService/"
LIVE = service_pb2.ServerLiveRequest()


@asynccontextmanager
async def client(server: ServerProcess, *options: tuple[str, int]) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"{HOST}:{server.grpc_port}", [*UNLIMITED, *options]) as opened:
        yield service_pb2_grpc.GRPCInferenceServiceStub(opened)


async def outcome(call: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = await call.code()
    return code


async def test_six_thousand_calls_at_once(server: ServerProcess) -> None:
    """Nobody is cancelled: neither of them nor of another client, which asks whether the server lives meanwhile."""
    async with client(server) as busy, client(server, ("grpc.use_local_subchannel_pool", 1)) as other:
        assert (await other.ServerLive(LIVE, timeout=SECONDS)).live
        calls = [asyncio.ensure_future(outcome(busy.ModelInfer(message(Ask())))) for _ in range(6_000)]
        lives = Counter[bool]()
        while not all(call.done() for call in calls):
            lives[(await other.ServerLive(LIVE, timeout=SECONDS)).live] += 1
        assert Counter(call.result() for call in calls) == {OK: 6_000}
        assert lives[True] >= 1
        assert not lives[False]


async def test_eight_hundred_calls_and_then_sigterm(tmp_path: Path) -> None:
    """What has arrived before is answered, and what comes later is refused so that clients try elsewhere.

    What the server has not heard of for 50 ms before it closes its port ends CANCELLED, which the library does. That
    happens to a burst only where the machine does not let its client run for so long.
    """
    gate = write_held(tmp_path, "held")
    held = message(Ask((Input("INPUT0", "INT32", (1, 1), bytes(4)),), model="held"))
    with started(EXAMPLES, tmp_path, environment=HELD) as server:
        server.wait_for("Try it:")
        async with client(server) as busy:
            early = [asyncio.ensure_future(outcome(busy.ModelInfer(held))) for _ in range(400)]
            await asyncio.to_thread(eventually, lambda: waiting(server) == 399)  # one runs, and the server has them all
            late = [asyncio.ensure_future(outcome(busy.ModelInfer(message(Ask())))) for _ in range(400)]
            await asyncio.sleep(0)  # none of them has been sent
            server.signal(signal.SIGTERM)
            gate.open()
            assert Counter([await call for call in early]) == {OK: 400}
            codes = Counter([await call for call in late])
        assert set(codes) <= {OK, UNAVAILABLE, CANCELLED}
        server.wait(0)


def waiting(server: ServerProcess) -> float:
    return metric(server, "nv_inference_pending_request_count", model="held")


# --- calls without a message ------------------------------------------------------------------------------------------


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: str, value: str) -> bytes:
    """A literal field without indexing, nothing compressed (RFC 7541, section 6.2.2); both below 127 bytes."""
    return b"\0" + b"".join(bytes([len(each)]) + each.encode() for each in (name, value))


DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1


class RawConnection:
    """An HTTP/2 connection of which every frame is the test's own."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=SECONDS)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, struct.pack(">HI", 1, 0)))

    def ask(self, stream: int, path: str, flags: int) -> None:
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": HOST}
        fields |= {"content-type": "application/grpc", "te": "trailers"}
        block = b"".join(header(*field) for field in fields.items())
        self._socket.sendall(frame(HEADERS, flags | END_HEADERS, stream, block))

    def end(self, stream: int) -> None:
        """An empty DATA frame that ends the stream."""
        self._socket.sendall(frame(DATA, END_STREAM, stream))

    def ended(self, streams: set[int]) -> dict[int, bytes]:
        """What came with the frame that ended each of the streams; for no streams, until the connection has ended."""
        found: dict[int, bytes] = {}
        while not streams or set(found) != streams:
            head = self._file.read(9)
            if not head and not streams:
                break
            assert len(head) == 9, f"the connection ended; {streams - set(found)} were not answered"
            length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            stream = int.from_bytes(head[5:])
            payload = self._file.read(length)
            if kind == SETTINGS and not flags & ACK:
                self._socket.sendall(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self._socket.sendall(frame(PING, ACK, 0, payload))
            elif kind in (HEADERS, DATA) and flags & END_STREAM:
                found[stream] = payload
            assert kind not in (RST_STREAM, GOAWAY) or not streams, "refused"
        return found

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawConnection]:
    connection = RawConnection(server.grpc_port)
    yield connection
    connection.close()


UNARY = [SERVICE + name for name in ("ServerLive", "ServerReady", "ServerMetadata", "ModelMetadata", "ModelInfer")]
UNARY += ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]


def test_a_call_without_a_message_is_answered_at_once(raw: RawConnection) -> None:
    """As Triton: INTERNAL."""
    paths = dict(zip(range(1, 1000, 2), UNARY * 100, strict=False))
    for stream, path in paths.items():
        if stream % 4 == 1:
            raw.ask(stream, path, END_STREAM)
        else:
            raw.ask(stream, path, 0)
            raw.end(stream)
    for stream, trailers in raw.ended(set(paths)).items():
        assert b"grpc-status\x0213" in trailers or (b"grpc-status" not in trailers and b"13" in trailers), paths[stream]


def test_calls_that_never_end_do_not_delay_the_shutdown_of_others() -> None:
    with ExitStack() as stack, ThreadPoolExecutor(1) as threads:
        server = stack.enter_context(serving_here(EXAMPLES))
        with closing(RawConnection(server.grpc_port)) as connection:
            for stream in (1, 3, 5):
                connection.ask(stream, SERVICE + "ServerLive", END_STREAM)
            assert len(connection.ended({1, 3, 5})) == 3
            end = threads.submit(stack.close)
            connection.ended(set())
            end.result(5)


# --- large messages ---------------------------------------------------------------------------------------------------

MB = 10**6


def large(size: int) -> Any:
    return message(Ask((Input("INPUT0", "UINT8", (1, size), bytes(size)),), model="bytes"))


def large_data(size: int) -> bytes:
    """The same, serialized without copies on the way: parts of a message make one message, one behind the other."""
    head = large(0)
    head.inputs[0].shape[1] = size
    del head.raw_input_contents[:]
    tag = service_pb2.ModelInferRequest(raw_input_contents=[b""]).SerializeToString()[:1]
    length, left = b"", size
    while left >= 128:
        length, left = length + bytes([left % 128 + 128]), left >> 7
    return b"".join((head.SerializeToString(), tag, length, bytes([left]), bytes(size)))


def test_messages_that_do_not_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may have 2.2 GB of address space: it refuses, and lives."""
    write_identity(tmp_path, "bytes", "UINT8")
    limited = ServerProcess([tmp_path], before=["prlimit", f"--as={2_200 * MB}"])
    try:
        limited.wait_for("Try it:")
        with channel(limited.grpc_port) as opened:
            infer = opened.unary_unary(SERVICE + "ModelInfer", bytes, bytes)
            for size in (300 * MB, 500 * MB, 700 * MB):
                request = large_data(size)
                for _ in range(2):
                    with pytest.raises(grpc.RpcError) as raised:
                        infer(request, timeout=60)
                    assert raised.value.code() is RESOURCE_EXHAUSTED, raised.value
            assert stub(opened).ModelInfer(large(20 * MB), timeout=60).model_name == "bytes"
        limited.stop()
    finally:
        limited.dispose()


def test_the_longest_message(tmp_path: Path) -> None:
    write_identity(tmp_path, "bytes", "UINT8")
    options = ["--grpc-max-message-size=1000000"]
    with serving_here(tmp_path, options=options) as server, channel(server.grpc_port) as opened:
        assert stub(opened).ModelInfer(large(900_000), timeout=SECONDS).model_name == "bytes"
        with pytest.raises(grpc.RpcError) as raised:
            stub(opened).ModelInfer(large(1_100_000), timeout=SECONDS)
        assert raised.value.code() is RESOURCE_EXHAUSTED
        assert "larger than max" in str(raised.value.details())
