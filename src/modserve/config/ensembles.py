"""The rules for ensembles: by themselves, and against the models they are made of. The texts are Triton's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from modserve.core.dtypes import Datatype
from modserve.core.ensemble_config import Ensembling, Step, comparable
from modserve.core.errors import invalid
from modserve.core.model_config import ModelConfig, TensorSpec
from modserve.core.tensor import Shape, format_shape
from modserve.pb import inference as pb

from . import platforms, response_cache
from .conditions import conditions
from .problems import FieldPath, Problems

LATEST = -1
_HERE: FieldPath = ("ensemble_scheduling", "step")


def to_ensembling(message: pb.ModelConfig) -> Ensembling | None:
    """The steps of an ensemble, None for another model."""
    if not message.HasField("ensemble_scheduling"):
        return None
    when = conditions(message)
    return Ensembling(
        tuple(
            Step(
                step.model_name,
                None if step.model_version == LATEST else step.model_version,
                dict(sorted(step.input_map.items())),
                dict(sorted(step.output_map.items())),
                when.get(index),
            )
            for index, step in enumerate(message.ensemble_scheduling.step)
        ),
        message.ensemble_scheduling.max_inflight_requests,
    )


# By itself, as Triton's ValidateEnsembleSchedulingConfig


def validate(message: pb.ModelConfig, problems: Problems) -> None:
    """Adds what is wrong with a configuration as far as it is, or should be, one of an ensemble."""
    name = message.name
    conditions(message, problems)
    if not message.HasField("ensemble_scheduling"):
        if message.platform == platforms.ENSEMBLE:
            problems.add(
                ("platform",),
                f"ensemble scheduling must be set for ensemble {name} whose platform is {platforms.ENSEMBLE}",
            )
        return
    if message.platform != platforms.ENSEMBLE:
        problems.add(
            ("ensemble_scheduling",),
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not {platforms.ENSEMBLE}",
        )
    if message.instance_group:
        problems.add(("instance_group",), f"instance group should not be specified for ensemble '{name}'")
    if message.HasField("optimization"):
        problems.add(("optimization",), f"optimization should not be specified for ensemble '{name}'")
    if message.model_warmup:
        problems.add(("model_warmup",), f"model_warmup can not be specified for ensemble '{name}'")
    if not message.ensemble_scheduling.step:
        problems.add(("ensemble_scheduling",), f"must specify 'step' for ensemble '{name}'")
        return
    if _steps(message, problems):
        _flow(message, problems)


def _steps(message: pb.ModelConfig, problems: Problems) -> bool:
    """Each step for itself; whether all can be put together."""
    found = []
    for index, step in enumerate(message.ensemble_scheduling.step):
        for part in ("model_name", "input_map", "output_map"):
            if not getattr(step, part):
                found.append(((*_HERE, index), f"must specify '{part}' in step {index} of ensemble '{message.name}'"))
        if step.model_version < 1 and step.model_version != LATEST:
            found.append(
                (
                    (*_HERE, index, "model_version"),
                    f"step {index} of ensemble '{message.name}' has model_version {step.model_version}, expected "
                    f"{LATEST} for the latest or a version > 0",
                )
            )
    for path, text in found:
        problems.add(path, text)
    return not found


@dataclass
class _Node:
    """A tensor of the ensemble: which steps give it, and whether anybody reads it."""

    writers: list[int] = field(default_factory=list)
    read: bool = False
    ready: bool = False


def _flow(message: pb.ModelConfig, problems: Problems) -> None:
    """Whether everything is connected, from the inputs to the outputs."""
    name, ensembling = message.name, to_ensembling(message)
    assert ensembling is not None, "only called for ensembles: this is a bug"
    steps = ensembling.steps
    nodes = _nodes(steps)
    inputs = {tensor.name for tensor in message.input}
    for tensor, node in nodes.items():
        doubtful = [index for index in node.writers if steps[index].when is None]
        if len(node.writers) > 1 and (doubtful or len(set(node.writers)) < len(node.writers)):
            index = node.writers[-1]
            problems.add(
                (*_HERE, index, "output_map"),
                f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' step {index}",
            )
        elif node.writers and tensor in inputs:
            problems.add(
                (*_HERE, node.writers[0], "output_map"),
                f"ensemble tensor '{tensor}' is an input of ensemble '{name}' and can not be given by step "
                f"{node.writers[0]}",
            )
    for position, given in enumerate(message.input):
        if given.name not in nodes:
            problems.add(("input", position), f"ensemble input '{given.name}' for ensemble {name}' is not used")
    _spread(steps, nodes, inputs)
    outputs = {tensor.name for tensor in message.output}
    for position, wanted in enumerate(message.output):
        found = nodes.get(wanted.name)
        if found is None:
            problems.add(("output", position), f"ensemble output '{wanted.name}' for ensemble {name}' is not used")
        elif not found.ready:
            problems.add(("output", position), _not_written(wanted.name, name, steps, nodes))
    for tensor, node in nodes.items():
        if tensor not in outputs and not (node.ready and node.read):
            problems.add(_where(tensor, steps), f"ensemble tensor '{tensor}' is unused in ensemble '{name}'")


def _nodes(steps: Iterable[Step]) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {}
    for index, step in enumerate(steps):
        for tensor in sorted(step.needs):
            nodes.setdefault(tensor, _Node()).read = True
        for tensor in step.outputs.values():
            nodes.setdefault(tensor, _Node()).writers.append(index)
    return nodes


def _spread(steps: tuple[Step, ...], nodes: dict[str, _Node], inputs: Iterable[str]) -> None:
    """Mark what can be reached from the inputs."""
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
    """Follows what is missing back to where it should come from; a circle is gone round once."""
    text = f"output '{output}' for ensemble '{ensemble}' is not written"
    seen: set[str] = set()
    last = output
    while True:
        before = sorted(
            tensor
            for index in nodes[last].writers
            for tensor in steps[index].needs
            if not nodes[tensor].ready and tensor not in seen
        )
        if not before:
            break
        last = before[0]
        seen.add(last)
    return text if last == output else f"{text}: at least one of its depending tensors, '{last}', is not connected"


def _where(tensor: str, steps: tuple[Step, ...]) -> FieldPath:
    """The first step that has to do with a tensor."""
    for index, step in enumerate(steps):
        for part, names in (("input_map", step.inputs), ("output_map", step.outputs)):
            if tensor in names.values():
                return (*_HERE, index, part)
    return _HERE[:1]


# Against the composing models, as Triton's ValidateEnsembleConfig


@dataclass(frozen=True, slots=True)
class _Inferred:
    """What is known of a tensor of the ensemble, and from which model."""

    model: str
    datatype: Datatype
    dims: Shape
    full_dims: Shape


def validate_composition(config: ModelConfig, models: Mapping[str, ModelConfig]) -> bool:
    """Whether the ensemble is decoupled. `models` has the configurations of all of its models.

    Raises INVALID_ARG for maps from or to tensors which a model lacks, for data types or shapes that do not fit, and
    for a step whose inputs follow from different decoupled steps.
    """
    assert config.ensemble is not None, "only called for ensembles: this is a bug"
    known: dict[str, _Inferred] = {}
    for spec in (*config.inputs, *config.outputs):
        dims = spec.dims if spec.reshape is None else spec.reshape
        known.setdefault(spec.name, _inferred(config, spec, dims))
    for step in config.ensemble.steps:
        model = models[step.model]
        if model.max_batch_size and model.max_batch_size < config.max_batch_size:
            raise invalid(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{model.name} which only allows maximum batch size to be {model.max_batch_size}"
            )
        _inputs(config, step, model, known)
        _outputs(config, step, model, known)
    _conditions(config, config.ensemble, known)
    decoupled = _labels(config, config.ensemble, models)
    if decoupled and config.cached:
        raise response_cache.decoupled_ensemble(config.name)
    return decoupled


def _inferred(config: ModelConfig, spec: TensorSpec, dims: Shape) -> _Inferred:
    return _Inferred(config.name, spec.datatype, dims, (-1, *dims) if config.batching else dims)


def _inputs(config: ModelConfig, step: Step, model: ModelConfig, known: dict[str, _Inferred]) -> None:
    for name, tensor in step.inputs.items():
        if name not in model.inputs_by_name:
            raise invalid(
                f"in ensemble {config.name}, ensemble tensor {tensor} is mapping to non-existing input {name} in model "
                f"{model.name}"
            )
    for spec in model.inputs:
        if spec.name in step.inputs:
            _consistent(config, step.inputs[spec.name], _inferred(model, spec, spec.dims), known)
        elif not spec.optional:
            raise invalid(
                f"in ensemble {config.name}, input {spec.name} in model {model.name} is not mapped to any ensemble "
                "tensors"
            )


def _outputs(config: ModelConfig, step: Step, model: ModelConfig, known: dict[str, _Inferred]) -> None:
    for name, tensor in step.outputs.items():
        spec = model.outputs_by_name.get(name)
        if spec is None:
            raise invalid(
                f"in ensemble {config.name}, ensemble tensor {tensor} is mapped from non-existing output {name} in "
                f"model {model.name}"
            )
        _consistent(config, tensor, _inferred(model, spec, spec.dims), known)


def _consistent(config: ModelConfig, tensor: str, found: _Inferred, known: dict[str, _Inferred]) -> None:
    """Variable dimensions are looked at when there is a request."""
    before = known.setdefault(tensor, found)
    who = f"in ensemble {config.name}, ensemble tensor {tensor}: "
    if before.datatype is not found.datatype:
        raise invalid(
            f"{who}inconsistent data type: {before.datatype.config_name} is inferred from model {before.model} while "
            f"{found.datatype.config_name} is inferred from model {found.model}"
        )
    if not _alike(before.dims, found.dims) and not _alike(before.full_dims, found.full_dims):
        raise invalid(
            f"{who}inconsistent shape: {format_shape(before.full_dims)} is inferred from model {before.model} while "
            f"{format_shape(found.full_dims)} is inferred from model {found.model}"
        )


def _alike(first: Shape, second: Shape) -> bool:
    return len(first) == len(second) and all(a == b or -1 in (a, b) for a, b in zip(first, second, strict=True))


def _conditions(config: ModelConfig, ensembling: Ensembling, known: Mapping[str, _Inferred]) -> None:
    for index, step in enumerate(ensembling.steps):
        if step.when is None:
            continue
        tensor = known[step.when.tensor]
        who = f"in ensemble {config.name}, condition '{step.when}' of step {index}"
        if not step.when.fits(tensor.datatype):
            raise invalid(
                f"{who} does not fit tensor {step.when.tensor} of type {tensor.datatype.config_name}, expected "
                f"{comparable(tensor.datatype)}"
            )
        if any(size not in (1, -1) for size in tensor.dims):
            raise invalid(
                f"{who} needs a tensor of one element, {step.when.tensor} has shape {format_shape(tensor.full_dims)}"
            )


def _labels(config: ModelConfig, ensembling: Ensembling, models: Mapping[str, ModelConfig]) -> bool:
    """Numbers what follows from each decoupled step: only tensors of one number can be put together."""
    labels = dict.fromkeys(config.inputs_by_name, 0)
    count, done = 0, set[int]()
    while len(done) < len(ensembling.steps):
        ready = [
            index
            for index, step in enumerate(ensembling.steps)
            if index not in done and step.needs <= labels.keys() and _written(step, ensembling, done)
        ]
        assert ready, "the flow was validated: this is a bug"
        for index in ready:
            step = ensembling.steps[index]
            label = _one_label(config, step.model, {labels[tensor] for tensor in step.needs})
            if models[step.model].decoupled:
                count += 1
                label = count
            for tensor in step.outputs.values():
                _one_label(config, step.model, {label, labels.setdefault(tensor, label)})
            done.add(index)
    _one_label(config, config.name, {labels[tensor] for tensor in config.output_names})
    return count > 0


def _written(step: Step, ensembling: Ensembling, done: set[int]) -> bool:
    """Whether all steps that may give its inputs have been looked at."""
    return all(
        index in done or step.needs.isdisjoint(before.outputs.values()) for index, before in enumerate(ensembling.steps)
    )


def _one_label(config: ModelConfig, model: str, labels: set[int]) -> int:
    if len(labels) > 1:
        raise invalid(
            f"in ensemble {config.name}, step of model '{model}' receives inputs originated from different decoupled "
            "models"
        )
    return labels.pop() if labels else 0
