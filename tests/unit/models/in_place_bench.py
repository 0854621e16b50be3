"""A server in this process whose model changes its configuration while it serves."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from modserve import InferenceServer, Settings
from modserve.backends.api import INSTANCES
from modserve.core.requests.response import InferenceResponse
from modserve.testing import Execution, PuppetBackend

CONFIG = """backend: "puppet"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
"""
ONE = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
DYNAMIC = "dynamic_batching { max_queue_delay_microseconds: 0 }\n"
SLOW = "dynamic_batching { max_queue_delay_microseconds: 600000000 preferred_batch_size: [ 8 ] }\n"


class Bench:
    """A server in this process, without ports, whose model `m` runs on a puppet."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.backend = PuppetBackend()
        self.backend.in_place = INSTANCES
        made = Settings(
            model_repository=[root], model_control_mode="explicit", load_model=["m"], cache_config=1_000_000, **settings
        )
        self.server = InferenceServer(made, backends={"puppet": self.backend})

    def write(self, text: str) -> None:
        (self.root / "m" / "config.pbtxt").write_text(CONFIG + text)

    async def change(self, text: str) -> None:
        """Write a configuration, and request a load."""
        self.write(text)
        await self.server.load_model("m")

    @property
    def opened(self) -> int:
        """How often a model was opened."""
        return len(self.backend.sources)

    @property
    def model(self) -> Any:
        [servable] = self.server.ready_models()
        return servable

    def infer(self, value: int, **parameters: Any) -> "asyncio.Task[InferenceResponse]":
        data = np.full((1, 4), value, np.int32)
        return asyncio.create_task(self.server.infer("m", {"INPUT0": data}, parameters=parameters))

    async def begun(self) -> Execution:
        return await asyncio.to_thread(self.backend.next_execution)

    async def run(self, value: int = 1) -> None:
        """One inference from its beginning to its end."""
        response = self.infer(value)
        execution = await self.begun()
        execution.finish({"OUTPUT0": execution.inputs["INPUT0"]})
        assert (await response).outputs["OUTPUT0"].array.tolist() == [[value] * 4]


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not what():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
