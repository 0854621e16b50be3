"""Loads what should be served and unloads what should not: the reconciler, and the table of what is there."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modserve.core.errors import ModserveError, from_exception
from modserve.core.lifecycle import UNLOADED, IndexEntry, State, VersionState
from modserve.core.servable import ModelDirectory, ModelLoader, Servable
from modserve.core.version import (
    ModelId,
    no_available_versions,
    not_ready,
    unknown_model,
    unknown_version,
)

_log = logging.getLogger(__name__)


@dataclass
class _Version:
    state: VersionState = field(default_factory=VersionState)
    servable: Servable | None = None


@dataclass
class _Model:
    versions: dict[int, _Version] = field(default_factory=dict)
    problem: str = ""
    """Why no version could even be chosen (an unusable configuration); empty when all is well."""
    latest: Servable | None = None
    """The highest READY version."""


class ModelManager:
    """The models of one server. Lives on the event loop's thread.

    `reconcile` is told which model directories are wanted and drives the actual state towards that: what is missing is
    loaded, what is not wanted any more is drained and unloaded. A version that fails to load is a state with a reason;
    it stops neither the others nor the server.
    """

    def __init__(self, loader: ModelLoader, parallel_loads: int) -> None:
        self._loader = loader
        self._loads = asyncio.Semaphore(max(1, parallel_loads))
        self._models: dict[str, _Model] = {}

    def __repr__(self) -> str:
        return f"ModelManager({len(self.index())} versions of {len(self._models)} models)"

    def get(self, name: str, version: int | None) -> Servable:
        """The READY version asked for, or the latest for None. Raises NOT_FOUND or UNAVAILABLE with Triton's texts."""
        model = self._models.get(name)
        if model is None:
            raise unknown_model(name)
        if version is None:
            if model.latest is None:
                raise no_available_versions(name)
            return model.latest
        found = model.versions.get(version)
        if found is None:
            raise unknown_version(name, version)
        if found.servable is None or found.state.state is not State.READY:
            raise not_ready(name, version)
        return found.servable

    def state(self, name: str, version: int | None) -> VersionState:
        """The state of a version, or of the one that answers for None. Raises NOT_FOUND."""
        model = self._models.get(name)
        if model is None:
            raise unknown_model(name)
        if version is None:
            if model.latest is not None:
                version = model.latest.id.version
            elif model.versions:
                version = max(model.versions)
            else:
                return VersionState(State.UNAVAILABLE, model.problem)
        found = model.versions.get(version)
        if found is None:
            raise unknown_version(name, version)
        return found.state

    def ready_versions(self, name: str) -> list[Servable]:
        """The READY versions in ascending order; none for an unknown model."""
        model = self._models.get(name)
        if model is None:
            return []
        return [
            entry.servable
            for _, entry in sorted(model.versions.items())
            if entry.servable is not None and entry.state.state is State.READY
        ]

    def names(self) -> list[str]:
        return sorted(self._models)

    def index(self) -> list[IndexEntry]:
        """Every version of every model, by name and version."""
        entries: list[IndexEntry] = []
        for name, model in sorted(self._models.items()):
            if model.problem:
                entries.append(IndexEntry(name, None, State.UNAVAILABLE, model.problem))
            for version, entry in sorted(model.versions.items()):
                state = entry.state
                entries.append(IndexEntry(name, version, state.state, state.reason, state.load_ns))
        return entries

    def unready(self) -> list[IndexEntry]:
        """What keeps the server from being ready: all but READY versions and those unloaded on purpose."""
        return [entry for entry in self.index() if VersionState(entry.state, entry.reason).holds_up_readiness]

    def refuse(self, name: str, reason: str) -> None:
        """List a model that can not even be tried, with the reason."""
        self._models.setdefault(name, _Model()).problem = reason

    async def reconcile(self, wanted: Mapping[str, ModelDirectory]) -> None:
        """Load and unload until exactly `wanted` is served, or has failed with a reason."""
        async with asyncio.TaskGroup() as tasks:
            selections = {name: tasks.create_task(self._select(directory)) for name, directory in wanted.items()}
        async with asyncio.TaskGroup() as tasks:
            for name, model in self._models.items():
                versions = selections[name].result() if name in selections else ()
                for version in versions:
                    entry = model.versions.setdefault(version, _Version())
                    if entry.servable is None:
                        entry.state = entry.state.advance(State.LOADING)
                        tasks.create_task(self._load(model, entry, wanted[name], version))
                for version in model.versions.keys() - set(versions):
                    if model.versions[version].servable is not None:
                        tasks.create_task(self._unload(model, ModelId(name, version)))

    async def _select(self, directory: ModelDirectory) -> Sequence[int]:
        """The versions to serve; when the configuration is unusable, those that are served anyway, and the problem."""
        model = self._models.setdefault(directory.name, _Model())
        try:
            versions = await self._loader.wanted_versions(directory)
        except ModserveError as error:
            _log.error("model '%s' can not be loaded: %s", directory.name, error.message)
            model.problem = error.reason
            return [version for version, entry in model.versions.items() if entry.servable is not None]
        model.problem = ""
        return versions

    async def _load(self, model: _Model, entry: _Version, directory: ModelDirectory, version: int) -> None:
        async with self._loads:
            started_ns = time.monotonic_ns()
            try:
                servable = await self._loader.load(directory, version)
            except Exception as error:
                failure = from_exception(error, f"failed to load model '{directory.name}' version {version}")
                foreign = None if isinstance(error, ModserveError) else error
                _log.error("model '%s', version %d: %s", directory.name, version, failure.message, exc_info=foreign)
                entry.state = entry.state.advance(State.UNAVAILABLE, failure.reason)
                return
        entry.servable = servable
        entry.state = entry.state.advance(State.READY, load_ns=time.monotonic_ns() - started_ns)
        model.latest = self._latest(model)
        _log.info("model '%s', version %d: ready after %.3f s", directory.name, version, entry.state.load_ns / 1e9)

    async def _unload(self, model: _Model, model_id: ModelId) -> None:
        entry = model.versions[model_id.version]
        servable = entry.servable
        if servable is None:
            raise RuntimeError(f"{model_id} is unloaded without having been loaded: this is a bug")
        entry.state = entry.state.advance(State.UNLOADING)
        model.latest = self._latest(model)
        await servable.drain()
        try:
            await servable.close()
        except Exception:  # an engine that can not end well is gone all the same
            _log.exception("model '%s', version %d: closing its engine failed", model_id.name, model_id.version)
        entry.servable = None
        entry.state = entry.state.advance(State.UNAVAILABLE, UNLOADED)
        _log.info("model '%s', version %d: unloaded", model_id.name, model_id.version)

    def _latest(self, model: _Model) -> Servable | None:
        ready = [entry.servable for _, entry in sorted(model.versions.items()) if entry.state.state is State.READY]
        return ready[-1] if ready else None
