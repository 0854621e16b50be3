"""The interface of a feature: what it adds to each step from a draft to a complete configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from modserve.core.model_config import ModelConfig, ModelDescription
from modserve.pb import inference as pb

from ..text.problems import Faults, Problems


@dataclass(frozen=True)
class Context:
    """What a configuration does not say about its model itself."""

    directory: str
    """The name of the model's directory."""
    partial: bool = False
    """The engine may still fill in what is absent."""
    gpu_count: int | None = None
    """None while it is unknown."""
    default_cpu_instances: int = 1
    default_model_filename: str = ""
    description: ModelDescription | None = None
    """The engine's description of the model; None before the engine has opened it, or if the engine has none."""


Normalise: TypeAlias = Callable[[pb.ModelConfig, Context, Problems], None]
Validate: TypeAlias = Callable[[pb.ModelConfig, Context], Faults]
Compare: TypeAlias = Callable[[pb.ModelConfig, ModelDescription, bool], Faults]
Convert: TypeAlias = Callable[[pb.ModelConfig, ModelConfig, Context], ModelConfig]


@dataclass(frozen=True)
class Feature:
    """The functions of one feature. A feature leaves out the steps to which it adds nothing."""

    normalise: Normalise = lambda message, context, problems: None
    """Fills Triton's defaults into the message in place; clients see them. May add warnings to the problems."""
    validate: Validate = lambda message, context: iter(())
    """The rules that the message breaks by itself, in Triton's words where Triton checks the same."""
    compare: Compare = lambda message, description, shapes: iter(())
    """The differences between the message and the engine's description; those of shapes only if `shapes` is set."""
    convert: Convert = lambda message, config, context: config
    """The configuration with the values of the feature. Leaves out values that break a rule."""
