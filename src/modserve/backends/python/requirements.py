"""The packages of a ``requirements.txt`` beside a model: installed into a virtual environment, if the server may.

The environment is one of the default interpreter, without the server's packages: the model sees what the file says, and
numpy, which is installed too if the file leads to none. So the server's versions do not decide over the model's, nor
does an update of the server.
"""

import hashlib
import logging
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from modserve.core.errors import invalid

from . import environment_cache, interpreter
from .options import ENVIRONMENT_PATH, EXECUTION_MODE, INSTALL_REQUIREMENTS, ExecutionMode

_log = logging.getLogger(__name__)

FILENAME = "requirements.txt"
_LIMIT_S = 3600.0
_ELSEWHERE = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PYTHONPATH", "PYTHONHOME")
"""What would make pip install elsewhere, or take packages for installed that the environment does not have."""

_PACKAGES = {"mlflow": "mlflow-skinny pandas"}
"""Module → the packages that the models which import it need, where that is known."""


def file_of(version_directory: Path, model_directory: Path) -> Path | None:
    """The requirements of a model version: those beside model.py come before those of all versions."""
    for directory in (version_directory, model_directory):
        path = directory / FILENAME
        if path.is_file():
            return path
    return None


def environment(path: Path, model: str, base: interpreter.Interpreter, cache: Path) -> Path:
    """The virtual environment with these requirements; made first, if it is not there. Blocks meanwhile.

    Raises INVALID_ARG with pip's last lines, and UNAVAILABLE for what the file system refuses.
    """
    try:
        key = f"requirements-{_digest(path, base)}"
    except OSError as error:
        raise invalid(f"model '{model}': '{path}' cannot be read: {error.strerror}") from error

    def make(place: Path, lock: int) -> None:
        _log.info("model '%s': installing '%s' into '%s', which may take minutes", model, path, place)
        begin = time.monotonic()
        _install(path, model, base, place, lock)
        _log.info("model '%s': installed '%s' in %.1f s", model, path, time.monotonic() - begin)

    def on_wait() -> None:
        _log.info("model '%s': waiting until '%s' is installed by another load or server", model, path)

    return environment_cache.environment(cache, key, path.resolve(), make, on_wait)


def _install(path: Path, model: str, base: interpreter.Interpreter, place: Path, lock: int) -> None:
    variables = {name: value for name, value in base.variables.items() if name not in _ELSEWHERE}
    python = str(place / "bin" / "python")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")

    def run(command: Sequence[str], doing: str) -> None:
        _run(command, f"model '{model}': {doing}", variables, path.parent, lock)

    run((base.python, "-m", "venv", "--clear", str(place)), f"cannot make a virtual environment for '{path}'")
    run((*pip, "install", "-r", path.name), f"cannot install '{path}'")
    if not _has_numpy(python, variables):
        run((*pip, "install", "numpy"), f"cannot install numpy beside '{path}'")


def _has_numpy(python: str, variables: Mapping[str, str]) -> bool:
    command = [python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('numpy') is None)"]
    return subprocess.run(command, env=variables, cwd="/", stdin=subprocess.DEVNULL, check=False).returncode == 0


def _run(command: Sequence[str], doing: str, variables: Mapping[str, str], directory: Path, lock: int) -> None:
    """Run a program that holds the environment's lock as long as it lives."""
    try:
        ended = subprocess.run(
            command,
            env=variables,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise invalid(f"{doing}: it was not over after {_LIMIT_S:.0f} s") from error
    except OSError as error:
        raise invalid(f"{doing}: '{command[0]}' cannot be run: {error.strerror}") from error
    if ended.returncode:
        status = interpreter.exit_status(ended.returncode)
        raise invalid(f"{doing}: '{shlex.join(command)}' ended with {status}:\n{interpreter.last_lines(ended.stdout)}")


def _digest(path: Path, base: interpreter.Interpreter) -> str:
    digest = hashlib.sha256(f"{os.path.realpath(base.python)}\n{base.version}\n".encode(errors="surrogateescape"))
    for content in _contents(path, set()):
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:32]


def _contents(path: Path, seen: set[Path]) -> Iterator[bytes]:
    """The file and those that it includes by ``-r`` and ``-c``."""
    path = path.resolve()
    if path in seen:
        return
    seen.add(path)
    content = path.read_bytes()
    yield content
    for line in content.decode(errors="replace").splitlines():
        option, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        # Without a space, too: -rcommon.txt
        if option[:2] in ("-r", "-c") and len(option) > 2:
            option, rest = option[:2], option[2:]
        included = path.parent / rest.partition(" #")[0].strip()
        if option in ("-r", "--requirement", "-c", "--constraint") and included.is_file():
            yield from _contents(included, seen)


def missing_module_hint(
    module: str,
    version_directory: Path,
    model_directory: Path,
    python: str,
    *,
    mode: ExecutionMode,
    installs: bool,
    backend: str = "python",
) -> str:
    """What to do about a model that fails with ModuleNotFoundError: a sentence to follow the error.

    `python` is the interpreter that the model runs in, or would run in; `installs` says that the
    server installs requirements. `backend` is the model's, which stands on the Python backend.
    """
    path = file_of(version_directory, model_directory)
    by_hand = f"install it there ('{python} -m pip install {_PACKAGES.get(module, '…')}')"
    if path is None:
        name_one = f"name an environment that has it by the parameter '{ENVIRONMENT_PATH}'"
        ways = [by_hand, f"leave out '{EXECUTION_MODE}' and {name_one}" if mode != "process" else name_one]
        where = f"'{module}' is no module of {python}, which the model runs in"
    elif mode != "process":
        return (
            f"'{module}' is no module of {python}, which the model runs in, since its '{EXECUTION_MODE}' is '{mode}'; "
            f"'{path}' is for models that run in a process of their own"
        )
    elif installs:
        return f"'{module}' is no module of {python}, where '{path}' is installed; does the file name its package?"
    else:
        ways = [f"have it installed with --backend-config={backend},{INSTALL_REQUIREMENTS}=true", by_hand]
        where = f"'{module}' is no module of {python}, and '{path}' is not installed"
    return f"{where}: {', or '.join(ways)}"
