"""The ``identity`` backend: output i is input i. For tests, and for measuring what the server itself costs.

States of sequences stay as they are. The output of a missing optional input is zeros (or empty strings),
each variable dimension being 1.

Parameters of the model, as in Triton's identity backend: ``execute_delay_ms`` sleeps that long in each execution,
``instance_wise_delay_multiplier`` multiplies it by the instance's number (from 0), ``creation_delay_sec`` makes loading
take that long.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.core.errors import invalid
from modserve.core.tensors.dtypes import BYTES
from modserve.core.tensors.tensor import Array

from .api import INSTANCES, InstanceSpec, ModelSource
from .code import NoCode
from .options import parameters_of


class IdentityBackend(NoCode):
    default_model_filename = ""
    default_cpu_instances = 1
    in_place = INSTANCES
    any_thread = True

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "IdentityModel":
        time.sleep(_number(source.config, "creation_delay_sec"))
        return IdentityModel()


class IdentityModel:
    def describe(self) -> ModelDescription | None:
        return None

    def instance(self, spec: InstanceSpec) -> "IdentityInstance":
        config = spec.config
        if len(config.inputs) != len(config.outputs):
            raise invalid(
                f"model '{config.name}': the identity backend needs as many outputs as inputs, got "
                f"{len(config.inputs)} inputs and {len(config.outputs)} outputs"
            )
        pairs = list(zip(config.inputs, config.outputs, strict=True))
        for source, target in pairs:
            if source.datatype is not target.datatype:
                raise invalid(
                    f"model '{config.name}': the identity backend copies input '{source.name}' "
                    f"({source.datatype.name}) to output '{target.name}' ({target.datatype.name}), "
                    "their data types must be equal"
                )
        delay = _number(config, "execute_delay_ms") / 1e3
        if "instance_wise_delay_multiplier" in config.parameters:
            delay *= spec.index * _number(config, "instance_wise_delay_multiplier")
        names = {target.name: source.name for source, target in pairs}
        if config.sequence_batching is not None:
            names |= {state.output_name: state.input_name for state in config.sequence_batching.states}
        zeros = {
            target.name: np.full(
                [max(1, dim) for dim in target.dims], b"" if target.datatype is BYTES else 0, target.datatype.numpy
            )
            for source, target in pairs
            if source.optional
        }
        return IdentityInstance(names, delay, zeros, config.max_batch_size > 0)

    def close(self) -> None:
        pass


@dataclass(eq=False)
class IdentityInstance:
    pairs: dict[str, str]
    """Output → input."""
    delay: float
    zeros: dict[str, Array]
    batched: bool
    data_dependent = False

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        if self.delay:
            time.sleep(self.delay)
        pairs = self.pairs
        return {name: inputs[pairs[name]] if pairs[name] in inputs else self._absent(name, inputs) for name in outputs}

    def _absent(self, output: str, inputs: Mapping[str, Array]) -> Array:
        zeros = self.zeros[output]
        if not self.batched:
            return zeros
        rows = next((len(array) for array in inputs.values()), 1)
        return np.repeat(zeros[np.newaxis], rows, axis=0)

    def close(self) -> None:
        pass


def _number(config: ModelConfig, parameter: str) -> float:
    return parameters_of(config).number(parameter, 0.0, lambda value: value >= 0, "a number of 0 or more")
