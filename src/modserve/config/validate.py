"""The rules a configuration must keep by itself, in Triton's words where Triton checks the same."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from modserve.pb import inference as pb

from . import ensembles, extras, padding, platforms, ragged, response_cache, sequences, tensors
from .problems import FieldPath, Problems

MOST_INSTANCES = 1024
"""Of one version of a model, in all of its groups."""


def validate(
    message: pb.ModelConfig, directory: str, problems: Problems, *, partial: bool, gpu_count: int | None
) -> None:
    """Adds every rule that is broken. `directory` is the name of the model's directory.

    `partial`: what the engine may still fill in need not be there. `gpu_count` is None as long as nobody knows.
    """
    _identity(message, directory, problems)
    _enums(message, (), problems)
    _version_policy(message.version_policy, problems)
    if message.max_batch_size < 0:
        problems.add(("max_batch_size",), f"'max_batch_size' must be non-negative value for {message.name}")
    partial = partial and not message.HasField("ensemble_scheduling")  # no engine will fill in anything
    tensors.validate("input", message.input, message, problems, partial=partial)
    tensors.validate("output", message.output, message, problems, partial=partial)
    _files(message, problems)
    _dynamic_batching(message, problems)
    sequences.validate(message, problems)
    ragged.validate(message, problems, partial=partial)
    extras.validate(message, problems)
    ensembles.validate(message, problems)
    padding.validate(message, problems, partial=partial)
    response_cache.validate(message, problems)
    for index, group in enumerate(message.instance_group):
        _instance_group(group, index, message, problems, gpu_count)
    _instance_count(message, problems, gpu_count)


def _identity(message: pb.ModelConfig, directory: str, problems: Problems) -> None:
    name, platform, backend = message.name, message.platform, message.backend
    if name != directory:
        problems.add(
            ("name",),
            f"unexpected directory name '{directory}' for model '{name}', directory name must equal model name",
        )
    if platform == platforms.ENSEMBLE:
        if backend:
            problems.add(
                ("backend",), f"Ensemble model '{name}' must have platform type '{platform}' and empty backend type"
            )
    elif not (backend or platform or message.default_model_filename or "." in directory):
        # As in Triton, whether automatic completion is on or off.
        problems.add(
            (),
            f"Invalid model name: Could not determine backend for model '{directory}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'.",
        )
    elif not backend:
        known = ", ".join(platforms.PLATFORMS)
        problems.add(("platform",), f"unexpected platform type '{platform}' for {name}; known platforms are: {known}")
    elif platform and backend in platforms.PLATFORMS.values() and platforms.PLATFORMS.get(platform) != backend:
        problems.add(("platform",), f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}")


def _enums(message: Message, path: FieldPath, problems: Problems) -> None:
    """An enum's value can be written as a number, and protobuf lets any number pass."""
    for known, value in message.ListFields():
        for place, element in _elements(known, value):
            here = (*path, known.name, *place)
            if isinstance(element, Message):
                _enums(element, here, problems)
            elif known.enum_type is not None and element not in known.enum_type.values_by_number:
                names = ", ".join(known.enum_type.values_by_name)
                problems.add(here, f"unknown value {element} for '{known.name}'; it takes {names}")


def _elements(known: FieldDescriptor, value: Any) -> Iterator[tuple[FieldPath, object]]:
    """The values of a field: one, or each of a list or map with its place there."""
    if known.message_type is not None and known.message_type.GetOptions().map_entry:
        yield from (((key,), element) for key, element in value.items())
    elif isinstance(value, Message | str | int | float):
        yield (), value
    else:
        yield from (((index,), element) for index, element in enumerate(value))


def _version_policy(policy: pb.ModelVersionPolicy, problems: Problems) -> None:
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest" and policy.latest.num_versions == 0:
        problems.add(
            ("version_policy", "latest", "num_versions"), "version policy 'latest' must have 'num_versions' > 0"
        )
    if choice == "specific":
        path: FieldPath = ("version_policy", "specific", "versions")
        if not policy.specific.versions:
            problems.add(path, "version policy 'specific' must list one or more 'versions'")
        for index, version in enumerate(policy.specific.versions):
            if version <= 0:
                problems.add((*path, index), f"version policy 'specific' lists {version}, versions are integers > 0")


def _files(message: pb.ModelConfig, problems: Problems) -> None:
    """Names of files stay inside the model's directory, whoever wrote the configuration."""
    if _escapes(message.default_model_filename):
        problems.add(
            ("default_model_filename",),
            f"model file path '{message.default_model_filename}' in model '{message.name}' is outside version "
            "directory",
        )
    for index, output in enumerate(message.output):
        if _escapes(output.label_filename):
            problems.add(
                ("output", index, "label_filename"),
                f"label file path '{output.label_filename}' for output '{output.name}' in model '{message.name}' is "
                "outside model directory",
            )


def _escapes(filename: str) -> bool:
    return os.path.isabs(filename) or os.path.normpath(filename).split(os.sep)[0] == os.pardir


def _dynamic_batching(message: pb.ModelConfig, problems: Problems) -> None:
    batching, name = message.dynamic_batching, message.name
    here: FieldPath = ("dynamic_batching",)
    for index, size in enumerate(batching.preferred_batch_size):
        path = (*here, "preferred_batch_size", index)
        if size <= 0:
            problems.add(path, f"dynamic batching preferred size must be positive for {name}")
        elif size > message.max_batch_size:
            problems.add(
                path,
                f"dynamic batching preferred size must be <= max batch size for {name}: {size} > "
                f"{message.max_batch_size}",
            )
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            problems.add(
                (*here, "default_priority_level"), f"default priority level must be in range [1, {levels}] for {name}"
            )
        for level in batching.priority_queue_policy:
            if not 1 <= level <= levels:
                problems.add(
                    (*here, "priority_queue_policy", level),
                    f"priority queue policy must have priority level in range [1, {levels}] for {name}",
                )
    if batching.preserve_ordering:
        _preserve_ordering(batching, name, problems)


def _preserve_ordering(batching: pb.ModelDynamicBatching, name: str, problems: Problems) -> None:
    here: FieldPath = ("dynamic_batching",)
    if batching.priority_levels > 1:
        problems.add(
            (*here, "priority_levels"),
            f"Only one priority level is allowed when 'preserve_ordering' is true for {name}",
        )
    policies: dict[FieldPath, pb.ModelQueuePolicy] = {("default_queue_policy",): batching.default_queue_policy}
    for level, policy in batching.priority_queue_policy.items():
        policies["priority_queue_policy", level] = policy
    for path, policy in policies.items():
        if policy.default_timeout_microseconds and policy.timeout_action == pb.ModelQueuePolicy.DELAY:
            problems.add(
                (*here, *path, "timeout_action"),
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}",
            )


def _instance_count(message: pb.ModelConfig, problems: Problems, gpu_count: int | None) -> None:
    """Each instance is a thread, and a session of its own on a GPU: a slip of the pen must not end the server."""
    total = 0
    for index, group in enumerate(message.instance_group):
        devices = 1
        if group.kind in (pb.ModelInstanceGroup.KIND_GPU, pb.ModelInstanceGroup.KIND_AUTO):
            devices = max(1, len(group.gpus) or gpu_count or 1)
        total += max(1, group.count) * devices
        if total > MOST_INSTANCES:
            problems.add(
                ("instance_group", index, "count"),
                f"model {message.name} has {total} instances or more, at most {MOST_INSTANCES} are allowed",
            )
            return


def _instance_group(
    group: pb.ModelInstanceGroup, index: int, message: pb.ModelConfig, problems: Problems, gpu_count: int | None
) -> None:
    here: FieldPath = ("instance_group", index)
    who = f"instance group {group.name or f'{message.name}_{index}'} of model {message.name}"
    kinds = pb.ModelInstanceGroup
    if group.count < 0:
        problems.add((*here, "count"), f"{who} has count {group.count}, a count must be > 0")
    if group.kind in (kinds.KIND_CPU, kinds.KIND_MODEL) and group.gpus:
        kind = kinds.Kind.Name(group.kind)
        problems.add((*here, "gpus"), f"{who} has kind {kind} but specifies one or more GPUs")
    if group.kind == kinds.KIND_GPU and gpu_count == 0:
        problems.add(
            (*here, "kind"),
            f"{who} has kind KIND_GPU but no GPUs are available; KIND_AUTO takes the CPU where there is none",
        )
    for place, gpu in enumerate(group.gpus):
        path = (*here, "gpus", place)
        if Counter(group.gpus[:place])[gpu]:
            problems.add(path, f"{who} specifies gpu id {gpu} more than once")
        if group.kind == kinds.KIND_GPU and (gpu < 0 or (gpu_count and gpu >= gpu_count)):
            there = f"; GPUs are: {', '.join(map(str, range(gpu_count)))}" if gpu_count else ""
            problems.add(path, f"{who} specifies invalid or unsupported gpu id {gpu}{there}")
    if group.profile and message.platform != "tensorrt_plan":
        problems.add(
            (*here, "profile"),
            f"{who} and platform {message.platform} specifies profile field which is only supported for TensorRT "
            "models",
        )
