"""``dynamic_batching``, and model parameters ``scheduling.*``: further batcher settings, and admission."""

from collections.abc import Iterator, Mapping
from typing import Final

from modserve.core.configuration.model_config import Admission, DynamicBatching, QueuePolicy
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath
from ..text.suggest import did_you_mean
from .parameters import ParameterSetting, ascending, choice, fault, names, special_scheduling, values, whole_number

PREFIX = "scheduling."
_NS_PER_US = 1000
_BATCHING: Final = "dynamic_batching"
_ADMISSION = "scheduling.admission"
_AGEING = "scheduling.ageing_microseconds"
_LATENCY_GOAL = "scheduling.latency_goal_microseconds"

BATCHER: Mapping[str, ParameterSetting] = {
    "scheduling.look_ahead": ParameterSetting("look_ahead", whole_number(0)),
    _AGEING: ParameterSetting("ageing_ns", whole_number(0, scale=1000)),
    "scheduling.separate_by": ParameterSetting("separate_by", names),
    "scheduling.batch_sizes": ParameterSetting("batch_sizes", ascending),
    "scheduling.max_batch_elements": ParameterSetting("max_batch_elements", whole_number(1)),
    "scheduling.grow_batches": ParameterSetting("measured_sizes", choice(measured=True, always=False)),
}
"""Parameters for fields of `core.configuration.model_config.DynamicBatching`."""
ADMISSION: Mapping[str, ParameterSetting] = {
    _ADMISSION: ParameterSetting("by_deadline", choice(off=False, deadline=True)),
    _LATENCY_GOAL: ParameterSetting("latency_goal_ns", whole_number(1, scale=1000), needs=_ADMISSION),
    "scheduling.overload_status": ParameterSetting("too_many", choice(**{"503": False, "429": True})),
}
"""Parameters for fields of `core.configuration.model_config.Admission`, allowed for any model."""
SETTINGS: Mapping[str, ParameterSetting] = {**BATCHER, **ADMISSION}


def normalise(message: pb.ModelConfig) -> None:
    batching = message.dynamic_batching
    if message.HasField(_BATCHING) and not batching.preferred_batch_size and message.max_batch_size > 0:
        batching.preferred_batch_size.append(message.max_batch_size)


def validate_batching(message: pb.ModelConfig) -> Faults:
    batching, name = message.dynamic_batching, message.name
    for index, size in enumerate(batching.preferred_batch_size):
        path: FieldPath = (_BATCHING, "preferred_batch_size", index)
        if size <= 0:
            yield path, f"dynamic batching preferred size must be positive for {name}"
        elif size > message.max_batch_size:
            limit = f"{size} > {message.max_batch_size}"
            yield path, f"dynamic batching preferred size must be <= max batch size for {name}: {limit}"
    levels = batching.priority_levels
    if levels:
        allowed = f"in range [1, {levels}] for {name}"
        if not 1 <= batching.default_priority_level <= levels:
            yield (_BATCHING, "default_priority_level"), f"default priority level must be {allowed}"
        for level in batching.priority_queue_policy:
            if not 1 <= level <= levels:
                path = (_BATCHING, "priority_queue_policy", level)
                yield path, f"priority queue policy must have priority level {allowed}"
    if batching.preserve_ordering:
        yield from _ordering_faults(batching, name)


def _ordering_faults(batching: pb.ModelDynamicBatching, name: str) -> Faults:
    because = f"when 'preserve_ordering' is true for {name}"
    if batching.priority_levels > 1:
        yield (_BATCHING, "priority_levels"), f"Only one priority level is allowed {because}"
    policies: dict[FieldPath, pb.ModelQueuePolicy] = {("default_queue_policy",): batching.default_queue_policy}
    for level, policy in batching.priority_queue_policy.items():
        policies["priority_queue_policy", level] = policy
    for path, policy in policies.items():
        if policy.default_timeout_microseconds and policy.timeout_action == pb.ModelQueuePolicy.DELAY:
            yield (_BATCHING, *path, "timeout_action"), f"Queue policy can not have DELAY as timeout action {because}"


def dynamic_batching(message: pb.ModelConfig) -> DynamicBatching | None:
    if not message.HasField(_BATCHING):
        return None
    batching = message.dynamic_batching
    return DynamicBatching(
        preferred_batch_sizes=tuple(sorted(set(batching.preferred_batch_size))),
        max_queue_delay_ns=batching.max_queue_delay_microseconds * _NS_PER_US,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_policy=_queue_policy(batching.default_queue_policy, batching.preserve_ordering),
        level_policies={
            level: _queue_policy(policy, batching.preserve_ordering)
            for level, policy in batching.priority_queue_policy.items()
        },
        **{
            **({"look_ahead": 0} if _shows_order(message) else {}),
            **values(message, BATCHER),
        },
    )


def _shows_order(message: pb.ModelConfig) -> bool:
    """Return True if clients can observe or rely on the order of execution.

    They request it with `preserve_ordering`. Decoupled models send their responses in the order of execution.
    """
    return message.dynamic_batching.preserve_ordering or message.model_transaction_policy.decoupled


def _queue_policy(policy: pb.ModelQueuePolicy, ordered: bool) -> QueuePolicy:
    """Return the queue policy. With `ordered` responses, no request is delayed, as later responses would wait for it.

    As in Triton, validation refuses a policy with `delay` and a default time-out in this case. This covers time-outs
    set by requests.
    """
    return QueuePolicy(
        policy.max_queue_size,
        policy.default_timeout_microseconds * _NS_PER_US,
        policy.timeout_action == pb.ModelQueuePolicy.DELAY and not ordered,
        policy.allow_timeout_override,
    )


def validate_parameters(message: pb.ModelConfig) -> Faults:
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
        hint = did_you_mean(key, SETTINGS, f"known parameters are: {', '.join(SETTINGS)}")
        yield f"unknown parameter '{key}'; {hint}"
        return
    if key in BATCHER and not message.HasField(_BATCHING):
        yield f"parameter '{key}' needs {_BATCHING}"
    if key in ADMISSION:
        yield from (f"parameter '{key}' cannot be combined with {other}" for other in special_scheduling(message))
    if setting.needs and setting.needs not in message.parameters:
        yield f"parameter '{key}' needs '{setting.needs}'"
    if unreadable := fault(key, text, setting.read):
        yield unreadable


def _goal_faults(message: pb.ModelConfig) -> Faults:
    """Yield a fault if the queue delay reaches the latency goal, as delayed requests would miss it."""
    admission = values(message, ADMISSION)
    goal_us = admission.get("latency_goal_ns", 0) // 1000
    if not goal_us or not admission.get("by_deadline"):
        return
    delay_us = message.dynamic_batching.max_queue_delay_microseconds
    if delay_us >= goal_us:
        goal = f"parameter '{_LATENCY_GOAL}', which is {goal_us}"
        text = f"is {delay_us}, expected less than {goal}: requests may wait as long for others"
        yield (_BATCHING, "max_queue_delay_microseconds"), f"max_queue_delay_microseconds {text}"


def admission(message: pb.ModelConfig) -> Admission:
    return Admission(**values(message, ADMISSION))
