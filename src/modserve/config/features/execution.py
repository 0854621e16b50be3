"""Execution of a model, from ``instance_group`` and ``optimization``, and the handling of its responses.

The latter follows from ``model_transaction_policy`` and ``response_cache``. Ensembles have only these two.
"""

from collections.abc import Iterable

from modserve.core.configuration.model_config import Accelerator, InstanceGroup, InstanceKind, Resource
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath, Problems

MAX_INSTANCES = 1024
"""Maximum number of instances of one version of a model, in all of its groups."""
_KINDS = {pb.ModelInstanceGroup.Kind.Value(kind.value): kind for kind in InstanceKind}


def normalise(message: pb.ModelConfig, gpu_count: int, default_cpu_instances: int, problems: Problems) -> None:
    if message.HasField("ensemble_scheduling"):
        return
    optimization = message.optimization
    if not optimization.HasField("input_pinned_memory"):
        optimization.input_pinned_memory.enable = True
    if not optimization.HasField("output_pinned_memory"):
        optimization.output_pinned_memory.enable = True
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    for index, group in enumerate(message.instance_group):
        group.name = group.name or f"{message.name}_{index}"
        if group.kind == pb.ModelInstanceGroup.KIND_AUTO:
            _resolve(group, index, problems, gpu_count)
        if group.count == 0:
            group.count = default_cpu_instances if group.kind == pb.ModelInstanceGroup.KIND_CPU else 1
        if group.kind == pb.ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(range(gpu_count))


def _resolve(group: pb.ModelInstanceGroup, index: int, problems: Problems, gpu_count: int) -> None:
    """KIND_AUTO means the GPU if there is one and all listed GPUs exist."""
    if gpu_count > 0 and all(0 <= gpu < gpu_count for gpu in group.gpus):
        group.kind = pb.ModelInstanceGroup.KIND_GPU
        return
    group.kind = pb.ModelInstanceGroup.KIND_CPU
    if group.gpus:
        # Triton keeps the list, and then refuses a group on the CPU that lists GPUs.
        text = f"instance group {group.name} runs on the CPU: some of the GPUs it lists are missing"
        problems.warn(("instance_group", index, "gpus"), text)
        del group.gpus[:]


def validate(message: pb.ModelConfig, gpu_count: int | None) -> Faults:
    """`gpu_count` is None while it is unknown."""
    if message.response_cache.enable:  # only a single response that depends on nothing but its request can be kept
        if message.HasField("sequence_batching"):
            yield ("response_cache",), _not_cached(message.name, "sequence batching scheduler")
        if message.model_transaction_policy.decoupled:
            yield ("response_cache",), not_cached_if_decoupled(message.name)
    for index, group in enumerate(message.instance_group):
        label = f"instance group {group.name or f'{message.name}_{index}'} of model {message.name}"
        for path, text in _group_faults(group, message.platform, gpu_count):
            yield ("instance_group", index, *path), f"{label} {text}"
    yield from _count_faults(message, gpu_count)


def not_cached_if_decoupled(model: str) -> str:
    return _not_cached(model, "'decoupled' transaction policy")


def _not_cached(model: str, kind: str) -> str:
    return f"Response Cache does not currently support model {model} with {kind}. Please disable the response cache."


def _group_faults(group: pb.ModelInstanceGroup, platform: str, gpu_count: int | None) -> Faults:
    kinds = pb.ModelInstanceGroup
    if group.count < 0:
        yield ("count",), f"has count {group.count}, a count must be > 0"
    if group.kind in (kinds.KIND_CPU, kinds.KIND_MODEL) and group.gpus:
        yield ("gpus",), f"has kind {kinds.Kind.Name(group.kind)} but specifies one or more GPUs"
    if group.kind == kinds.KIND_GPU and gpu_count == 0:
        advice = "KIND_AUTO uses the CPU if there is none"
        yield ("kind",), f"has kind KIND_GPU but no GPUs are available; {advice}"
    for place, gpu in enumerate(group.gpus):
        path: FieldPath = ("gpus", place)
        if gpu in group.gpus[:place]:
            yield path, f"specifies gpu id {gpu} more than once"
        if group.kind == kinds.KIND_GPU and (gpu < 0 or (gpu_count and gpu >= gpu_count)):
            available = f"; GPUs are: {', '.join(map(str, range(gpu_count)))}" if gpu_count else ""
            yield path, f"specifies invalid or unsupported gpu id {gpu}{available}"
    if group.profile and platform != "tensorrt_plan":
        reason = "specifies profile field which is only supported for TensorRT models"
        yield ("profile",), f"and platform {platform} {reason}"


def _count_faults(message: pb.ModelConfig, gpu_count: int | None) -> Faults:
    """Each instance is a thread, and on a GPU a session of its own: a typing error must not end the server."""
    total = 0
    for index, group in enumerate(message.instance_group):
        devices = 1
        if group.kind in (pb.ModelInstanceGroup.KIND_GPU, pb.ModelInstanceGroup.KIND_AUTO):
            devices = max(1, len(group.gpus) or gpu_count or 1)
        total += max(1, group.count) * devices
        if total > MAX_INSTANCES:
            text = f"model {message.name} has {total} instances or more, at most {MAX_INSTANCES} are allowed"
            yield ("instance_group", index, "count"), text
            return


def instance_groups(message: pb.ModelConfig, default_cpu_instances: int) -> tuple[InstanceGroup, ...]:
    groups = []
    for index, group in enumerate(message.instance_group):
        kind = _KINDS.get(group.kind, InstanceKind.AUTO)
        default = default_cpu_instances if kind in (InstanceKind.AUTO, InstanceKind.CPU) else 1
        count = group.count if group.count > 0 else default
        name = group.name or f"{message.name}_{index}"
        limiter = group.rate_limiter
        resources = tuple(Resource(each.name, each.count, getattr(each, "global")) for each in limiter.resources)
        groups.append(InstanceGroup(name, kind, count, tuple(group.gpus), resources, max(1, limiter.priority)))
    return tuple(groups)


def accelerators(
    messages: Iterable[pb.ModelOptimizationPolicy.ExecutionAccelerators.Accelerator],
) -> tuple[Accelerator, ...]:
    return tuple(Accelerator(message.name, dict(message.parameters)) for message in messages)
