"""Model information in KServe v1 and TensorFlow Serving's REST API: status, metadata, and errors for missing models.

Where the two share a URL one response serves both, and failures have KServe's texts; URLs with a version, a label or
``metadata`` are TensorFlow Serving's, and so are their texts.
"""

from collections.abc import Iterable

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError, not_found, unavailable, unsupported
from modserve.core.lifecycle import UNLOADED, IndexEntry, LifecycleState
from modserve.core.servable import Servable
from modserve.protocol.failures import STATUS
from modserve.protocol.http.v1_predict_request import SIGNATURE
from modserve.protocol.json.json_text import JsonObject

_STATES = {
    LifecycleState.UNKNOWN: "START",
    LifecycleState.LOADING: "LOADING",
    LifecycleState.READY: "AVAILABLE",
    LifecycleState.UNLOADING: "UNLOADING",
    LifecycleState.UNAVAILABLE: "END",
}
_ERROR_CODES = {code.value: spelling.grpc_name for code, spelling in STATUS.items()}
_DTYPES = {"FP16": "DT_HALF", "BF16": "DT_BFLOAT16", "FP32": "DT_FLOAT", "FP64": "DT_DOUBLE", "BYTES": "DT_STRING"}
"""TensorFlow's names of the datatypes that are not named ``DT_`` and ours there."""

_METHODS = {
    "explain": "no model here has an explainer",
    "classify": "it takes tf.Example records, which no model here accepts; use :predict",
    "regress": "it takes tf.Example records, which no model here accepts; use :predict",
}


def status_json(entries: Iterable[IndexEntry]) -> JsonObject:
    """Return ``GetModelStatusResponse``: the versions in `entries`, the latest first, in TensorFlow Serving's words."""
    versions = {entry.version: entry for entry in entries if entry.version is not None}
    return {
        "model_version_status": [
            {"version": str(version), "state": _STATES[entry.state], "status": _status(entry.reason)}
            for version, entry in sorted(versions.items(), reverse=True)
        ]
    }


def model_json(name: str, ready: bool, entries: Iterable[IndexEntry]) -> JsonObject:
    """Return the status of a model for clients of both kinds; one that is not ready says so in ``error`` too."""
    listed = list(entries)
    document: JsonObject = {"name": name, "ready": ready, **status_json(listed)}
    if not ready:
        problems = [entry.reason for entry in listed if entry.version is None and entry.reason]
        document = {"error": " ".join([_not_ready(name), *problems]), **document}
    return document


def metadata_json(servable: Servable) -> JsonObject:
    """Return ``GetModelMetadataResponse`` with the model's one signature."""
    config = servable.config
    signature = {
        "inputs": {spec.name: _tensor_info(config, spec) for spec in config.inputs},
        "outputs": {spec.name: _tensor_info(config, spec) for spec in config.outputs},
        "method_name": "tensorflow/serving/predict",
    }
    return {
        "model_spec": {"name": servable.id.name, "signature_name": "", "version": str(servable.id.version)},
        "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}},
    }


def absent(name: str, version: int | None, error: ModserveError, *, known: bool) -> ModserveError:
    """Return a prediction's error for `error`, why a model version is missing. `known`: the model is listed.

    UNAVAILABLE, for a stopping server or a version that is not ready, stays as it is.
    """
    if error.code is not Code.NOT_FOUND:
        return error
    if version is not None:
        return unservable(name, version)
    return unavailable(_not_ready(name)) if known else unknown(name)


def unknown(name: str) -> ModserveError:
    return not_found(f"Model with name {name} does not exist.")


def unknown_version(name: str, version: int) -> ModserveError:
    return not_found(f"Could not find version {version} of model {name}")


def unservable(name: str, version: int | None) -> ModserveError:
    servable = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return not_found(f"Servable not found for request: {servable}")


def unknown_label(label: str) -> ModserveError:
    """Return NOT_FOUND: the model has no version labels."""
    return not_found(
        f"Unrecognized servable version label: {label}: this server has no version labels, use /versions/<number>"
    )


def no_method(method: str) -> ModserveError:
    """Return UNSUPPORTED for a method that clients of either kind may call, and no model has."""
    return unsupported(f"'{method}' is not supported: {_METHODS[method]}")


def _not_ready(name: str) -> str:
    return f"Model with name {name} is not ready."


def _status(reason: str) -> JsonObject:
    if reason in ("", UNLOADED):
        return {"error_code": "OK", "error_message": ""}
    kind, _, message = reason.partition(": ")
    code = _ERROR_CODES.get(kind)
    return {"error_code": code or "UNKNOWN", "error_message": message if code else reason}


def _tensor_info(config: ModelConfig, spec: TensorSpec) -> JsonObject:
    dims = [{"size": str(size), "name": ""} for size in config.full_dims(spec)]
    name = spec.datatype.name
    return {
        "dtype": _DTYPES.get(name, f"DT_{name}"),
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": spec.name,
    }
