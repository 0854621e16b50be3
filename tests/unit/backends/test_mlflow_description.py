"""What a file ``MLmodel`` says is read without MLflow."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from modserve.backends.mlflow.description import locate, read
from modserve.core.errors import ModserveError


def write(directory: Path, **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    content = {
        "flavors": {"python_function": {"loader_module": "mlflow.sklearn"}, "sklearn": {}},
        "mlflow_version": "3.1.0",
        **changes,
    }
    (directory / "MLmodel").write_text(yaml.safe_dump(content))
    return directory


def column(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


def tensor(dtype: str, *shape: int, **more: Any) -> dict[str, Any]:
    return {"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": list(shape)}, **more}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (column("long", name="age"), ("age", "INT64", (-1, 1), False)),
        (column("double", name="a", required=False), ("a", "FP64", (-1, 1), True)),
        (column("string"), ("input-0", "BYTES", (-1, 1), False)),
        (column("datetime"), ("input-0", "BYTES", (-1, 1), False)),
        (tensor("float32", -1, 28, 28), ("input-0", "FP32", (-1, 28, 28), False)),
        (tensor("int64", -1, name="x"), ("x", "INT64", (-1, 1), False)),
        (tensor("str", -1), ("input-0", "BYTES", (-1, 1), False)),
        (tensor("uint8", -1, 2), ("input-0", "UINT8", (-1, 2), False)),
        (tensor("bool", -1, 2), ("input-0", "BOOL", (-1, 2), False)),
    ],
)
def test_signatures(tmp_path: Path, spec: dict[str, Any], expected: tuple[Any, ...]) -> None:
    description = read(write(tmp_path, signature={"inputs": json.dumps([spec]), "outputs": None, "params": None}))
    assert description.inputs is not None
    (each,) = description.inputs
    assert (each.name, each.datatype.name, each.shape, each.optional) == expected
    assert description.outputs is None


def test_no_signature(tmp_path: Path) -> None:
    description = read(write(tmp_path))
    assert (description.inputs, description.outputs, description.parameters) == (None, None, ())
    assert (description.loader, description.version) == ("mlflow.sklearn", "3.1.0")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"flavors": {"spark": {}}}, "lacks the flavor 'python_function', which modserve needs; its flavors are spark"),
        ({"flavors": None}, "not a description of an MLflow model"),
        ({"signature": {"inputs": "[{"}}, "not a description of an MLflow model"),
        ({"signature": {"inputs": json.dumps([column("map")])}}, "'input-0' is of the type 'map', which no tensor can"),
        ({"signature": {"inputs": json.dumps([tensor("complex64", -1)])}}, "which no tensor can have"),
    ],
)
def test_files_that_are_no_good(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModserveError, match=problem):
        read(write(tmp_path, **changes))


def test_where_the_file_is(tmp_path: Path) -> None:
    version = tmp_path / "1"
    inner = write(version / "model")
    assert locate(version / "MLmodel") == inner
    assert locate(version) == inner
    write(version)
    assert locate(version / "MLmodel") == version
    with pytest.raises(ModserveError, match="unable to find"):
        locate(tmp_path / "2" / "MLmodel")
