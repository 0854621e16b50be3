"""``ensemble_scheduling``, like Triton's ``ValidateEnsembleSchedulingConfig``. See also `conditions`, `composition`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from modserve.core.ensemble_config import Ensembling, Step
from modserve.core.model_config import ModelConfig
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath
from . import conditions, platforms
from .feature import Context, Feature

LATEST = -1
_HERE: FieldPath = ("ensemble_scheduling", "step")


def _convert(message: pb.ModelConfig, config: ModelConfig, context: Context) -> ModelConfig:
    return replace(config, ensemble=_ensembling(message)) if message.HasField("ensemble_scheduling") else config


def _ensembling(message: pb.ModelConfig) -> Ensembling:
    when, _ = conditions.read(message)
    steps = tuple(
        Step(
            step.model_name,
            None if step.model_version == LATEST else step.model_version,
            dict(sorted(step.input_map.items())),
            dict(sorted(step.output_map.items())),
            when.get(index),
        )
        for index, step in enumerate(message.ensemble_scheduling.step)
    )
    return Ensembling(steps, message.ensemble_scheduling.max_inflight_requests)


def _validate(message: pb.ModelConfig, context: Context) -> Faults:
    """The rules for a model that is an ensemble, or calls itself one."""
    name = message.name
    yield from conditions.read(message)[1]
    if not message.HasField("ensemble_scheduling"):
        if message.platform == platforms.ENSEMBLE:
            text = f"ensemble scheduling must be set for ensemble {name} whose platform is {platforms.ENSEMBLE}"
            yield ("platform",), text
        return
    if message.platform != platforms.ENSEMBLE:
        text = f"ensemble scheduling cannot be set for model '{name}' whose platform is not {platforms.ENSEMBLE}"
        yield ("ensemble_scheduling",), text
    if message.instance_group:
        yield ("instance_group",), f"instance group should not be specified for ensemble '{name}'"
    if message.HasField("optimization"):
        yield ("optimization",), f"optimization should not be specified for ensemble '{name}'"
    if message.model_warmup:
        yield ("model_warmup",), f"model_warmup can not be specified for ensemble '{name}'"
    if not message.ensemble_scheduling.step:
        yield ("ensemble_scheduling",), f"must specify 'step' for ensemble '{name}'"
        return
    step_faults = list(_step_faults(message))
    yield from step_faults or _flow_faults(message)


def _step_faults(message: pb.ModelConfig) -> Faults:
    """The rules for each step by itself."""
    for index, step in enumerate(message.ensemble_scheduling.step):
        who = f"step {index} of ensemble '{message.name}'"
        for part in ("model_name", "input_map", "output_map"):
            if not getattr(step, part):
                yield (*_HERE, index), f"must specify '{part}' in {who}"
        if step.model_version < 1 and step.model_version != LATEST:
            expected = f"expected {LATEST} for the latest or a version > 0"
            yield (*_HERE, index, "model_version"), f"{who} has model_version {step.model_version}, {expected}"


@dataclass
class _Node:
    """A tensor of the ensemble: the steps that write it, and whether a step reads it."""

    writers: list[int] = field(default_factory=list)
    read: bool = False
    ready: bool = False
    """It can be computed from the inputs."""


def _flow_faults(message: pb.ModelConfig) -> Faults:
    """Whether every tensor is connected, from the inputs to the outputs."""
    name, steps = message.name, _ensembling(message).steps
    nodes = _nodes(steps)
    inputs = {tensor.name for tensor in message.input}
    for tensor, node in nodes.items():
        unconditional = [index for index in node.writers if steps[index].when is None]
        if len(node.writers) > 1 and (unconditional or len(set(node.writers)) < len(node.writers)):
            index = node.writers[-1]
            rule = f"can appear in an output map only once for ensemble '{name}' step {index}"
            yield (*_HERE, index, "output_map"), f"ensemble tensor '{tensor}' {rule}"
        elif node.writers and tensor in inputs:
            index = node.writers[0]
            rule = f"is an input of ensemble '{name}' and can not be given by step {index}"
            yield (*_HERE, index, "output_map"), f"ensemble tensor '{tensor}' {rule}"
    for position, model_input in enumerate(message.input):
        if model_input.name not in nodes:
            yield ("input", position), f"ensemble input '{model_input.name}' for ensemble {name}' is not used"
    _mark_ready(steps, nodes, inputs)
    outputs = {tensor.name for tensor in message.output}
    for position, output in enumerate(message.output):
        if output.name not in nodes:
            yield ("output", position), f"ensemble output '{output.name}' for ensemble {name}' is not used"
        elif not nodes[output.name].ready:
            yield ("output", position), _not_written(output.name, name, steps, nodes)
    for tensor, node in nodes.items():
        if tensor not in outputs and not (node.ready and node.read):
            yield _first_use(tensor, steps), f"ensemble tensor '{tensor}' is unused in ensemble '{name}'"


def _nodes(steps: Iterable[Step]) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {}
    for index, step in enumerate(steps):
        for tensor in sorted(step.needs):
            nodes.setdefault(tensor, _Node()).read = True
        for tensor in step.outputs.values():
            nodes.setdefault(tensor, _Node()).writers.append(index)
    return nodes


def _mark_ready(steps: tuple[Step, ...], nodes: dict[str, _Node], inputs: Iterable[str]) -> None:
    """Marks the tensors that can be computed from the inputs."""
    for tensor in inputs:
        if tensor in nodes:
            nodes[tensor].ready = True
    done: set[int] = set()
    grown = True
    while grown:
        grown = False
        for index, step in enumerate(steps):
            if index not in done and all(nodes[tensor].ready for tensor in step.needs):
                done.add(index)
                grown = True
                for tensor in step.outputs.values():
                    nodes[tensor].ready = done.issuperset(nodes[tensor].writers)


def _not_written(output: str, ensemble: str, steps: tuple[Step, ...], nodes: Mapping[str, _Node]) -> str:
    """Names the first tensor that is not connected on the way to an output; goes once around a circle."""
    text = f"output '{output}' for ensemble '{ensemble}' is not written"
    last, seen = output, set[str]()
    while missing := {
        tensor
        for index in nodes[last].writers
        for tensor in steps[index].needs
        if not nodes[tensor].ready and tensor not in seen
    }:
        last = min(missing)
        seen.add(last)
    return text if last == output else f"{text}: at least one of its depending tensors, '{last}', is not connected"


def _first_use(tensor: str, steps: tuple[Step, ...]) -> FieldPath:
    """The first step that reads or writes a tensor."""
    for index, step in enumerate(steps):
        for part, names in (("input_map", step.inputs), ("output_map", step.outputs)):
            if tensor in names.values():
                return (*_HERE, index, part)
    return _HERE[:1]


FEATURE = Feature(validate=_validate, convert=_convert)
