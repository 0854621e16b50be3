"""The backend `held`, for tests: identity, but that a test says when a model has loaded, and when it has run.

It does so by files in the directory `gate` of the model (`repositories.Gate`).
"""

import time
from collections.abc import Mapping
from pathlib import Path

from modserve.backends.api import InstanceSpec, ModelSource
from modserve.backends.identity import IdentityBackend, IdentityInstance, IdentityModel
from modserve.core.tensors.tensor import Array


class HeldBackend(IdentityBackend):
    any_thread = False

    def open(self, source: ModelSource) -> IdentityModel:
        gate = source.model_directory / "gate"
        _wait(gate / "loads")
        return HeldModel(gate)


class HeldModel(IdentityModel):
    def __init__(self, gate: Path) -> None:
        super().__init__()
        self._gate = gate

    def instance(self, spec: InstanceSpec) -> IdentityInstance:
        return HeldInstance(super().instance(spec), self._gate)

    def close(self) -> None:
        while (self._gate / "stuck").exists():
            time.sleep(0.002)


class HeldInstance(IdentityInstance):
    def __init__(self, inner: IdentityInstance, gate: Path) -> None:
        self._inner = inner
        self._gate = gate

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        with (self._gate / "begun").open("ab") as begun:
            begun.write(b".")
        _wait(self._gate / "runs")
        return self._inner.execute(inputs, outputs)


def _wait(sign: Path) -> None:
    """The file is made by another process, the test's; nothing tells of it, so it is looked for."""
    while not sign.exists():
        time.sleep(0.002)
