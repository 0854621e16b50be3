"""Instances that are made at the same time, for backends that say so."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modserve import InstanceSpec, ModelSource, ModserveError
from modserve.backends.registry import BackendRegistry
from modserve.models.loading.loader import Loader, LoaderOptions
from modserve.models.serving.model import Model
from modserve.repository.local import LocalRepository
from modserve.testing import write_model

CONFIG = """
backend: "slow"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 4 ] } ]
instance_group [ { count: %d kind: KIND_CPU } ]
"""
SECONDS = 30


class Slow:
    """A backend and its model: `make` is what the making of an instance does, by its number."""

    default_model_filename = ""
    default_cpu_instances = 1
    any_thread = False

    def __init__(self, make: Callable[[int], None], parallel: object) -> None:
        self.make = make
        if parallel is not None:
            self.parallel_instances = parallel
        self.lock = threading.Lock()
        self.threads: set[int] = set()
        self.under_way = self.most = 0
        self.begun: list[int] = []
        self.made: list[int] = []
        self.closed: list[int] = []
        self.model_closed = False

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "Slow":
        return self

    def describe(self) -> None:
        return None

    def instance(self, spec: InstanceSpec) -> "SlowInstance":
        with self.lock:
            self.threads.add(threading.get_ident())
            self.begun.append(spec.index)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            self.make(spec.index)
        finally:
            with self.lock:
                self.under_way -= 1
        with self.lock:
            self.made.append(spec.index)
        return SlowInstance(self, spec)

    def close(self) -> None:
        self.model_closed = True


class SlowInstance:
    def __init__(self, backend: Slow, spec: InstanceSpec) -> None:
        self.backend = backend
        self.index = spec.index

    def execute(self, inputs: object, outputs: object) -> Any:
        return {}

    def close(self) -> None:
        assert not self.backend.model_closed
        self.backend.closed.append(self.index)


async def load(root: Path, backend: Slow, count: int, cores: int = 16) -> Model:
    write_model(root, "model", CONFIG % count)
    with ThreadPoolExecutor(1) as executor:
        loader = Loader(BackendRegistry({"slow": backend}), LoaderOptions(cores), executor)
        blueprint = await loader.inspect(LocalRepository(root).read("model"))
        model = await blueprint.load(blueprint.listing.path, 1)
    assert isinstance(model, Model)
    return model


@pytest.mark.parametrize(
    ("count", "cores", "at_a_time"), [(3, 16, 3), (12, 16, 8), (4, 2, 2)], ids=["all", "at most 8", "two cores"]
)
async def test_several_at_once(tmp_path: Path, count: int, cores: int, at_a_time: int) -> None:
    together = threading.Barrier(at_a_time)

    def make(index: int) -> None:
        if index < at_a_time:
            together.wait(SECONDS)  # which breaks if they are not made at the same time

    backend = Slow(make, True)
    model = await load(tmp_path, backend, count, cores)
    assert backend.most == at_a_time
    names = [name for name, _ in model.pool.executors]
    assert names == [f"model_0_{index}" for index in range(count)]
    assert [executor.index for _, executor in model.pool.executors] == list(range(count))  # type: ignore[union-attr]
    await model.close()
    assert sorted(backend.closed) == list(range(count))


@pytest.mark.parametrize("parallel", [None, False, "yes"])
async def test_one_by_one_where_the_backend_does_not_say_so(tmp_path: Path, parallel: object) -> None:
    backend = Slow(lambda index: None, parallel)
    model = await load(tmp_path, backend, 3)
    assert (backend.begun, len(backend.threads), backend.most) == ([0, 1, 2], 1, 1)
    await model.close()


@pytest.mark.parametrize("error", [OSError("no memory"), SystemExit(3)])
async def test_the_first_that_fails_closes_the_rest(tmp_path: Path, error: BaseException) -> None:
    failing = threading.Event()

    def make(index: int) -> None:
        if index == 1:
            failing.set()
            raise error
        assert failing.wait(SECONDS)

    backend = Slow(make, True)
    with pytest.raises(ModserveError) as caught:
        await load(tmp_path, backend, 6, cores=3)
    assert ("no memory" in caught.value.message) == isinstance(error, OSError)
    assert backend.model_closed
    assert sorted(backend.closed) == sorted(backend.made)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("make-instance")]
