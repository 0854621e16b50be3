"""Options of the ``sklearn`` backend: model parameters and ``--backend-config`` keys."""

from collections.abc import Mapping
from dataclasses import dataclass

from modserve.core.configuration.model_config import ModelConfig

from ..options import MAX_BATCH_SIZE, options_of, parameters_of, unknown_parameters

METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "score_samples")
"""Methods of estimators with results that can be outputs; requested under their own names."""
ALLOW_PICKLE, TRUSTED = "allow-pickle", "trusted"
BACKEND_OPTIONS: Mapping[str, str] = dict.fromkeys((ALLOW_PICKLE, TRUSTED, MAX_BATCH_SIZE), "")
_KNOWN = ("method", "accelerate")


@dataclass(frozen=True, slots=True)
class Permissions:
    """The operator's permissions for files: to make objects of more types than skops trusts, and to run code."""

    trusted: tuple[str, ...] = ()
    pickles: bool = False


def permissions(options: Mapping[str, str]) -> Permissions:
    """Read the operator's permissions. Raises INVALID_ARG."""
    values = options_of(options)
    names = (name.strip() for name in values.text(TRUSTED).replace(";", ",").split(","))
    return Permissions(tuple(filter(None, names)), values.flag(ALLOW_PICKLE, default=False))


def method(config: ModelConfig) -> str:
    """Read the parameter ``method``; empty if not set. Raises INVALID_ARG."""
    return parameters_of(config).choice("method", METHODS)


def accelerate(config: ModelConfig) -> bool:
    """Return whether forests may run on ONNX Runtime. Raises INVALID_ARG."""
    return parameters_of(config).flag("accelerate", default=True)


def warnings(config: ModelConfig) -> list[str]:
    return unknown_parameters("sklearn", config, _KNOWN)
