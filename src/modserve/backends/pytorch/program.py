"""Interface of a model in the ``pytorch`` backend, for every form of model file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from modserve.core.configuration.model_config import ModelConfig, ModelDescription

from .archive import Form
from .naming import Path

Run = Callable[[Mapping[str, Any]], Any]
"""Runs a model on tensors by configured input name."""


@dataclass(frozen=True)
class LoadedProgram:
    """A model in memory, for one instance or several.

    `kinds` maps inputs to argument kinds (`naming.Argument`). With `writes_inputs` the model may change its inputs, and
    with `holds_outputs` its former results. `paths` are the results' paths if known, and `flat` means that the model
    returns a list of exactly these.
    """

    run: Run
    kinds: Mapping[str, str]
    writes_inputs: bool
    holds_outputs: bool
    paths: Sequence[Path] | None = None
    flat: bool = False
    device: Any = None
    """Device for the inputs; None for the CPU."""


class TorchProgram(Protocol):
    """An open model file."""

    form: Form
    stateful: bool
    """True if executions change the model, so that instances cannot share it."""

    def describe(self) -> ModelDescription | None:
        """Return the file's inputs and outputs. Raises INVALID_ARG if the configuration must name them."""

    def load(self, config: ModelConfig, device: Any, *, fresh: bool) -> LoadedProgram:
        """Load the model for an instance on a device (None: the model decides). `fresh`: with its own state."""

    def close(self) -> None:
        """Release everything."""
