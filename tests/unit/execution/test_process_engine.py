"""A real engine in another process, on the event loop: it dies on command, and is made anew."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from pool_bench import until
from process_engine import MergedProcess, Process, ProcessBackend, RequestProcess

from modserve import Code, InferenceServer, ModserveError, Settings
from modserve.testing import write_model

CONFIG = """
backend: "process"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { }
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


class Served:
    def __init__(self, server: InferenceServer, backend: ProcessBackend) -> None:
        self.server = server
        self.backend = backend

    async def double(self, value: float) -> list[float]:
        response = await self.server.infer("model", {"INPUT": np.array([[value, value]], np.float32)})
        doubled: list[float] = response.outputs["OUTPUT"].array.ravel().tolist()
        return doubled

    @property
    def lost(self) -> int:
        return self.server.models("model")[0].statistics.instances_lost

    @property
    def restarts(self) -> int:
        return self.server.models("model")[0].statistics.instance_restarts


@pytest.fixture(params=[MergedProcess, RequestProcess], ids=["merged", "by request"])
async def served(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    monkeypatch.setattr("modserve.execution.revival.FIRST_WAIT_NS", 10_000_000)
    kind: type[Process] = request.param
    backend = ProcessBackend(kind)
    write_model(tmp_path, "model", CONFIG)
    async with InferenceServer(Settings(model_repository=(tmp_path,)), backends={"process": backend}) as server:
        yield Served(server, backend)
    assert len(backend.closed) == len(backend.made)
    assert all(made.process.poll() is not None for made in backend.made)


async def test_many_at_a_time(served: Served) -> None:
    results = await asyncio.gather(*(served.double(100 + value) for value in range(100)))
    assert results == [[200.0 + 2 * value] * 2 for value in range(100)]
    assert [made.spec.name for made in served.backend.made] == ["model_0_0", "model_0_1"]


async def test_one_dies_and_comes_back(served: Served) -> None:
    with pytest.raises(
        ModserveError, match=r"instance 'model_0_\d' was lost: its worker ended with status 3"
    ) as caught:
        await served.double(13)
    assert caught.value.code is Code.UNAVAILABLE
    assert await served.double(1) == [2.0, 2.0]  # by the other one
    await until(lambda: served.restarts)
    first, second = (made.spec.index for made in served.backend.made if made.process.poll() is None)
    assert {first, second} == {0, 1}
    assert await asyncio.gather(*(served.double(value) for value in range(8)))


async def test_an_idle_one_that_is_killed_is_made_anew(served: Served) -> None:
    served.backend.made[0].process.kill()
    await until(lambda: served.restarts)
    assert len(served.backend.made) == 3


async def test_without_any_requests_are_refused_until_there_is_one(served: Served) -> None:
    served.backend.broken = True
    for made in served.backend.made:
        made.process.kill()
    await until(lambda: served.lost == 2)
    with pytest.raises(ModserveError, match="was lost: its worker ended with status -9") as caught:
        await served.double(1)
    assert caught.value.code is Code.UNAVAILABLE
    server = served.server
    assert not server.ready
    assert not server.model_ready("model", None)
    [unready] = server.unready_reasons()
    assert "model 'model'" in unready.reason
    assert [entry.reason for entry in server.index()] == [unready.reason]
    served.backend.broken = False
    await until(lambda: not served.lost)
    assert await served.double(1) == [2.0, 2.0]
    assert served.restarts == 2
    assert server.ready
