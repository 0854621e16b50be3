"""Model parameters whose keys begin with ``residency.``: when a model comes into memory, and when it leaves it."""

from collections.abc import Mapping
from typing import Any

from modserve.core.residency import LoadMode, ResidencyRules
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath
from ..text.suggest import did_you_mean
from .parameters import MAX, ParameterSetting, choice, fault, values, whole_number

PREFIX = "residency."

_SETTINGS: Mapping[str, ParameterSetting] = {
    "residency.load": ParameterSetting("load", choice(**{mode.value: mode for mode in LoadMode})),
    "residency.pin": ParameterSetting("pin", choice(true=True, false=False)),
    "residency.idle_unload_secs": ParameterSetting("idle_ns", whole_number(0, 10**9, MAX // 10**9)),
}


def validate(message: pb.ModelConfig) -> Faults:
    for key, parameter in message.parameters.items():
        if not key.startswith(PREFIX):
            continue
        path: FieldPath = ("parameters", key)
        if key not in _SETTINGS:
            hint = did_you_mean(key, _SETTINGS, f"known parameters are: {', '.join(_SETTINGS)}")
            yield path, f"unknown parameter '{key}'; {hint}"
        elif text := fault(key, parameter.string_value, _SETTINGS[key].read):
            yield path, text
        elif message.HasField("ensemble_scheduling"):
            yield path, f"parameter '{key}' has no meaning for an ensemble, which has no memory of its own"


def rules(message: pb.ModelConfig) -> ResidencyRules:
    fields: dict[str, Any] = values(message, _SETTINGS)
    return ResidencyRules(**fields)
