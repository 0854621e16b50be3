"""Registry of backends by name, from the installed entry points. A backend is imported when a model first needs it."""

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, cast

from modserve.core.errors import internal, invalid

from . import catalogue
from .api import Backend, BackendModel, Executor, InstanceSpec

GROUP = "modserve.backends"

_ATTRIBUTES: dict[str, tuple[type, str]] = {
    "default_model_filename": (str, "a file name, or an empty text if no file is needed"),
    "default_cpu_instances": (int, "a number of 1 or more"),
    "any_thread": (bool, "True or False"),
}
"""Attributes of a backend: type, and description in words."""
_METHODS = ("gpu_count", "open")


def _nothing() -> None:
    pass


after_import: Callable[[], None] = _nothing
"""Hook on the loading thread after the import of a backend. Set by a process that is the server's own."""


_imports: dict[str, tuple[int, int]] = {}
"""Begin and end of each backend's import, in the time of `time.monotonic_ns`; the end is 0 while it runs."""


def imports_since(since_ns: int) -> list[str]:
    """Return the backends with an import that ended after this moment, or runs. It may block all other threads."""
    return [name for name, (_, end_ns) in list(_imports.items()) if not end_ns or end_ns > since_ns]


def find_installed_backends() -> EntryPoints:
    """Return the entry points of all backends, reread only if a package has come or gone: that takes milliseconds."""
    return _entry_points(tuple((place, _read_mtime_ns(place)) for place in sys.path))


@lru_cache(1)
def _entry_points(places: tuple[tuple[str, int], ...]) -> EntryPoints:
    return entry_points(group=GROUP)


def _read_mtime_ns(place: str) -> int:
    try:
        return os.stat(place or os.curdir).st_mtime_ns
    except OSError:
        return 0


class BackendRegistry:
    """The backends of this process. Safe to use from several threads."""

    def __init__(self, extra: dict[str, Backend] | None = None) -> None:
        self._entries = {entry.name: entry for entry in find_installed_backends()}
        self._loaded: dict[str, Backend] = dict(extra or {})
        self._extra = frozenset(self._loaded)
        # An import may take many seconds, during which models of other backends go on loading: a lock for each name.
        self._locks = {name: threading.Lock() for name in self._entries}

    @property
    def names(self) -> list[str]:
        """Backends that can run models here: with their library, or a stand-in for it, installed."""
        return sorted({*catalogue.available(self._entries), *self._extra})

    @property
    def known(self) -> frozenset[str]:
        """Names of all backends, including backends without an installed library."""
        return frozenset({*self._entries, *self._extra})

    def get(self, name: str) -> Backend:
        """Return the backend called `name`.

        Raises INVALID_ARG for an unknown name and for one without an installed library, INTERNAL if it cannot be
        imported or lacks a part of the backend API.
        """
        backend = self._loaded.get(name)
        if backend is None:
            if name not in self._entries:
                raise invalid(f"unable to find backend '{name}', installed backends are: {', '.join(self.names)}")
            with self._locks[name]:
                backend = self._loaded.get(name)
                if backend is None:
                    backend = self._loaded[name] = self._import(name)
        problem = _missing_part(backend)
        if problem:
            raise internal(f"backend '{name}' is not a backend: {problem}")
        return backend

    def _import(self, name: str) -> Backend:
        entry = self._entries[name]
        engine = catalogue.BY_BACKEND.get(name)
        if engine is not None and not engine.usable and engine.install:
            raise invalid(
                f"backend '{name}' needs {engine.library}, which is not installed here: {engine.install_text}; "
                f"installed backends are: {', '.join(self.names)}"
            )
        begin_ns = time.monotonic_ns()
        _imports[name] = begin_ns, 0
        try:
            backend = cast(Backend, entry.load()())
            after_import()
            return backend
        except BaseException as error:  # SystemExit, too: the package may have been written to run as a program
            text = str(error) or type(error).__name__
            what = f"failed to load backend '{name}' ({entry.value})"
            if engine is not None and engine.install:
                engine = engine.stand_in or engine
                version = f" {engine.version}" if engine.version else ""
                what += f", which needs {engine.library}{version}"
                text += f"; to reinstall it: {engine.install.replace('install', 'install --force-reinstall', 1)}"
            raise internal(f"{what}: {text}") from error
        finally:
            _imports[name] = begin_ns, time.monotonic_ns()


def new_instance(model: BackendModel, spec: InstanceSpec) -> Executor:
    """Make an instance of a model, also of one written for the first edition: ``instance(config, placement)``."""
    make: Any = model.instance
    if _takes_two(make):
        return cast(Executor, make(spec.config, spec.placement))
    return model.instance(spec)


def _takes_two(make: Callable[..., object]) -> bool:
    """Return True if a function can be called with two positional arguments, but not with one."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # it does not say, as some compiled ones
        return False
    return _fits(signature, 2) and not _fits(signature, 1)


def _fits(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _missing_part(backend: object) -> str:
    """Return the part of the backend API that a backend lacks; empty if none is visible before a model is opened."""
    for name, (kind, words) in _ATTRIBUTES.items():
        try:
            value: object = getattr(backend, name)
        except Exception as error:
            return f"its attribute '{name}' ({words}) cannot be read: {error}"
        if type(value) is not kind or (isinstance(value, int) and kind is int and value < 1):
            return f"its attribute '{name}' is {value!r}, expected {words}"
    for name in _METHODS:
        if not callable(getattr(backend, name, None)):
            return f"it has no method '{name}'"
    return ""
