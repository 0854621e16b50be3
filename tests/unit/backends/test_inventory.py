"""What can run models here, told without importing any of it."""

import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from modserve.backends import catalogue, inventory
from modserve.backends.catalogue import ENGINES
from modserve.core.pip_command import pip_install


def by_name() -> dict[str, inventory.BackendEntry]:
    return {entry.backend: entry for entry in inventory.inventory()}


def test_every_engine_and_every_backend_without_one() -> None:
    entries = by_name()
    assert {engine.backend for engine in ENGINES} | {"python", "auto", "modular", "identity", "repeat"} <= set(entries)
    runtime = entries["onnxruntime"]
    assert (runtime.library, runtime.version, runtime.installed) == ("ONNX Runtime", onnxruntime.__version__, True)
    assert all(entry.loads for entry in entries.values())


def test_what_is_missing_comes_last_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "is_installed", lambda module: module == "onnxruntime")
    entries = inventory.inventory()
    missing = [entry.backend for entry in entries if not entry.installed]
    assert [entry.backend for entry in entries][-len(missing) :] == missing
    assert missing == sorted(engine.backend for engine in ENGINES if engine.backend != "onnxruntime")
    assert {"openvino", "pytorch", "tensorflow"} <= {*missing}
    assert by_name()["openvino"].install == pip_install("openvino")
    assert by_name()["onnxruntime"].install == ""


def test_one_library_in_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "is_installed", lambda module: module == "openvino")
    entry = by_name()["tensorflow"]
    assert (entry.library, entry.installed, entry.install) == ("OpenVINO", True, pip_install("tensorflow"))


def test_backends_of_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution = tmp_path / "acme_engine-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-engine\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text("[modserve.backends]\nacme = no_such_module:Engine\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert by_name()["acme"] == inventory.BackendEntry("acme", "acme-engine", "1.0", "", True)


def test_no_engine_is_imported() -> None:
    program = "import sys; from modserve import cli; cli.main(['engines']); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {name.split(".")[0] for name in result.stderr.split()}
    assert imported.isdisjoint({engine.module for engine in ENGINES} | {"fastapi", "grpc"})
    assert "onnxruntime" in result.stdout
