"""Models of tens of megabytes whose answers tell which of them has responded."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STEP = 1000.0


def write_table(repository: Path, name: str, number: int, megabytes: int = 30, config: str = "") -> None:
    """An ONNX model with a table of numbers in memory: IN → its entry, which is IN + 1000 * `number` for IN < 1000."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    count = megabytes * 1_000_000 // 4
    table = np.random.default_rng(number).random(count, dtype=np.float32)  # nothing can be made smaller by the engine
    table[:1000] = np.arange(1000) + STEP * number
    graph = helper.make_graph(
        [helper.make_node("Gather", ["TABLE", "IN"], ["OUT"])],
        name,
        [helper.make_tensor_value_info("IN", TensorProto.INT32, [1])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(table, "TABLE")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, directory / "model.onnx")
    if config:
        (repository / name / "config.pbtxt").write_text(config)


TENSORS = """
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
"""


def own_memory(pid: int) -> int:
    """Bytes of memory that a process has, without what it shares."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssFile:")))
