"""Models of one server, each in an environment of its own."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_here import serving_here
from server_process import Server
from wire import http

from modserve.backends.api import ModelSource
from modserve.backends.python.environment import prepare
from modserve.backends.python.options import BackendOptions, ModelOptions
from modserve.core.configuration.model_config import ModelConfig

MODEL = """
import importlib.util, json, os, sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        facts = {"prefix": sys.prefix, "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH")}
        facts["threads"] = os.environ.get("OMP_NUM_THREADS")
        facts["has"] = [name for name in ("onnxruntime", "useful") if importlib.util.find_spec(name)]
        facts["fits"] = float(np.float32(2.5))
        output = pb_utils.Tensor("FACTS", np.array([json.dumps(facts).encode()], np.object_))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""
CONFIG = """
backend: "python"
input [{{ name: "IN" data_type: TYPE_FP32 dims: [1] }}]
output [{{ name: "FACTS" data_type: TYPE_STRING dims: [1] }}]
instance_group [{{ kind: KIND_CPU count: {count} }}]
"""
REQUEST = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()


def write(repository: Path, name: str, *, count: int = 1, environment: str = "", imports: str = "") -> Path:
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(imports + MODEL)
    config = CONFIG.format(count=count)
    if environment:
        config += f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}\n'
    (directory / "config.pbtxt").write_text(config)
    return directory


def lend_numpy(directory: Path) -> Path:
    """A folder with the numpy that is here, and nothing else of what is installed."""
    directory.mkdir()
    installed = Path(np.__file__).parent
    for package in (installed, installed.parent / "numpy.libs"):
        if package.exists():
            (directory / package.name).symlink_to(package)
    return directory


def facts(server: Server, model: str) -> dict[str, Any]:
    response = http(server.http_port, "POST", f"/v2/models/{model}/infer", REQUEST)
    assert response.status == 200, response.body
    decoded: dict[str, Any] = json.loads(json.loads(response.body)["outputs"][0]["data"][0])
    assert decoded.pop("fits") == 2.5
    return decoded


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


def test_models_with_packages_of_their_own(tmp_path: Path, repository: Path) -> None:
    numpy = lend_numpy(tmp_path / "numpy")
    beside = write(repository, "beside", environment="$$TRITON_MODEL_DIRECTORY/venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", beside / "venv"], check=True)
    scheme = {"base": str(beside / "venv"), "platbase": str(beside / "venv")}
    Path(sysconfig.get_path("purelib", "venv", scheme), "numpy.pth").write_text(f"{numpy}\n")
    write(repository, "plain", count=2)
    installed = write(repository, "installed")
    with zipfile.ZipFile(installed / "useful-1.0-py3-none-any.whl", "w") as wheel:
        info = "useful-1.0.dist-info"
        wheel.writestr("useful.py", "")
        wheel.writestr("lent.pth", f"{numpy}\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: useful\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(
            f"{info}/RECORD", f"useful.py,,\nlent.pth,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    (installed / "requirements.txt").write_text("./useful-1.0-py3-none-any.whl\n")
    options = [
        "--backend-config=python,install-requirements=true",
        f"--backend-config=python,environment-directory={tmp_path / 'cache'}",
        "--backend-config=python,shm-default-byte-size=67108864",
    ]
    variables = {"PIP_NO_INDEX": "1", "LD_LIBRARY_PATH": "/nowhere"}
    # Installed beforehand, as by another server: nobody waits for a server's start as long as pip may take here.
    source = ModelSource(ModelConfig(name="installed", backend="python"), 1, installed / "1" / "model.py", installed)
    backend = BackendOptions(install_requirements=True, environment_directory=str(tmp_path / "cache"))
    ready = prepare(source, ModelOptions(), backend, {**os.environ, **variables})
    with serving_here(repository, options=options, environment=variables) as server:
        assert facts(server, "plain") == {
            "prefix": sys.prefix,
            "LD_LIBRARY_PATH": "/nowhere",
            "threads": "1",
            "has": ["onnxruntime"],
        }
        assert facts(server, "beside") == {
            "prefix": str(beside / "venv"),
            "LD_LIBRARY_PATH": "/nowhere",
            "threads": None,
            "has": [],
        }
        assert facts(server, "installed") == {
            "prefix": ready.variables["VIRTUAL_ENV"],
            "LD_LIBRARY_PATH": "/nowhere",
            "threads": None,
            "has": ["useful"],
        }
    assert "model 'installed': making" not in server.log
    assert (
        "backend option 'shm-default-byte-size' of backend 'python' has no effect: shared memory grows and "
        "shrinks with the tensors of requests" in server.log
    )


def test_a_module_that_is_missing(repository: Path) -> None:
    directory = write(repository, "missing", imports="import not_there\n")
    (directory / "requirements.txt").write_text("not-there\n")
    options = ["--exit-on-error=false", "--strict-readiness=false"]
    with serving_here(repository, options=options, errors=["Traceback", "No module named 'not_there'"]) as server:
        index = json.loads(http(server.http_port, "POST", "/v2/repository/index", b"").body)
    assert index[0]["reason"] == (
        f"Internal: ModuleNotFoundError: No module named 'not_there'\n\nAt:\n  {directory}/1/model.py(1): <module>\n\n"
        f"module 'not_there' is not installed in {sys.executable}, and '{directory}/requirements.txt' is not installed"
        f": install it with --backend-config=python,install-requirements=true, or install it there ('{sys.executable} "
        f"-m pip install …')"
    )
