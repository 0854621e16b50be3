"""What ONNX Runtime's arena keeps after many outputs were in use at once goes back, without another execution."""

import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from modserve.backends.onnxruntime import output_memory

MIB = 2**20
MEASURING = """
import sys
import numpy as np, onnxruntime as ort
from modserve.backends.onnxruntime.output_memory import output_memory
from modserve.resources.allocator import resident

session = ort.InferenceSession(sys.argv[1])
memory = output_memory(session)
sizes = [resident()]
held = []
for _ in range(100):
    output = session.run(None, {"N": np.array([2**20]), "X": np.zeros((1, 3), np.float32)})[0]
    memory.hold(output)
    held.append(output)
del output
sizes += [resident(), memory.spare()]
held.clear()
sizes += [resident(), memory.spare(), memory.spare()]
memory.give_back()
print(*sizes, resident(), memory.spare())
"""


def write_graph(path: Path, element_type: str = "FLOAT") -> None:
    """OUT has N elements; X is an input that is only looked at."""
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
    graph = helper.make_graph(
        [
            helper.make_node("ConstantOfShape", ["N"], ["OUT"], value=value),
            helper.make_node("Shape", ["X"], ["SHAPE"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("N", TensorProto.INT64, [1]),
            helper.make_tensor_value_info("X", getattr(TensorProto, element_type), ["n", 3]),
        ],
        [
            helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["m"]),
            helper.make_tensor_value_info("SHAPE", TensorProto.INT64, [2]),
        ],
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_the_memory_goes_back(tmp_path: Path) -> None:
    write_graph(tmp_path / "model.onnx")
    command = [sys.executable, "-c", MEASURING, str(tmp_path / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    before, held, spare, kept, soon, spare_then, after, spare_after = map(int, done.stdout.split())
    assert done.stderr == "", "nothing is said of the run that is broken off"
    assert held - before > 390 * MIB
    assert spare == 0, "all of it was in use"
    assert kept > held - 10 * MIB, "the fault is still there"
    assert (soon, spare_then, spare_after) == (0, 400 * MIB, 0), "spare is what was not used between two looks"
    assert after < before + 20 * MIB


@pytest.mark.parametrize("element_type", ["FLOAT", "STRING", "BFLOAT16"])
def test_inputs_of_all_kinds_are_made_up(tmp_path: Path, element_type: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    write_graph(tmp_path / "model.onnx", element_type)
    memory = output_memory.output_memory(ort.InferenceSession(str(tmp_path / "model.onnx")))
    assert memory is not None
    memory.give_back()
    assert caplog.text == "", "the run went as far as it should"


def test_without_the_arena_there_is_nothing_to_give_back(tmp_path: Path) -> None:
    write_graph(tmp_path / "model.onnx")
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    assert output_memory.output_memory(ort.InferenceSession(str(tmp_path / "model.onnx"), options)) is None
