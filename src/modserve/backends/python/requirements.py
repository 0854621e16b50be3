"""Packages of a ``requirements.txt`` next to a model: installed into a virtual environment, if the server may.

The environment is one of the default interpreter, without the server's packages: the model sees what the file says, and
numpy, which is installed too if the file leads to none. So the server's versions do not decide over the model's, nor
does an update of the server.
"""

import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from modserve.core.errors import invalid
from modserve.core.files import regular_file

from .. import subprocesses
from . import environment_cache, interpreter

FILENAME = "requirements.txt"
_LIMIT_S = 3600.0
_ELSEWHERE = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PYTHONPATH", "PYTHONHOME")
"""Variables that make pip install elsewhere, or count packages from outside the environment as installed."""


def file_of(version_directory: Path, model_directory: Path) -> Path | None:
    """Return the requirements of a model version: a file next to model.py precedes the one for all versions."""
    for directory in (version_directory, model_directory):
        path = directory / FILENAME
        if path.is_file():
            return path
    return None


def environment(path: Path, model: str, base: interpreter.Interpreter, cache: Path) -> Path:
    """Return the virtual environment with these requirements. Makes it if it is not there, and blocks meanwhile.

    Raises INVALID_ARG with pip's last lines, and UNAVAILABLE for errors of the file system.
    """
    try:
        key = f"requirements-{_digest(path, base)}"
    except OSError as error:
        raise invalid(f"model '{model}': '{path}' cannot be read: {error.strerror}") from error

    def make(place: Path, lock: int) -> None:
        _install(path, model, base, place, lock)

    return environment_cache.environment(cache, key, path.resolve(), make, f"model '{model}'")


def _install(path: Path, model: str, base: interpreter.Interpreter, place: Path, lock: int) -> None:
    variables = {name: value for name, value in base.variables.items() if name not in _ELSEWHERE}
    python = str(place / "bin" / "python")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")

    def run(command: Sequence[str], action: str) -> None:
        doing = f"model '{model}': {action}"
        # The environment's lock is held as long as the program lives.
        ended = subprocesses.run(
            command, doing, _LIMIT_S, env=variables, cwd=path.parent, pass_fds=(lock,), together=True
        )
        if ended.returncode:
            text = f"'{shlex.join(command)}' ended with {subprocesses.status(ended)}"
            raise invalid(f"{doing}: {text}:\n{subprocesses.last_lines(ended.stdout)}")

    run((base.python, "-m", "venv", "--clear", str(place)), f"cannot make a virtual environment for '{path}'")
    run((*pip, "install", "-r", path.name), f"cannot install '{path}'")
    search = "import importlib.util, sys; sys.exit(importlib.util.find_spec('numpy') is None)"
    if subprocesses.run((python, "-c", search), f"model '{model}'", _LIMIT_S, env=variables, cwd="/").returncode:
        run((*pip, "install", "numpy"), f"cannot install numpy beside '{path}'")


def _digest(path: Path, base: interpreter.Interpreter) -> str:
    digest = hashlib.sha256(f"{os.path.realpath(base.python)}\n{base.version}\n".encode(errors="surrogateescape"))
    for content in _contents(path, set()):
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:32]


def _contents(path: Path, seen: set[Path]) -> Iterator[bytes]:
    """Yield the file and the files that it includes by ``-r`` and ``-c``."""
    path = path.resolve()
    if path in seen:
        return
    seen.add(path)
    content = regular_file.read_bytes(path)
    yield content
    for line in content.decode(errors="replace").splitlines():
        option, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        # Without a space, too: -rcommon.txt
        if option[:2] in ("-r", "-c") and len(option) > 2:
            option, rest = option[:2], option[2:]
        included = path.parent / rest.partition(" #")[0].strip()
        if option in ("-r", "--requirement", "-c", "--constraint") and included.is_file():
            yield from _contents(included, seen)
