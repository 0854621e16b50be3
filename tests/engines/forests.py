"""Forests trained on scikit-learn's data, and the repositories that serve them. Each is trained once in a process."""

import functools
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import threadpoolctl
import treelite
import xgboost
from sklearn import datasets, ensemble

from modserve.core.tensors.tensor import Array

Loaded = tuple[Array, Array]


@functools.cache
def data(name: str) -> Loaded:
    """FP32 rows of ``iris``, ``breast_cancer``, ``diabetes`` or ``digits``, as clients send them, and their labels."""
    features, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    return features.astype(np.float32), labels


@functools.cache
def xgboost_model(name: str, **more: Any) -> Any:
    kind = xgboost.XGBRegressor if name == "diabetes" else xgboost.XGBClassifier
    return kind(n_estimators=20, max_depth=4, n_jobs=1, **more).fit(*data(name))


@functools.cache
def lightgbm_model(name: str) -> Any:
    kind = lightgbm.LGBMRegressor if name == "diabetes" else lightgbm.LGBMClassifier
    return kind(n_estimators=20, n_jobs=1, verbose=-1).fit(*data(name))


@functools.cache
def sklearn_model(kind: str, name: str) -> Any:
    more = {"max_iter": 10} if kind.startswith("Hist") else {"n_estimators": 20}
    with threadpoolctl.threadpool_limits(1):
        return getattr(ensemble, kind)(random_state=0, **more).fit(*data(name))


def checkpoint(model: Any, path: Path) -> None:
    treelite.sklearn.import_model(model).serialize(str(path))


def write(repository: Path, name: str, model: Any, filename: str, config: str = "") -> Path:
    """A model directory with one version, in the format of the file's name. Returns the version directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    path = version / filename
    if filename.endswith(".tl"):
        checkpoint(model, path)
    elif filename.endswith(".txt"):
        model.booster_.save_model(str(path))
    elif filename.endswith(".model"):  # XGBoost writes UBJSON into one of this name, and a warning
        model.save_model(str(path.with_suffix(".ubj")))
        path.with_suffix(".ubj").rename(path)
    else:
        model.save_model(str(path))
    if config:
        (repository / name / "config.pbtxt").write_text(config)
    return version


def config(features: int, columns: int, more: str = "", **parameters: str) -> str:
    """As Triton's documentation writes one."""
    text = "\n".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' for key, value in parameters.items()
    )
    return f"""
backend: "fil"
max_batch_size: 1024
input [ {{ name: "input__0" data_type: TYPE_FP32 dims: [ {features} ] }} ]
output [ {{ name: "output__0" data_type: TYPE_FP32 dims: [ {columns} ] }} {more} ]
instance_group [ {{ kind: KIND_AUTO }} ]
{text}
dynamic_batching {{ }}
"""
