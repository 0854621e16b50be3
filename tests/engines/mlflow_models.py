"""Saves models with MLflow, below the directory that is its argument. A program: MLflow takes seconds to import."""

import sys
import warnings
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pyfunc
import mlflow.sklearn
import numpy as np
import pandas
from mlflow.models import ModelSignature, infer_signature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression


class Scaled(mlflow.pyfunc.PythonModel):  # type: ignore[misc, name-defined]
    """Multiplies by a parameter, and fails for -1."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        if (np.asarray(model_input) == -1).any():
            raise ValueError("there is a -1")
        return np.asarray(model_input) * (params or {}).get("factor", 1.0)


class Greeting(mlflow.pyfunc.PythonModel):  # type: ignore[misc, name-defined]
    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        texts = [f"{name} is {age}" for name, age in zip(model_input["name"], model_input["age"], strict=True)]
        return pandas.DataFrame({"text": texts, "length": [len(text) for text in texts]})


class Dated(mlflow.pyfunc.PythonModel):  # type: ignore[misc, name-defined]
    """Of bytes their number, and a date that many days into 2024."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        lengths = [len(bytes(value)) for value in model_input["data"]]
        return pandas.DataFrame(
            {"length": lengths, "day": pandas.Timestamp(2024, 1, 1) + pandas.to_timedelta(lengths, "D")}
        )


def main() -> None:
    warnings.simplefilter("ignore")
    directory = Path(sys.argv[1])
    features, species = load_iris(return_X_y=True)
    frame = pandas.DataFrame(features, columns=["a", "b", "c", "d"])
    iris = LogisticRegression(max_iter=500).fit(frame, species)
    mlflow.sklearn.save_model(
        iris,
        str(directory / "iris"),
        signature=infer_signature(frame, iris.predict(frame)),
        pip_requirements=["scikit-learn"],
        serialization_format="pickle",
    )
    rows = Schema([TensorSpec(np.dtype(np.float32), (-1, 3))])
    columns = Schema([ColSpec(DataType.string, "name"), ColSpec(DataType.long, "age")])
    results = Schema([ColSpec(DataType.string, "text"), ColSpec(DataType.long, "length")])
    several = Schema([ColSpec(DataType.float, "a", required=False), ColSpec(DataType.datetime, "b")])
    data = Schema([ColSpec(DataType.binary, "data")])
    days = Schema([ColSpec(DataType.long, "length"), ColSpec(DataType.datetime, "day")])
    signatures = {
        "dated": (Dated(), ModelSignature(data, days)),
        "scaled": (Scaled(), ModelSignature(rows, rows, ParamSchema([ParamSpec("factor", DataType.double, 1.0)]))),
        "greeting": (Greeting(), ModelSignature(columns, results)),
        "unsigned": (Scaled(), None),
        "columns": (Scaled(), ModelSignature(several, several)),
    }
    for name, (model, signature) in signatures.items():
        path = str(directory / name)
        mlflow.pyfunc.save_model(path, python_model=model, signature=signature, pip_requirements=["numpy"])


if __name__ == "__main__":
    main()
