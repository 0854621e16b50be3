"""What KServe v1 and TensorFlow Serving say of models."""

from typing import Any

import pytest

from modserve.core.configuration.model_config import TensorSpec
from modserve.core.errors import Code, ModserveError, not_found, unavailable
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.version import ModelId
from modserve.protocol.http import v1_models
from modserve.testing import config


def entry(version: int | None, state: LifecycleState, reason: str = "") -> IndexEntry:
    return IndexEntry("m", version, state, reason)


def status(version: str, state: str, code: str = "OK", message: str = "") -> dict[str, Any]:
    return {"version": version, "state": state, "status": {"error_code": code, "error_message": message}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (entry(1, LifecycleState.UNKNOWN), status("1", "START")),
        (entry(1, LifecycleState.LOADING), status("1", "LOADING")),
        (entry(1, LifecycleState.READY), status("1", "AVAILABLE")),
        (entry(1, LifecycleState.UNLOADING), status("1", "UNLOADING")),
        (entry(1, LifecycleState.UNAVAILABLE, "unloaded"), status("1", "END")),
        (entry(7, LifecycleState.UNAVAILABLE, "Internal: a: b"), status("7", "END", "INTERNAL", "a: b")),
        (entry(1, LifecycleState.UNAVAILABLE, "Invalid argument: x"), status("1", "END", "INVALID_ARGUMENT", "x")),
        (entry(1, LifecycleState.UNAVAILABLE, "Unsupported: x"), status("1", "END", "UNIMPLEMENTED", "x")),
        (entry(1, LifecycleState.UNAVAILABLE, "odd: x"), status("1", "END", "UNKNOWN", "odd: x")),
    ],
    ids=lambda value: str(value.reason or value.state.value) if isinstance(value, IndexEntry) else "",
)
def test_the_state_of_a_version(given: IndexEntry, expected: dict[str, Any]) -> None:
    assert v1_models.status_json([given]) == {"model_version_status": [expected]}


def test_the_latest_version_comes_first() -> None:
    entries = [entry(2, LifecycleState.READY), entry(10, LifecycleState.LOADING), entry(1, LifecycleState.READY)]
    found: Any = v1_models.model_json("m", True, entries)
    assert [each["version"] for each in found.pop("model_version_status")] == ["10", "2", "1"]
    assert found == {"name": "m", "ready": True}


def test_a_model_that_is_not_ready() -> None:
    problem = entry(None, LifecycleState.UNAVAILABLE, "Invalid argument: max_batch_size")
    assert v1_models.model_json("m", False, [problem]) == {
        "error": "Model with name m is not ready. Invalid argument: max_batch_size",
        "name": "m",
        "ready": False,
        "model_version_status": [],
    }
    loading: Any = v1_models.model_json("m", False, [entry(1, LifecycleState.LOADING)])
    assert loading["error"] == "Model with name m is not ready."


class Described:
    """As much of a servable as metadata reads."""

    def __init__(self, datatype: Datatype, max_batch_size: int) -> None:
        self.id = ModelId("m", 3)
        self.config = config(
            "m",
            inputs=(TensorSpec("x", datatype, (-1, 2)),),
            outputs=(TensorSpec("y", datatype, ()),),
            max_batch_size=max_batch_size,
        )


def dims(*sizes: str) -> dict[str, Any]:
    return {"dim": [{"size": size, "name": ""} for size in sizes], "unknown_rank": False}


def test_metadata() -> None:
    described: Any = Described(dtypes.FP32, 8)
    assert v1_models.metadata_json(described) == {
        "model_spec": {"name": "m", "signature_name": "", "version": "3"},
        "metadata": {
            "signature_def": {
                "signature_def": {
                    "serving_default": {
                        "inputs": {"x": {"dtype": "DT_FLOAT", "tensor_shape": dims("-1", "-1", "2"), "name": "x"}},
                        "outputs": {"y": {"dtype": "DT_FLOAT", "tensor_shape": dims("-1"), "name": "y"}},
                        "method_name": "tensorflow/serving/predict",
                    }
                }
            }
        },
    }


OWN_NAMES = {"FP16": "HALF", "BF16": "BFLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE", "BYTES": "STRING"}


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
def test_tensorflow_s_names_of_datatypes(datatype: Datatype) -> None:
    described: Any = Described(datatype, 0)
    found: Any = v1_models.metadata_json(described)
    info = found["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]["x"]
    assert (info["dtype"], info["tensor_shape"]) == (
        f"DT_{OWN_NAMES.get(datatype.name, datatype.name)}",
        dims("-1", "2"),
    )


STOPPING = unavailable("Server not ready")


@pytest.mark.parametrize(
    ("version", "known", "error", "expected"),
    [
        (None, False, not_found("x"), not_found("Model with name m does not exist.")),
        (None, True, not_found("x"), unavailable("Model with name m is not ready.")),
        (9, True, not_found("x"), not_found("Servable not found for request: Specific(m, 9)")),
        (9, False, not_found("x"), not_found("Servable not found for request: Specific(m, 9)")),
        (9, True, unavailable("y"), unavailable("y")),
        (None, True, STOPPING, STOPPING),
    ],
    ids=["no model", "no version ready", "no version", "neither", "a version that is not ready", "stopping"],
)
def test_models_that_are_not_there(
    version: int | None, known: bool, error: ModserveError, expected: ModserveError
) -> None:
    found = v1_models.absent("m", version, error, known=known)
    assert (found.code, found.message) == (expected.code, expected.message)


def test_every_refused_method_says_why() -> None:
    for method in ("explain", "classify", "regress"):
        error = v1_models.no_method(method)
        assert error.code is Code.UNSUPPORTED
        assert error.message.startswith(f"'{method}' is not supported: ")
