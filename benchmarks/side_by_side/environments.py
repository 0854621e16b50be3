"""A virtual environment for each server that is not modserve, made once in a cache directory."""

import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

CACHE = Path.home() / ".cache" / "modserve-benchmarks"
ENGINE = f"onnxruntime=={version('onnxruntime')}"
"""The version that modserve has here, for all."""

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "triton": ("nvidia-pytriton==0.7.0",),
    "mlserver": ("mlserver==1.7.1", ENGINE),
    "kserve": ("kserve==0.21.0", ENGINE),
    "litserve": ("litserve==0.2.19", ENGINE),
    "ray": ("ray[serve]==2.60.0", ENGINE),
    "bentoml": ("bentoml==1.4.39", ENGINE),
    "torchserve": ("torchserve==0.12.0", "torch-model-archiver==0.12.0", "torch==2.13.0", "pyyaml", "numpy", ENGINE),
}
MODEL_REQUIREMENTS = ("numpy<2", ENGINE)
"""Of the models in Triton's Python backend; the wheel's own requirements are not needed."""


class Unavailable(Exception):
    """A server cannot be had here; the text says why."""


def environment(name: str, cache: Path) -> Path:
    """The folder of the virtual environment `name`, made if need be. Raises Unavailable."""
    folder = cache / name
    requirements = REQUIREMENTS[name]
    stamp = folder / f"installed-{zlib.crc32(repr((requirements, MODEL_REQUIREMENTS)).encode()):08x}"
    if stamp.exists():
        return folder
    print(f"installing {' '.join(requirements)} into {folder}, once", file=sys.stderr, flush=True)
    if folder.exists():
        shutil.rmtree(folder)
    _run([sys.executable, "-m", "venv", str(folder)], name)
    if name == "triton":
        _pip(folder, name, ["--no-deps", *requirements])
        _pip(folder, name, MODEL_REQUIREMENTS)
        _python_backend(folder)
    else:
        _pip(folder, name, requirements)
    stamp.touch()
    return folder


def site_packages(folder: Path) -> Path:
    return next((folder / "lib").glob("python*/site-packages"))


def _python_backend(folder: Path) -> None:
    """Triton looks for the stub beside the library; the wheel has one for each version of Python in another folder."""
    server = site_packages(folder) / "pytriton" / "tritonserver"
    backend = folder / "backends" / "python"
    shutil.copytree(server / "backends" / "python", backend)
    number = f"{sys.version_info[0]}.{sys.version_info[1]}"
    stub = server / "python_backend_stubs" / number / "triton_python_backend_stub"
    if not stub.exists():
        raise Unavailable(f"nvidia-pytriton has no stub for Python {number}")
    shutil.copyfile(stub, backend / stub.name)
    (backend / stub.name).chmod(0o755)
    (server / "bin" / "tritonserver").chmod(0o755)


def _pip(folder: Path, name: str, requirements: Sequence[str]) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*command, *requirements], name)


def _run(command: Sequence[str], name: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["no reason"]
        raise Unavailable(f"{name} could not be installed: {lines[-1].removeprefix('ERROR: ')}")
