"""The features of a configuration: a module each, with the functions of `feature.Feature`.

To add a feature, write its module and add it to `FEATURES`. `complete` (one level up) fills in what the engine knows;
`unsupported` lists the settings without effect; `conditions` and `composition` are the rest of the rules for ensembles.
"""

from dataclasses import replace

from modserve.core.model_config import ModelConfig, ModelDescription
from modserve.pb import inference as pb

from ..text.problems import Problems
from . import (
    dynamic_batching,
    ensembles,
    files,
    input_count,
    instances,
    padding,
    platforms,
    ragged,
    responses,
    scheduling,
    sequences,
    tensors,
    unsupported,
    versions,
)
from .feature import Context as Context
from .feature import Feature

FEATURES = (
    platforms.FEATURE,
    Feature(validate=lambda message, context: unsupported.unknown_values(message)),
    versions.FEATURE,
    input_count.FEATURE,
    tensors.FEATURE,
    files.FEATURE,
    dynamic_batching.FEATURE,
    sequences.FEATURE,
    ragged.FEATURE,
    scheduling.FEATURE,
    ensembles.FEATURE,
    padding.FEATURE,
    responses.FEATURE,
    instances.FEATURE,
)
"""In the order in which a report lists problems that have no position."""


def normalise(message: pb.ModelConfig, context: Context, problems: Problems) -> None:
    """Fills in the defaults in place."""
    for feature in FEATURES:
        feature.normalise(message, context, problems)


def validate(message: pb.ModelConfig, context: Context, problems: Problems) -> None:
    """Adds every rule that the message breaks by itself, and a warning for each setting without effect."""
    if message.HasField("ensemble_scheduling"):
        context = replace(context, partial=False)  # there is no engine that could fill in anything
    for feature in FEATURES:
        problems.add_all(feature.validate(message, context))
    unsupported.check(message, problems)


def compare(message: pb.ModelConfig, description: ModelDescription, problems: Problems, *, shapes: bool) -> None:
    """Adds every difference between the message and the model."""
    for feature in FEATURES:
        problems.add_all(feature.compare(message, description, shapes))


def to_model_config(message: pb.ModelConfig, context: Context) -> ModelConfig:
    """The frozen values that the rest of the server reads."""
    config = ModelConfig(
        name=message.name,
        backend=message.backend,
        platform=message.platform,
        parameters={key: value.string_value for key, value in message.parameters.items()},
        metric_tags=dict(message.metric_tags),
    )
    for feature in FEATURES:
        config = feature.convert(message, config, context)
    return config
