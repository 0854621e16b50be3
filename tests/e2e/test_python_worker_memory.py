"""What is left of a worker process in the server's memory: nothing, without the cyclic garbage collector."""

import asyncio
import gc
import os
import signal
import subprocess
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_process import eventually

from modserve.backends.api import InstanceLostError, ModelSource
from modserve.backends.python.backend import PythonBackend
from modserve.backends.python.instance import WorkerInstance
from modserve.core.configuration.model_config import ModelConfig
from modserve.testing.builders import instance_spec

MODEL = """
class TritonPythonModel:
    def is_ready(self):
        return True

    def execute(self, requests):
        import time
        time.sleep(600)
"""
DIES = """
import os

class TritonPythonModel:
    def initialize(self, args):
        os._exit(3)
"""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Handle:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.error: asyncio.Future[InstanceLostError] = self.loop.create_future()

    def lost(self, error: InstanceLostError) -> None:
        self.error.set_result(error)


class Owner:
    """Whose batches an instance runs, and who has the instance: as the server's pool does."""

    def __init__(self, instance: WorkerInstance) -> None:
        self.instance = instance

    def done(self, *_: Any) -> None: ...


def make(path: Path, loop: asyncio.AbstractEventLoop) -> WorkerInstance:
    config = ModelConfig(name="m", backend="python")
    model = PythonBackend().open(ModelSource(config, 1, path, path.parent, loop=loop))
    instance = model.instance(instance_spec(config))
    assert isinstance(instance, WorkerInstance)
    return instance


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
@pytest.mark.parametrize("dies", [True, False], ids=["killed", "closed"])
async def test_nothing_is_left_of_a_worker(tmp_path: Path, no_collector: None, dies: bool, busy: bool) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    files = len(os.listdir("/proc/self/fd"))
    instance = await asyncio.to_thread(make, path, asyncio.get_running_loop())
    handle = Handle()
    instance.attach(handle)
    _, block = instance.worker.arena.allocate(1 << 20)
    block[:] = 1
    # Nothing but the worker refers to its process, and compiled classes cannot be referred to weakly.
    process, array = weakref.ref(instance.worker.process), weakref.ref(block)
    assert isinstance(block, np.ndarray)
    owner = Owner(instance)
    if busy:
        instance.start_requests([], owner.done)
    if dies or busy:
        os.killpg(instance.worker.process.pid, signal.SIGKILL)
    if dies:
        assert "was killed by SIGKILL" in (await asyncio.wait_for(handle.error, 20)).message
        with pytest.raises(InstanceLostError, match="was killed by SIGKILL"):
            instance.attach(handle)
    instance.detach()
    await asyncio.to_thread(instance.close)
    del instance, handle, block, owner
    await asyncio.sleep(0)
    eventually(lambda: process() is None)  # the thread that has waited for the end may be about to go
    assert array() is None
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= files)


async def test_nothing_is_left_of_a_worker_that_does_not_start(
    tmp_path: Path, no_collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.py"
    path.write_text(DIES)
    processes: list[weakref.ref[Any]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            processes.append(weakref.ref(self))

    monkeypatch.setattr(subprocess, "Popen", Noted)
    with pytest.raises(InstanceLostError, match=r"in initialize, its process .* exited with status 3"):
        await asyncio.to_thread(make, path, asyncio.get_running_loop())
    await asyncio.sleep(0)
    (process,) = processes
    eventually(lambda: process() is None)
