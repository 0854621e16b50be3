"""Features of a configuration: one module each, with defaults, rules, comparison with the model, and values.

To add a feature, write its module and call its functions here. `complete` (one level up) completes the configuration
from the engine's description, `unsupported` lists settings without effect, and `composition` has the rules for an
ensemble and its models.
"""

from dataclasses import dataclass
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.pb import inference as pb

from ..text.problems import Problems
from . import (
    checksums,
    directory,
    ensembles,
    execution,
    limits,
    model_metrics,
    padding,
    ragged,
    residency,
    routing,
    scheduling,
    sequences,
    tensors,
    texts,
    unsupported,
    warm_up,
)


@dataclass(frozen=True)
class ModelContext:
    """Properties of a model that are not part of its configuration."""

    directory: str
    """Name of the model's directory."""
    partial: bool = False
    """True if the engine may still fill in absent fields."""
    gpu_count: int | None = None
    """None if unknown."""
    default_cpu_instances: int = 1
    default_model_filename: str = ""
    description: ModelDescription | None = None
    """The engine's description of the model; None before the model is opened, or if there is none."""
    files: Path | None = None
    """Model directory with the files named by the configuration; None if not available."""


def normalise(message: pb.ModelConfig, context: ModelContext, problems: Problems) -> None:
    """Fill in Triton's defaults in place, visible to clients. May add warnings to the problems."""
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    message.default_model_filename = message.default_model_filename or context.default_model_filename
    scheduling.normalise(message)
    sequences.normalise(message)
    padding.normalise(message)
    execution.normalise(message, context.gpu_count or 0, context.default_cpu_instances, problems)


def validate(message: pb.ModelConfig, context: ModelContext, problems: Problems) -> None:
    """Add a problem for each broken rule, and a warning for each setting without effect.

    Uses Triton's texts for Triton's rules. Problems without a position are reported in this order.
    """
    # An ensemble has no engine that could fill in fields.
    partial = context.partial and not message.HasField("ensemble_scheduling")
    for faults in (
        directory.validate_platform(message, context.directory),
        unsupported.unknown_values(message),
        directory.validate_versions(message),
        tensors.validate(message, partial),
        directory.validate_filenames(message),
        scheduling.validate_batching(message),
        sequences.validate(message),
        ragged.validate(message, partial),
        scheduling.validate_parameters(message),
        ensembles.validate(message),
        padding.validate(message, partial),
        texts.validate(message, partial),
        routing.validate(message),
        execution.validate(message, context.gpu_count),
        warm_up.validate(message, partial, context.files),
        residency.validate(message),
        limits.validate(message),
        checksums.validate(message),
        model_metrics.validate(message),
    ):
        problems.add_all(faults)
    warm_up.warn(message, problems)
    model_metrics.warn(message, problems)
    unsupported.check(message, problems)


def compare(message: pb.ModelConfig, description: ModelDescription, problems: Problems, *, shapes: bool) -> None:
    """Add a problem for each difference between the message and the model; shapes only with `shapes`."""
    problems.add_all(tensors.compare(message, description, shapes))
    problems.add_all(sequences.compare(message, description, shapes))
    problems.add_all(ragged.compare(message, description))


def to_model_config(message: pb.ModelConfig, context: ModelContext) -> ModelConfig:
    """Convert the message to frozen values for the rest of the server, without invalid ones."""
    inputs, outputs = tensors.specs(message, context.description)
    graph = message.optimization.graph if message.optimization.HasField("graph") else None
    accelerators = message.optimization.execution_accelerators
    return ModelConfig(
        name=message.name,
        backend=message.backend,
        platform=message.platform,
        max_batch_size=message.max_batch_size,
        inputs=inputs,
        outputs=outputs,
        version_policy=directory.version_policy(message),
        instance_groups=execution.instance_groups(message, context.default_cpu_instances),
        dynamic_batching=scheduling.dynamic_batching(message),
        admission=scheduling.admission(message),
        sequence_batching=sequences.sequence_batching(message),
        padding=padding.padding(message),
        text=texts.settings(message),
        batch_inputs=ragged.batch_inputs(message),
        batch_outputs=ragged.batch_outputs(message),
        ensemble=ensembles.ensembling(message),
        default_model_filename=message.default_model_filename,
        decoupled=message.model_transaction_policy.decoupled,
        residency=residency.rules(message),
        limits=limits.limits(message),
        cached=message.response_cache.enable,
        parameters={key: value.string_value for key, value in message.parameters.items()},
        metric_tags=dict(message.metric_tags),
        histogram_buckets=model_metrics.histogram_buckets(message),
        runtime=message.runtime,
        routing=routing.routing(message),
        warm_ups=warm_up.warm_ups(message),
        graph_optimization_level=None if graph is None else graph.level,
        gpu_accelerators=execution.accelerators(accelerators.gpu_execution_accelerator),
        cpu_accelerators=execution.accelerators(accelerators.cpu_execution_accelerator),
        checksums=checksums.checksums(message),
        operation_libraries=tuple(message.model_operations.op_library_filename),
    )
