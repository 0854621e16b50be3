"""Decorated functions and classes as a model repository: each is a model with one version.

Its configuration comes from the decorator, and its model.py is a few lines that import the object, written for each
load and removed when the version is unloaded. An object that is named by a text (``my_module:double``) is never
imported into the server to look at it: a process of its own does that, so that a module that crashes or hangs costs
only its model.
"""

import asyncio
import json
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modserve.core.errors import ModserveError, internal, invalid
from modserve.core.loading import DirectoryLease, Listing

from .. import subprocesses
from .worker import importing
from .worker.decorator import definition_of

_LONGEST_IMPORT_S = 300
_WORKER = Path(importing.__file__).parent

_MODEL = '''\
"""modserve has written this file: it serves {target}."""

import sys

if "modserve_worker" in sys.modules:
    from modserve_worker.importing import import_target
else:
    from modserve.backends.python.worker.importing import import_target

model = import_target({target!r}, {directory!r})
'''

_DESCRIBE = """\
import sys
sys.path.append(sys.argv.pop(1))
from modserve_worker.importing import main
main()
"""

Mark = tuple[str, int, int]


@dataclass(frozen=True)
class _Model:
    target: str
    directory: str
    """Directory that is searched first for its module."""
    config: Mapping[str, Any] | None
    """None for a target that has to be described by a process of its own."""


class FunctionRepository:
    """Implementation of `core.loading.Repository` for decorated objects by the names of their models.

    `models` has texts and objects; `write_config` turns a configuration as JSON into the text of a ``config.pbtxt``.
    Raises INVALID_ARG for an object that is to run in a process, which has no way to import it.
    """

    def __init__(self, models: Mapping[str, object], write_config: Callable[[str], str]) -> None:
        if models and "modserve_worker" in sys.modules:
            raise invalid(
                "a worker process of a Python model cannot start a server: in a script, put everything "
                "except the definitions of models below 'if __name__ == \"__main__\":'"
            )
        self._write_config = write_config
        self._models = {name: _model(name, target) for name, target in models.items()}
        for model in self._models.values():
            weakref.finalize(self, importing.HELD.pop, model.target, None)
        self._seen: dict[str, tuple[Mark, bytes]] = {}
        """The configurations of targets, each with the state of the file that it was read from."""

    def __str__(self) -> str:
        return "the decorated functions"

    async def names(self) -> Collection[str]:
        return list(self._models)

    async def look(self, names: Collection[str] | None = None) -> Mapping[str, Listing]:
        chosen = [name for name in self._models if names is None or name in names]
        listings = await asyncio.gather(*(asyncio.to_thread(self._read, name) for name in chosen))
        return dict(zip(chosen, listings, strict=True))

    async def fetch(self, listing: Listing, version: int) -> DirectoryLease:
        model = self._models[listing.name]
        folder = await asyncio.to_thread(_write, listing.name, version, model)

        async def release() -> None:
            await asyncio.to_thread(folder.cleanup)

        return DirectoryLease(Path(folder.name) / listing.name, release)

    async def remarks(self) -> Sequence[str]:
        return ()

    def _read(self, name: str) -> Listing:
        """Read the current state of one model. Blocking."""
        model = self._models[name]
        content: bytes | ModserveError
        mark: object = None
        try:
            if model.config is not None:
                content = self._text(model.config)
            else:
                mark, content = self._describe_once(name, model)
        except ModserveError as error:
            content = error
        path = Path(model.directory) / model.target
        return Listing(name, self, path, (1,), content, marks={None: mark})

    def _describe_once(self, name: str, model: _Model) -> tuple[Mark, bytes]:
        if name in self._seen and _mark(self._seen[name][0][0]) == self._seen[name][0]:
            return self._seen[name]
        description = _describe(model)
        if "error" in description:
            raise invalid(f"cannot import '{model.target}': {description['error']}")
        mark = _mark(description["file"])
        self._seen[name] = mark, self._text(description["config"])
        return self._seen[name]

    def _text(self, config: Mapping[str, Any]) -> bytes:
        try:
            text = json.dumps(config)
        except (TypeError, ValueError) as error:
            raise invalid(f"the configuration of the decorator is not JSON: {error}") from error
        return self._write_config(text).encode()


def _model(name: str, target: object) -> _Model:
    """Describe an object. Raises INVALID_ARG for one that workers cannot import."""
    if isinstance(target, str):
        return _Model(target, os.getcwd(), None)
    definition = definition_of(target)
    if definition is None:
        raise invalid(f"model '{name}' is {target!r}, expected an object decorated with modserve.model, or its place")
    if definition.isolation != "process":
        return _Model(importing.hold(target), os.getcwd(), definition.config())
    module = sys.modules.get(getattr(target, "__module__", ""))
    file = getattr(module, "__file__", None)
    path = _path(module, target)
    if module is None or file is None or path is None:
        raise invalid(
            f"model '{name}' cannot run in a process of its own, because that process cannot import it: "
            "expected an object at the top level of a module in a file, or isolation='thread'"
        )
    file = os.path.abspath(file)
    if module.__name__ == "__main__":
        return _Model(f"{os.path.basename(file)}:{path}", os.path.dirname(file), definition.config())
    folder = Path(file).parents[module.__name__.count(".") + (os.path.basename(file) == "__init__.py")]
    return _Model(f"{module.__name__}:{path}", str(folder), definition.config())


def _path(module: object, target: object) -> str | None:
    """Return the attributes that lead from a module to an object; None if none do."""
    names = [getattr(target, "__qualname__", "")]
    names += [name for name, value in vars(module).items() if value is target] if module is not None else []
    for name in names:
        value: object = module
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is target:
            return name
    return None


def _write(name: str, version: int, model: _Model) -> "tempfile.TemporaryDirectory[str]":
    """Write a model directory with a model.py that imports the object."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="modserve-", ignore_cleanup_errors=True)
        directory = Path(folder.name) / name / str(version)
        directory.mkdir(parents=True)
        text = _MODEL.format(target=model.target, directory=model.directory)
        (directory / "model.py").write_text(text, "utf-8")
    except OSError as error:
        raise internal(f"cannot write the model.py of model '{name}': {error}") from error
    return folder


def _mark(file: str) -> Mark:
    try:
        status = os.stat(file)
    except OSError:
        return file, 0, 0
    return file, status.st_mtime_ns, status.st_size


def _describe(model: _Model) -> dict[str, Any]:
    """Return a target's description, from a process that imports it. Raises INVALID_ARG if the process gives none."""
    command = [sys.executable, "-c", _DESCRIBE, str(_WORKER / "importable"), model.target]
    doing = f"cannot import '{model.target}'"
    ended = subprocesses.run(command, doing, _LONGEST_IMPORT_S, cwd=model.directory)
    try:
        description: dict[str, Any] = json.loads(ended.stdout)
    except ValueError as error:
        text = subprocesses.last_lines(ended.stderr)
        raise invalid(f"{doing}: the process ended with {subprocesses.status(ended)}\n{text}".rstrip()) from error
    return description
