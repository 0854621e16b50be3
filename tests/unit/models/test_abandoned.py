"""Models that are to end while an engine is at work that nobody waits for any more, and that may never end."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from modserve.backends.api import EngineRequest, InstanceHandle, RequestsDone
from modserve.core.requests.inflight import Inflight
from modserve.core.runtime.clock import LoopClock
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.models.loading.assembly import assemble_model
from modserve.models.serving import model
from modserve.models.serving.opened_model import OpenedModel
from modserve.testing.builders import RecordingSink, config, request, tensor


class StuckInstance:
    """Never ends an execution by itself."""

    def __init__(self) -> None:
        self.under_way: list[tuple[Sequence[EngineRequest], RequestsDone]] = []
        self.closed = False

    def attach(self, handle: InstanceHandle) -> None:
        pass

    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        self.under_way.append((requests, done))

    def detach(self) -> None:
        self.under_way.clear()

    def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self) -> None:
        self.engine = StuckInstance()
        opened = OpenedModel(config(), b"", _Nothing(), [("model_0", self.engine)], False)
        self.model = assemble_model(ModelId("model", 1), opened, LoopClock(asyncio.get_running_loop()))

    async def submit(self) -> Inflight:
        sent = request({"INPUT0": tensor(dtypes.INT32, (1, 4), 1)})
        inflight = self.model.submit(sent, RecordingSink(), time.monotonic_ns())
        await asyncio.sleep(0)
        return inflight


class _Nothing:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(model, "_ABANDONED_NS", 20_000_000)
    monkeypatch.setattr(model, "_LOOK_S", 0.005)
    return Bench()


async def test_what_nobody_waits_for_does_not_keep_a_model(bench: Bench) -> None:
    inflight = await bench.submit()
    assert bench.engine.under_way
    draining = asyncio.create_task(bench.model.drain())
    await asyncio.wait([draining], timeout=0.1)
    assert not draining.done()  # somebody waits
    inflight.cancel()
    await asyncio.wait_for(draining, 10)
    assert not bench.model.busy
    await bench.model.close()
    assert bench.engine.closed


async def test_it_is_busy_again_with_another_request(bench: Bench) -> None:
    first = await bench.submit()
    first.cancel()
    await asyncio.wait_for(bench.model.idle(), 10)
    assert not bench.model.busy
    second = await bench.submit()
    assert bench.model.busy
    second.cancel()
    assert not bench.model.busy
    await bench.model.close()


async def test_it_may_still_end_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_ABANDONED_NS", 3600_000_000_000)
    inflight = await bench.submit()
    inflight.cancel()
    draining = asyncio.create_task(bench.model.drain())
    await asyncio.wait([draining], timeout=0.05)
    assert not draining.done()
    ((requests, done),) = bench.engine.under_way
    requests[0].complete()
    done(None)
    await asyncio.wait_for(draining, 10)
    await bench.model.close()
