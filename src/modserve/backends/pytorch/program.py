"""The interface of a loaded model in the ``pytorch`` backend, for every form of model file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from modserve.core.configuration.model_config import ModelConfig, ModelDescription

from .archive import Form
from .naming import Path

Run = Callable[[Mapping[str, Any]], Any]
"""Runs a model on tensors under the names of the configuration's inputs."""


@dataclass(frozen=True)
class LoadedProgram:
    """A model in memory, for one instance or several.

    `kinds` are those of arguments, by the names of inputs (`naming.Argument`). `writes_inputs` and `holds_outputs`: the
    model may change its inputs, and its former results. `paths` of results, if they are known already, and `flat`: it
    returns a list of just these.
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
    """A model file that was opened."""

    form: Form
    stateful: bool
    """Executions change the model, so that instances may not share it."""

    def describe(self) -> ModelDescription | None:
        """Return the file's inputs and outputs. Raises INVALID_ARG if the configuration must name them."""

    def load(self, config: ModelConfig, device: Any, *, fresh: bool) -> LoadedProgram:
        """Load for an instance on a device (None: the model decides). `fresh`: with a state of its own."""

    def close(self) -> None:
        """Let go of everything."""
