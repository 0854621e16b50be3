"""`--server-timing`: each answer says what it has cost."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server
from tritonclient.grpc import service_pb2
from wire import SECONDS, Ask, channel, http, http_infer, message, stub

COST = re.compile(
    r"queue;dur=\d+\.\d{3}, compute_input;dur=\d+\.\d{3}, compute_infer;dur=\d+\.\d{3}, "
    r'compute_output;dur=\d+\.\d{3}, batch;desc="(\d)"'
)


REPEAT = [
    {"name": "IN", "datatype": "INT32", "shape": [2], "data": [7, 8]},
    {"name": "DELAY", "datatype": "UINT32", "shape": [2], "data": [0, 0]},
    {"name": "WAIT", "datatype": "UINT32", "shape": [1], "data": [0]},
]
SIMPLE = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")]


def batch_size(cost: str) -> int:
    found = COST.fullmatch(cost)
    assert found is not None, cost
    return int(found[1])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving_here(EXAMPLES, options=["--server-timing=true"]) as running:
        yield running


def test_over_every_protocol(server: Server) -> None:
    for _ in range(2):  # the second time by the short cut
        assert batch_size(http_infer(server.http_port, Ask()).headers["Server-Timing"]) == 1
    assert "Server-Timing" not in http_infer(server.http_port, Ask(model="nosuch")).headers
    for rows, sizes in ((1, {1}), (9, {1, 8})):  # batches of more than 8 are cut up
        body = json.dumps({"instances": [{"INPUT0": [1] * 16, "INPUT1": [2] * 16}] * rows})
        answer = http(server.http_port, "POST", "/v1/models/simple:predict", body.encode())
        assert batch_size(answer.headers["server-timing"]) in sizes
    body = json.dumps({tensor["name"]: tensor["data"] for tensor in SIMPLE})
    answer = http(server.http_port, "POST", "/v2/models/simple/generate", body.encode())
    assert batch_size(answer.headers["Server-Timing"]) == 1
    with channel(server.grpc_port) as opened:
        _, call = stub(opened).ModelInfer.with_call(message(Ask()), timeout=SECONDS)
    (cost,) = [value for key, value in call.trailing_metadata() if key == "server-timing"]
    assert batch_size(cost) == 1


def last(parameters: Any) -> bool:
    """Whether this is the last message; only that one tells the cost."""
    found = "server_timing" in parameters
    if found:
        assert batch_size(parameters["server_timing"]) == 1
    return found


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [("simple", SIMPLE, [True]), ("repeat", REPEAT, [False, False, True])],
    ids=["one response", "many"],
)
def test_on_a_stream_over_http(server: Server, model: str, inputs: Any, expected: list[bool]) -> None:
    headers = {"Accept": "application/x-ndjson"}
    body = json.dumps({"inputs": inputs}).encode()
    answer = http(server.http_port, "POST", f"/v2/models/{model}/infer_stream", body, headers)
    assert [last(json.loads(line)["parameters"]) for line in answer.body.splitlines()] == expected


def test_on_a_stream_over_grpc(server: Server) -> None:
    repeat = service_pb2.ModelInferRequest(model_name="repeat")
    repeat.parameters["triton_enable_empty_final_response"].bool_param = True
    for tensor in REPEAT:
        given = repeat.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        values = given.contents.int_contents if given.datatype == "INT32" else given.contents.uint_contents
        values.extend(tensor["data"])
    with channel(server.grpc_port) as opened:
        for request, expected in ((message(Ask()), [True]), (repeat, [False, False, True])):
            answers = stub(opened).ModelStreamInfer(iter([request]), timeout=SECONDS)
            told = [each.infer_response.parameters for each in answers]
            assert [
                last({name: value.string_param for name, value in parameters.items()}) for parameters in told
            ] == expected
