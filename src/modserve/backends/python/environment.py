"""Choice of the interpreter and the environment variables of a model's workers.

In this order: the environment that the model's parameter ``EXECUTION_ENV_PATH`` names; the ``requirements.txt`` next
to the model, if the server installs such; the default interpreter. As Triton's python backend has it (README, "Creating
Custom Execution Environments", and src/pb_env.cc), an environment is the archive of a conda environment, or a
directory. Triton unpacks archives anew at each start, and the interpreter must be of the version that its stub was
built for; ours may be any from Python 3.8 on.
"""

import hashlib
import logging
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from modserve.backends.api import ModelSource
from modserve.core.errors import invalid
from modserve.core.files import regular_file

from .. import subprocesses
from . import archive, environment_cache, interpreter, requirements, variables
from .interpreter import Interpreter
from .options import ENVIRONMENT_PATH, PYTHON, BackendOptions, ModelOptions

_log = logging.getLogger(__name__)

MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_UNPACK_LIMIT_S = 3600.0


def prepare(
    source: ModelSource, model: ModelOptions, backend: BackendOptions, inherited: Mapping[str, str] = os.environ
) -> Interpreter:
    """Return the interpreter of a model version's workers. Unpacks or installs it if necessary, and blocks meanwhile.

    A model that runs in a thread has the server's interpreter. Raises INVALID_ARG if the environment is not there, is
    broken or cannot run a worker, and UNAVAILABLE if there is no room for it.
    """
    if model.in_server:
        return _of_server(inherited)
    name = source.config.name
    version_directory = source.model_directory / str(source.version)
    file = requirements.file_of(version_directory, source.model_directory)
    if model.environment_path is not None:
        path = model.environment_path
        label = f"model '{name}': parameter '{ENVIRONMENT_PATH}' is '{path}'"
        directory = _find_directory(path, source.model_directory, label, name, backend, inherited)
        if file is not None and backend.install_requirements:
            _log.info("model '%s': '%s' is not installed, because '%s' names an environment", name, file, path)
        ready = _of_directory(directory, inherited, f"the environment '{path}' of model '{name}'")
    elif file is not None and backend.install_requirements:
        base = _default(backend, inherited)
        cache = environment_cache.directory(backend.environment_directory, inherited)
        directory = requirements.environment(file, name, base, cache)
        ready = _of_directory(directory, inherited, f"the environment of '{file}' for model '{name}'")
    else:
        ready = _default(backend, inherited)
    limited = variables.with_threads(ready.variables, source.cpu_instances, source.cpu_threads)
    return replace(ready, variables=limited)


def _of_server(inherited: Mapping[str, str]) -> Interpreter:
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return Interpreter(sys.executable, version, dict(inherited))


def _of_directory(directory: Path, inherited: Mapping[str, str], which_one: str) -> Interpreter:
    python = interpreter.find(directory)
    if python is None:
        raise invalid(f"{which_one} has no interpreter: expected '{directory / 'bin' / 'python'}'")
    return interpreter.inspect(python, variables.activate(inherited, directory), which_one)


def _default(backend: BackendOptions, inherited: Mapping[str, str]) -> Interpreter:
    """Return the interpreter of models without an environment."""
    if backend.python == sys.executable:
        return _of_server(inherited)
    which_one = f"the interpreter of --backend-config=python,{PYTHON}={backend.python}"
    directory = Path(backend.python).parent.parent
    in_environment = any((directory / name).exists() for name in ("pyvenv.cfg", "conda-meta"))
    own = variables.activate(inherited, directory) if in_environment else variables.for_other_interpreter(inherited)
    return interpreter.inspect(backend.python, own, which_one)


def _find_directory(
    text: str, model_directory: Path, label: str, name: str, backend: BackendOptions, inherited: Mapping[str, str]
) -> Path:
    """Return the directory of the environment that a model names. Relative paths count from the server's directory."""
    path = Path(os.path.abspath(text.replace(MODEL_DIRECTORY, str(model_directory))))
    if path.is_dir():
        return path
    if not path.exists():
        raise invalid(f"{label}, but there is no '{path}'{_elsewhere(text, model_directory)}")
    if os.access(path, os.X_OK) and path.parent.name == "bin":
        raise invalid(f"{label}, which is a program; expected the directory of the environment, '{path.parent.parent}'")
    cache = environment_cache.directory(backend.environment_directory, inherited)
    return _find_unpacked(path.resolve(), label, name, cache)


def _elsewhere(text: str, model_directory: Path) -> str:
    if not os.path.isabs(text) and MODEL_DIRECTORY not in text and (model_directory / text).exists():
        return f"; paths are relative to the server's working directory: did you mean '{MODEL_DIRECTORY}/{text}'?"
    return (
        "; expected the path of a conda-pack archive or of an environment's directory, in which "
        f"{MODEL_DIRECTORY} stands for the model's directory"
    )


def _find_unpacked(path: Path, label: str, name: str, cache: Path) -> Path:
    """Return the directory that an archive is unpacked in, once for each state of the file."""
    try:
        regular_file.check_regular(path)
    except OSError as error:
        raise invalid(f"{label}, which cannot be unpacked: {error.strerror}") from None
    status = path.stat()
    state = f"{path}\n{status.st_mtime_ns}\n{status.st_size}"
    key = f"archive-{hashlib.sha256(os.fsencode(state)).hexdigest()[:32]}"

    def make(place: Path, lock: int) -> None:
        _unpack(path, place, label, cache, lock)
        _fix_prefix(place, label, lock)

    return environment_cache.environment(cache, key, path, make, f"model '{name}'")


def _unpack(path: Path, place: Path, label: str, cache: Path, lock: int) -> None:
    command = [sys.executable, "-I", "-S", archive.__file__, str(path), str(place)]
    ended = subprocesses.run(command, f"{label}; unpacking it", _UNPACK_LIMIT_S, pass_fds=(lock,))
    text = ended.stderr.decode(errors="replace").strip()
    if ended.returncode == archive.FAILED:
        raise environment_cache.disk_error(cache, OSError(0, f"unpacking '{path}': {text}"))
    if ended.returncode == archive.REFUSED:
        raise invalid(f"{label}, which cannot be unpacked: {text}")
    if ended.returncode:
        text = subprocesses.last_lines(ended.stderr)
        raise invalid(f"{label}; unpacking it ended with {subprocesses.status(ended)}:\n{text}")


def _fix_prefix(place: Path, label: str, lock: int) -> None:
    """Have a conda-pack archive's own program write the new place into the files that name the old one."""
    program, python = place / "bin" / "conda-unpack", interpreter.find(place)
    if not program.is_file() or python is None:
        return
    doing = f"{label}; its 'bin/conda-unpack'"
    own = variables.activate(os.environ, place)
    ended = subprocesses.run([python, str(program)], doing, _UNPACK_LIMIT_S, env=own, pass_fds=(lock,))
    if ended.returncode:
        text = subprocesses.last_lines(ended.stderr or ended.stdout)
        raise invalid(f"{doing} ended with {subprocesses.status(ended)}:\n{text}")
