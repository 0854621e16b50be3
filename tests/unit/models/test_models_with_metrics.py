"""Metrics that engines make: from the load of a model until it is unloaded, or until the load has failed."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve import InferenceServer, InstanceSpec, ModelSource, ModserveError, Settings
from modserve.core.configuration.model_config import ModelDescription
from modserve.core.lifecycle import LifecycleState
from modserve.core.tensors.tensor import Array
from modserve.testing import write_model

CONFIG = """
backend: "metered"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
ONES = np.ones(2, np.float32)


class Metered:
    """A backend whose instances count together what they execute; `fails` names what raises."""

    default_model_filename = ""
    default_cpu_instances = 1
    any_thread = False
    fails = ""

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "MeteredModel":
        source.metrics.family("runs", "Executions", "counter")
        source.metrics.metric("runs", {"model": source.config.name})
        if self.fails == "open":
            raise OSError("no file")
        return MeteredModel(self, source)


class MeteredModel:
    def __init__(self, backend: Metered, source: ModelSource) -> None:
        self._backend = backend
        self._source = source

    def describe(self) -> ModelDescription | None:
        return None

    def instance(self, spec: InstanceSpec) -> "MeteredInstance":
        if self._backend.fails == "instance" and spec.index:
            raise OSError("no memory")
        return MeteredInstance(self._source)

    def close(self) -> None:
        self._source.metrics.metric("runs", {"model": "closing"}).increment()
        if self._backend.fails == "close":
            raise OSError("no end")


class MeteredInstance:
    def __init__(self, source: ModelSource) -> None:
        source.metrics.family("runs", "Executions", "counter")
        self._runs = source.metrics.metric("runs", {"model": source.config.name})

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        self._runs.increment()
        return {"OUTPUT": inputs["INPUT"]}

    def close(self) -> None:
        self._runs.close()


class Bench:
    def __init__(self, repository: Path) -> None:
        self.backend = Metered()
        self.stack = AsyncExitStack()
        self._repository = repository

    async def start(self) -> InferenceServer:
        backends: Any = {"metered": self.backend}
        for name in ("one", "two"):
            write_model(self._repository, name, CONFIG)
        settings = Settings(model_repository=(self._repository,), model_control_mode="explicit")
        self.server = await self.stack.enter_async_context(InferenceServer(settings, backends=backends))
        return self.server

    @property
    def page(self) -> dict[str, object]:
        """The value of each model's metric."""
        return {
            labels["model"]: value for reading in self.server.engine_metrics.read() for labels, value in reading.rows
        }


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.stack:
        yield made


async def test_from_the_load_until_the_unloading(bench: Bench) -> None:
    server = await bench.start()
    assert bench.page == {}
    await server.load_model("one")
    await server.load_model("two")
    for model in ("one", "one", "one", "two"):
        await server.infer(model, {"INPUT": ONES})
    assert bench.page == {"one": 3.0, "two": 1.0}
    changed = asyncio.Event()
    with server.changes.listening(changed.set):
        await server.unload_model("one")
        while any(entry.name == "one" and entry.state is not LifecycleState.UNAVAILABLE for entry in server.index()):
            changed.clear()
            await changed.wait()
    assert bench.page == {"two": 1.0}
    await server.shut_down()
    assert bench.page == {}


@pytest.mark.parametrize("part", ["open", "instance"])
async def test_a_load_that_fails_leaves_none(bench: Bench, part: str) -> None:
    server = await bench.start()
    bench.backend.fails = part
    with pytest.raises(ModserveError, match=r"no (file|memory)"):
        await server.load_model("one")
    assert bench.page == {}
    assert server.engine_metrics.families == {}


async def test_an_engine_that_does_not_close_well_leaves_none(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    server = await bench.start()
    bench.backend.fails = "close"
    await server.load_model("one")
    await server.shut_down()
    assert "no end" in caplog.text
    assert server.engine_metrics.families == {}


def test_a_source_without_a_server_has_metrics_that_nobody_reads() -> None:
    source = ModelSource(None, 1, Path(), Path())  # type: ignore[arg-type]
    source.metrics.family("runs", "Executions", "counter")
    runs = source.metrics.metric("runs")
    runs.increment()
    assert runs.value() == 1
