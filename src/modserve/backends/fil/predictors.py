"""The predictors of forests: ONNX Runtime, or Treelite where ONNX has no operator (``benchmarks/trees.py``)."""

from typing import Protocol

import numpy as np

from modserve.core.errors import internal
from modserve.core.tensors.tensor import Array

from ..onnxruntime import SILENT
from ..onnxruntime import onnxruntime as ort
from . import graph
from .forest import Forest


class Predictor(Protocol):
    """Function from ``[rows, features]`` to the forest's numbers, ``[rows, columns]``. For several threads at once."""

    engine: str
    version: str
    precision: str

    def __call__(self, rows: Array) -> Array: ...


class OnnxPredictor:
    engine = "ONNX Runtime"
    version = ort.__version__
    precision = "fp32"

    def __init__(self, forest: Forest, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = SILENT
        # Most executions take microseconds: threads that wait for the next one would keep other models from the cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(
            graph.model(forest), options, providers=["CPUExecutionProvider"], enable_fallback=0
        )

    def __call__(self, rows: Array) -> Array:
        output: Array = self._session.run(None, {graph.INPUT: rows})[0]
        return output


class TreelitePredictor:
    engine = "Treelite"

    def __init__(self, forest: Forest, threads: int) -> None:
        import treelite

        if forest.checkpoint is None:
            raise internal("there is no checkpoint of this forest for Treelite; this is a bug")
        self.version = str(treelite.__version__)
        self.precision = "fp64" if forest.double else "fp32"
        self._predict = treelite.gtil.predict
        self._model = treelite.Model.deserialize_bytes(forest.checkpoint)
        self._threads = threads

    def __call__(self, rows: Array) -> Array:
        output: Array = self._predict(self._model, rows, nthread=self._threads)
        return output.reshape(len(rows), -1)


def agrees(predictor: Predictor, forest: Forest) -> bool:
    """Return True if it reproduces Treelite's results for the forest's samples, computed when the file was read."""
    expected = forest.arrays["expected"].reshape(len(forest.arrays["samples"]), -1)
    actual = predictor(forest.arrays["samples"])
    return bool(np.allclose(actual, expected, rtol=1e-3, atol=1e-4 * max(1e-3, float(np.abs(expected).max()))))
