"""What the programs of this folder share: the models that MODELS_FOLDER holds, each run in one thread."""

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime as ort

FOLDER = Path(os.environ["MODELS_FOLDER"])
DESCRIPTIONS = json.loads((FOLDER / "models.json").read_text())
NAMES = list(DESCRIPTIONS)


class OnnxModel:
    def __init__(self, name):
        self.outputs = DESCRIPTIONS[name]["outputs"]
        self.inputs = {key: np.dtype(value) for key, value in DESCRIPTIONS[name]["inputs"].items()}
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(FOLDER / f"{name}.onnx", options, providers=["CPUExecutionProvider"])

    def run(self, feeds):
        """Arrays by name in, arrays by name out."""
        return dict(zip(self.outputs, self._session.run(self.outputs, feeds), strict=True))

    def run_lists(self, lists):
        """Nested lists by name in, as JSON has them, and out."""
        outputs = self.run({key: np.asarray(lists[key], dtype) for key, dtype in self.inputs.items()})
        return {key: value.tolist() for key, value in outputs.items()}
