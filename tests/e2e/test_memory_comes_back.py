"""Memory that clients made the server hold for long comes back when they have what they came for."""

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from repositories import write_identity
from server_process import ServerProcess, eventually, serving
from wire import HOST, SECONDS, Ask, Input, binary_request, http_infer, infer_path

MORE = 1.3
"""Times what the server had before."""
HELD_S = 7.0
"""How long it holds the memory: for longer than it takes to notice that this has stopped growing."""
FLOATS = 1_500_000
READERS = 60
SHORT = 20_000
QUEUED = 3_000
DELAY_MS = 4
"""An execution of one request takes that long, so that most of them wait for longer than `HELD_S`."""
FILL = """
backend: "onnxruntime"
input { name: "IN" data_type: TYPE_INT64 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
"""


def write_fill(repository: Path) -> None:
    """The model `fill`: IN is a number of elements, OUT has so many of them."""
    directory = repository / "fill" / "1"
    directory.mkdir(parents=True)
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["IN"], ["OUT"], value=value)],
        "fill",
        [helper.make_tensor_value_info("IN", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["n"])],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, directory / "model.onnx")
    (directory.parent / "config.pbtxt").write_text(FILL)


def resident(server: ServerProcess) -> int:
    pages = Path(f"/proc/{server.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def at_rest(server: ServerProcess) -> int:
    """Its memory when it has been the same for a while."""
    sizes = [0]

    def steady() -> bool:
        time.sleep(0.5)
        sizes.append(resident(server))
        return max(sizes[-10:]) - min(sizes[-10:]) < 2**20

    eventually(steady, 60)
    return sizes[-1]


def waiting(stack: ExitStack, server: ServerProcess, ask: Ask, count: int) -> Sequence[socket.socket]:
    """So many connections that have sent this request, and read nothing of the response for now."""
    body, headers = binary_request(ask)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {infer_path(ask.model)} HTTP/1.1\r\nHost: {HOST}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    opened = []
    for _ in range(count):
        each = stack.enter_context(socket.create_connection((HOST, server.http_port), SECONDS))
        each.sendall(head.encode() + body)
        opened.append(each)
    return opened


def read_all(connections: Sequence[socket.socket], size: int) -> None:
    """Read what has at least `size` bytes from each, and close it."""
    for each in connections:
        total = 0
        while total < size:
            data = each.recv(2**20)
            assert data, "the response is cut off"
            total += len(data)
        each.close()


def comes_back(server: ServerProcess, ask: Ask, count: int, size: int) -> None:
    """The memory of `count` requests that wait, or whose responses wait: at least half of `size` bytes for each."""
    before = at_rest(server)
    with ExitStack() as stack:
        connections = waiting(stack, server, ask, count)
        eventually(lambda: resident(server) > before + count * size // 2, 60)
        time.sleep(HELD_S)
        read_all(connections, size)
    eventually(lambda: resident(server) < MORE * before, 60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    write_fill(repository)
    write_identity(repository, "slow", "FP32", parameters={"execute_delay_ms": DELAY_MS})
    with serving(repository) as running:
        yield running


def test_of_responses_that_waited_for_slow_readers(server: ServerProcess) -> None:
    """They are in the memory of ONNX Runtime, which never gives any back by itself."""
    ask = Ask((Input("IN", "INT64", (1,), struct.pack("<q", FLOATS)),), "fill")
    assert http_infer(server.http_port, ask).status == 200
    comes_back(server, ask, READERS, 4 * FLOATS)


def test_of_requests_that_waited_in_a_queue(server: ServerProcess) -> None:
    """They are in the memory of the C library, in blocks that nobody else needs."""
    ask = Ask((Input("INPUT0", "FP32", (1, SHORT), bytes(4 * SHORT)),), "slow")
    assert http_infer(server.http_port, ask).status == 200
    comes_back(server, ask, QUEUED, 4 * SHORT)
