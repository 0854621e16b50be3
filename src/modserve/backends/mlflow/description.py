"""Reader of ``MLmodel`` files without MLflow: the signature as tensors, and the version that saved the model.

The format is described in MLflow's documentation of models and signatures.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from modserve.core.configuration.model_config import DescribedTensor
from modserve.core.errors import invalid
from modserve.core.files import regular_file
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype

FILENAME = "MLmodel"
_PYFUNC = "python_function"
_COLUMNS: Mapping[str, Datatype] = {
    "boolean": dtypes.BOOL,
    "integer": dtypes.INT32,
    "long": dtypes.INT64,
    "float": dtypes.FP32,
    "double": dtypes.FP64,
    "string": dtypes.BYTES,
    "binary": dtypes.BYTES,
    "datetime": dtypes.BYTES,
}
"""Column type → datatype. Dates are ISO 8601 texts."""
_ALIASES = {"str": "BYTES", "object": "BYTES", "bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64"}


@dataclass(frozen=True, slots=True)
class MLmodelFile:
    """An MLmodel file. `inputs` and `outputs` are None without a signature; `parameters` names request parameters."""

    directory: Path
    loader: str
    version: str
    inputs: tuple[DescribedTensor, ...] | None
    outputs: tuple[DescribedTensor, ...] | None
    parameters: tuple[str, ...] = ()


def locate(path: Path) -> Path:
    """Return the directory with the file ``MLmodel``: the directory of `path` or a subdirectory. Raises INVALID_ARG."""
    version = path if path.is_dir() else path.parent
    below = sorted(entry for entry in version.iterdir() if entry.is_dir()) if version.is_dir() else []
    for directory in (version, *below):
        if (directory / FILENAME).is_file():
            return directory
    raise invalid(
        f"unable to find '{version / FILENAME}': the directory that mlflow.….save_model writes must be the "
        f"directory of a version, or be in it"
    )


def read(directory: Path) -> MLmodelFile:
    """Read an MLmodel file. Raises INVALID_ARG if it is invalid, or if its signature cannot be expressed as tensors."""
    path = directory / FILENAME
    try:
        content = yaml.safe_load(regular_file.read_text(path))
        flavor = content["flavors"].get(_PYFUNC)
        if flavor is None:
            names = ", ".join(content["flavors"])
            raise invalid(f"'{path}' lacks the flavor '{_PYFUNC}', which modserve needs; its flavors are {names}")
        signature = content.get("signature") or {}
        return MLmodelFile(
            directory,
            str(flavor["loader_module"]),
            str(content.get("mlflow_version", "")),
            _tensors(signature.get("inputs"), "input", path),
            _tensors(signature.get("outputs"), "output", path),
            tuple(str(each["name"]) for each in json.loads(signature.get("params") or "null") or ()),
        )
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise invalid(f"'{path}' is not a description of an MLflow model: {type(error).__name__}: {error}") from error


def _tensors(text: str | None, prefix: str, path: Path) -> tuple[DescribedTensor, ...] | None:
    specs: list[Mapping[str, Any]] | None = json.loads(text) if text else None
    if specs is None:
        return None
    return tuple(_tensor(spec, str(spec.get("name", f"{prefix}-{index}")), path) for index, spec in enumerate(specs))


def _tensor(spec: Mapping[str, Any], name: str, path: Path) -> DescribedTensor:
    optional = not spec.get("required", not spec.get("optional", False))
    kind = spec["type"]
    if kind == "tensor":
        shape = tuple(int(size) for size in spec["tensor-spec"]["shape"])
        datatype = _datatype(str(spec["tensor-spec"]["dtype"]))
        # The model may omit the dimension of a row with one element.
        return DescribedTensor(name, datatype or _refuse(path, name, kind), shape if len(shape) > 1 else (*shape, 1))
    return DescribedTensor(name, _COLUMNS.get(kind) or _refuse(path, name, kind), (-1, 1), optional)


def _datatype(name: str) -> Datatype | None:
    """Return the datatype of a numpy name."""
    return dtypes.BY_NAME.get(_ALIASES.get(name, name.upper()))


def _refuse(path: Path, name: str, kind: object) -> Datatype:
    raise invalid(
        f"'{path}': '{name}' is of the type '{kind}', which no tensor can have. Write a model.py that converts "
        "the inputs and serve the model with it"
    )
