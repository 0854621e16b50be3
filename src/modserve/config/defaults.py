"""What Triton fills in for absent settings, whatever the engine says: seen by whoever asks for the configuration."""

from modserve.pb import inference as pb

from . import padding, sequences
from .problems import Problems


def normalise(
    message: pb.ModelConfig,
    problems: Problems,
    *,
    default_model_filename: str,
    default_cpu_instances: int,
    gpu_count: int,
) -> None:
    """Fills the defaults into the message in place."""
    if not message.default_model_filename:
        message.default_model_filename = default_model_filename
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    batching = message.dynamic_batching
    if message.HasField("dynamic_batching") and not batching.preferred_batch_size and message.max_batch_size > 0:
        batching.preferred_batch_size.append(message.max_batch_size)
    padding.make_mask_optional(message)
    if message.HasField("sequence_batching"):
        sequences.normalise(message)
    if message.HasField("ensemble_scheduling"):
        return  # it has no instances, and nothing to optimise
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
        on_gpu = group.kind == pb.ModelInstanceGroup.KIND_GPU
        if group.count == 0:
            group.count = default_cpu_instances if group.kind == pb.ModelInstanceGroup.KIND_CPU else 1
        if on_gpu and not group.gpus:
            group.gpus.extend(range(gpu_count))


def _resolve(group: pb.ModelInstanceGroup, index: int, problems: Problems, gpu_count: int) -> None:
    """KIND_AUTO means the GPU where there is one, and all those listed are there."""
    if gpu_count > 0 and all(0 <= gpu < gpu_count for gpu in group.gpus):
        group.kind = pb.ModelInstanceGroup.KIND_GPU
        return
    group.kind = pb.ModelInstanceGroup.KIND_CPU
    if group.gpus:
        # Triton leaves the list, and then refuses a group on the CPU that lists GPUs.
        problems.warn(
            ("instance_group", index, "gpus"),
            f"instance group {group.name} runs on the CPU: the GPUs it lists are not all there",
        )
        del group.gpus[:]
