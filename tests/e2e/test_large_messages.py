"""What a large tensor takes of the server's memory over gRPC, on its way in and out.

A request is in memory once, and so is a response: nothing is copied but into the engine's arrays.
"""

from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from open_server import OpenServer
from repositories import write_onnx_identity
from server_process import ServerProcess
from tritonclient.grpc import InferenceServerClient, InferInput
from wire import HOST, SECONDS

SIZE = 64 << 20
"""Bytes of the tensor: much more than what else comes and goes."""
THERE_AND_BACK = 2.2
"""Sizes: the request, what the engine makes of it, and what varies."""
BACK = 1.3


def write_growing(repository: Path, name: str) -> None:
    """A model whose response is of SIZE, however short the request: INPUT0, again and again."""
    shape = helper.make_tensor("shape", TensorProto.INT64, (2,), (1, SIZE // 4))
    graph = helper.make_graph(
        [helper.make_node("Expand", ["INPUT0", "shape"], ["OUTPUT0"])],
        name,
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, [1, 1])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, [1, SIZE // 4])],
        [shape],
    )
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (directory / "model.onnx").write_bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("large")
    write_onnx_identity(repository, "numbers", "FP32")
    for calls in CALLS:  # each has a model of its own, since engines keep memory
        write_onnx_identity(repository, f"numbers_{calls}", "FP32")
        write_growing(repository, f"growing_{calls}")
    with open_server.host(repository) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(f"{HOST}:{server.grpc_port}") as opened:
        yield opened


def memory(server: ServerProcess, name: str) -> int:
    """Bytes, as the system counts them."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))


class Peak:
    """The most memory since it was made, beyond that of then, in sizes of the tensor."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")
        self._before = memory(server, "VmRSS")

    @property
    def sizes(self) -> float:
        return (memory(self._server, "VmHWM") - self._before) / SIZE


def tensor(count: int) -> InferInput:
    values = InferInput("INPUT0", [1, count], "FP32")
    values.set_data_from_numpy(np.arange(count, dtype=np.float32).reshape(1, -1))
    return values


class Stream:
    """`infer` of a stream, as of unary calls."""

    def __init__(self, client: InferenceServerClient) -> None:
        self._client = client
        self._results: Queue[tuple[Any, Any]] = Queue()
        client.start_stream(lambda result, error: self._results.put((result, error)))

    def infer(self, model: str, inputs: list[InferInput]) -> Any:
        self._client.async_stream_infer(model, inputs)
        result, error = self._results.get(timeout=SECONDS)
        assert error is None
        return result


CALLS = {"unary": lambda client: client, "stream": Stream}
WAYS = {"numbers": (SIZE // 4, THERE_AND_BACK), "growing": (1, BACK)}
"""Elements of the request, and sizes that it may take."""


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("way", WAYS)
def test_large_tensors(server: ServerProcess, client: InferenceServerClient, calls: str, way: str) -> None:
    """One after the other: what one has taken is free for the next."""
    ask: Any = CALLS[calls](client)
    count, most = WAYS[way]
    ask.infer("numbers", [tensor(16)])
    large, peak = tensor(count), Peak(server)
    for _ in range(2):
        values = ask.infer(f"{way}_{calls}", [large]).as_numpy("OUTPUT0")
        assert values.shape == (1, SIZE // 4)
        assert np.array_equal(values[0, :: 1 << 16], np.arange(0, SIZE // 4, 1 << 16) % count)
    assert 1 <= peak.sizes < most
