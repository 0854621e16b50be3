"""Requests that make an ONNX model divide integers by 0, or the lowest number by -1: the server and others go on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from onnx import TensorProto, helper
from onnx_repository import write
from server_process import ServerProcess, serving
from tritonclient.utils import InferenceServerException
from wire import HOST

LOWEST = -(2**63)
REFUSAL = "the request makes the graph divide an integer by 0, in node '"


def rows(*names: str) -> list[Any]:
    return [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", 2]) for name in names]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("repository")
    nodes = [
        helper.make_node("Div", ["A", "B"], ["Q"], name="quotient"),
        helper.make_node("Mod", ["A", "B"], ["R"], name="remainder"),
    ]
    batching = (
        "max_batch_size: 4 instance_group { count: 1 } "
        "dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 2000000 }"
    )
    write(repository, "together", nodes, rows("A", "B"), rows("Q", "R"), batching)
    write(repository, "alone", nodes, rows("A", "B"), rows("Q", "R"), "max_batch_size: 4")
    with serving(repository) as server:
        yield server


def divided(server: ServerProcess, protocol: Any, model: str, a: list[int], b: list[int]) -> Any:
    """Quotients and remainders, or the error and its status."""
    port = server.http_port if protocol is http else server.grpc_port
    inputs = []
    for name, values in (("A", a), ("B", b)):
        one = protocol.InferInput(name, (1, len(values)), "INT64")
        one.set_data_from_numpy(np.array([values]))
        inputs.append(one)
    with protocol.InferenceServerClient(f"{HOST}:{port}") as client:
        try:
            result = client.infer(model, inputs)
        except InferenceServerException as error:
            return error.status(), error.message()
    return [result.as_numpy(name).tolist()[0] for name in ("Q", "R")]


@pytest.mark.parametrize("model", ["alone", "together"])
@pytest.mark.parametrize(
    ("protocol", "refusal"), [(http, "400"), (grpc, "StatusCode.INVALID_ARGUMENT")], ids=["http", "grpc"]
)
def test_a_bad_divisor_among_good_ones(server: ServerProcess, protocol: Any, refusal: str, model: str) -> None:
    asks = [([7, -7], [2, 2]), ([7, 7], [2, 0]), ([LOWEST, LOWEST], [-1, 3])]
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(divided, server, protocol, model, *ask) for ask in asks]
    good, bad, overflow = [call.result() for call in calls]
    assert good == [[3, -3], [1, 1]]
    assert bad[0] == refusal
    assert bad[1] in [f"{REFUSAL}{node}'" for node in ("quotient", "remainder")]
    assert overflow == [[LOWEST, -((2**63) // 3)], [0, LOWEST % 3]]


def test_the_log_says_what_was_done(server: ServerProcess) -> None:
    for model in ("alone", "together"):
        server.wait_for(f"model '{model}' divides integers in 2 nodes: requests with a divisor 0 are refused")
