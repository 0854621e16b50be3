"""What the containers of Amazon SageMaker and Google's Vertex AI expect of a server: ports, paths and places of models.

Both tell a container by environment variables. What they say are defaults, which options override.
"""

import os
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

Platform: TypeAlias = Literal["none", "sagemaker", "vertex"]

_PORT = "8080"
_SAGEMAKER_MODEL = "/opt/ml/model"
_INFERENCES = ("infer", "generate", "generate_stream")
_OWN_MODELS = ("model_repository", "python_model", "model_file", "example")
"""Settings that say which models to serve: with one of them, those of the platform are not served."""


@dataclass(frozen=True, slots=True)
class PlatformRoutes:
    """The paths by which a platform calls the server, and which calls they are."""

    health: str
    predict: str
    binary_type: str
    """The media type of JSON before binary data, up to the length of that JSON."""
    redirect_header: str = ""
    """Names another call in place of `predict`; empty: none does."""
    instances: bool = False
    """Predictions may have the form ``{"instances": […]}`` as well."""
    model: str = ""
    """Takes the predictions; empty: the only model there is."""
    model_variable: str = ""
    """Where users name it, for messages."""
    call: str = "infer"
    """What a prediction is to the model."""
    registry: str = ""
    """Directory in which models that the platform loads are known; empty: it loads none."""


def complete(
    fields: MutableMapping[str, Any],
    http: MutableMapping[str, Any],
    grpc: MutableMapping[str, Any],
    environment: Mapping[str, str],
) -> None:
    """Add what follows from the platform of `http`, if it has one, to settings that are not made yet.

    Raises ValueError for a variable that is missing or wrong.
    """
    completion = {"sagemaker": _sagemaker, "vertex": _vertex}.get(http.get("platform", "none"))
    if completion is not None:
        grpc.setdefault("allow", "port" in grpc)
        http["routes"] = completion(fields, http, environment)


def _sagemaker(
    fields: MutableMapping[str, Any], http: MutableMapping[str, Any], environment: Mapping[str, str]
) -> PlatformRoutes:
    http.setdefault("port", _port(environment, "SAGEMAKER_BIND_TO_PORT"))
    fields.setdefault("allow_metrics", "metrics_port" in fields)
    call = environment.get("SAGEMAKER_TRITON_INFERENCE_TYPE") or "infer"
    if call not in _INFERENCES:
        raise ValueError(f"SAGEMAKER_TRITON_INFERENCE_TYPE is {call}, expected one of: {', '.join(_INFERENCES)}")
    registry = ""
    if environment.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true":
        registry = _registry()
        _default_models(fields, registry)
        fields.setdefault("model_control_mode", "explicit")
        fields.setdefault("allow_outside_symlinks", True)
    else:
        _default_models(fields, _SAGEMAKER_MODEL)
    variable = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
    return PlatformRoutes(
        health="/ping",
        predict="/invocations",
        binary_type="application/vnd.sagemaker-triton.binary+json;json-header-size=",
        model=environment.get(variable, ""),
        model_variable=variable,
        call=call,
        registry=registry,
    )


def _vertex(
    fields: MutableMapping[str, Any], http: MutableMapping[str, Any], environment: Mapping[str, str]
) -> PlatformRoutes:
    http.setdefault("port", _port(environment, "AIP_HTTP_PORT"))
    if place := environment.get("AIP_STORAGE_URI"):
        _default_models(fields, place)
    return PlatformRoutes(
        health=_route(environment, "AIP_HEALTH_ROUTE"),
        predict=_route(environment, "AIP_PREDICT_ROUTE"),
        binary_type="application/vnd.vertex-ai-triton.binary+json;json-header-size=",
        redirect_header="x-vertex-ai-triton-redirect",
        instances=True,
        model=http.get("vertex_ai_default_model", ""),
        model_variable="--vertex-ai-default-model",
    )


def _default_models(fields: MutableMapping[str, Any], place: str) -> None:
    if not any(fields.get(name) for name in _OWN_MODELS):
        fields["model_repository"] = place


def _port(environment: Mapping[str, str], variable: str) -> int:
    text = environment.get(variable) or _PORT
    if not (text.isascii() and text.isdigit() and 0 <= int(text) < 65536):
        raise ValueError(f"environment variable {variable} is no port: {text}")
    return int(text)


def _route(environment: Mapping[str, str], variable: str) -> str:
    path = environment.get(variable, "")
    if not path.startswith("/"):
        reason = f"is no path: {path}" if path else "is not set, as Vertex AI sets it"
        raise ValueError(f"option '--platform': environment variable {variable} {reason}")
    return path


def _registry() -> str:
    """An empty repository at first. Raises ValueError if somebody else may write to it."""
    path = Path(tempfile.gettempdir()) / "modserve-sagemaker"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        is_own = path.stat().st_uid == os.getuid()
    except OSError as error:
        raise ValueError(f"cannot make the directory {path} for SageMaker's models: {error.strerror}") from None
    if not is_own:
        raise ValueError(f"{path}, the directory for SageMaker's models, belongs to another user")
    return str(path)
