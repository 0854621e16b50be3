"""Packages from npm's registry for tests, in build/node; `scripts/clients` installs them ahead of the tests."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_PLACE = Path(__file__).resolve().parents[2] / "build" / "node"
_SETS: Mapping[str, tuple[str, ...]] = {
    "axe": ("axe-core@4.14.1",),
    "azurite": ("azurite@3.37.0",),
    "openai": ("openai@6.49.0",),
    "custom resources": tuple(
        f"@kubernetes-models/{name}" for name in ("keda@2.0.0", "gateway-api@2.0.0", "prometheus-operator@6.0.0")
    ),
    "grpc": ("@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1"),
}


class NoPackagesError(Exception):
    """There is no npm, or its registry does not answer."""


def node_modules(name: str) -> Path:
    """The folder with a set of packages, which is installed if it is not there. Raises `NoPackagesError`."""
    packages = _SETS[name]
    place = _PLACE / "-".join(each.rpartition("/")[2] for each in packages)
    if not place.exists():
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise NoPackagesError("node and npm are not installed")
        _PLACE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_PLACE) as folder:  # others may install the same, and are first
            made = Path(folder) / name
            made.mkdir()
            command = [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                "--prefix",
                str(made),
                *packages,
            ]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=240)
            except subprocess.TimeoutExpired:
                raise NoPackagesError("npm's registry does not answer") from None
            if done.returncode:
                raise NoPackagesError(f"npm's registry cannot be reached: {done.stderr[-200:]}")
            with suppress(OSError):
                made.rename(place)
    return place / "node_modules"


if __name__ == "__main__":
    for each in _SETS:
        try:
            node_modules(each)
        except NoPackagesError as error:
            print(f"{each}: {error}", file=sys.stderr)
