"""The memory of a model that was unloaded comes back, however often it is loaded."""

import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from server_process import ServerProcess, eventually, serving
from wire import http

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("UNLOAD_ROUNDS", "40"))
MEGABYTES = 50
FIRST = 10
MORE = 1.05


def write_heavy(folder: Path) -> None:
    """y = x @ weights, of 50 MB."""
    rows, columns = 1024, MEGABYTES * 2**20 // 4 // 1024
    weights = np.random.default_rng(0).random((rows, columns), np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", rows])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])
    node = helper.make_node("MatMul", ["x", "weights"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weights, "weights")])
    folder.mkdir(parents=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )


def resident_mb(server: ServerProcess) -> float:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_the_memory_of_unloaded_models_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_heavy(tmp_path / "heavy" / "1")
    with serving(tmp_path, options=["--model-control-mode=explicit"]) as server:
        call = "/v2/repository/models/heavy/"
        sizes: list[float] = []
        began = time.monotonic()
        for _ in range(ROUNDS):
            assert http(server.http_port, "POST", call + "load").status == 200
            assert http(server.http_port, "POST", call + "unload").status == 200
            eventually(lambda: b'"unloaded"' in http(server.http_port, "POST", "/v2/repository/index").body)
            sizes.append(resident_mb(server))
        seconds = time.monotonic() - began
    tenth, last = sizes[FIRST - 1], sizes[-1]
    with capsys.disabled():
        print(
            f"\n{ROUNDS} rounds of {MEGABYTES} MB in {seconds:.1f} s: {tenth:.0f} MB after the tenth, {last:.0f} MB "
            f"after the last ({last / tenth:.2f}), {max(sizes):.0f} MB at most"
        )
    assert last <= MORE * tenth
