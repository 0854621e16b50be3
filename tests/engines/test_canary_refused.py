"""A canary whose engine refuses at run time what the server's own check let pass: it is rolled back."""

import json
import shutil
import time
from collections.abc import Iterator

import pytest
from onnx import TensorProto, helper
from onnx_repository import write
from server_process import ServerProcess, serving
from wire import Answer, http

from modserve.core.runtime.log_limit import LINES_PER_SECOND

pytest.importorskip("onnxruntime")

INDEX = helper.make_tensor_value_info("INDEX", TensorProto.INT64, [1])
OUT = helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [1])
ROUTING = {
    "labels": {"stable": 1, "canary": 2},
    "split": {"stable": 1, "canary": 1},
    "rollback": {"version": "canary", "error_share": 0.2, "least_requests": 10},
}


def rows_of_a_table(count: int) -> list[object]:
    table = helper.make_tensor("table", TensorProto.FLOAT, [count], [0.0] * count)
    return [helper.make_node("Constant", [], ["T"], value=table), helper.make_node("Gather", ["T", "INDEX"], ["OUT"])]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Version 2 of `table` has fewer rows than version 1."""
    repository, spare = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("spare")
    write(repository, "table", rows_of_a_table(100), [INDEX], [OUT], "max_batch_size: 0 version_policy { all { } }")
    smaller = write(spare, "table", rows_of_a_table(10), [INDEX], [OUT])
    shutil.copytree(smaller.parent, repository / "table" / "2")
    with serving(repository, errors=[r"model 'table'"]) as running:
        yield running


def call(server: ServerProcess, path: str, document: object) -> Answer:
    return http(server.http_port, "POST", f"/v2/models/table/{path}", json.dumps(document).encode())


def statuses(server: ServerProcess, index: int, count: int) -> list[int]:
    document = {"inputs": [{"name": "INDEX", "datatype": "INT64", "shape": [1], "data": [index]}]}
    return [call(server, "infer", document).status for _ in range(count)]


def failure_lines(server: ServerProcess) -> int:
    return server.log.count("model 'table': execution failed: onnxruntime refused the request")


def canary_is_back(server: ServerProcess) -> bool:
    answer = http(server.http_port, "GET", "/v2/models/table/routing")
    return "rolled_back" in answer.json["routes"][1]


def test_what_only_the_canary_refuses_rolls_it_back(server: ServerProcess) -> None:
    assert call(server, "routing", ROUTING).status == 200
    assert statuses(server, 50, 40).count(500) == 10
    assert canary_is_back(server)
    assert statuses(server, 50, 10) == [200] * 10


def test_what_both_versions_refuse_does_not(server: ServerProcess) -> None:
    assert call(server, "routing", ROUTING).status == 200
    before, begun = failure_lines(server), time.monotonic()
    assert statuses(server, 500, 200) == [500] * 200
    assert not canary_is_back(server)
    seconds = int(time.monotonic() - begun) + 2  # those that it was in, in part
    lines = failure_lines(server) - before
    assert 0 < lines <= seconds * LINES_PER_SECOND * 2, "each version has its own limit"
    assert "Traceback" not in server.log
