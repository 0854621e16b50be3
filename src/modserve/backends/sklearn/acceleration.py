"""Forests of scikit-learn on ONNX Runtime: a row takes microseconds, not the milliseconds of scikit-learn.

scikit-learn's trees compare FP32 features with FP64 thresholds, and the converted models do exactly the same.
HistGradientBoosting compares FP64 features, so only types with an exact FP32 representation are computed here. Leaf
sums are FP32: probabilities may differ by a millionth or less. A forest is used only if results for samples agree. A
row of a random forest takes 7 µs instead of 3,353 (benchmarks/trees.py).
"""

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modserve.core.tensors.tensor import Array

from .. import catalogue

_log = logging.getLogger(__name__)

_CLASSIFIERS = frozenset(
    {"RandomForestClassifier", "ExtraTreesClassifier", "GradientBoostingClassifier", "HistGradientBoostingClassifier"}
)
_REGRESSORS = frozenset(
    {"RandomForestRegressor", "ExtraTreesRegressor", "GradientBoostingRegressor", "HistGradientBoostingRegressor"}
)


@dataclass(frozen=True, slots=True)
class AcceleratedForest:
    """A forest. `classes` are a classifier's labels, None for a regressor; `predictor` comes from ``fil``.

    `double`: the estimator compares FP64 features.
    """

    predictor: Any
    classes: Array | None
    version: str
    double: bool = False

    def computes(self, method: str) -> bool:
        return method == "predict" or (self.classes is not None and method == "predict_proba")

    def compute(self, method: str, rows: Any) -> Array | None:
        """Compute a method of the estimator, in the form of `shapes.as_tensor`; None if only the estimator can."""
        if not self.computes(method):
            return None
        if not isinstance(rows, np.ndarray) or not _computable(rows.dtype, self.double):
            return None
        features = np.ascontiguousarray(rows, np.float32)
        if not np.isfinite(features).all():  # estimators differ in which of these they reject
            return None
        numbers: Array = self.predictor(features)
        if self.classes is None:
            return numbers.astype(np.float64)
        if numbers.shape[1] == 1:
            numbers = np.concatenate([1 - numbers, numbers], axis=1)
        if method == "predict_proba":
            return numbers.astype(np.float64)
        labels: Array = self.classes[np.argmax(numbers, axis=1)]
        return labels[:, None]


def computable(estimator: Any, dtype: np.dtype[Any]) -> bool:
    """Return True if features of this type can be computed without loss of precision."""
    return _computable(dtype, _double(estimator))


def _computable(dtype: np.dtype[Any], double: bool) -> bool:
    if dtype.kind not in "fiub" or dtype == np.float64:
        return False
    return not double or np.can_cast(dtype, np.float32)


def _double(estimator: Any) -> bool:
    return type(estimator).__name__.startswith("HistGradientBoosting")


def accelerate(estimator: Any, threads: int) -> AcceleratedForest | None:
    """Convert a forest; None if not a forest, with several outputs or categories, or without Treelite."""
    kind = type(estimator).__name__
    if not type(estimator).__module__.startswith("sklearn.ensemble.") or kind not in _CLASSIFIERS | _REGRESSORS:
        return None
    if not catalogue.BY_BACKEND["fil"].installed:
        _log.info("a %s would be many times faster with %s", kind, catalogue.BY_BACKEND["fil"].install)
        return None
    if getattr(estimator, "n_outputs_", 1) != 1:
        return None
    try:
        return _convert(estimator, threads)
    except Exception as error:  # Treelite is older than scikit-learn or cannot be imported; scikit-learn runs instead
        _log.info("a %s runs on scikit-learn, because Treelite cannot load it: %s", kind, error)
        return None


def _convert(estimator: Any, threads: int) -> AcceleratedForest | None:
    import treelite

    from ..fil import reader
    from ..fil.forest import load_forest
    from ..fil.predictors import OnnxPredictor
    from .shapes import as_tensor

    with tempfile.TemporaryDirectory(prefix="modserve-") as folder:
        file = Path(folder) / "forest.npz"
        reader.write(treelite.sklearn.import_model(estimator), str(file), False)
        forest = load_forest(file)
    if forest.obstacle:
        _log.info("a %s runs on scikit-learn: %s", type(estimator).__name__, forest.obstacle)
        return None
    classes = None
    if type(estimator).__name__ in _CLASSIFIERS:
        classes = as_tensor("classes_", estimator.classes_)[:, 0]
    fast = AcceleratedForest(OnnxPredictor(forest, threads), classes, OnnxPredictor.version, _double(estimator))
    samples = np.nan_to_num(forest.arrays["samples"])
    method = "predict" if classes is None else "predict_proba"
    expected, actual = as_tensor(method, getattr(estimator, method)(samples)), fast.compute(method, samples)
    if actual is None or not np.allclose(actual, expected, rtol=1e-4, atol=1e-5):
        _log.warning("a %s runs on scikit-learn: the results of ONNX Runtime differ", type(estimator).__name__)
        return None
    return fast
