"""Import of the decorated object of ``my_module:my_model``, in the process that runs it or in one that examines it.

Forms of a target: ``package.module:name``, with attributes of attributes as ``name.inner``; ``path/file.py:name``;
or, for models that run in a thread of the server, the key of an object in `HELD`.
"""

import difflib
import importlib
import importlib.util
import itertools
import json
import os
import sys
import threading
from typing import Any, Dict, Tuple

from . import failure
from .decorator import definition_of

HELD: Dict[str, Any] = {}
"""Objects of this process by the targets that stand for them: see `hold`."""
_marks: Dict[str, Tuple[int, int]] = {}
"""The times and sizes of the files of modules when they were imported."""
_numbers = itertools.count(1)
_locks: "Dict[str, threading.RLock]" = {}
"""Locks by module: in the server, several threads may import the same one, or read it again, at a time."""
_path_lock = threading.Lock()
_PREFIX = "modserve_file_"


def hold(target: Any) -> str:
    """Return a target for an object of this process, kept until it is removed from `HELD`."""
    key = f"object {next(_numbers)}"
    HELD[key] = target
    return key


def import_target(target: str, directory: str) -> Any:
    """Return the decorated object that `target` names. Modules are looked for in `directory` first.

    Raises ImportError, AttributeError or TypeError with a text for people, and any exception of the module itself.
    """
    if target in HELD:
        return HELD[target]
    place, _, path = target.rpartition(":")
    file = os.path.join(directory, place) if place.endswith(".py") else ""
    with _locks.setdefault(file or place, threading.RLock()):
        value: Any = _from_file(file) if file else _module(place, directory)
    where = getattr(value, "__file__", place)
    for name in path.split("."):
        if not hasattr(value, name):
            close = difflib.get_close_matches(name, dir(value), 1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise AttributeError(f"there is no '{name}' in {where}{hint}")
        value = getattr(value, name)
    if definition_of(value) is None:
        raise TypeError(f"'{path}' in {where} is not a model; decorate it with @modserve.model")
    return value


def _module(name: str, directory: str) -> Any:
    """Return the module of this name. The server may load it again, and rereads it if it has changed."""
    _search(directory)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise ImportError(f"there is no module '{error.name}' in {directory} or among the installed packages") from None
    mark = _mark(module)
    if _marks.setdefault(name, mark) != mark:
        module = importlib.reload(module)
    _marks[name] = mark
    return module


def _search(directory: str) -> None:
    """Look for modules in `directory`: before the installed packages, and after the standard library."""
    with _path_lock:
        if directory not in sys.path:
            packages = [at for at, entry in enumerate(sys.path) if entry.endswith(("site-packages", "dist-packages"))]
            sys.path.insert(min(packages, default=len(sys.path)), directory)


def _mark(module: Any) -> Tuple[int, int]:
    try:
        status = os.stat(module.__file__)
    except (AttributeError, OSError, TypeError):
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _from_file(file: str) -> Any:
    """Load the module of a file. Not called ``__main__``: its code for running as a script does not run here."""
    _search(os.path.dirname(os.path.abspath(file)))
    name = _PREFIX + os.path.basename(file)[: -len(".py")]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not os.path.isfile(file):
        raise ImportError(f"there is no file {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def describe(target: str, directory: str) -> Dict[str, Any]:
    """Describe a target: its configuration and file, or the error with which it cannot be imported. Never raises."""
    try:
        value = import_target(target, directory)
        definition = definition_of(value)
        assert definition is not None
        module = sys.modules.get(getattr(value, "__module__", "") or "")
        return {"config": definition.config(), "file": getattr(module, "__file__", None) or ""}
    except BaseException as error:
        return {"error": failure.of_exception(error, "").message.rstrip()}


def main() -> None:
    """Write the description of ``sys.argv[1]`` to standard output, and all that its module prints to standard error."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    target = sys.argv[1]
    sys.argv[:] = [""]  # as in a worker
    description = describe(target, os.getcwd())
    json.dump(description, output)
    output.flush()
    os._exit(0)  # whatever threads the module has started
