"""The rules for an ensemble and the models that it is made of, like Triton's ``ValidateEnsembleConfig``."""

from collections.abc import Mapping
from dataclasses import dataclass

from modserve.core.configuration.ensemble_config import EnsembleConfig, Step, comparable
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import invalid
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape, format_shape

from .execution import not_cached_if_decoupled


@dataclass(frozen=True, slots=True)
class _Inferred:
    """Datatype and shape of a tensor of the ensemble, and the model that they are inferred from."""

    model: str
    datatype: Datatype
    dims: Shape
    full_dims: Shape


def validate_composition(config: ModelConfig, models: Mapping[str, ModelConfig]) -> bool:
    """Return True if the ensemble is decoupled. `models` has the configurations of all of its models.

    Raises INVALID_ARG for maps from or to tensors which a model lacks, for data types or shapes that do not fit, and
    for a step with inputs that follow from different decoupled steps.
    """
    assert config.ensemble is not None, "only called for ensembles: this is a bug"
    inferred: dict[str, _Inferred] = {}
    for spec in (*config.inputs, *config.outputs):
        dims = spec.dims if spec.reshape is None else spec.reshape
        inferred.setdefault(spec.name, _infer(config, spec, dims))
    for step in config.ensemble.steps:
        _check_step(config, step, models[step.model], inferred)
    _check_conditions(config, config.ensemble, inferred)
    decoupled = _labels(config, config.ensemble, models)
    if decoupled and config.cached:
        raise invalid(not_cached_if_decoupled(config.name))
    return decoupled


def _infer(config: ModelConfig, spec: TensorSpec, dims: Shape) -> _Inferred:
    return _Inferred(config.name, spec.datatype, dims, (-1, *dims) if config.batching else dims)


def _check_step(config: ModelConfig, step: Step, model: ModelConfig, inferred: dict[str, _Inferred]) -> None:
    here, there = f"in ensemble {config.name}", f"in model {model.name}"
    if model.max_batch_size and model.max_batch_size < config.max_batch_size:
        size = str(config.max_batch_size)
        raise invalid(
            f"ensemble {config.name} allows maximum batch size {size}, but it contains model {model.name} which only "
            f"allows maximum batch size to be {model.max_batch_size}{model.batch_size_remedy(size)}"
        )
    for name, tensor in step.inputs.items():
        if name not in model.inputs_by_name:
            raise invalid(f"{here}, ensemble tensor {tensor} is mapping to non-existing input {name} {there}")
    for spec in model.inputs:
        if spec.name in step.inputs:
            _check_consistent(config, step.inputs[spec.name], _infer(model, spec, spec.dims), inferred)
        elif not spec.optional:
            raise invalid(f"{here}, input {spec.name} {there} is not mapped to any ensemble tensors")
    for name, tensor in step.outputs.items():
        if name not in model.outputs_by_name:
            raise invalid(f"{here}, ensemble tensor {tensor} is mapped from non-existing output {name} {there}")
        spec = model.outputs_by_name[name]
        _check_consistent(config, tensor, _infer(model, spec, spec.dims), inferred)


def _check_consistent(config: ModelConfig, tensor: str, now: _Inferred, inferred: dict[str, _Inferred]) -> None:
    """Variable dimensions fit any size here; each request is checked later."""
    before = inferred.setdefault(tensor, now)
    if before.datatype is not now.datatype:
        what, one, other = "data type", before.datatype.config_name, now.datatype.config_name
    elif not _alike(before.dims, now.dims) and not _alike(before.full_dims, now.full_dims):
        what, one, other = "shape", format_shape(before.full_dims), format_shape(now.full_dims)
    else:
        return
    raise invalid(
        f"in ensemble {config.name}, ensemble tensor {tensor}: inconsistent {what}: {one} is inferred from model "
        f"{before.model} while {other} is inferred from model {now.model}"
    )


def _alike(first: Shape, second: Shape) -> bool:
    return len(first) == len(second) and all(a == b or -1 in (a, b) for a, b in zip(first, second, strict=True))


def _check_conditions(config: ModelConfig, ensembling: EnsembleConfig, inferred: Mapping[str, _Inferred]) -> None:
    for index, step in enumerate(ensembling.steps):
        if step.when is None:
            continue
        name, tensor = step.when.tensor, inferred[step.when.tensor]
        who = f"in ensemble {config.name}, condition '{step.when}' of step {index}"
        if not step.when.fits(tensor.datatype):
            actual, expected = tensor.datatype.config_name, comparable(tensor.datatype)
            raise invalid(f"{who} does not fit tensor {name} of type {actual}, expected {expected}")
        if any(size not in (1, -1) for size in tensor.dims):
            raise invalid(f"{who} needs a tensor of one element, {name} has shape {format_shape(tensor.full_dims)}")


def _labels(config: ModelConfig, ensembling: EnsembleConfig, models: Mapping[str, ModelConfig]) -> bool:
    """Labels each tensor with the decoupled step it follows from. A step can only read tensors of one label.

    Whether there are decoupled steps.
    """
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
            label = _common_label(config, step.model, {labels[tensor] for tensor in step.needs})
            if models[step.model].decoupled:
                count += 1
                label = count
            for tensor in step.outputs.values():
                _common_label(config, step.model, {label, labels.setdefault(tensor, label)})
            done.add(index)
    _common_label(config, config.name, {labels[tensor] for tensor in config.output_names})
    return count > 0


def _written(step: Step, ensembling: EnsembleConfig, done: set[int]) -> bool:
    """True if all steps that may write the inputs of `step` are done."""
    return all(
        index in done or step.needs.isdisjoint(before.outputs.values()) for index, before in enumerate(ensembling.steps)
    )


def _common_label(config: ModelConfig, model: str, labels: set[int]) -> int:
    if len(labels) > 1:
        what = "receives inputs originated from different decoupled models"
        raise invalid(f"in ensemble {config.name}, step of model '{model}' {what}")
    return labels.pop() if labels else 0
