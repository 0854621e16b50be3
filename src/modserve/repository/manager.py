"""Loads what should be served and unloads what should not: the reconciler, and the table of what is there."""

import asyncio
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from modserve.core.errors import ModserveError, from_exception, internal, invalid, unavailable
from modserve.core.lifecycle import UNLOADED, IndexEntry, State, VersionState
from modserve.core.servable import (
    Handle,
    ModelDirectory,
    ModelLoader,
    SequenceKeeper,
    Servable,
    UnreadableModelError,
)
from modserve.core.version import (
    ModelId,
    no_available_versions,
    not_ready,
    still_loading,
    unknown_model,
    unknown_version,
)

from . import dependencies
from .handle import Loans
from .succession import Succession

_log = logging.getLogger(__name__)

_CANCELLED = "the load was cancelled"

Needs: TypeAlias = Mapping[str, frozenset[int | None]]
"""Models that another one is made of, with their versions; None for any."""


@dataclass
class _Version:
    state: VersionState = field(default_factory=VersionState)
    servable: Servable | None = None
    """What takes requests: there while READY, also while it is being loaded anew."""
    directory: ModelDirectory | None = None
    """What it was loaded from."""
    unloading: str = UNLOADED
    """The reason to be given once the version is unloaded."""


@dataclass
class _Model:
    versions: dict[int, _Version] = field(default_factory=dict)
    problem: str = ""
    """What is wrong with the model as it is on disk, while no version could be tried or older ones are served on."""
    latest: Servable | None = None
    """The highest READY version."""
    finishing: list[Servable] = field(default_factory=list)
    """What takes nothing new, but for sequences that go on, and is not closed yet; the last ones first."""
    wanted: ModelDirectory | None = None
    """What it should be loaded from, also while a model that it needs is missing."""
    needs: Needs = field(default_factory=dict)
    serving: Needs = field(default_factory=dict)
    """What the versions in service are made of: not what it `needs`, if that failed to load."""

    @property
    def servables(self) -> list[Servable | None]:
        """What takes requests, or None, by version."""
        return [self.versions[version].servable for version in sorted(self.versions)]

    @property
    def failure(self) -> str:
        """Why no version is READY, as Triton puts it; empty where there is none, or none any more."""
        lines = [
            f"version {version} is at UNAVAILABLE state: {entry.state.reason};"
            for version, entry in sorted(self.versions.items())
            if entry.state.state is State.UNAVAILABLE and not entry.state.unloaded
        ]
        return self.problem or " ".join(lines)

    def rank(self) -> None:
        ready = [entry.servable for _, entry in sorted(self.versions.items()) if entry.state.state is State.READY]
        self.latest = ready[-1] if ready else None
        if not ready:
            self.serving = {}


@dataclass
class _Loads:
    """What came of loading some versions of a model."""

    servables: dict[int, tuple[Servable, int]] = field(default_factory=dict)
    """With the nanoseconds it took. Not in service yet."""
    failures: dict[int, ModserveError] = field(default_factory=dict)


@dataclass
class _NameLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    """Who has it, and those who wait for it."""


@dataclass
class _Update:
    """What is known to all models that change in one go."""

    together: bool
    coming: set[str]
    """Those that are to be loaded, and have not been seen to."""
    failures: dict[str, ModserveError] = field(default_factory=dict)
    done: dict[str, asyncio.Event] = field(default_factory=dict)
    """Set for each model that has been seen to."""
    before: dict[str, list[Servable | None]] = field(default_factory=dict)
    """What was served by the models, before."""
    former: dict[str, tuple[ModelDirectory | None, Needs]] = field(default_factory=dict)
    """What was wanted of the models that somebody wants to change, before."""
    wanted: dict[str, Needs] = field(default_factory=dict)
    """What each model is to be made of."""
    serving: dict[str, Needs] = field(default_factory=dict)
    """What the versions that were in service before are made of."""
    turns: dict[str, set[str]] = field(default_factory=dict)
    """Those that are seen to before each."""

    def is_renewed(self, names: Iterable[str], models: Mapping[str, _Model]) -> bool:
        """Whether one of some models is served by others than before, or may be when all is done."""
        return any(
            (name in self.done and not self.done[name].is_set())
            or (name in models and models[name].servables != self.before.get(name, []))
            for name in names
        )


class ModelManager:
    """The models of one server. Lives on the event loop's thread.

    It is told which model directories are wanted, of all models (`reconcile`) or of some (`update`), and drives the
    actual state towards that: what is missing or has changed is loaded, what is not wanted any more is drained and
    unloaded. A version that is served is served until the one that takes its place is READY, and on if that fails. A
    version that fails to load is a state with a reason; it stops neither the other models nor the server. Of one model,
    one thing is done at a time. A load that fails is tried `load_retries` times again.

    A model that is made of others is loaded after them, and loaded again when one of them has changed. It goes when one
    of them goes, and comes back with it. One that can not be made anew serves on, as long as what it is made of stays
    as it is.
    """

    def __init__(self, loader: ModelLoader, parallel_loads: int, load_retries: int = 0) -> None:
        self._loader = loader
        self._load_retries = load_retries
        self._loads = asyncio.Semaphore(max(1, parallel_loads))
        self._models: dict[str, _Model] = {}
        self._locks: dict[str, _NameLock] = {}
        """Of the models that something is being done with, or that somebody waits for."""
        self._coming: Counter[str] = Counter()
        """The models that are being loaded, each as often as somebody wants it."""
        self._expected: set[str] | None = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._loans = Loans()
        self.on_change: Callable[[], None] = lambda: None
        """Called after whatever may change what is READY."""

    def __repr__(self) -> str:
        return f"ModelManager({len(self.index())} versions of {len(self._models)} models)"

    def get(self, name: str, version: int | None) -> Servable:
        """The READY version asked for, or the latest for None. Raises NOT_FOUND or UNAVAILABLE with Triton's texts.

        Requests of sequences go to those where these have begun, also when they are READY no more.
        """
        model = self._models.get(name)
        if model is None:
            raise self._absent(name, version)
        if version is None:
            found = model.latest
        else:
            entry = model.versions.get(version)
            if entry is None:
                raise self._without(name, model, version)
            found = entry.servable if entry.state.state is State.READY else None
        if model.finishing:
            found = _before(found, [each for each in model.finishing if version in (None, each.id.version)])
        if found is None:
            raise self._unready(name, model, version)
        return found

    def expect(self, names: Iterable[str] | None) -> None:
        """Some models will be loaded, so that meanwhile they count as loading; None while nobody knows which."""
        self._expected = None if names is None else set(names)

    def _is_coming(self, name: str) -> bool:
        """Whether a model of which no version is READY is being loaded, or is about to be."""
        model = self._models.get(name)
        if model is not None and model.latest is not None:
            return False
        return self._expected is None or name in self._expected or name in self._coming

    def _absent(self, name: str, version: int | None) -> ModserveError:
        if self._expected is None:
            return unavailable(
                f"Request for unknown model: '{name}' is not found: the server is starting and has not looked through "
                "its model repositories yet"
            )
        return still_loading(name, version) if self._is_coming(name) else unknown_model(name)

    def _without(self, name: str, model: _Model, version: int) -> ModserveError:
        """A model is there, and not the version that was asked for."""
        if self._is_coming(name):
            return still_loading(name, version)
        return unknown_version(name, version, model.problem if model.latest is None else "")

    def _unready(self, name: str, model: _Model, version: int | None) -> ModserveError:
        """What is asked for is known, and not READY."""
        if version is None:
            return still_loading(name, None) if self._is_coming(name) else no_available_versions(name, model.failure)
        state = model.versions[version].state
        if state.state is State.LOADING or self._is_coming(name):
            return still_loading(name, version)
        return not_ready(name, version, state.reason if state.state is State.UNAVAILABLE else "")

    def finishing(self, name: str, version: int | None) -> Servable | None:
        """What has sequences that have begun, and is or may be unloaded; of a version, or of all for None."""
        model = self._models.get(name)
        if model is None:
            return None
        served = [each for each in reversed(model.servables) if each is not None]
        return _before(None, [each for each in (*served, *model.finishing) if version in (None, each.id.version)])

    def keepers(self) -> list[Servable]:
        """All that have sequences which have begun, whether they are READY or not."""
        loaded = [each for model in self._models.values() for each in (*model.servables, *model.finishing)]
        servables = [each for each in loaded if each is not None]
        return [each for each in servables if isinstance(each, SequenceKeeper) and each.open_sequences]

    def borrow(self, name: str, version: int | None) -> Handle:
        """As `get`, for who needs it for a while: until it is given back it is not drained."""
        return self.lend(self.get(name, version))

    def lend(self, servable: Servable) -> Handle:
        """As `borrow`, of what `get` or `finishing` gave in this turn of the event loop."""
        return self._loans.lend(servable.heir if isinstance(servable, Succession) else servable, servable)

    def state(self, name: str, version: int | None) -> VersionState:
        """The state of a version, or of the one that answers for None. Raises NOT_FOUND."""
        model = self._models.get(name)
        if model is None or (self._is_coming(name) and version not in (None, *model.versions)):
            if self._is_coming(name) and self._expected is not None:
                return VersionState(State.LOADING)
            raise self._absent(name, version)
        if version is None:
            if model.latest is not None:
                version = model.latest.id.version
            elif model.versions:
                version = max(model.versions)
            elif self._is_coming(name):
                return VersionState(State.LOADING)
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

    @property
    def busy(self) -> list[str]:
        """The names of the models that something is being done with."""
        return sorted(self._locks)

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

    async def unload(self, name: str, dependents: bool, asked: Container[str] = ()) -> list[str]:
        """Take a model out of service; the models that were.

        With `dependents`, also those that only it needed, unless they were `asked` for by name.
        """
        if name not in self._models and name not in self._locks:
            return []
        names = [name, *(dependencies.orphans(name, self._graph(), asked) if dependents else ())]
        await self.update(dict.fromkeys(names))
        return names

    async def needs(self, directory: ModelDirectory) -> Needs:
        """The models that one needs to be loaded; none for one of which that cannot be told."""
        try:
            return await self._loader.needs(directory)
        except Exception:  # what is wrong with it shows when it is loaded
            _log.debug("model '%s': what it needs cannot be told", directory.name, exc_info=True)
            return {}

    async def update(
        self, changes: Mapping[str, ModelDirectory | None], *, together: bool = False
    ) -> dict[str, ModserveError]:
        """Bring some models to what is wanted of them: their directory, or None for unloading.

        Returns when all loads have ended; unloading goes on. What could not be loaded is returned by name, as Triton
        tells it to who asked for the load. With `together`, all new versions of a model are taken or none; in any case
        so if it is being served. Models that need one of them are seen to as well.
        """
        step = _Update(together, coming={name for name, directory in changes.items() if directory})
        self._coming.update(step.coming)
        if self._expected is not None:
            self._expected -= changes.keys()
        try:
            return await self._update(changes, step)
        finally:
            for name in list(step.coming):
                self._arrive(name, step)

    def _arrive(self, name: str, step: "_Update") -> None:
        """A model has been seen to: what there is to say of it is in its state."""
        if name in step.coming:
            step.coming.remove(name)
            self._coming[name] -= 1
            if not self._coming[name]:
                del self._coming[name]

    async def _update(self, changes: Mapping[str, ModelDirectory | None], step: "_Update") -> dict[str, ModserveError]:
        async with asyncio.TaskGroup() as tasks:
            asking = {
                name: tasks.create_task(self.needs(directory)) for name, directory in changes.items() if directory
            }
        needs: dict[str, Needs] = {name: asking[name].result() if name in asking else {} for name in changes}
        held: set[str] = set()

        def let_go(name: str, *_: object) -> None:
            if name in held:
                held.remove(name)
                self._unlock(name)

        try:
            await self._hold(needs, held)
            others = dependencies.dependents(changes, self._graph(needs)) - changes.keys()
            wanted = {name: self._models[name].wanted for name in sorted(others)} | dict(changes)
            step.before = {name: self._models[name].servables for name in held if name in self._models}
            step.done = {name: asyncio.Event() for name in wanted}
            for name in changes:
                model = self._models.setdefault(name, _Model())
                step.former[name] = model.wanted, model.needs
                model.wanted, model.needs = changes[name], needs[name]
            step.wanted = {name: model.needs for name, model in self._models.items() if model.wanted}
            step.serving = {name: model.serving for name, model in self._models.items()}
            step.turns = dependencies.turns(step.wanted, step.serving)
            self._retire_dependents(wanted)
            async with asyncio.TaskGroup() as tasks:
                selections = {
                    name: tasks.create_task(self._select(directory)) for name, directory in wanted.items() if directory
                }
            async with asyncio.TaskGroup() as tasks:
                for name, directory in wanted.items():
                    selection = selections[name].result() if name in selections else ()
                    applied = tasks.create_task(self._apply_in_turn(name, directory, selection, step))
                    applied.add_done_callback(functools.partial(let_go, name))
        finally:
            for name in list(held):
                let_go(name)
            for name in changes:
                self._drop_if_empty(name)
            self.on_change()
        return {name: failure for name, failure in step.failures.items() if name in changes}

    def _graph(self, needs: Mapping[str, Needs] | None = None) -> dict[str, Iterable[str]]:
        """What each wanted model needs, with changes that are to come, and what those in service are made of."""
        graph = {name: set(model.needs) for name, model in self._models.items() if model.wanted}
        graph |= {name: set(found) for name, found in (needs or {}).items()}
        for name, model in self._models.items():
            if model.serving:
                graph.setdefault(name, set()).update(model.serving)
        return dict(graph)

    async def _hold(self, needs: Mapping[str, Needs], held: set[str]) -> None:
        """Lock what is about to change, all that it needs and all that needs it.

        Always in the same order, or two might wait for each other; and again if meanwhile that has become more.
        """
        while True:
            graph = self._graph(needs)
            above = set(needs) | dependencies.dependents(needs, graph)
            names = above | dependencies.needed(above, graph)
            if names <= held:
                return
            for name in list(held):
                held.remove(name)
                self._unlock(name)
            for name in sorted(names):
                await self._lock(name)
                held.add(name)

    async def _lock(self, name: str) -> None:
        entry = self._locks.setdefault(name, _NameLock())
        entry.users += 1
        try:
            await entry.lock.acquire()
        except BaseException:
            self._leave(name, entry)
            raise

    def _unlock(self, name: str) -> None:
        entry = self._locks[name]
        entry.lock.release()
        self._leave(name, entry)

    def _leave(self, name: str, entry: "_NameLock") -> None:
        entry.users -= 1
        if not entry.users:
            del self._locks[name]

    def _retire_dependents(self, wanted: Mapping[str, ModelDirectory | None]) -> None:
        """Before models go, those go that need them."""
        gone = {name for name, directory in wanted.items() if directory is None}
        graph = self._graph()  # in which what goes has no needs any more, once it has gone
        for name in dependencies.dependents(gone, graph) - gone:
            model = self._models[name]
            lost = ", ".join(f"'{need}'" for need in sorted(dependencies.needed([name], graph) & gone))
            self._retire_all(name, model, model.versions, f"{UNLOADED}, for ensemble '{name}' depends on {lost}")

    async def _apply_in_turn(
        self, name: str, directory: ModelDirectory | None, selection: "Sequence[int] | ModserveError", step: "_Update"
    ) -> None:
        """Once all that it needs has been seen to."""
        model = self._models[name]
        try:
            for need in step.turns.get(name, ()):
                if need in step.done:
                    await step.done[need].wait()
            circle = dependencies.circle(name, step.wanted) if model.needs else ""
            stale = step.is_renewed(step.serving.get(name, ()), self._models)
            renewed = stale or (not circle and step.is_renewed(model.needs, self._models))
            if name in step.former or renewed:
                unmet = _circular(name, circle) if circle else self._unmet(name, model.needs, step)
                await self._apply(name, directory, selection, unmet, step, renewed=renewed, stale=stale)
        finally:
            self._arrive(name, step)
            step.done[name].set()

    def _unmet(self, name: str, needs: Needs, step: "_Update") -> ModserveError | None:
        """Why a model can not be loaded for what it needs, in Triton's words."""
        found = {need: self._models.get(need, _Model()) for need in needs}
        failures = {
            need: model.failure or (step.failures[need].message.strip() if need in step.failures else "")
            for need, model in found.items()
            if model.latest is None
        }
        absent = sorted(need for need, failure in failures.items() if not failure)
        if absent:
            return invalid(f"ensemble {name} contains models that are not available or ambiguous: {', '.join(absent)}")
        for need, versions in needs.items():
            who = f"ensemble '{name}' depends on '{need}'"
            if need in failures:
                return invalid(
                    f"{who} which has no loaded version. Model '{need}' loading failed with error: {failures[need]}"
                )
            ready = {servable.id.version for servable in self.ready_versions(need)}
            for version in versions - {None} - ready:
                return invalid(f"{who} whose required version {version} is not loaded.")
        return None

    async def _select(self, directory: ModelDirectory) -> Sequence[int] | ModserveError:
        """The versions to serve, or why they can not be told."""
        try:
            return await self._loader.wanted_versions(directory)
        except Exception as error:  # whatever a backend does to one model, the others are loaded
            failure = from_exception(error, f"failed to look at model '{directory.name}'")
            foreign = None if isinstance(error, ModserveError) else error
            level = logging.ERROR if directory.config is None else logging.WARNING  # the caller's mistake, who is told
            _log.log(level, "model '%s' can not be loaded: %s", directory.name, failure.message, exc_info=foreign)
            return failure

    async def _apply(
        self,
        name: str,
        directory: ModelDirectory | None,
        selection: Sequence[int] | ModserveError,
        unmet: ModserveError | None,
        step: "_Update",
        *,
        renewed: bool,
        stale: bool,
    ) -> None:
        """`unmet`: why it can not be loaded. `renewed`: what it needs is not what it was, so it is loaded again.

        `stale`: what the versions in service are made of is not what it was: they do not serve on if that fails.
        """
        model = self._models[name]
        alone = step.together and name in step.former and model.latest is None
        if directory is None:
            if model.latest is not None:
                model.problem = ""  # a replacement failed, of what is not wanted any more
            self._retire_all(name, model, model.versions)
        elif isinstance(selection, ModserveError):
            step.failures[name] = _selection_failure(directory, selection)
            # Who asked for it alone is told, and a model that was not there is not there.
            model.problem = "" if alone else selection.reason
        elif unmet is not None and (renewed or not all(_is_current(model, directory, each) for each in selection)):
            level = logging.ERROR if name in step.former else logging.INFO
            _log.log(level, "model '%s' can not be loaded: %s", name, unmet.message)
            step.failures[name] = invalid(f"load failed for model '{name}': {unmet.message}\n")
            if stale or model.latest is None:
                self._retire_all(name, model, model.versions, unmet.reason)
                model.problem = "" if alone or model.versions else unmet.reason
            else:
                model.problem = f"served as it was, for it failed to load: {unmet.reason}"
        else:
            model.problem = ""
            failed = await self._load_versions(model, directory, selection, step.together, renewed)
            if failed:
                step.failures[name] = _version_failures(name, failed)
                if stale:  # what is served fits no more to what it is made of
                    self._retire_all(name, model, model.versions, failed[max(failed)].reason)
                    model.problem = ""
        if name in step.failures and name in step.former and step.together:
            model.wanted, model.needs = step.former[name]
        if all(entry.servable is None for entry in model.versions.values()):
            self._loader.forget(name)

    async def _load_versions(
        self, model: _Model, directory: ModelDirectory, versions: Sequence[int], together: bool, renewed: bool
    ) -> dict[int, ModserveError]:
        """Load what is missing or has changed, and retire what is not wanted; the failures by version."""
        together = together or model.latest is not None
        missing = [version for version in versions if renewed or not _is_current(model, directory, version)]
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
        servable.statistics.load_ns = load_ns
        self._step(entry, State.READY, load_ns=load_ns)
        if directory.lease is not None:
            directory.lease.hold()
        model.rank()
        model.serving = model.needs
        _log.info("model '%s', version %d: ready after %.3f s", directory.name, version, load_ns / 1e9)
        if previous.servable is not None:
            self._close(model, ModelId(directory.name, version), entry, previous.servable, previous.directory)

    def _give_up(self, model: _Model, directory: ModelDirectory, versions: Sequence[int], loads: _Loads) -> None:
        """Take none of what was loaded: another version failed, or the load was cancelled."""
        for version in versions:
            entry = model.versions[version]
            if entry.state.state is State.LOADING:
                reason = UNLOADED if loads.failures else _CANCELLED
                self._step(entry, State.UNAVAILABLE, reason)
            if version in loads.servables:
                servable, _ = loads.servables.pop(version)
                self._close(model, ModelId(directory.name, version), entry, servable, None)

    def _retire_all(self, name: str, model: _Model, versions: Iterable[int], reason: str = UNLOADED) -> None:
        """Take versions out of service; what they have accepted is finished."""
        for version in versions:
            entry = model.versions[version]
            servable, directory = entry.servable, entry.directory
            if servable is None:
                continue
            entry.servable = entry.directory = None
            entry.unloading = reason
            self._step(entry, State.UNLOADING)
            self._close(model, ModelId(name, version), entry, servable, directory)
        model.rank()

    def _drop_failures(self, model: _Model, versions: Sequence[int]) -> None:
        """List no failures of other than these versions, which are the ones that are there."""
        for version, entry in list(model.versions.items()):
            failed = entry.state.state is State.UNAVAILABLE and not entry.state.unloaded
            if failed and version not in versions:
                del model.versions[version]

    def _drop_if_empty(self, name: str) -> None:
        """A model of which there is nothing to say, and with which nothing is being done, is none."""
        model = self._models.get(name)
        if name in self._locks:
            return
        if model is not None and not model.versions and not model.problem:
            del self._models[name]

    # Closing, in the background

    def _close(
        self, model: _Model, model_id: ModelId, entry: _Version, servable: Servable, directory: ModelDirectory | None
    ) -> None:
        model.finishing.insert(0, servable)
        self._spawn(self._drain_and_close(model, model_id, entry, servable, directory))

    async def _drain_and_close(
        self, model: _Model, model_id: ModelId, entry: _Version, servable: Servable, directory: ModelDirectory | None
    ) -> None:
        try:
            await self._loans.returned(servable)
            await servable.drain()
            try:
                await servable.close()
            except Exception:  # an engine that can not end well is gone all the same
                _log.exception("model '%s', version %d: closing its engine failed", model_id.name, model_id.version)
        finally:
            model.finishing.remove(servable)
            over = all(each.id.version != model_id.version for each in model.finishing)
            if entry.state.state is State.UNLOADING and over:
                self._step(entry, State.UNAVAILABLE, entry.unloading)
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


def _before(heir: Servable | None, others: Iterable[Servable]) -> Servable | None:
    """What answers in the place of `heir` while some of the others have sequences that have begun."""
    keepers = [each for each in others if isinstance(each, SequenceKeeper) and each.open_sequences]
    if not keepers:
        return heir
    if heir is None:
        heir, *keepers = keepers
    return Succession(heir, keepers) if keepers else heir


def _is_current(model: _Model, directory: ModelDirectory, version: int) -> bool:
    """Whether a version is in service just as it would be loaded from `directory`."""
    entry = model.versions.get(version)
    if entry is None or entry.directory is None:
        return False
    return entry.directory.mark(version) == directory.mark(version)


def _circular(name: str, through: str) -> ModserveError:
    return invalid(f"circular dependency between ensembles: {name} -> ... -> {through} -> {name}")


def _selection_failure(directory: ModelDirectory, error: ModserveError) -> ModserveError:
    if isinstance(error, UnreadableModelError):
        failure = internal if directory.config is None else invalid  # it came with the call
        return failure(f"failed to load '{directory.name}', failed to poll from model repository: {error.message}")
    return invalid(f"load failed for model '{directory.name}': {error.message}\n")


def _version_failures(name: str, failures: Mapping[int, ModserveError]) -> ModserveError:
    lines = [
        f"version {version} is at UNAVAILABLE state: {failure.reason};\n"
        for version, failure in sorted(failures.items())
    ]
    return invalid(f"load failed for model '{name}': {''.join(lines)}")
