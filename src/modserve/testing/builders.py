"""Builders of values for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from modserve.backends.api import InstanceSpec
from modserve.core.configuration.model_config import InstanceGroup, InstanceKind, ModelConfig, TensorSpec
from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.tenants import Tenant
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape, Tensor


class RecordingSink:
    """Records its outcomes."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.errors: list[ModserveError] = []
        self.ended = 0
        """The number of final outcomes."""

    @property
    def settled(self) -> int:
        """The number of responses and failures: 1 for a healthy request of a model that is not decoupled."""
        return len(self.responses) + len(self.errors)

    def settle(self, outcome: Outcome, final: bool) -> None:
        if isinstance(outcome, ModserveError):
            self.errors.append(outcome)
        elif outcome is not None:
            self.responses.append(outcome)
        self.ended += final


class RecordedInflight(Inflight):
    """Keeps its `RecordingSink` after settlement, even behind a sink that preserves order, so that tests can inspect
    it.
    """

    __slots__ = ()

    def settle(self, outcome: Outcome, final: bool = True) -> None:
        recording = getattr(self.sink, "_sink", self.sink)
        super().settle(outcome, final)
        if self.settled and isinstance(recording, RecordingSink):
            self.sink = recording


def tensor(datatype: Datatype, shape: Shape, value: Any = 1) -> Tensor:
    """Return a tensor filled with `value`."""
    return Tensor.from_array(np.full(shape, value, dtype=datatype.numpy), datatype)


def config(
    name: str = "model",
    *,
    inputs: tuple[TensorSpec, ...] = (TensorSpec("INPUT0", dtypes.INT32, (4,)),),
    outputs: tuple[TensorSpec, ...] = (TensorSpec("OUTPUT0", dtypes.INT32, (4,)),),
    max_batch_size: int = 8,
    **more: Any,
) -> ModelConfig:
    """Return a configuration of the identity backend with one instance."""
    groups = (InstanceGroup(name, InstanceKind.CPU, 1),)
    fields: dict[str, Any] = {"backend": "identity", "instance_groups": groups, **more}
    return ModelConfig(name, inputs=inputs, outputs=outputs, max_batch_size=max_batch_size, **fields)


def instance_spec(
    config: ModelConfig, kind: InstanceKind = InstanceKind.CPU, device: int = 0, index: int = 0
) -> InstanceSpec:
    """Return the specification of one of a model's instances."""
    return InstanceSpec(f"{config.name}_{index}", kind, device, index, config)


def request(
    inputs: Mapping[str, Tensor] | None = None, model: str = "model", batch_size: int = 1, **more: Any
) -> InferenceRequest:
    """Return a request that `config()` accepts."""
    if inputs is None:
        inputs = {"INPUT0": tensor(dtypes.INT32, (batch_size, 4))}
    return InferenceRequest(model, inputs, **more)


def inflight(
    batch_size: int = 1,
    *,
    shape_key: object = None,
    deadline_ns: int = 0,
    sink: RecordingSink | None = None,
    tenant: Tenant | None = None,
    **parameters: ParameterValue,
) -> Inflight:
    """Return an accepted request, as schedulers see it."""
    accepted = request(batch_size=batch_size, deadline_ns=deadline_ns, tenant=tenant, parameters=parameters)
    sink = sink or RecordingSink()
    return RecordedInflight(accepted, sink, accepted.inputs, ("OUTPUT0",), batch_size, shape_key, 0, deadline_ns)


def write_model(repository: Path, name: str, config_text: str = "", versions: tuple[str, ...] = ("1",)) -> Path:
    """Return a model directory with a configuration (none if empty) and empty version directories."""
    directory = repository / name
    directory.mkdir(parents=True)
    for version in versions:
        (directory / version).mkdir(parents=True)
    if config_text:
        (directory / "config.pbtxt").write_text(config_text)
    return directory
