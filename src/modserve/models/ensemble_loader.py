"""From the configuration of an ensemble to a model that takes requests, once its models are READY."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from modserve import config as model_config
from modserve.config import Draft, validate_composition
from modserve.core.errors import ModserveError, invalid, not_found
from modserve.core.model_config import ModelConfig
from modserve.core.servable import Borrow, Handle, Servable
from modserve.core.version import ModelId
from modserve.scheduling.scheduler import Clock

from .ensemble import EnsembleModel


@dataclass(frozen=True)
class LoadedEnsemble:
    """What is known of an ensemble without its models."""

    complete: model_config.Complete
    labels: Mapping[str, tuple[str, ...]]


def nothing_to_borrow(name: str, version: int | None) -> Handle:
    """A `Borrow` for loaders whose models call no others."""
    raise not_found(f"model '{name}' cannot be called by other models here")


def read_ensemble(draft: Draft, *, auto_complete: bool) -> model_config.Complete:
    """Its configuration, checked as far as it goes. Raises INVALID_ARG."""
    return model_config.finish(
        draft, None, default_cpu_instances=1, default_model_filename="", gpu_count=0, auto_complete=auto_complete
    )


def assemble(model_id: ModelId, loaded: LoadedEnsemble, borrow: Borrow, clock: Clock) -> EnsembleModel:
    """The ensemble, checked against its models. For the event loop's thread.

    It is decoupled if one of them is. Outputs without a label file have the labels of the outputs they come from.
    Raises INVALID_ARG if a model is not READY or does not fit.
    """
    config, message = loaded.complete.config, loaded.complete.message
    with ExitStack() as stack:
        models = _borrow_all(config, borrow, stack)
        decoupled = validate_composition(config, {name: servable.config for (name, _), servable in models.items()})
        labels = {**_step_labels(config, models), **loaded.labels}
    message.model_transaction_policy.decoupled = decoupled
    return EnsembleModel(
        model_id,
        replace(config, decoupled=decoupled),
        message.SerializeToString(deterministic=True),
        borrow,
        clock,
        labels,
    )


def _borrow_all(config: ModelConfig, borrow: Borrow, stack: ExitStack) -> dict[tuple[str, int | None], Servable]:
    assert config.ensemble is not None, "only called for ensembles: this is a bug"
    models: dict[tuple[str, int | None], Servable] = {}
    for step in config.ensemble.steps:
        key = step.model, step.version
        if key in models:
            continue
        try:
            handle = borrow(*key)
        except ModserveError as error:
            raise invalid(f"ensemble '{config.name}' depends on '{step.model}': {error.message}") from error
        stack.callback(handle.release)
        models[key] = handle.servable
    return models


def _step_labels(config: ModelConfig, models: Mapping[tuple[str, int | None], Servable]) -> dict[str, tuple[str, ...]]:
    assert config.ensemble is not None, "only called for ensembles: this is a bug"
    labels: dict[str, tuple[str, ...]] = {}
    for step in config.ensemble.steps:
        step_labels = models[step.model, step.version].labels
        for name, tensor in step.outputs.items():
            if tensor in config.outputs_by_name and name in step_labels:
                labels.setdefault(tensor, step_labels[name])
    return labels
