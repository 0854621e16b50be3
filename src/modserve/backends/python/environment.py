"""Which interpreter and which environment variables a worker of a model gets.

In this order: the environment that the model's parameter ``EXECUTION_ENV_PATH`` names; the ``requirements.txt`` beside
the model, if the server installs such; the default interpreter. As Triton's python backend has it (README, "Creating
Custom Execution Environments", and src/pb_env.cc), an environment is the archive of a conda environment, or a
directory. Triton unpacks archives anew at each start, and the interpreter must be of the version that its stub was
built for; ours may be any from Python 3.8 on.
"""

import hashlib
import logging
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from modserve.backends.api import ModelSource
from modserve.core.errors import ModserveError, invalid

from . import archive, environment_cache, interpreter, requirements, variables
from .interpreter import Interpreter
from .options import ENVIRONMENT_PATH, PYTHON, BackendOptions, ModelOptions

_log = logging.getLogger(__name__)

MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_UNPACK_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Environment:
    """How to start a worker.

    `python` is the path of the interpreter; `variables` are all of the process's environment variables. `directory` is
    the environment's, None for an interpreter in none of its own. `version` is like ``CPython 3.11.7``, and `numpy` the
    version of numpy.
    """

    python: str
    variables: Mapping[str, str]
    directory: Path | None
    version: str
    numpy: str


def prepare(
    source: ModelSource, model: ModelOptions, backend: BackendOptions, inherited: Mapping[str, str] = os.environ
) -> Environment:
    """What the workers of a model version run in. Unpacks or installs it, if need be, and blocks meanwhile.

    A model that runs in a thread has the server's interpreter. Raises INVALID_ARG if the environment is not there, is
    no good or cannot run a worker, and UNAVAILABLE if there is no room for it.
    """
    if model.in_server:
        return _environment(_of_server(inherited), None)
    name = source.config.name
    version_directory = source.model_directory / str(source.version)
    file = requirements.file_of(version_directory, source.model_directory)
    if model.environment_path is not None:
        path = model.environment_path
        who = f"model '{name}': parameter '{ENVIRONMENT_PATH}' is '{path}'"
        directory = _named(path, source.model_directory, who, name, backend, inherited)
        if file is not None and backend.install_requirements:
            _log.info("model '%s': '%s' is not installed, since '%s' names an environment", name, file, path)
        ready = _of_directory(directory, inherited, f"the environment '{path}' of model '{name}'")
    elif file is not None and backend.install_requirements:
        base, _ = _default(backend, inherited)
        cache = environment_cache.directory(backend.environment_directory, inherited)
        directory = requirements.environment(file, name, base, cache)
        ready = _of_directory(directory, inherited, f"the environment of '{file}' for model '{name}'")
    else:
        base, of_default = _default(backend, inherited)
        ready = _environment(base, of_default)
    limited = variables.with_threads(ready.variables, source.cpu_instances, source.cpu_threads)
    return replace(ready, variables=limited)


def _environment(ready: Interpreter, directory: Path | None) -> Environment:
    return Environment(ready.python, ready.variables, directory, ready.version, ready.numpy)


def _of_server(inherited: Mapping[str, str]) -> Interpreter:
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return Interpreter(sys.executable, version, np.__version__, dict(inherited))


def _of_directory(directory: Path, inherited: Mapping[str, str], which_one: str) -> Environment:
    python = interpreter.find(directory)
    if python is None:
        raise invalid(f"{which_one} has no interpreter: there is no '{directory / 'bin' / 'python'}'")
    ready = interpreter.inspect(python, variables.activated(inherited, directory), which_one)
    return _environment(ready, directory)


def _default(backend: BackendOptions, inherited: Mapping[str, str]) -> tuple[Interpreter, Path | None]:
    """The interpreter of models that have no environment, and the directory of its own, if it has one."""
    if backend.python == sys.executable:
        return _of_server(inherited), None
    which_one = f"the interpreter of --backend-config=python,{PYTHON}={backend.python}"
    directory = Path(backend.python).parent.parent
    if any((directory / name).exists() for name in ("pyvenv.cfg", "conda-meta")):
        return interpreter.inspect(backend.python, variables.activated(inherited, directory), which_one), directory
    return interpreter.inspect(backend.python, variables.for_other_interpreter(inherited), which_one), None


def _named(
    text: str, model_directory: Path, who: str, name: str, backend: BackendOptions, inherited: Mapping[str, str]
) -> Path:
    """The directory of the environment that a model names. Relative paths count from the server's directory."""
    path = Path(os.path.abspath(text.replace(MODEL_DIRECTORY, str(model_directory))))
    if path.is_dir():
        return path
    if not path.exists():
        raise invalid(f"{who}, but there is no '{path}'{_elsewhere(text, model_directory)}")
    if os.access(path, os.X_OK) and path.parent.name == "bin":
        raise invalid(f"{who}, which is a program; expected the environment's directory, '{path.parent.parent}'")
    cache = environment_cache.directory(backend.environment_directory, inherited)
    return _unpacked(path.resolve(), who, name, cache)


def _elsewhere(text: str, model_directory: Path) -> str:
    if not os.path.isabs(text) and MODEL_DIRECTORY not in text and (model_directory / text).exists():
        return f"; paths are relative to the server's working directory: did you mean '{MODEL_DIRECTORY}/{text}'?"
    return f"; it is the path of a conda-pack archive or of an environment's directory, and {MODEL_DIRECTORY} in it \
stands for the model's directory"


def _unpacked(path: Path, who: str, name: str, cache: Path) -> Path:
    """The directory that an archive is unpacked in, once for each state of the file."""
    status = path.stat()
    state = f"{path}\n{status.st_mtime_ns}\n{status.st_size}"
    key = f"archive-{hashlib.sha256(os.fsencode(state)).hexdigest()[:32]}"

    def make(place: Path, lock: int) -> None:
        _log.info("model '%s': unpacking '%s' into '%s'", name, path, place)
        begin = time.monotonic()
        _unpack(path, place, who, cache, lock)
        _fix_prefix(place, who, lock)
        _log.info("model '%s': unpacked '%s' in %.1f s", name, path, time.monotonic() - begin)

    def on_wait() -> None:
        _log.info("model '%s': waiting until '%s' is unpacked by another load or server", name, path)

    return environment_cache.environment(cache, key, path, make, on_wait)


def _unpack(path: Path, place: Path, who: str, cache: Path, lock: int) -> None:
    ended = _run([sys.executable, "-I", "-S", archive.__file__, str(path), str(place)], None, who, lock)
    text = ended.stderr.decode(errors="replace").strip()
    if ended.returncode == archive.FAILED:
        raise environment_cache.disk_error(cache, OSError(0, f"unpacking '{path}': {text}"))
    if ended.returncode == archive.REFUSED:
        raise invalid(f"{who}, which cannot be unpacked: {text}")
    if ended.returncode:
        status = interpreter.exit_status(ended.returncode)
        raise invalid(f"{who}; unpacking it ended with {status}:\n{interpreter.last_lines(ended.stderr)}")


def _fix_prefix(place: Path, who: str, lock: int) -> None:
    """Have a conda-pack archive's own program write the new place into the files that name the old one."""
    program, python = place / "bin" / "conda-unpack", interpreter.find(place)
    if not program.is_file() or python is None:
        return
    ended = _run([python, str(program)], variables.activated(os.environ, place), who, lock)
    if ended.returncode:
        status = interpreter.exit_status(ended.returncode)
        text = interpreter.last_lines(ended.stderr or ended.stdout)
        raise invalid(f"{who}; its 'bin/conda-unpack' ended with {status}:\n{text}")


def _run(command: list[str], env: Mapping[str, str] | None, who: str, lock: int) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=(lock,),
            timeout=_UNPACK_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise invalid(f"{who}; unpacking it was not over after {_UNPACK_LIMIT_S:.0f} s") from error
    except OSError as error:
        raise invalid(f"{who}; '{command[0]}' cannot be run: {error.strerror}") from error


def missing_module_hint(
    module: str, source: ModelSource, model: ModelOptions, backend: BackendOptions, python: str
) -> str:
    """Where a module would have to be that a model did not find, and how it gets there: follows the error.

    `python` is the interpreter that the model runs in.
    """
    if model.environment_path is not None:
        return f"'{module}' is no module of the environment '{model.environment_path}' of model '{source.config.name}'"
    return requirements.missing_module_hint(
        module,
        source.model_directory / str(source.version),
        source.model_directory,
        python,
        mode=model.execution_mode,
        installs=backend.install_requirements,
        backend=source.config.backend or "python",
    )


@contextmanager
def hints(source: ModelSource, model: ModelOptions, backend: BackendOptions, python: str) -> Iterator[None]:
    """What runs a model's code inside fails, where a module is missing, with `missing_module_hint` behind the error."""
    try:
        yield
    except ModserveError as error:
        missing = _MISSING.match(error.message)
        if missing is None:
            raise
        hint = missing_module_hint(missing[1], source, model, backend, python)
        raise ModserveError(error.code, f"{error.message.rstrip()}\n\n{hint}") from error


_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
