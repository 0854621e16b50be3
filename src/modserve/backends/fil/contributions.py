"""Feature contributions to a forest's result (SHAP values), for Triton's output ``treeshap_output``.

The libraries of XGBoost and LightGBM compute them for their own files; no other engine for forests does.
"""

import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from modserve.core.errors import invalid
from modserve.core.tensors.tensor import Array

OUTPUT = "treeshap_output"
Contributions = Callable[[Array], Array]
"""Rows of features in; for each of them, class by class, a number for each feature and one for the bias."""

_MODULES = {"xgboost_json": "xgboost", "xgboost_ubj": "xgboost", "xgboost": "xgboost", "lightgbm": "lightgbm"}


def contributions(path: Path, kind: str, threads: int) -> Contributions:
    """Return a function for the contributions. Raises INVALID_ARG for other libraries' files or without the library."""
    module = _MODULES.get(kind)
    if module is None:
        raise invalid(
            f"output '{OUTPUT}' is for files of XGBoost and LightGBM, whose libraries compute it; '{path}' is of type "
            f"'{kind}'. Leave the output out of the configuration"
        )
    try:
        library = import_module(module)
    except ImportError as error:
        raise invalid(
            f"output '{OUTPUT}' needs the library {module}, which is not installed here ({error}): pip install {module}"
        ) from error
    return (_of_xgboost if module == "xgboost" else _of_lightgbm)(library, path, threads)


def _of_xgboost(library: Any, path: Path, threads: int) -> Contributions:
    booster = library.Booster(model_file=str(path))
    booster.set_param({"nthread": threads})
    lock = threading.Lock()

    def compute(rows: Array) -> Array:
        matrix = library.DMatrix(rows, nthread=threads)
        with lock:  # a booster is for one thread at a time
            values = np.asarray(booster.predict(matrix, pred_contribs=True, validate_features=False))
        return values.reshape(len(rows), -1)

    return compute


def _of_lightgbm(library: Any, path: Path, threads: int) -> Contributions:
    booster = library.Booster(model_file=str(path))

    def compute(rows: Array) -> Array:
        values = np.asarray(booster.predict(rows, pred_contrib=True, num_threads=threads))
        return values.reshape(len(rows), -1)

    return compute
