"""Table of models and versions with their states, in memory. All methods are synchronous.

The rows of the table: a model, its versions, and what each of these is loaded from.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from modserve.core.changes import Changes
from modserve.core.errors import ModserveError, first_paragraph, unavailable
from modserve.core.lifecycle import UNLOADED, IndexEntry, LifecycleState, VersionState
from modserve.core.loading import Blueprint, DirectoryLease, InPlaceChange, Listing, Needs
from modserve.core.residency import residency
from modserve.core.servable import Borrow, Handle, SequenceKeeper, Servable
from modserve.core.version import (
    ModelId,
    no_available_versions,
    not_ready,
    still_loading,
    unknown_model,
    unknown_version,
)
from modserve.routing.router import Routed
from modserve.routing.routings import Routings

from .locks import Loans, NameLocks
from .succession import DrainGroups, Succession, in_front


class Loaded(NamedTuple):
    """A servable with what it was loaded from: not in service yet, in service, or retired and not closed yet."""

    servable: Servable
    listing: Listing
    lease: DirectoryLease
    load_ns: int
    change: InPlaceChange | None = None
    """Change to apply to the servable, which is in service then."""


@dataclass
class VersionRow:
    state: VersionState = field(default_factory=VersionState)
    servable: Servable | None = None
    """Takes the requests. There is one exactly while the version is READY, also while it is being loaded again."""
    loaded: Loaded | None = None
    """The servable with what it was loaded from."""
    added: bool = False
    """True if it came while others of its model served, which go on if it fails."""
    reason: str = UNLOADED
    """The reason of the state once the version is unloaded."""


@dataclass
class ModelRow:
    blueprint: Blueprint | None = None
    """Listing to load from, also while a model that it needs is missing; None if it should not be loaded."""
    versions: dict[int, VersionRow] = field(default_factory=dict)
    made_of: Needs = field(default_factory=dict)
    """The models that the READY versions are made of. The blueprint's needs differ after a load that failed."""
    problem: str = ""
    """Fault of the model as it is in the repository, while no version could be tried or older ones serve."""
    latest: Servable | None = None
    """The highest READY version that was not rolled back, if there is one."""
    front: Servable | None = None
    """Servable for requests that name no version: `latest`, or the routing between the READY versions."""
    failed_loads: dict[int, int] = field(default_factory=dict)
    """Failed loads by version; 0: of the model, if no version could be tried."""
    finishing: list[Servable] = field(default_factory=list)
    """Servables that are out of service and not closed yet, the last ones first. They continue their sequences."""

    @property
    def served(self) -> dict[int, Servable]:
        """The servables of the READY versions, in ascending order of the versions."""
        return {version: row.servable for version, row in sorted(self.versions.items()) if row.servable is not None}

    @property
    def failure(self) -> str:
        """Reason for which no version is READY, in Triton's words; empty where nothing has failed."""
        return self.problem or " ".join([_unavailable(version, why) for version, why in self._list_failed()])

    @property
    def failure_in_short(self) -> str:
        """Failure without what only operators need, such as places in a model's code."""
        if self.problem:
            return first_paragraph(self.problem)
        return " ".join([_unavailable(version, first_paragraph(why)) for version, why in self._list_failed()])

    def _list_failed(self) -> list[tuple[int, str]]:
        return [(version, row.state.reason) for version, row in sorted(self.versions.items()) if row.state.failed]

    @property
    def unserved(self) -> str:
        """Message about versions in the model's folder that its policy leaves out; empty if there are none."""
        return "" if self.blueprint is None else self.blueprint.unserved

    def absence(self, version: int) -> str:
        """Return the reason why there is no such version; empty if the repository does not have it."""
        if self.problem and self.latest is None:
            return first_paragraph(self.problem)
        present = () if self.blueprint is None else self.blueprint.listing.versions
        return self.unserved if version in present else ""

    def count_failure(self, version: int) -> None:
        self.failed_loads[version] = self.failed_loads.get(version, 0) + 1

    def in_service(self, version: int) -> Loaded | None:
        return self.versions[version].loaded if version in self.versions else None

    def folder(self, version: int) -> Path | None:
        """Return the directory of a version that is in service."""
        loaded = self.in_service(version)
        return None if loaded is None else loaded.lease.path / str(version)

    def is_current(self, listing: Listing, version: int) -> bool:
        """True if a version is in service just as it would be loaded from `listing`."""
        loaded = self.in_service(version)
        return loaded is not None and loaded.listing.mark(version) == listing.mark(version)


def _unavailable(version: int, why: str) -> str:
    return f"version {version} is at UNAVAILABLE state: {why};"


MOST_REMEMBERED = 10_000
"""Most models listed that have nothing loaded and are not wanted: the oldest ones are dropped first."""


class ModelTable:
    """The models of one server. Lives on the event loop's thread.

    A version that loads or has failed after others of its model were there keeps the server from being
    ready only if it is `strict`, as in Triton: the new version takes nothing away.
    """

    def __init__(self, strict: bool = False, routings: Routings | None = None) -> None:
        self._strict = strict
        self.suggests_names = True  # refusals may: all callers may know of all models
        self.models: dict[str, ModelRow] = {}
        self.loans = Loans()
        self.locks = NameLocks()
        """Locks on the models that are being changed."""
        self.changes = Changes()
        """Notified after everything that may change which versions are READY."""
        self.companions = DrainGroups()
        self.routings = Routings() if routings is None else routings
        self._coming: Counter[str] = Counter()  # the models that are being loaded, by the updates that load them
        self._expected: set[str] | None = set()

    def __repr__(self) -> str:
        return f"ModelTable({len(self.index())} versions of {len(self.models)} models)"

    # Questions about one model

    def get(self, name: str, version: int | None) -> Servable:
        """Return the READY version `version`, the latest for None. Raises NOT_FOUND or UNAVAILABLE with Triton's texts.

        Requests of sequences go to the servables where these have begun, also after they were retired.
        """
        model = self.models.get(name)
        servable = None
        if model is not None:
            if version is None:
                servable = model.front
            elif version in model.versions:
                servable = model.versions[version].servable
            if model.finishing:
                servable = in_front(servable, [each for each in model.finishing if version in (None, each.id.version)])
        if servable is None:
            raise self._refusal(name, version)
        return servable

    def _refusal(self, name: str, version: int | None) -> ModserveError:
        """Return the error that states why no servable responds."""
        model = self.models.get(name)
        if model is None and self._expected is None:
            return unavailable(
                f"model '{name}' is not found: the server is starting and has not scanned its model repositories yet"
            )
        if self._is_coming(name):
            return still_loading(name, version)
        if model is None:
            return unknown_model(name, self.models if self.suggests_names else ())
        if version is None:
            return no_available_versions(name, model.failure_in_short)
        if version not in model.versions:
            return unknown_version(name, version, model.absence(version))
        state = model.versions[version].state
        if state.state is LifecycleState.LOADING:
            return still_loading(name, version)
        why = first_paragraph(state.reason) if state.state is LifecycleState.UNAVAILABLE else ""
        return not_ready(name, version, why)

    def state(self, name: str, version: int | None) -> VersionState:
        """Return the state of a version, or for None of the version that would respond. Raises NOT_FOUND."""
        model = self.models.get(name)
        if model is None or (self._is_coming(name) and version is not None and version not in model.versions):
            if self._is_coming(name) and self._expected is not None:
                return VersionState(LifecycleState.LOADING)
            raise self._refusal(name, version)
        latest = model.latest.id.version if model.latest is not None else max(model.versions, default=0)
        row = model.versions.get(latest if version is None else version)
        if row is not None:
            return row.state
        if version is not None:
            raise unknown_version(name, version, model.absence(version))
        return (
            VersionState(LifecycleState.LOADING)
            if self._is_coming(name)
            else VersionState(LifecycleState.UNAVAILABLE, model.problem)
        )

    def ready(self, name: str, version: int | None) -> Servable | None:
        """Return a version, the latest for None, if it is READY and healthy. Raises NOT_FOUND."""
        if self.state(name, version).state is not LifecycleState.READY:
            return None
        model = self.models[name]
        servable = model.front if version is None else model.versions[version].servable
        return servable if servable is not None and servable.unready_reason is None else None

    def is_ready(self, name: str, version: int | None) -> bool:
        """True if `ready` returns a servable. Raises NOT_FOUND."""
        return self.ready(name, version) is not None

    def ready_versions(self, name: str) -> list[Servable]:
        """Return the READY versions in ascending order; none for an unknown model."""
        return list(self.models[name].served.values()) if name in self.models else []

    def folder(self, id: ModelId) -> Path | None:
        """Return the files of a version that is in service, which stay as long as it is, or is lent."""
        return self.models[id.name].folder(id.version) if id.name in self.models else None

    def check_routing(self, name: str, document: object) -> None:
        """Check a routing. Raises INVALID_ARG for versions neither READY nor loading. Raises as `latest` does."""
        self.latest(name)
        rows = self.models[name].versions.items()
        present = [number for number, row in rows if row.servable or row.state.state is LifecycleState.LOADING]
        self.routings.check_versions(name, document, present, self.models[name].unserved)

    def finishing(self, name: str, version: int | None) -> Servable | None:
        """Return the servables that have open sequences, READY or not, as one; of one version, or of all for None."""
        model = self.models.get(name)
        if model is None:
            return None
        servables = [*reversed(model.served.values()), *model.finishing]
        return in_front(None, [each for each in servables if version in (None, each.id.version)])

    def continuing(self, name: str, version: int | None) -> Servable | None:
        """Return a servable as `finishing`, but refuse to begin sequences. For a server that is stopping."""
        servable = self.finishing(name, version)
        return None if servable is None else Succession(servable, (), takes_new=False)

    def borrow(self, name: str, version: int | None) -> Handle:
        """Return `get` as a handle: the servable is not drained until the handle is released."""
        return self.lend(self.get(name, version))

    def borrower(self, caller: ModelId) -> Borrow:
        """Return `borrow` for the engine of a model version; it may also borrow what is unloaded together with it."""

        def borrow(name: str, version: int | None) -> Handle:
            try:
                return self.borrow(name, version)
            except ModserveError:
                companion = self.companions.find(caller, name, version)
                if companion is None:
                    raise
                return self.lend(companion)

        return borrow

    def lend(self, servable: Servable) -> Handle:
        """Lend as `borrow` does, a servable that `get` or `continuing` returned in this turn of the event loop."""
        lent = servable
        while isinstance(lent, Succession):
            lent = lent.heir
        return self.loans.lend(servable, *(lent.parts if isinstance(lent, Routed) else (lent,)))

    def latest(self, name: str) -> Servable:
        """Return the highest READY version that was not rolled back. Raises as `get` does."""
        model = self.models.get(name)
        if model is None or model.latest is None:
            raise self._refusal(name, None)
        return model.latest

    # Questions about all models

    def servables(self) -> list[Servable]:
        """Return all servables that are not closed, READY or not."""
        return [each for model in self.models.values() for each in (*model.served.values(), *model.finishing)]

    def names(self) -> list[str]:
        return sorted(self.models)

    def keepers(self) -> list[Servable]:
        """Return all servables that have open sequences, READY or not."""
        return [each for each in self.servables() if isinstance(each, SequenceKeeper) and each.open_sequences]

    def index(self) -> list[IndexEntry]:
        """Return every version of every model, by name and version."""
        return [entry for entry, _ in self._entries()]

    def unready(self) -> list[IndexEntry]:
        """Return the entries that keep the server from being ready.

        All versions except the healthy ones, those unloaded on purpose, and those added later to versions already
        there.
        """
        return [entry for entry, is_ready in self._entries() if not is_ready]

    def _entries(self) -> Iterator[tuple[IndexEntry, bool]]:
        """Yield the lines of the index, each with whether it allows the server to be ready."""
        for name, model in sorted(self.models.items()):
            if model.problem and model.latest is None:
                yield (
                    IndexEntry(name, None, LifecycleState.UNAVAILABLE, model.problem),
                    model.problem.startswith(UNLOADED),
                )
            for version, row in sorted(model.versions.items()):
                state = row.state
                ailment = row.servable.unready_reason if row.servable is not None else None
                note = model.problem or self.routings.note(name, version, model.latest)
                reason = ailment or (state.reason if row.servable is None else note or _presence(row.servable))
                entry = IndexEntry(name, version, state.state, reason, state.load_ns)
                beside = row.added and model.latest is not None and not self._strict
                yield entry, ailment is None and (beside or not state.holds_up_readiness)

    def count_failed_loads(self) -> dict[tuple[str, int | None], int]:
        """Count failed loads of versions of the index; None stands for a model with no version tried."""
        counts: dict[tuple[str, int | None], int] = {}
        for name, model in self.models.items():
            for version in model.versions.keys() | model.failed_loads.keys():
                counts[name, version or None] = model.failed_loads.get(version, 0)
        return counts

    # What is about to be loaded

    def expect(self, names: Iterable[str] | None) -> None:
        """Count models as loading that will be loaded; None while they are unknown."""
        self._expected = None if names is None else set(names)

    def announce(self, names: Collection[str]) -> None:
        """Announce models that an update loads. For each of them, `on_arrival` is called when its state is final."""
        self._coming.update(names)
        if self._expected is not None:
            self._expected.difference_update(names)

    def on_arrival(self, name: str) -> None:
        self._coming[name] -= 1
        if not self._coming[name]:
            del self._coming[name]

    def _is_coming(self, name: str) -> bool:
        """True if a model without a READY version is being loaded, or is about to be."""
        model = self.models.get(name)
        if model is not None and model.latest is not None:
            return False
        return self._expected is None or name in self._expected or name in self._coming

    # Changes by the control

    def refuse(self, name: str, reason: str) -> None:
        """List a model that cannot even be tried."""
        model = self.models.setdefault(name, ModelRow())
        if model.problem != reason:
            model.count_failure(0)
        model.problem = reason
        self.changes.notify()

    def forget(self, name: str) -> None:
        """List no failures of a model any more, since it has gone from the repositories."""
        if name in self.models:
            self.models[name].problem = ""
            self.drop_failures(name, ())
            self.tidy((name,))
            self.changes.notify()

    # Changes by the manager: a version goes from one state to the next

    def _step(self, row: VersionRow, state: LifecycleState, reason: str = "", load_ns: int = 0) -> None:
        row.state = row.state.advance(state, reason, load_ns)
        self.changes.notify()

    def want(self, blueprints: Mapping[str, Blueprint | None]) -> None:
        for name, blueprint in blueprints.items():
            self.models.setdefault(name, ModelRow()).blueprint = blueprint

    def begin(self, name: str, versions: Iterable[int]) -> None:
        """Mark versions as being loaded. Serving versions remain READY."""
        model = self.models[name]
        for version in versions:
            row = model.versions.setdefault(version, VersionRow(added=model.latest is not None))
            if row.servable is None:
                self._step(row, LifecycleState.LOADING)

    def fail(self, name: str, version: int, reason: str) -> None:
        model = self.models[name]
        model.count_failure(version)
        if model.versions[version].servable is None:
            self._step(model.versions[version], LifecycleState.UNAVAILABLE, reason)
        else:
            model.problem = f"version {version} is served as before, because it failed to load: {reason}"

    # The servables that these return take nothing new, and have to be drained and closed.

    def take(self, loaded: Loaded, made_of: Needs) -> list[Loaded]:
        """Put a loaded version in service; returns what it replaces."""
        name, version = loaded.servable.id
        model = self.models[name]
        row = model.versions[version]
        replaced = row.loaded
        row.servable, row.loaded = loaded.servable, loaded
        loaded.servable.statistics.load_ns = loaded.load_ns
        self._step(row, LifecycleState.READY, load_ns=loaded.load_ns)
        model.made_of = made_of
        self.rank(name)
        return _finish(model, replaced)

    def on_change(self, loaded: Loaded) -> None:
        """Record that a version's servable has another configuration, or another object before it."""
        name, version = loaded.servable.id
        row = self.models[name].versions[version]
        row.servable, row.loaded = loaded.servable, loaded
        self.rank(name)
        self.changes.notify()

    def abandon(self, name: str, version: int, reason: str, loaded: Loaded | None) -> list[Loaded]:
        """End a load that is not taken, since another version failed or the load was cancelled."""
        model = self.models[name]
        if model.versions[version].state.state is LifecycleState.LOADING:
            self._step(model.versions[version], LifecycleState.UNAVAILABLE, reason)
        return _finish(model, loaded)

    def retire(self, name: str, versions: Iterable[int], reason: str) -> list[Loaded]:
        """Take READY versions out of service; `reason` is that of their state once they are unloaded."""
        model = self.models[name]
        retired = []
        for version in versions:
            row = model.versions[version]
            retired += _finish(model, row.loaded)
            row.loaded, row.servable, row.reason = None, None, reason
            self._step(row, LifecycleState.UNLOADING)
        self.rank(name)
        return retired

    def rank(self, name: str) -> None:
        """Rank a model's versions after a change of the READY ones, or of their routing."""
        model, served = self.models[name], self.models[name].served
        model.latest = self.routings.latest(name, served)
        model.front = self.routings.front(name, served, model.latest)
        if model.latest is None:
            model.made_of = {}

    def closed(self, servable: Servable) -> bool:
        """Record that a retired servable is closed. Returns whether its version is now unloaded."""
        model = self.models[servable.id.name]
        model.finishing.remove(servable)
        row = model.versions.get(servable.id.version)
        over = all(each.id != servable.id for each in model.finishing)
        if row is None or row.state.state is not LifecycleState.UNLOADING or not over:
            return False
        self._step(row, LifecycleState.UNAVAILABLE, row.reason)
        return True

    def drop_failures(self, name: str, versions: Container[int]) -> None:
        """List no failures of versions other than these, which are the ones that are in the repository."""
        rows = self.models[name].versions
        for version in [version for version, row in rows.items() if row.state.failed and version not in versions]:
            del rows[version]

    def tidy(self, names: Iterable[str]) -> None:
        """Drop the given models with nothing to list, and the oldest ones if too many are idle."""
        for name in names:
            model = self.models.get(name)
            if model is None or name in self.locks.busy:
                continue
            if not (model.versions or model.problem or model.finishing):
                del self.models[name]
        if len(self.models) > MOST_REMEMBERED:
            used = [model.blueprint or model.latest or model.finishing for model in self.models.values()]
            idle = [
                name for name, use in zip(self.models, used, strict=True) if not use and name not in self.locks.busy
            ]
            for name in idle[: len(self.models) - MOST_REMEMBERED]:
                del self.models[name]


def _presence(servable: Servable) -> str:
    """Return the residency of a READY version's model, if that varies."""
    report = residency(servable)
    return "" if report is None else report.text


def _finish(model: ModelRow, loaded: Loaded | None) -> list[Loaded]:
    if loaded is None:
        return []
    model.finishing.insert(0, loaded.servable)
    return [loaded]
