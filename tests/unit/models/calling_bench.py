"""An engine that calls other models as a test says, in a server with engines that a test finishes by hand."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np

from modserve import (
    EngineRequest,
    InferenceRequest,
    InferenceServer,
    InstanceSpec,
    ModelCaller,
    ModelSource,
    ModserveError,
    Settings,
    Tensor,
)
from modserve.core.configuration.model_config import ModelDescription
from modserve.testing import PuppetBackend, write_model

CONFIG = """
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
DECOUPLED = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
        { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [ { model_name: "caller" model_version: -1
  input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "OUTPUT" } } ] }
"""
ONES = np.ones((1, 2), np.float32)

Work = Callable[[ModelCaller, EngineRequest], Any]


class Calling:
    """A backend whose instance does what the test says with each request, or with a batch, on its thread."""

    default_model_filename = ""
    default_cpu_instances = 1
    any_thread = False
    work: Work
    work_at_once: Callable[[ModelCaller, Sequence[EngineRequest]], None] | None = None

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "Calling":
        self.models = source.models
        return self

    def describe(self) -> ModelDescription | None:
        return None

    def instance(self, spec: InstanceSpec) -> "Calling":
        return self

    def execute_requests(self, requests: Sequence[EngineRequest]) -> None:
        if self.work_at_once is not None:
            self.work_at_once(self.models, requests)
            return
        for request in requests:
            try:
                request.respond({"OUTPUT": self.work(self.models, request)})
            except ModserveError as error:
                request.fail(error)

    def close(self) -> None: ...


class Bench:
    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.caller = Calling()
        self.puppet = PuppetBackend()
        self.stack = AsyncExitStack()

    async def start(self, models: dict[str, str], **settings: Any) -> None:
        for name, text in models.items():
            write_model(self.repository, name, text)
        backends: Any = {"caller": self.caller, "puppet": self.puppet}
        self.server = await self.stack.enter_async_context(
            InferenceServer(Settings(model_repository=(self.repository,), **settings), backends=backends)
        )

    async def infer(self, model: str = "caller", **more: Any) -> list[list[float]]:
        response = await self.server.infer(model, {"INPUT": ONES}, **more)
        output: list[list[float]] = response.outputs["OUTPUT"].array.tolist()
        return output

    async def execution(self) -> Any:
        return await asyncio.to_thread(self.puppet.next_execution)


CALLER = 'backend: "caller"' + CONFIG
PUPPET = 'backend: "puppet"' + CONFIG
IDENTITY = 'backend: "identity"' + CONFIG


def asking(name: str, **more: Any) -> InferenceRequest:
    return InferenceRequest(name, {"INPUT": Tensor.from_array(ONES)}, **more)


def called(name: str, **more: Any) -> Work:
    """Work that is one call, and its response."""
    return lambda models, request: models.infer(asking(name, **more), parent=request).result().outputs["OUTPUT"]
