"""What a worker process does to the memory that it shares with the server, and to itself, harms no one else."""

from pathlib import Path

import numpy as np
import pytest
from python_models import infer, serving_python, tensors, write_python

TRUNCATES = """
import os

def files():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:model"):
                yield int(name)
        except OSError:
            pass  # it was the one for the directory

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            cut = 0
            for fd in files():
                before = os.fstat(fd).st_size
                try:
                    os.ftruncate(fd, 0)
                except PermissionError:
                    pass
                cut += before - os.fstat(fd).st_size
            made = [pb_utils.Tensor("OUT", array + 1), pb_utils.Tensor("CUT", np.array([cut], np.int64))]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_that_cuts_the_shared_memory_off(tmp_path: Path, protocol: str) -> None:
    config = tensors("input", IN="FP32 -1") + tensors("output", OUT="FP32 -1", CUT="INT64 1")
    write_python(tmp_path, "cutter", TRUNCATES, config, modes=("process",))
    with serving_python(tmp_path) as server:
        array = np.arange(1 << 20, dtype=np.float32)
        for size in (1 << 20, 1 << 10, 1 << 19):
            outputs = infer(server, protocol, "cutter_process", {"IN": array[:size]})
            assert not outputs.message
            assert np.array_equal(outputs.outputs["OUT"], array[:size] + 1)
            assert outputs["CUT"] == [0]
