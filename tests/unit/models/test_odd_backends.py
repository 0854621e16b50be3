"""Backends that fail in odd places: their own model fails with a reason, and the others load."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modserve.backends.registry import BackendRegistry
from modserve.core.lifecycle import LifecycleState
from modserve.core.loading import Blueprint
from modserve.models.loading.loader import Loader, LoaderOptions
from modserve.repository.local import LocalRepository
from modserve.repository.manager import ModelManager
from modserve.repository.table import ModelTable
from modserve.testing import PuppetBackend, write_model

TENSORS = """
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 4 ] } ]
"""


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*arguments: object, **more: object) -> Any:
        raise error

    return call


class Model:
    """A model of which one part is odd."""

    def __init__(self, **parts: object) -> None:
        self.describe: object = lambda: None
        self.instance: object = lambda config, placement: Instance()
        self.close: object = lambda: None
        for name, part in parts.items():
            setattr(self, name, part)


class Instance:
    def execute(self, inputs: object, outputs: object) -> object:
        return {}

    def close(self) -> None:
        pass


class Engine:
    """A backend of which one part is odd; None takes the part away."""

    def __init__(self, model: object = None, **parts: object) -> None:
        self.default_model_filename: object = ""
        self.default_cpu_instances: object = 1
        self.any_thread: object = False
        self.gpu_count: object = lambda: 0
        self.open: object = lambda source: model if model is not None else Model()
        for name, part in parts.items():
            if part is None:
                delattr(self, name)
            else:
                setattr(self, name, part)


class Unreadable(Engine):
    def __getattribute__(self, name: str) -> Any:
        if name == "default_cpu_instances":
            raise OSError("no licence")
        return super().__getattribute__(name)


NO_BACKEND = "Internal: backend 'odd' is not a backend: "
FAILED = "Internal: failed to load model 'odd' version 1: "


async def blueprints(manager: ModelManager, root: Path) -> dict[str, Blueprint]:
    return await manager.inspect((await LocalRepository(root).look()).values())


async def reasons(root: Path, engine: object) -> dict[str, str]:
    """What a server says of model `odd` on this engine, beside which `good` is served."""
    for name, backend in (("good", "puppet"), ("odd", "odd")):
        write_model(root, name, f'backend: "{backend}"\n{TENSORS}')
    with ThreadPoolExecutor(2) as executor:
        registry = BackendRegistry({"puppet": PuppetBackend(), "odd": engine})  # type: ignore[dict-item]
        manager = ModelManager(ModelTable(), Loader(registry, LoaderOptions(4), executor), 2)
        await manager.reconcile(await blueprints(manager, root))
        entries = manager.table.index()
        await manager.reconcile({})
    assert [entry.state for entry in entries if entry.name == "good"] == [LifecycleState.READY]
    return {entry.name: entry.reason for entry in entries if entry.state is not LifecycleState.READY}


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (lambda: object(), NO_BACKEND + "its attribute 'default_model_filename' (a file name, "),
        (
            lambda: Engine(default_cpu_instances=None),
            NO_BACKEND + "its attribute 'default_cpu_instances' (a number of 1 or more) cannot be read",
        ),
        (
            lambda: Engine(default_cpu_instances=0),
            NO_BACKEND + "its attribute 'default_cpu_instances' is 0, expected a number of 1 or more",
        ),
        (
            lambda: Engine(default_cpu_instances="two"),
            NO_BACKEND + "its attribute 'default_cpu_instances' is 'two', expected a number of 1 or more",
        ),
        (lambda: Unreadable(), NO_BACKEND + "its attribute 'default_cpu_instances' (a number of 1 or more) cannot be"),
        (lambda: Engine(any_thread=None), NO_BACKEND + "its attribute 'any_thread' (True or False) cannot be read"),
        (lambda: Engine(gpu_count=None), NO_BACKEND + "it has no method 'gpu_count'"),
        (
            lambda: Engine(gpu_count=raises(RuntimeError("driver broken"))),
            "Internal: backend 'odd' cannot tell how many GPUs there are: driver broken",
        ),
        (lambda: Engine(gpu_count=lambda: "two"), "Internal: backend 'odd' reports 'two' GPUs, expected"),
        (lambda: Engine(gpu_count=lambda: -1), "Internal: backend 'odd' reports -1 GPUs, expected"),
        (lambda: Engine(open=raises(KeyError("weights"))), FAILED + "'weights'"),
        (lambda: Engine(open=raises(SystemExit(3))), FAILED + "3"),
        (lambda: Engine(open=raises(StopIteration())), FAILED + "StopIteration"),
        (lambda: Engine(open=lambda source: 7), FAILED + "'int' object has no attribute 'describe'"),
        (lambda: Engine(Model(describe=raises(RuntimeError("no graph")))), FAILED + "no graph"),
        (
            lambda: Engine(Model(describe=lambda: {"inputs": []})),
            "Internal: backend 'odd' describes its model by a dict, expected a modserve.ModelDescription or None",
        ),
        (lambda: Engine(Model(instance=raises(RuntimeError("no memory")))), FAILED + "no memory"),
        (
            lambda: Engine(Model(instance=lambda config, placement: None)),
            "Internal: backend 'odd' made a NoneType for an instance; expected a method 'execute' or",
        ),
        (
            lambda: Engine(Model(describe=raises(RuntimeError("first")), close=raises(RuntimeError("second")))),
            FAILED + "first",
        ),
    ],
    ids=lambda value: value.rpartition(": ")[2][:40] if isinstance(value, str) else "",
)
async def test_it_fails_alone_and_says_why(tmp_path: Path, engine: Callable[[], object], reason: str) -> None:
    found = await reasons(tmp_path, engine())
    assert list(found) == ["odd"]
    assert found["odd"].startswith(reason), found["odd"]


@pytest.mark.parametrize("error", [RuntimeError("stuck"), SystemExit(3), StopIteration()], ids=repr)
async def test_an_engine_that_fails_to_close_is_closed_all_the_same(tmp_path: Path, error: BaseException) -> None:
    assert await reasons(tmp_path, Engine(Model(close=raises(error)))) == {}


async def test_a_package_that_ends_the_program_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    (packages / "odd-1.0.dist-info").mkdir(parents=True)
    (packages / "odd-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (packages / "odd-1.0.dist-info" / "entry_points.txt").write_text("[modserve.backends]\nodd = odd_engine:Engine\n")
    (packages / "odd_engine.py").write_text("import sys\nsys.exit('run me as a program')\n")
    monkeypatch.syspath_prepend(packages)
    models = tmp_path / "models"
    for name, backend in (("good", "puppet"), ("odd", "odd")):
        write_model(models, name, f'backend: "{backend}"\n{TENSORS}')
    with ThreadPoolExecutor(2) as executor:
        loader = Loader(BackendRegistry({"puppet": PuppetBackend()}), LoaderOptions(4), executor)
        manager = ModelManager(ModelTable(), loader, 2)
        await manager.reconcile(await blueprints(manager, models))
        states = {entry.name: (entry.state, entry.reason) for entry in manager.table.index()}
        await manager.reconcile({})
    sys.modules.pop("odd_engine", None)
    assert states == {
        "good": (LifecycleState.READY, ""),
        "odd": (
            LifecycleState.UNAVAILABLE,
            "Internal: failed to load backend 'odd' (odd_engine:Engine): run me as a program",
        ),
    }
