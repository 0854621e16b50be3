"""Backends are found by their entry points, in this package and in others."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from modserve.backends import catalogue
from modserve.backends.api import InstanceSpec, Placement
from modserve.backends.identity import IdentityBackend
from modserve.backends.onnxruntime.backend import OnnxRuntimeBackend
from modserve.backends.registry import GROUP, BackendRegistry, imports_since, new_instance
from modserve.core.configuration.model_config import InstanceKind, ModelConfig
from modserve.core.errors import Code, ModserveError
from modserve.core.pip_command import pip_install
from modserve.testing import PuppetBackend, config, instance_spec

MODULE = """
from modserve.testing import PuppetBackend

made = []

class Engine(PuppetBackend):
    def __init__(self):
        super().__init__()
        made.append(self)

class Demanding:
    def __init__(self, argument):
        pass
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package of somebody else's, with a backend that works and three that do not."""
    distribution = tmp_path / "acme_engine-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-engine\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(
        "[modserve.backends]\n"
        "acme = acme_engine:Engine\n"
        "broken = acme_broken:Engine\n"
        "demanding = acme_engine:Demanding\n"
        "missing = acme_engine:Nothing\n"
        "[other.group]\n"
        "unrelated = acme_engine:Engine\n"
    )
    (tmp_path / "acme_engine.py").write_text(MODULE)
    (tmp_path / "acme_broken.py").write_text("raise RuntimeError('no libacme.so here')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("acme_engine", "acme_broken"):
        sys.modules.pop(name, None)


def test_packages_that_come_and_go_while_the_process_runs(elsewhere: Path) -> None:
    distribution, aside = elsewhere / "acme_engine-1.0.dist-info", elsewhere / "aside"
    assert "acme" in BackendRegistry().known
    distribution.rename(aside)
    assert "acme" not in BackendRegistry().known
    aside.rename(distribution)
    assert "acme" in BackendRegistry().known


INSTALLED = catalogue.available(entry.name for entry in entry_points(group=GROUP))
"""Of this package; the engines that are there depend on what else is installed."""


def refusal(registry: BackendRegistry, name: str) -> tuple[Code, str]:
    with pytest.raises(ModserveError) as caught:
        registry.get(name)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(
    ("name", "kind"), [("identity", IdentityBackend), ("onnxruntime", OnnxRuntimeBackend)], ids=lambda value: str(value)
)
def test_installed_backends(name: str, kind: type) -> None:
    registry = BackendRegistry()
    backend = registry.get(name)
    assert type(backend) is kind
    assert registry.get(name) is backend


def test_an_unknown_name_lists_the_installed_ones() -> None:
    assert {"identity", "onnxruntime", "python", "repeat"} <= {*INSTALLED}
    assert refusal(BackendRegistry({"zebra": PuppetBackend()}), "dali") == (
        Code.INVALID_ARG,
        f"unable to find backend 'dali', installed backends are: {', '.join([*INSTALLED, 'zebra'])}",
    )


def test_a_backend_whose_library_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "is_installed", lambda module: module != "openvino")
    registry = BackendRegistry()
    assert "openvino" not in registry.names
    assert "pytorch" in registry.names
    others = ", ".join(registry.names)
    assert refusal(registry, "openvino") == (
        Code.INVALID_ARG,
        f"backend 'openvino' needs OpenVINO, which is not installed here: {pip_install('openvino')}; installed "
        f"backends are: {others}",
    )


def test_an_engine_that_another_stands_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    tensorflow, openvino = catalogue.BY_BACKEND["tensorflow"], catalogue.BY_BACKEND["openvino"]
    for present, names, stand_in in (
        ({"tensorflow", "openvino"}, {"tensorflow", "openvino"}, None),
        ({"tensorflow"}, {"tensorflow"}, None),
        ({"openvino"}, {"tensorflow", "openvino"}, openvino),
        (set(), set(), None),
    ):
        monkeypatch.setattr(catalogue, "is_installed", present.__contains__)
        assert {*catalogue.available(["tensorflow", "openvino"])} == names
        assert tensorflow.stand_in is stand_in
        assert tensorflow.usable is ("tensorflow" in names)
    assert refusal(BackendRegistry(), "tensorflow")[1].startswith(
        "backend 'tensorflow' needs TensorFlow, which is not in"
    )


def test_a_backend_that_runs_nothing_here_is_not_among_the_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "is_installed", lambda module: module != "tensorrt")
    registry = BackendRegistry()
    registry.get("tensorrt")
    assert "tensorrt" not in registry.names
    assert "tensorrt" in registry.known
    assert "tensorrt" in BackendRegistry({"tensorrt": PuppetBackend()}).names


def test_backends_given_by_hand_come_first() -> None:
    puppet = PuppetBackend()
    registry = BackendRegistry({"identity": puppet})
    assert registry.get("identity") is puppet
    assert registry.names == INSTALLED


@pytest.mark.usefixtures("elsewhere")
def test_an_import_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    imports: list[int] = []
    monkeypatch.setattr("modserve.backends.registry.after_import", lambda: imports.append(1))
    registry = BackendRegistry()
    for _ in range(2):
        registry.get("acme")
    assert imports == [1]
    refusal(registry, "broken")
    assert imports == [1]


@pytest.mark.usefixtures("elsewhere")
def test_a_backend_from_another_package() -> None:
    registry = BackendRegistry()
    assert registry.names == sorted([*INSTALLED, "acme", "broken", "demanding", "missing"])
    assert "acme_engine" not in sys.modules  # imported when a model first asks for it
    backend = registry.get("acme")
    assert isinstance(backend, PuppetBackend)
    assert registry.get("acme") is backend
    assert sys.modules["acme_engine"].made == [backend]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "failed to load backend 'broken' (acme_broken:Engine): no libacme.so here"),
        (
            "missing",
            "failed to load backend 'missing' (acme_engine:Nothing): module 'acme_engine' has no attribute 'Nothing'",
        ),
        (
            "demanding",
            "failed to load backend 'demanding' (acme_engine:Demanding): "
            "Demanding.__init__() missing 1 required positional argument: 'argument'",
        ),
    ],
    ids=["import fails", "no such class", "needs arguments"],
)
def test_backends_that_can_not_be_loaded(name: str, message: str) -> None:
    registry = BackendRegistry()
    assert refusal(registry, name) == (Code.INTERNAL, message)
    assert refusal(registry, name) == (Code.INTERNAL, message)
    assert isinstance(registry.get("identity"), IdentityBackend)


def test_an_import_that_takes_long_holds_up_no_other_backend(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "acme_broken.py").write_text(
        "import sys\nsys.modules['acme_gate'].begun.set()\nsys.modules['acme_gate'].go_on.wait(30)\n"
        "from acme_engine import Engine\n"
    )
    gate = SimpleNamespace(begun=threading.Event(), go_on=threading.Event())
    monkeypatch.setitem(sys.modules, "acme_gate", gate)
    registry, before_ns = BackendRegistry(), time.monotonic_ns()
    with ThreadPoolExecutor(2) as threads:
        imports = [threads.submit(registry.get, "broken") for _ in range(2)]
        assert gate.begun.wait(30)
        assert "broken" in imports_since(time.monotonic_ns())
        assert isinstance(registry.get("identity"), IdentityBackend)
        gate.go_on.set()
        assert imports[0].result(30) is imports[1].result(30)
    assert "broken" not in imports_since(time.monotonic_ns())
    assert "broken" in imports_since(before_ns)


class Made:
    def execute(self, inputs: object, outputs: object) -> dict[str, object]:
        return {}

    def close(self) -> None: ...


class FirstEdition:
    def instance(self, config: ModelConfig, placement: Placement) -> Made:
        assert (config.name, placement) == ("model", Placement(InstanceKind.GPU, 1))
        return Made()


class FirstEditionWithDefaults:
    def instance(self, config: ModelConfig, placement: Placement, threads: int = 4) -> Made:
        return FirstEdition().instance(config, placement)


class SecondEdition:
    def instance(self, spec: InstanceSpec) -> Made:
        assert (spec.name, spec.kind, spec.device, spec.index) == ("model_2", InstanceKind.GPU, 1, 2)
        return Made()


class SecondEditionWithDefaults:
    def instance(self, spec: InstanceSpec, threads: int = 4) -> Made:
        return SecondEdition().instance(spec)


class Anything:
    def instance(self, *arguments: Any) -> Made:
        return SecondEdition().instance(*arguments)


@pytest.mark.parametrize(
    "model", [FirstEdition, FirstEditionWithDefaults, SecondEdition, SecondEditionWithDefaults, Anything]
)
def test_models_of_both_editions(model: Any) -> None:
    spec = instance_spec(config(), InstanceKind.GPU, device=1, index=2)
    assert isinstance(new_instance(model(), spec), Made)


def test_a_model_that_does_not_say_what_it_takes() -> None:
    made: Any = SimpleNamespace(instance=max)  # without a signature
    several: Any = [1, 2]
    assert cast(Any, new_instance(made, several)) == 2
