"""Loads what should be served and unloads what should not: the reconciler, and the table of what is there."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace

from modserve.core.errors import ModserveError, from_exception, internal, invalid
from modserve.core.lifecycle import UNLOADED, IndexEntry, State, VersionState
from modserve.core.servable import ModelDirectory, ModelLoader, Servable, UnreadableModelError
from modserve.core.version import (
    ModelId,
    no_available_versions,
    not_ready,
    unknown_model,
    unknown_version,
)

_log = logging.getLogger(__name__)

_CANCELLED = "the load was cancelled"


@dataclass
class _Version:
    state: VersionState = field(default_factory=VersionState)
    servable: Servable | None = None
    """What takes requests: there while READY, also while it is being loaded anew."""
    directory: ModelDirectory | None = None
    """What it was loaded from."""
    draining: int = 0
    """How many servables of the version, which take nothing new, are not closed yet."""


@dataclass
class _Model:
    versions: dict[int, _Version] = field(default_factory=dict)
    problem: str = ""
    """What is wrong with the model as it is on disk, while no version could be tried or older ones are served on."""
    latest: Servable | None = None
    """The highest READY version."""

    def rank(self) -> None:
        ready = [entry.servable for _, entry in sorted(self.versions.items()) if entry.state.state is State.READY]
        self.latest = ready[-1] if ready else None


@dataclass
class _Loads:
    """What came of loading some versions of a model."""

    servables: dict[int, tuple[Servable, int]] = field(default_factory=dict)
    """With the nanoseconds it took. Not in service yet."""
    failures: dict[int, ModserveError] = field(default_factory=dict)


class ModelManager:
    """The models of one server. Lives on the event loop's thread.

    It is told which model directories are wanted, of all models (`reconcile`) or of some (`update`), and drives the
    actual state towards that: what is missing or has changed is loaded, what is not wanted any more is drained and
    unloaded. A version that is served is served until the one that takes its place is READY, and on if that fails. A
    version that fails to load is a state with a reason; it stops neither the other models nor the server. Of one model,
    one thing is done at a time. A load that fails is tried `load_retries` times again.
    """

    def __init__(self, loader: ModelLoader, parallel_loads: int, load_retries: int = 0) -> None:
        self._loader = loader
        self._load_retries = load_retries
        self._loads = asyncio.Semaphore(max(1, parallel_loads))
        self._models: dict[str, _Model] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.on_change: Callable[[], None] = lambda: None
        """Called after whatever may change what is READY."""

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
            if model.problem and model.latest is None:
                entries.append(IndexEntry(name, None, State.UNAVAILABLE, model.problem))
            for version, entry in sorted(model.versions.items()):
                state = entry.state
                reason = model.problem if state.state is State.READY else state.reason
                entries.append(IndexEntry(name, version, state.state, reason, state.load_ns))
        return entries

    def unready(self) -> list[IndexEntry]:
        """What keeps the server from being ready: all but READY versions and those unloaded on purpose."""
        return [entry for entry in self.index() if VersionState(entry.state, entry.reason).holds_up_readiness]

    def refuse(self, name: str, reason: str) -> None:
        """List a model that can not even be tried, with the reason."""
        self._models.setdefault(name, _Model()).problem = reason
        self.on_change()

    def forget(self, name: str) -> None:
        """List no failures of a model any more, since it is gone from the repositories."""
        model = self._models.get(name)
        if model is None:
            return
        model.problem = ""
        self._drop_failures(model, ())
        self._drop_if_empty(name)
        self.on_change()

    # Control

    async def reconcile(self, wanted: Mapping[str, ModelDirectory]) -> None:
        """Load and unload until exactly `wanted` is served, or has failed with a reason."""
        await self.update({name: wanted.get(name) for name in {**self._models, **wanted}})
        await self._settle()

    async def unload(self, name: str, dependents: bool) -> None:
        """Take a model out of service; with `dependents` also the models that only it needs: so far it needs none."""
        if name in self._models or name in self._locks:
            await self.update({name: None})

    async def update(
        self, changes: Mapping[str, ModelDirectory | None], *, together: bool = False
    ) -> dict[str, ModserveError]:
        """Bring some models to what is wanted of them: their directory, or None for unloading.

        Returns when all loads have ended; unloading goes on. What could not be loaded is returned by name, as Triton
        tells it to who asked for the load. With `together`, all new versions of a model are taken or none; in any case
        so if it is being served.
        """
        held: dict[str, asyncio.Lock] = {}

        def let_go(name: str, *_: object) -> None:
            lock = held.pop(name, None)
            if lock is not None:
                lock.release()

        failures: dict[str, ModserveError] = {}
        try:
            for name in sorted(changes):  # in the same order everywhere, or two might wait for each other
                lock = self._locks.setdefault(name, asyncio.Lock())
                await lock.acquire()
                held[name] = lock
                self._models.setdefault(name, _Model())
            async with asyncio.TaskGroup() as tasks:
                selections = {
                    name: tasks.create_task(self._select(directory)) for name, directory in changes.items() if directory
                }
            async with asyncio.TaskGroup() as tasks:
                for name, directory in changes.items():
                    selection = selections[name].result() if name in selections else ()
                    applied = tasks.create_task(self._apply(name, directory, selection, together, failures))
                    applied.add_done_callback(functools.partial(let_go, name))
        finally:
            for name in list(held):
                let_go(name)
            for name in changes:
                self._drop_if_empty(name)
            self.on_change()
        return failures

    async def _select(self, directory: ModelDirectory) -> Sequence[int] | ModserveError:
        """The versions to serve, or why they can not be told."""
        try:
            return await self._loader.wanted_versions(directory)
        except ModserveError as error:
            _log.error("model '%s' can not be loaded: %s", directory.name, error.message)
            return error

    async def _apply(
        self,
        name: str,
        directory: ModelDirectory | None,
        selection: Sequence[int] | ModserveError,
        together: bool,
        failures: dict[str, ModserveError],
    ) -> None:
        model = self._models[name]
        if directory is None:
            self._retire_all(name, model, model.versions)
        elif isinstance(selection, ModserveError):
            failures[name] = _selection_failure(name, selection)
            # Who asked for it alone is told, and a model that was not there is not there.
            model.problem = "" if together and model.latest is None else selection.reason
        else:
            model.problem = ""
            failed = await self._load_versions(model, directory, selection, together)
            if failed:
                failures[name] = _version_failures(name, failed)
        if all(entry.servable is None for entry in model.versions.values()):
            self._loader.forget(name)

    async def _load_versions(
        self, model: _Model, directory: ModelDirectory, versions: Sequence[int], together: bool
    ) -> dict[int, ModserveError]:
        """Load what is missing or has changed, and retire what is not wanted; the failures by version."""
        together = together or model.latest is not None
        missing = [version for version in versions if not _is_current(model, directory, version)]
        for version in missing:
            entry = model.versions.setdefault(version, _Version())
            if entry.servable is None:
                self._step(entry, State.LOADING)
        loads = _Loads()
        taken = False
        try:
            async with asyncio.TaskGroup() as tasks:
                for version in missing:
                    tasks.create_task(self._load(model, directory, version, loads, at_once=not together))
            taken = not loads.failures
        finally:
            if taken:
                for version in missing:
                    self._take(model, directory, version, loads)
            else:
                self._give_up(model, directory, missing, loads)
        if not loads.failures:
            self._retire_all(directory.name, model, model.versions.keys() - set(versions))
            self._drop_failures(model, directory.versions)
        return loads.failures

    async def _load(self, model: _Model, directory: ModelDirectory, version: int, loads: _Loads, at_once: bool) -> None:
        """Load one version, and put it in service `at_once` or leave that to the caller."""
        name = directory.name
        async with self._loads:
            started_ns = time.monotonic_ns()
            try:
                servable = await self._try(directory, version)
            except Exception as error:
                failure = from_exception(error, f"failed to load model '{name}' version {version}")
                foreign = None if isinstance(error, ModserveError) else error
                _log.error("model '%s', version %d: %s", name, version, failure.message, exc_info=foreign)
                loads.failures[version] = failure
                entry = model.versions[version]
                if entry.servable is None:
                    self._step(entry, State.UNAVAILABLE, failure.reason)
                else:
                    model.problem = f"version {version} is served as it was, for it failed to load: {failure.reason}"
                return
        loads.servables[version] = servable, time.monotonic_ns() - started_ns
        if at_once:
            self._take(model, directory, version, loads)

    async def _try(self, directory: ModelDirectory, version: int) -> Servable:
        for attempt in range(self._load_retries):
            try:
                return await self._loader.load(directory, version)
            except Exception as error:
                _log.warning(
                    "model '%s', version %d: failed to load, attempt %d of %d: %s",
                    directory.name,
                    version,
                    attempt + 1,
                    self._load_retries + 1,
                    error,
                )
        return await self._loader.load(directory, version)

    # From one state to the next; nothing of it waits

    def _step(self, entry: _Version, state: State, reason: str = "", load_ns: int = 0) -> None:
        entry.state = entry.state.advance(state, reason, load_ns)
        self.on_change()

    def _take(self, model: _Model, directory: ModelDirectory, version: int, loads: _Loads) -> None:
        """Put a loaded version in service, in the place of the one that was, unless that has been done."""
        if version not in loads.servables:
            return
        servable, load_ns = loads.servables.pop(version)
        entry = model.versions[version]
        previous = replace(entry)
        entry.servable, entry.directory = servable, directory
        self._step(entry, State.READY, load_ns=load_ns)
        if directory.lease is not None:
            directory.lease.hold()
        model.rank()
        _log.info("model '%s', version %d: ready after %.3f s", directory.name, version, load_ns / 1e9)
        if previous.servable is not None:
            self._close(ModelId(directory.name, version), entry, previous.servable, previous.directory)

    def _give_up(self, model: _Model, directory: ModelDirectory, versions: Sequence[int], loads: _Loads) -> None:
        """Take none of what was loaded: another version failed, or the load was cancelled."""
        for version in versions:
            entry = model.versions[version]
            if entry.state.state is State.LOADING:
                reason = UNLOADED if loads.failures else _CANCELLED
                self._step(entry, State.UNAVAILABLE, reason)
            if version in loads.servables:
                servable, _ = loads.servables.pop(version)
                self._close(ModelId(directory.name, version), entry, servable, None)

    def _retire_all(self, name: str, model: _Model, versions: "Sequence[int] | set[int] | dict[int, _Version]") -> None:
        """Take versions out of service; what they have accepted is finished."""
        for version in versions:
            entry = model.versions[version]
            servable, directory = entry.servable, entry.directory
            if servable is None:
                continue
            entry.servable = entry.directory = None
            self._step(entry, State.UNLOADING)
            self._close(ModelId(name, version), entry, servable, directory)
        model.rank()

    def _drop_failures(self, model: _Model, versions: Sequence[int]) -> None:
        """List no failures of other than these versions, which are the ones that are there."""
        for version, entry in list(model.versions.items()):
            failed = entry.state.state is State.UNAVAILABLE and entry.state.reason != UNLOADED
            if failed and version not in versions:
                del model.versions[version]

    def _drop_if_empty(self, name: str) -> None:
        """A model of which there is nothing to say, and with which nothing is being done, is none."""
        model = self._models.get(name)
        lock = self._locks.get(name)
        if lock is not None and lock.locked():
            return
        if model is not None and not model.versions and not model.problem:
            del self._models[name]

    # Closing, in the background

    def _close(self, model_id: ModelId, entry: _Version, servable: Servable, directory: ModelDirectory | None) -> None:
        entry.draining += 1
        self._spawn(self._drain_and_close(model_id, entry, servable, directory))

    async def _drain_and_close(
        self, model_id: ModelId, entry: _Version, servable: Servable, directory: ModelDirectory | None
    ) -> None:
        try:
            await servable.drain()
            try:
                await servable.close()
            except Exception:  # an engine that can not end well is gone all the same
                _log.exception("model '%s', version %d: closing its engine failed", model_id.name, model_id.version)
        finally:
            entry.draining -= 1
            if entry.state.state is State.UNLOADING and not entry.draining:
                self._step(entry, State.UNAVAILABLE, UNLOADED)
                _log.info("model '%s', version %d: unloaded", model_id.name, model_id.version)
            if directory is not None and directory.lease is not None:
                await directory.lease.release()

    def _spawn(self, closing: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _settle(self) -> None:
        """Wait until everything that is being unloaded is; cancelled, cancel that as well."""
        while closing := set(self._closing):
            try:
                await asyncio.wait(closing)
            except asyncio.CancelledError:
                for task in closing:
                    task.cancel()
                await asyncio.wait(closing)
                raise


def _is_current(model: _Model, directory: ModelDirectory, version: int) -> bool:
    """Whether a version is in service just as it would be loaded from `directory`."""
    entry = model.versions.get(version)
    if entry is None or entry.directory is None:
        return False
    return entry.directory.mark(version) == directory.mark(version)


def _selection_failure(name: str, error: ModserveError) -> ModserveError:
    if isinstance(error, UnreadableModelError):
        return internal(f"failed to load '{name}', failed to poll from model repository: {error.message}")
    return invalid(f"load failed for model '{name}': {error.message}\n")


def _version_failures(name: str, failures: Mapping[int, ModserveError]) -> ModserveError:
    lines = [
        f"version {version} is at UNAVAILABLE state: {failure.reason};\n"
        for version, failure in sorted(failures.items())
    ]
    return invalid(f"load failed for model '{name}': {''.join(lines)}")
