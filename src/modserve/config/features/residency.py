"""Model parameters ``residency.*``: rules for loading a model into memory and evicting it."""

from collections.abc import Mapping
from typing import Any

from modserve.core.residency import LoadMode, ResidencyRules
from modserve.pb import inference as pb

from ..text.problems import Faults
from .parameters import MAX, ParameterSetting, choice, faults, values, whole_number

PREFIX = "residency."

_SETTINGS: Mapping[str, ParameterSetting] = {
    "residency.load": ParameterSetting("load", choice(**{mode.value: mode for mode in LoadMode})),
    "residency.pin": ParameterSetting("pin", choice(true=True, false=False)),
    "residency.idle_unload_secs": ParameterSetting("idle_ns", whole_number(0, 10**9, MAX // 10**9)),
}


def validate(message: pb.ModelConfig) -> Faults:
    yield from faults(message, (PREFIX,), _SETTINGS)
    for key in message.parameters if message.HasField("ensemble_scheduling") else ():
        if key in _SETTINGS:
            text = f"parameter '{key}' has no meaning for an ensemble, which has no memory of its own"
            yield ("parameters", key), text


def rules(message: pb.ModelConfig) -> ResidencyRules:
    fields: dict[str, Any] = values(message, _SETTINGS)
    return ResidencyRules(**fields)
