"""Model parameters with limits of a model, and with what its tenants share: ``limits.`` and ``tenants.``"""

from collections.abc import Mapping
from typing import Any

from modserve.core.configuration.model_config import ModelLimits
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath
from ..text.suggest import did_you_mean
from .parameters import MAX, ParameterSetting, choice, fault, values, whole_number

PREFIXES = ("limits.", "tenants.")

_SETTINGS: Mapping[str, ParameterSetting] = {
    "limits.max_accepted_requests": ParameterSetting("max_accepted_requests", whole_number(0)),
    "limits.execution_timeout_ms": ParameterSetting("execution_timeout_ns", whole_number(0, 10**6, MAX // 10**6)),
    "tenants.share_cache": ParameterSetting("share_cache", choice(true=True, false=False)),
}


def validate(message: pb.ModelConfig) -> Faults:
    for key, parameter in message.parameters.items():
        if not key.startswith(PREFIXES):
            continue
        path: FieldPath = ("parameters", key)
        if key not in _SETTINGS:
            hint = did_you_mean(key, _SETTINGS, f"known parameters are: {', '.join(_SETTINGS)}")
            yield path, f"unknown parameter '{key}'; {hint}"
        elif text := fault(key, parameter.string_value, _SETTINGS[key].read):
            yield path, text
        elif message.HasField("ensemble_scheduling") and key.startswith("limits."):
            yield path, f"parameter '{key}' has no meaning for an ensemble: set it for the models of its steps"


def limits(message: pb.ModelConfig) -> ModelLimits:
    fields: dict[str, Any] = values(message, _SETTINGS)
    return ModelLimits(**fields)
