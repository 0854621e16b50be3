"""Changes made by clients since the server started, for repetition in another worker and for undoing them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from modserve.core.configuration.trace_settings import TraceLevel
from modserve.core.errors import ModserveError
from modserve.core.tensors.shared_memory import CudaRegion, SystemRegion
from modserve.server.local import LocalServer


class ServerChange(NamedTuple):
    """A call that changes something: a method of `Server` and its arguments."""

    method: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        kind, name = self.subject
        return f"{self.method} of {kind} '{name}'" if name else self.method

    @property
    def subject(self) -> tuple[str, str]:
        """Subject of the change: a kind and a name."""
        return _SUBJECTS[self.method](*self.arguments)


_KINDS = {SystemRegion: "system region", CudaRegion: "cuda region"}
_SUBJECTS: Mapping[str, Callable[..., tuple[str, str]]] = {
    "load_model": lambda name, *_: ("model", name),
    "unload_model": lambda name, *_: ("model", name),
    "set_routing": lambda name, *_: ("routing", name),
    "change_log_settings": lambda _: ("log", ""),
    "change_trace_settings": lambda _, model: ("trace", model),
    "register_region": lambda region, _: (_KINDS[type(region)] + region.tenant, region.name),
    "unregister_region": lambda kind, name, tenant="": (_KINDS[kind] + tenant, name),
}
"""Subjects by the method of a change."""


class Journal:
    """The effective changes of one worker, and for each kind of subject the reversal of the last one."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._models: dict[str, ServerChange] = {}
        """Last load or unload of each model, latest last."""
        self._routings: dict[str, ServerChange] = {}
        """Routings set by clients, by model."""
        self._regions: dict[tuple[str, str], ServerChange] = {}
        self._log = False
        self._traces: set[str] = set()
        """Models with changed trace settings; an empty name stands for the global ones."""
        self._undo: dict[str, tuple[str, list[ServerChange]]] = {}
        """Number of the latest change and its reversal, by the kind of its subject."""

    def state(self) -> list[ServerChange]:
        """Return the changes that bring a newly started server to the state of this one."""
        changes = list(self._regions.values())
        if self._log:
            changes.append(self._log_settings())
        # A model's own settings are applied after the global ones.
        changes += [self._trace_settings(model) for model in sorted(self._traces) if not model]
        changes += self._models.values()
        changes += self._routings.values()
        changes += [self._trace_settings(model) for model in sorted(self._traces) if model]
        return changes

    def before(self, change: ServerChange) -> list[ServerChange]:
        """Return the changes that would restore the current state of a change's subject afterwards."""
        kind, name = change.subject
        if kind == "model":
            routing = self._routings.get(name)
            lost = [routing] if routing is not None and change.method == "unload_model" else []
            return [self._models.get(name) or self._current_model_state(name), *lost]
        if kind == "routing":
            return [self._routings.get(name) or ServerChange("set_routing", (name, None))]
        if kind == "log":
            return [self._log_settings()]
        if kind == "trace":
            return [self._trace_settings(name)]
        if change.method == "register_region":
            return [ServerChange("unregister_region", (type(change.arguments[0]), name, change.arguments[0].tenant))]
        return [self._regions[each] for each in self._find_ended(change)]

    def record(self, change: ServerChange, before: list[ServerChange], number: str = "") -> None:
        """Record a change that was made. `number`: set if it may be undone. `before`: changes that undo it."""
        kind, name = change.subject
        self._undo[kind] = number, before
        if kind == "model":
            self._models.pop(name, None)
            self._models[name] = change
            if change.method == "unload_model":
                self._routings.pop(name, None)
        elif kind == "routing":
            self._routings.pop(name, None)
            if change.arguments[1] is not None:
                self._routings[name] = change
        elif kind == "log":
            self._log = True
        elif kind == "trace":
            self._traces.add(name)
        elif change.method == "register_region":
            self._regions[kind, name] = change
        else:
            for each in self._find_ended(change):
                del self._regions[each]

    def undo(self, change: ServerChange, number: str) -> list[ServerChange]:
        """Return the reversal of a change with this number, once; nothing if the change was not made here."""
        latest, changes = self._undo.pop(change.subject[0], ("", []))
        return changes if number and latest == number else []

    def _find_ended(self, change: ServerChange) -> list[tuple[str, str]]:
        """Return the unregistered regions: one, or all of a kind."""
        kind, name = change.subject
        return [each for each in self._regions if each[0] == kind and name in ("", each[1])]

    def _current_model_state(self, model: str) -> ServerChange:
        """Return a load of the model from its repository if it is served, otherwise an unload."""
        try:
            ready = self._server.model_ready(model, None)
        except ModserveError:
            ready = False
        return ServerChange("load_model" if ready else "unload_model", (model,))

    def _log_settings(self) -> ServerChange:
        names = ("info", "warning", "error", "verbose_level", "format")
        settings = self._server.logs.settings
        return ServerChange("change_log_settings", ({name: getattr(settings, name) for name in names},))

    def _trace_settings(self, model: str) -> ServerChange:
        settings = self._server.tracer.settings(model)
        names = ["level", "rate", "count", *(["log_frequency"] if settings.spans is None else [])]
        change = {name: getattr(settings, name) for name in names}
        if settings.count == 0:  # all have been made, and none may be requested
            if settings.spans is not None:  # only clients' traces continue
                change.update(rate=0, count=-1)
            else:
                change["level"] = TraceLevel.OFF
        return ServerChange("change_trace_settings", (change, model))
