"""gRPC calls: very many, very odd, given up at every moment, and on a server that stops."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import pytest
from repositories import EXAMPLES
from server_here import started_here
from server_process import LOADED, ServerProcess
from tritonclient.grpc import service_pb2 as pb
from wire import HOST, INPUT0, UNLIMITED, Ask, assert_serving, channel, message, stub

from attack import http2
from attack.measuring import Limits, attacked, footprint
from attack.sending import SECONDS, chances, gzipped, healthy

Code = grpc.StatusCode
OVERLOAD: Final = {Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED}
_ALONE = [("grpc.use_local_subchannel_pool", 1)]
"""A connection of its own: channels to the same address share one otherwise."""

_TEXT = 4 * 1024 + 512
"""An error's text; what the clients take for a header ends at 8 KiB."""


@contextmanager
def innocent(server: ServerProcess) -> Iterator[None]:
    """A client with a connection of its own and one call at a time: all of them go well, during the block."""
    codes: Counter[grpc.StatusCode] = Counter()
    ended, begun = threading.Event(), threading.Event()

    def ask() -> None:
        with grpc.insecure_channel(f"{HOST}:{server.grpc_port}", _ALONE) as opened:
            calls = stub(opened)
            while not ended.wait(0.02):
                try:
                    calls.ServerLive(pb.ServerLiveRequest(), timeout=SECONDS)
                    codes[Code.OK] += 1
                except grpc.RpcError as error:
                    codes[error.code()] += 1
                begun.set()

    thread = threading.Thread(target=ask)
    thread.start()
    begun.wait(SECONDS)
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert set(codes) == {Code.OK}, codes


@pytest.mark.parametrize("count", [1_500, 4_000])
def test_a_burst_of_calls(server: ServerProcess, count: int) -> None:
    """Nobody is told CANCELLED who has not cancelled: neither the client with the many calls, nor another."""
    with (
        attacked(server, f"{count:,} gRPC calls at once", Limits(peak_mb=200)),
        innocent(server),
        grpc.insecure_channel(f"{HOST}:{server.grpc_port}", [*UNLIMITED, *_ALONE]) as opened,
    ):
        calls = [stub(opened).ModelInfer.future(message(Ask()), timeout=SECONDS) for _ in range(count)]
        codes = Counter(call.code() for call in calls)
    assert set(codes) <= {Code.OK, *OVERLOAD}, codes
    assert codes[Code.OK] >= min(count, 1_000)


def test_calls_given_up_at_every_moment(server: ServerProcess) -> None:
    """A client that is gone is nobody's failure: the log says nothing of it."""
    choose = random.Random(3)
    with attacked(server, "600 calls given up", Limits(peak_mb=64)), channel(server.grpc_port) as opened:
        calls = stub(opened)
        bad = message(Ask(inputs=(INPUT0,)))
        for _ in range(6):
            futures = []
            for index in range(100):
                sent = bad if index % 3 == 0 else message(Ask())
                futures.append(calls.ModelInfer.future(sent, timeout=choose.choice((0.0005, 0.001, 0.003, 0.01, 10))))
                if index % 2:
                    futures[choose.randrange(len(futures))].cancel()
            for future in futures:
                future.code()
    assert_serving(server)


def test_streams_given_up_at_every_moment(server: ServerProcess) -> None:
    with attacked(server, "100 streams given up", Limits(peak_mb=64)), channel(server.grpc_port) as opened:
        for index in range(100):
            stream = stub(opened).ModelStreamInfer(iter([message(Ask())] * (index % 7)))
            with suppress(grpc.RpcError):
                for _ in range(index % 3):
                    next(stream, None)
            stream.cancel()
    assert_serving(server)


# Messages


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def inside(tag: int, data: bytes) -> bytes:
    """A message in a field."""
    return varint(tag << 3 | 2) + varint(len(data)) + data


def tensor(name: str, datatype: str, shape: list[int], contents: bytes = b"") -> bytes:
    head = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape).SerializeToString()
    return bytes(head) + (inside(5, contents) if contents else b"")


def request(model: str, *inputs: bytes, more: bytes = b"") -> bytes:
    head = bytes(pb.ModelInferRequest(model_name=model).SerializeToString())
    return head + b"".join(inside(5, one) for one in inputs) + more


def outputs(count: int) -> bytes:
    names = [*(f"n{index}" for index in range(count)), f"n{count - 1}"]
    return b"".join(inside(6, inside(1, name.encode())) for name in names)


@dataclass(frozen=True)
class Row:
    name: str
    data: bytes
    right: frozenset[grpc.StatusCode] = frozenset({Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED})
    limits: Limits = field(default_factory=lambda: Limits(peak_mb=200, cpu_seconds=2))
    method: str = "ModelInfer"


_GOOD = (tensor("INPUT0", "INT32", [1, 16], b""), tensor("INPUT1", "INT32", [1, 16], b""))
_RAW = inside(7, bytes(64)) * 2
_NO_SUCH = frozenset({Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED})
_LARGE = Limits(peak_mb=1000, cpu_seconds=12)

ROWS: Final = (
    Row("50,000 dimensions", request("simple", tensor("INPUT0", "INT32", [1 << 62] * 50_000))),
    Row("200,000 dimensions", request("simple", tensor("INPUT0", "INT32", [1 << 62] * 200_000), _GOOD[1], more=_RAW)),
    Row("200,000 dimensions of 1", request("simple", tensor("INPUT0", "INT32", [1] * 200_000), _GOOD[1], more=_RAW)),
    Row("30,000 outputs, one twice", request("simple", *_GOOD, more=_RAW + outputs(30_000))),
    Row("100,000 outputs, one twice", request("simple", *_GOOD, more=_RAW + outputs(100_000))),
    Row("the same output 100,000 times",
        request("simple", *_GOOD, more=_RAW + inside(6, inside(1, b"OUTPUT0")) * 100_000)),
    Row("100,000 inputs", request("simple", *[tensor(f"n{n}", "INT32", [1]) for n in range(100_000)])),
    Row("the same input 100,000 times", request("simple", *[_GOOD[0]] * 100_000)),
    Row("100,000 raw contents", request("simple", *_GOOD, more=inside(7, b"") * 100_000)),
    Row("a model's name of 2 MB", request("n" * (2 << 20)), _NO_SUCH),
    Row("an input's name of 2 MB", request("simple", tensor("n" * (2 << 20), "INT32", [1]))),
    Row("a datatype of 2 MB", request("simple", tensor("INPUT0", "n" * (2 << 20), [1, 16]), _GOOD[1], more=_RAW)),
    Row("an id of 2 MB", request("simple", more=inside(3, b"i" * (2 << 20)))),
    Row("a version of 2 MB", request("simple", *_GOOD, more=_RAW + inside(2, b"1" * (2 << 20))), _NO_SUCH),
    Row("the name of a model to look at", bytes(pb.ModelMetadataRequest(name="n" * (2 << 20)).SerializeToString()),
        _NO_SUCH, method="ModelMetadata"),
    Row("4,000,000 empty texts", request("texts", tensor("INPUT0", "BYTES", [1, 4_000_000], b"\x42\0" * 4_000_000)),
        frozenset({Code.OK, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED}), _LARGE),
    Row("17,500,000 small numbers", request("numbers", tensor("INPUT0", "INT32", [1, 1], inside(2, bytes(17_500_000)))),
        limits=_LARGE),
    Row("no protobuf", b"\xff" * 100_000, frozenset({Code.INTERNAL, Code.INVALID_ARGUMENT})),
    Row("5,000,000 unknown fields", b"\xf8\x7f\x01" * 5_000_000,
        frozenset({Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE})),
)  # fmt: skip


def outcome(call: Any, data: bytes) -> tuple[grpc.StatusCode, str]:
    """The status and its text."""
    try:
        call(data, timeout=SECONDS)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return Code.OK, ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_messages(server: ServerProcess, row: Row) -> None:
    """The right status, whose text is short enough for every client to take."""
    with attacked(server, f"gRPC: {row.name}, {len(row.data):,} B", row.limits), channel(server.grpc_port) as opened:
        call: Any = opened.unary_unary(http2.SERVICE + row.method, None, None)
        code, text = outcome(call, row.data)
        assert code in row.right, text[:500]
        assert len(text.encode()) <= _TEXT
        assert "metadata size" not in text  # what clients say whose limit the text exceeds
    assert_serving(server)


# Calls without a message

UNARY: Final = ("ServerLive", "ServerReady", "ModelReady", "ModelInfer", "ModelStatistics", "RepositoryIndex")


def test_calls_without_a_message(server: ServerProcess) -> None:
    """Health checks of proxies do that: headers, which also end the stream. INTERNAL at once, as Triton answers."""
    with attacked(server, "unary calls without a message"), http2.connected(server.grpc_port) as connection:
        for index, method in enumerate(UNARY):
            with http2.connected(server.grpc_port) as own:  # of its own, where no table of headers is known yet
                flags = http2.END_HEADERS | http2.END_STREAM
                own.send(http2.frame(http2.HEADERS, flags, 1, http2.call_headers(method)))
                assert own.wait_for_status(1) == 13, method
            stream = 2 * index + 1
            block = http2.call_headers(method)
            connection.send(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block))
            connection.send(http2.frame(http2.DATA, http2.END_STREAM, stream))
        assert connection.wait_for_answers(range(1, 2 * len(UNARY), 2))
    assert_serving(server)


def test_a_call_without_a_message_does_not_delay_the_end() -> None:
    with started_here(EXAMPLES, options=["--exit-timeout-secs=60"]) as server:
        server.wait_for(LOADED)
        with http2.connected(server.grpc_port) as connection, http2.connected(server.grpc_port) as other:
            flags = http2.END_HEADERS | http2.END_STREAM
            connection.send(http2.frame(http2.HEADERS, flags, 1, http2.call_headers("ServerLive")))
            assert connection.wait_for_status(1) == 13
            other.send(http2.frame(http2.HEADERS, flags, 1, http2.call_headers("ModelInfer")))
            server.begin_stop()
            for each in (connection, other):
                assert each.wait_for_end(), "the server waits for a message that will not come"
            server.wait(0)


def test_two_messages_in_a_unary_call(server: ServerProcess) -> None:
    with attacked(server, "two messages in a unary call"), http2.connected(server.grpc_port) as connection:
        connection.send(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.call_headers("ServerLive")))
        connection.send_data(1, [http2.message(b"") * 2])
        assert connection.wait_for_status(1) in (0, 12, 13) or 1 in connection.resets
    assert_serving(server)


def test_random_and_mutated_messages(server: ServerProcess) -> None:
    """Good messages with some bytes changed, from a fixed seed: answered, and never as if the server had failed."""
    good = bytes(message(Ask()).SerializeToString())
    with attacked(server, "500 mutated messages", Limits(peak_mb=64)), channel(server.grpc_port) as opened:
        call: Any = opened.unary_unary(http2.SERVICE + "ModelInfer", None, None)
        for choose in chances(4, 500):
            data = bytearray(good if choose.random() < 0.9 else choose.randbytes(200))
            for _ in range(choose.choice((1, 2, 5))):
                at = choose.randrange(len(data))
                match choose.randrange(3):
                    case 0:
                        data[at] = choose.randrange(256)
                    case 1:
                        del data[at : at + choose.choice((1, 5))]
                    case _:
                        data[at:at] = data[at : at + choose.choice((1, 20))]
            code, text = outcome(call, bytes(data))
            assert code in (Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.UNIMPLEMENTED, Code.INTERNAL), data
            assert code is not Code.INTERNAL or "deserializ" in text.lower(), data
    assert_serving(server)


def test_a_compressed_message_that_is_huge(server: ServerProcess) -> None:
    """A gigabyte in a megabyte: refused, or taken within what the server allows for all requests."""
    bomb = gzipped([b"\x52\x80\x80\x80\x80\x04" + bytes(1 << 20), *[bytes(1 << 20)] * 1023])
    with attacked(server, "gRPC: a compressed gigabyte", Limits(peak_mb=800)), http2.connected(server.grpc_port) as own:
        block = http2.call_headers("ModelInfer", (b"grpc-encoding", b"gzip"))
        own.send(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, block))
        own.send_data(1, [http2.message(bomb, compressed=True)])
        status = own.wait_for_status(1)
        assert status in (3, 5, 8, 13, 14) or own.resets or own.ended
    assert healthy(server)
    assert footprint(server.pid).rss_mb < 600
