"""Checks whether another interpreter can run a worker, by running it once."""

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

from modserve.core.errors import invalid

from .. import subprocesses
from .worker import library_path

OLDEST = (3, 8)
_LIMIT_S = 120.0
_MARK = "modserve-interpreter:"
_ASK = f"""
import sys
facts = {{"version": list(sys.version_info[:3]), "numpy": None, "error": None, "variables": {{}}}}
if sys.version_info >= {OLDEST}:
    import os, platform
    facts["implementation"] = platform.python_implementation()
    facts["variables"] = dict(os.environ)
    try:
        import numpy
        facts["numpy"] = numpy.__version__
    except ModuleNotFoundError as error:
        facts["error"] = None if error.name == "numpy" else repr(error)
    except Exception as error:
        facts["error"] = repr(error)
import json
sys.stdout.write("\\n{_MARK}" + json.dumps(facts) + "\\n")
"""
_SOURCE_SCRIPTS = """
for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$script"; done
export LD_LIBRARY_PATH="$CONDA_PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$@"
"""
"""Shell command that runs the activation scripts. The shell itself must not load the environment's libraries."""
_OF_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Interpreter of a worker. `variables` are its complete environment, including the activation's variables.

    `python` is a path; `version` is like ``CPython 3.11.7``.
    """

    python: str
    version: str
    variables: Mapping[str, str]


_known: dict[tuple[object, ...], Interpreter] = {}
_locks: dict[str, threading.Lock] = {}
_locks_lock = threading.Lock()


def find(directory: Path) -> str | None:
    """Return the interpreter of an environment; None if it has none."""
    for name in ("python", "python3", "pypy3"):
        path = directory / "bin" / name
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    return None


def inspect(python: str, variables: Mapping[str, str], which_one: str) -> Interpreter:
    """Check whether an interpreter can run a worker. Blocks while it imports numpy.

    A good result is cached until the interpreter's file changes. It includes the variables of the environment's conda
    activation scripts. `which_one` is for errors: "the environment … of model …". Raises INVALID_ARG if the interpreter
    is too old, lacks numpy or does not run.
    """
    with _locks_lock:
        lock = _locks.setdefault(python, threading.Lock())
    with lock:
        try:
            status = os.stat(python)
        except OSError as error:
            raise invalid(f"{which_one}: its interpreter '{python}' cannot be run: {error.strerror}") from error
        key = (python, status.st_ino, status.st_mtime_ns, tuple(sorted(variables.items())))
        if key not in _known:
            _known[key] = _inspect(python, variables, which_one)
        return _known[key]


def _inspect(python: str, variables: Mapping[str, str], which_one: str) -> Interpreter:
    properties = _properties(python, variables, which_one)
    version = ".".join(map(str, properties["version"]))
    if tuple(properties["version"]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise invalid(f"{which_one} has Python {version}; a worker needs Python {oldest} or later")
    version = f"{properties['implementation']} {version}"
    if properties["error"] is not None:
        raise invalid(f"{which_one} ({version}) has a numpy that cannot be imported: {properties['error']}")
    if properties["numpy"] is None:
        raise invalid(f"{which_one} ({version}) has no numpy; a worker needs it: '{python} -m pip install numpy'")
    kept = {
        name: value for name, value in properties["variables"].items() if name not in _OF_SHELL or name in variables
    }
    return Interpreter(python, version, kept | {n: variables[n] for n in _OF_SHELL & variables.keys()})


def _properties(python: str, variables: Mapping[str, str], which_one: str) -> dict[str, Any]:
    command, environ = [python, "-c", _ASK], dict(variables)
    shell = which("bash") or which("sh")
    scripts = shell is not None and _has_scripts(variables)
    if shell is not None and scripts:
        command = [shell, "-c", _SOURCE_SCRIPTS, "activate", *command]
        environ[library_path.NAME] = variables.get(library_path.ORIGINAL, "")
    # In the root directory, no local module can shadow numpy.
    ended = subprocesses.run(command, f"{which_one}: importing numpy with '{python}'", _LIMIT_S, env=environ, cwd="/")
    for line in ended.stdout.decode(errors="surrogateescape").splitlines():
        if line.startswith(_MARK):
            properties: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return properties
    text = subprocesses.last_lines(ended.stderr)
    how = f"its activation scripts or its interpreter '{python}'" if scripts else f"its interpreter '{python}'"
    raise invalid(f"{which_one}: {how} ended with {subprocesses.status(ended)}" + (f":\n{text}" if text else ""))


def _has_scripts(variables: Mapping[str, str]) -> bool:
    prefix = variables.get("CONDA_PREFIX")
    return prefix is not None and any(Path(prefix, "etc", "conda", "activate.d").glob("*.sh"))
