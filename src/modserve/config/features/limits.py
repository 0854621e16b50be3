"""Model parameters with limits of a model, and with what its tenants share: ``limits.`` and ``tenants.``"""

from collections.abc import Mapping
from typing import Any

from modserve.core.configuration.model_config import ModelLimits
from modserve.pb import inference as pb

from ..text.problems import Faults
from .parameters import MAX, ParameterSetting, choice, faults, values, whole_number

PREFIXES = ("limits.", "tenants.")

_SETTINGS: Mapping[str, ParameterSetting] = {
    "limits.max_accepted_requests": ParameterSetting("max_accepted_requests", whole_number(0)),
    "limits.execution_timeout_ms": ParameterSetting("execution_timeout_ns", whole_number(0, 10**6, MAX // 10**6)),
    "tenants.share_cache": ParameterSetting("share_cache", choice(true=True, false=False)),
}


def validate(message: pb.ModelConfig) -> Faults:
    yield from faults(message, PREFIXES, _SETTINGS)
    for key in message.parameters if message.HasField("ensemble_scheduling") else ():
        if key.startswith("limits.") and key in _SETTINGS:
            text = f"parameter '{key}' has no meaning for an ensemble: set it for the models of its steps"
            yield ("parameters", key), text


def limits(message: pb.ModelConfig) -> ModelLimits:
    fields: dict[str, Any] = values(message, _SETTINGS)
    return ModelLimits(**fields)
