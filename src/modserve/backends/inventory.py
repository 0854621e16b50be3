"""Engines that can run models here, and engines that could be installed: for ``modserve engines``. Imports none."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

from .catalogue import BY_BACKEND
from .registry import find_installed_backends

_WITHOUT_LIBRARY = {
    "python": "models in Python (model.py), decorated functions and classes",
    "auto": "any model that an installed engine loads: the fastest engine is measured and chosen",
    "modular": "the same as auto, under the name that configurations for the Modular engine use",
    "identity": "no model: outputs are the inputs, for tests",
    "repeat": "no model: many responses to a request, for tests",
}
"""Backends of this package that need no library."""


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """A backend, installed or missing. `library` and `version` are those it needs, both empty if none."""

    backend: str
    library: str
    version: str
    loads: str
    installed: bool
    install: str = ""
    """A line for each command that installs it; empty if there is none, or no need.

    Also where another library stands in for it.
    """


def inventory() -> list[BackendEntry]:
    """List all known backends: installed ones first, each half by name."""
    entries = [_entry(point) for point in find_installed_backends()]
    return sorted(entries, key=lambda entry: (not entry.installed, entry.backend))


def _entry(point: EntryPoint) -> BackendEntry:
    name, engine = point.name, BY_BACKEND.get(point.name)
    if engine is not None:
        install = "" if engine.installed else engine.install_lines
        shown = engine.stand_in or engine
        return BackendEntry(name, shown.library, shown.version, engine.loads, shown.installed, install)
    if name in _WITHOUT_LIBRARY:
        return BackendEntry(name, "", "", _WITHOUT_LIBRARY[name], True)
    package = point.dist
    return BackendEntry(name, package.name if package else "", package.version if package else "", "", True)
