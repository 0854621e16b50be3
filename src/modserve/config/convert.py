"""From the protobuf message to the frozen values that the rest of the server reads."""

from collections.abc import Container, Iterable, Iterator

from modserve.core import dtypes
from modserve.core.model_config import (
    Admission,
    DynamicBatching,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    QueuePolicy,
    TensorSpec,
)
from modserve.core.version import VersionPolicy
from modserve.pb import inference as pb

from . import ensembles, extras, padding, ragged, sequences

_KINDS: dict[int, InstanceKind] = {
    pb.ModelInstanceGroup.KIND_AUTO: InstanceKind.AUTO,
    pb.ModelInstanceGroup.KIND_CPU: InstanceKind.CPU,
    pb.ModelInstanceGroup.KIND_GPU: InstanceKind.GPU,
    pb.ModelInstanceGroup.KIND_MODEL: InstanceKind.MODEL,
}
_DATATYPES = {pb.DataType.Value(row.config_name): row for row in dtypes.ALL}
_NS_PER_US = 1000


def to_model_config(
    message: pb.ModelConfig, scalars: Container[str] = (), default_cpu_instances: int = 1
) -> ModelConfig:
    """The values of a message; tensors without a usable data type are left out.

    `scalars` names the tensors which the model itself sees without any dimension. A configuration of a model without
    batching can not say so: its dims are [1], and Triton forbids an empty reshape there.
    """
    optimization = message.optimization
    return ModelConfig(
        name=message.name,
        backend=message.backend,
        platform=message.platform,
        max_batch_size=message.max_batch_size,
        inputs=tuple(_tensors(message.input, scalars)),
        outputs=tuple(_tensors(message.output, scalars)),
        version_policy=_version_policy(message),
        instance_groups=tuple(
            _instance_group(group, group.name or f"{message.name}_{index}", default_cpu_instances)
            for index, group in enumerate(message.instance_group)
        ),
        dynamic_batching=_dynamic_batching(message) if message.HasField("dynamic_batching") else None,
        sequence_batching=sequences.to_value(message) if message.HasField("sequence_batching") else None,
        admission=Admission(**extras.values(message, extras.ADMISSION)),
        padding=padding.to_padding(message),
        batch_inputs=ragged.batch_inputs(message),
        batch_outputs=ragged.batch_outputs(message),
        ensemble=ensembles.to_ensembling(message),
        default_model_filename=message.default_model_filename,
        decoupled=message.model_transaction_policy.decoupled,
        cached=message.response_cache.enable,
        parameters={key: value.string_value for key, value in message.parameters.items()},
        metric_tags=dict(message.metric_tags),
        graph_optimization_level=optimization.graph.level if optimization.HasField("graph") else None,
    )


def _tensors(tensors: Iterable[pb.ModelInput | pb.ModelOutput], scalars: Container[str]) -> Iterator[TensorSpec]:
    for tensor in tensors:
        datatype = _DATATYPES.get(tensor.data_type)
        if datatype is None:
            continue
        reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
        yield TensorSpec(
            name=tensor.name,
            datatype=datatype,
            dims=tuple(tensor.dims),
            reshape=() if tensor.name in scalars else reshape,
            optional=isinstance(tensor, pb.ModelInput) and tensor.optional,
            ragged=isinstance(tensor, pb.ModelInput) and tensor.allow_ragged_batch,
            label_filename=tensor.label_filename if isinstance(tensor, pb.ModelOutput) else "",
        )


def _version_policy(message: pb.ModelConfig) -> VersionPolicy:
    """Triton serves all versions where the policy is there but makes no choice."""
    policy = message.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest" or not message.HasField("version_policy"):
        return VersionPolicy(latest=max(1, policy.latest.num_versions))
    return VersionPolicy(specific=tuple(policy.specific.versions)) if choice == "specific" else VersionPolicy()


def _instance_group(group: pb.ModelInstanceGroup, name: str, default_cpu_instances: int) -> InstanceGroup:
    kind = _KINDS.get(group.kind, InstanceKind.AUTO)
    default = default_cpu_instances if kind in (InstanceKind.AUTO, InstanceKind.CPU) else 1
    return InstanceGroup(name, kind, group.count if group.count > 0 else default, tuple(group.gpus))


def _dynamic_batching(message: pb.ModelConfig) -> DynamicBatching:
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
        **extras.values(message, extras.BATCHER),
    )


def _queue_policy(policy: pb.ModelQueuePolicy, ordered: bool) -> QueuePolicy:
    """Where responses are `ordered` nothing goes behind the others, whose responses would have to wait for it.

    A policy that delays by its own default does not load there, as in Triton; this is for requests' own time-outs.
    """
    return QueuePolicy(
        policy.max_queue_size,
        policy.default_timeout_microseconds * _NS_PER_US,
        policy.timeout_action == pb.ModelQueuePolicy.DELAY and not ordered,
        policy.allow_timeout_override,
    )
