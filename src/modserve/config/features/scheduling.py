"""Model parameters whose keys begin with ``scheduling.``: more settings for dynamic batching, and admission."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from modserve.core.model_config import Admission, ModelConfig
from modserve.pb import inference as pb

from ..text.problems import Faults
from ..text.suggest import did_you_mean
from .feature import Context, Feature
from .parameters import Setting, ascending, choice, fault, names, special_scheduling, values, whole_number

PREFIX = "scheduling."
_BATCHING: Final = "dynamic_batching"
_ADMISSION = "scheduling.admission"
_AGEING = "scheduling.ageing_microseconds"
_P99_GOAL = "scheduling.p99_goal_microseconds"
_MAX_DELAY = "scheduling.max_delay_microseconds"
_LATENCY_GOAL = "scheduling.latency_goal_microseconds"

BATCHER: Mapping[str, Setting] = {
    "scheduling.look_ahead": Setting("look_ahead", whole_number(0)),
    _AGEING: Setting("ageing_ns", whole_number(0, scale=1000)),
    "scheduling.separate_by": Setting("separate_by", names),
    "scheduling.batch_sizes": Setting("batch_sizes", ascending),
    "scheduling.max_batch_elements": Setting("max_batch_elements", whole_number(1)),
    _P99_GOAL: Setting("p99_goal_ns", whole_number(1, scale=1000)),
    _MAX_DELAY: Setting("tuned_delay_limit_ns", whole_number(1, scale=1000), needs=_P99_GOAL),
}
"""The fields of `core.model_config.DynamicBatching`."""
ADMISSION: Mapping[str, Setting] = {
    _ADMISSION: Setting("by_deadline", choice(off=False, deadline=True)),
    _LATENCY_GOAL: Setting("latency_goal_ns", whole_number(1, scale=1000), needs=_ADMISSION),
    "scheduling.overload_status": Setting("too_many", choice(**{"503": False, "429": True})),
}
"""The fields of `core.model_config.Admission`, which any model may have."""
SETTINGS: Mapping[str, Setting] = {**BATCHER, **ADMISSION}


def _validate(message: pb.ModelConfig, context: Context) -> Faults:
    for key, parameter in message.parameters.items():
        if key.startswith(PREFIX):
            for text in _faults(key, parameter.string_value, message):
                yield ("parameters", key), text
    if _AGEING in message.parameters and message.HasField(_BATCHING) and message.dynamic_batching.priority_levels < 2:
        yield ("parameters", _AGEING), f"parameter '{_AGEING}' needs priority_levels of 2 or more"
    yield from _goal_faults(message)


def _faults(key: str, text: str, message: pb.ModelConfig) -> Iterator[str]:
    setting = SETTINGS.get(key)
    if setting is None:
        hint = did_you_mean(key, SETTINGS, f"known are: {', '.join(SETTINGS)}")
        yield f"unknown parameter '{key}'; {hint}"
        return
    if key in BATCHER and not message.HasField(_BATCHING):
        yield f"parameter '{key}' needs {_BATCHING}"
    if key in ADMISSION:
        yield from (f"parameter '{key}' can not be combined with {other}" for other in special_scheduling(message))
    if setting.needs and setting.needs not in message.parameters:
        yield f"parameter '{key}' needs '{setting.needs}'"
    if unreadable := fault(key, text, setting.read):
        yield unreadable


def _goal_faults(message: pb.ModelConfig) -> Faults:
    """Requests that wait for others until the latency goal is over cannot meet it."""
    admission, batcher = values(message, ADMISSION), values(message, BATCHER)
    goal_us = admission.get("latency_goal_ns", 0) // 1000
    if not goal_us or not admission.get("by_deadline"):
        return
    goal = f"parameter '{_LATENCY_GOAL}', which is {goal_us}"
    delay_us = message.dynamic_batching.max_queue_delay_microseconds
    tuned_us = batcher.get("p99_goal_ns", 0) // 1000  # the tuner then chooses the delay
    if tuned_us and goal_us < min(tuned_us, batcher.get("tuned_delay_limit_ns", tuned_us * 1000) // 1000):
        yield (
            ("parameters", _P99_GOAL),
            f"parameter '{_P99_GOAL}' is {tuned_us}, expected no more than {goal}, or a '{_MAX_DELAY}' below that: "
            "requests may wait longer for others",
        )
    elif not tuned_us and delay_us >= goal_us:
        text = f"is {delay_us}, expected less than {goal}: requests may wait as long for others"
        yield (_BATCHING, "max_queue_delay_microseconds"), f"max_queue_delay_microseconds {text}"


def _convert(message: pb.ModelConfig, config: ModelConfig, context: Context) -> ModelConfig:
    return replace(config, admission=Admission(**values(message, ADMISSION)))


FEATURE = Feature(validate=_validate, convert=_convert)
