"""``dynamic_batching``, with its priority levels and queue policies."""

from dataclasses import replace
from typing import Final

from modserve.core.model_config import DynamicBatching, ModelConfig, QueuePolicy
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath, Problems
from . import parameters, scheduling
from .feature import Context, Feature

_HERE: Final = "dynamic_batching"
_NS_PER_US = 1000


def _normalise(message: pb.ModelConfig, context: Context, problems: Problems) -> None:
    batching = message.dynamic_batching
    if message.HasField(_HERE) and not batching.preferred_batch_size and message.max_batch_size > 0:
        batching.preferred_batch_size.append(message.max_batch_size)


def _validate(message: pb.ModelConfig, context: Context) -> Faults:
    batching, name = message.dynamic_batching, message.name
    for index, size in enumerate(batching.preferred_batch_size):
        path: FieldPath = (_HERE, "preferred_batch_size", index)
        if size <= 0:
            yield path, f"dynamic batching preferred size must be positive for {name}"
        elif size > message.max_batch_size:
            limit = f"{size} > {message.max_batch_size}"
            yield path, f"dynamic batching preferred size must be <= max batch size for {name}: {limit}"
    levels = batching.priority_levels
    if levels:
        allowed = f"in range [1, {levels}] for {name}"
        if not 1 <= batching.default_priority_level <= levels:
            yield (_HERE, "default_priority_level"), f"default priority level must be {allowed}"
        for level in batching.priority_queue_policy:
            if not 1 <= level <= levels:
                path = (_HERE, "priority_queue_policy", level)
                yield path, f"priority queue policy must have priority level {allowed}"
    if batching.preserve_ordering:
        yield from _ordering_faults(batching, name)


def _ordering_faults(batching: pb.ModelDynamicBatching, name: str) -> Faults:
    because = f"when 'preserve_ordering' is true for {name}"
    if batching.priority_levels > 1:
        yield (_HERE, "priority_levels"), f"Only one priority level is allowed {because}"
    policies: dict[FieldPath, pb.ModelQueuePolicy] = {("default_queue_policy",): batching.default_queue_policy}
    for level, policy in batching.priority_queue_policy.items():
        policies["priority_queue_policy", level] = policy
    for path, policy in policies.items():
        if policy.default_timeout_microseconds and policy.timeout_action == pb.ModelQueuePolicy.DELAY:
            yield (_HERE, *path, "timeout_action"), f"Queue policy can not have DELAY as timeout action {because}"


def _convert(message: pb.ModelConfig, config: ModelConfig, context: Context) -> ModelConfig:
    if not message.HasField(_HERE):
        return config
    batching = message.dynamic_batching
    value = DynamicBatching(
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
        **parameters.values(message, scheduling.BATCHER),
    )
    return replace(config, dynamic_batching=value)


def _queue_policy(policy: pb.ModelQueuePolicy, ordered: bool) -> QueuePolicy:
    """If responses are `ordered`, no request goes behind the others: their responses would have to wait for it.

    Like Triton, the validation refuses a policy that delays by its own default there; this is for the time-outs that
    requests bring.
    """
    return QueuePolicy(
        policy.max_queue_size,
        policy.default_timeout_microseconds * _NS_PER_US,
        policy.timeout_action == pb.ModelQueuePolicy.DELAY and not ordered,
        policy.allow_timeout_override,
    )


FEATURE = Feature(normalise=_normalise, validate=_validate, convert=_convert)
