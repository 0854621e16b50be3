"""Selection of the models to serve, by start-up, polling and explicit calls; the manager carries it out."""

import asyncio
import dataclasses
import enum
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from modserve.core.errors import ModserveError, internal, invalid, not_found, unavailable
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.loading import Blueprint, Listing, Repository, RollbackKeeper
from modserve.core.runtime.background import Background
from modserve.core.runtime.failures import count_failure
from modserve.core.version import RolledBack
from modserve.routing import reading

from . import overrides, rollbacks
from .manager import ModelManager
from .scanning import Outages, changes, scan, together

_log = logging.getLogger(__name__)

DUPLICATE = "model appears in two or more repositories"
ALL = "*"
_MOST_NAMES = 10

SeenT = TypeVar("SeenT")


class ControlMode(enum.Enum):
    NONE = "none"
    """Load all models at the start, and no others later."""
    EXPLICIT = "explicit"
    """Load some models at the start, and others when a client requests them."""
    POLL = "poll"
    """Load all models at the start, and scan the repositories for changes."""


@dataclass(frozen=True, slots=True)
class ControlOptions:
    mode: ControlMode = ControlMode.NONE
    load: tuple[str, ...] = ()
    """Models to load at the start in mode explicit; `ALL` alone means all."""
    poll_seconds: float = 15
    """Seconds between scans in mode poll; 0 for no scans."""


class ModelControl:
    """The models that a server should serve. On the event loop's thread.

    Its tasks, polling and clients' operations, end in `stop`.
    """

    def __init__(self, manager: ModelManager, repositories: Sequence[Repository], options: ControlOptions) -> None:
        self._manager = manager
        self._table = manager.table
        self._repositories = tuple(repositories)
        self._options = options
        self._targets: dict[str, Blueprint] = {}
        """Blueprints of the models to serve."""
        self._by_name: set[str] = set()
        """Models that a client requested, by name or all at once."""
        self._seen: dict[str, Listing | None] = {}
        """Listings of the last poll; None for a model to scan again."""
        self.outages = Outages()
        self._keeping = asyncio.Lock()
        self._table.routings.keep = self._keep_soon
        self._tasks = Background("model_control")
        self._keeps = Background("rollback")
        """Pending writes of rollbacks."""
        self.waiting: tuple[str, ...] = ()
        """Models that were in the repositories but not loaded at the start."""

    def __repr__(self) -> str:
        return f"ModelControl({self._options.mode.value}, {len(self._targets)} models wanted)"

    @property
    def mode(self) -> ControlMode:
        return self._options.mode

    async def start(self) -> None:
        """Load the initial models, then poll. Raises INVALID_ARG for an unreadable repository."""
        self._table.expect(None)
        try:
            await self._start()
        finally:
            self._table.expect(())
        if self._options.mode is ControlMode.POLL and self._options.poll_seconds:
            self._tasks.start(self._keep_polling(self._options.poll_seconds))

    async def _start(self) -> None:
        counts = await self._names()
        load = self._options.load
        if self._options.mode is ControlMode.EXPLICIT and load != (ALL,):
            present = await scan(self._repositories, load)
            chosen = set(load)
        else:
            present = together(await self.outages.look(self._repositories, patient=False))
            chosen = {*present.models, *present.duplicates}
        self._table.expect(chosen & present.models.keys())
        for repository in self._repositories:
            for remark in await repository.remarks():
                _log.warning("%s", remark)
        if not counts:
            places = ", ".join(f"'{repository}'" for repository in self._repositories)
            _log.warning("there are no models in %s: a model is a folder in it", places)
        for name in sorted(chosen & set(present.duplicates)):
            _log.error("model '%s' appears in two or more repositories, none of them is served", name)
            self._table.refuse(name, DUPLICATE)
        for name in sorted(chosen - present.models.keys() - set(present.duplicates)):
            failure = _not_in_repository(name)
            _log.error("%s", failure.message)
            self._table.refuse(name, failure.reason)
        self._seen = dict(present.models)
        self._recall(present.models.values())
        self._by_name |= chosen
        targets = await self._manager.inspect(present.models.values())
        targets |= await self._composing(targets)
        self._targets.update(targets)
        self.waiting = tuple(sorted(name for name in counts.keys() - targets.keys() if counts[name] == 1))
        if targets:
            _log.info("loading %d model%s", len(targets), "s" if len(targets) > 1 else "")
        await self._manager.update(targets)
        if self.waiting:
            more = f", and {len(self.waiting) - _MOST_NAMES} more" if len(self.waiting) > _MOST_NAMES else ""
            names = ", ".join(self.waiting[:_MOST_NAMES]) + more
            _log.info("not loaded until requested by a call or --load-model: %s", names)

    async def finish(self) -> None:
        """End polling and clients' operations, and return when nothing is in flight."""
        await self._tasks.cancel()
        await self._manager.finish()
        await self._keeps.settle()

    async def stop(self) -> None:
        """Finish like `finish`, and then unload everything."""
        await self.finish()
        self._targets.clear()
        await self._manager.reconcile(self._targets)

    # Explicit calls

    async def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load a model like `Server.load_model`. `config` holds until the model's files change or it is unloaded."""
        self._check_explicit()
        overrides.check_model_name(name)
        if files and config is None:
            raise invalid("Load parameter 'config' must be specified for model file override")
        await self._operate(self._load(name, config, files or {}))

    async def unload(self, name: str, dependents: bool = False) -> None:
        """Unload a model like `Server.unload_model`, after the operations on it that have begun."""
        self._check_explicit()
        await self._operate(self._unload(name, dependents))

    async def _load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        if not files:
            await self._load_from(self._repositories, name, config)
            return
        temporary = await asyncio.to_thread(overrides.write, name, files)
        try:
            await self._load_from([temporary], name, config)
        finally:
            await temporary.release()

    async def _load_from(self, repositories: Sequence[Repository], name: str, config: str | None) -> None:
        present = await self._look(partial(scan, repositories, (name,)))
        if name in present.duplicates:
            raise internal(f"{_not_in_repository(name).message}: {DUPLICATE}")
        if name not in present.models:
            raise _not_in_repository(name)
        listing = dataclasses.replace(present.models[name], config=config)
        self._recall([listing])
        former = self._targets.get(name)
        if (
            config is None
            and former is not None
            and former.failure is None
            and listing.same_files(former.listing)
            and (former.listing.config is not None or listing.rolled_back == former.listing.rolled_back)
        ):
            target = former  # including its configuration
        else:
            target = (await self._manager.inspect([listing]))[name]
        self._targets[name] = target
        try:
            composing = await self._composing({name: target})
            self._targets |= composing
            failures = await self._manager.update({**composing, name: target}, together=True)
            if name in failures:
                raise failures[name]
            self._by_name.add(name)
        except BaseException:
            if self._targets.get(name) is target:
                del self._targets[name]
                if former is not None:
                    self._targets[name] = former
            raise

    async def _unload(self, name: str, dependents: bool) -> None:
        self._targets.pop(name, None)
        self._by_name.discard(name)
        for gone in await self._manager.unload(name, dependents, self._by_name):
            self._targets.pop(gone, None)

    async def _composing(self, targets: Mapping[str, Blueprint]) -> dict[str, Blueprint]:
        """Return the other models to load for these: all existing models that they consist of, directly or indirectly.

        A model loaded with its own configuration or files stays unchanged.
        """
        composing: dict[str, Blueprint] = {}
        needs = {need for target in targets.values() for need in target.needs}
        while needs := {need for need in needs - targets.keys() - composing.keys() if not self._is_overridden(need)}:
            try:
                present = await self._look(partial(scan, self._repositories, needs))
            except ModserveError:  # the load reports what is missing
                break
            self._recall(present.models.values())
            blueprints = await self._manager.inspect(present.models.values())
            composing |= blueprints
            needs = {need for blueprint in blueprints.values() for need in blueprint.needs}
        return composing

    def _is_overridden(self, name: str) -> bool:
        return name in self._targets and self._targets[name].listing.config is not None

    async def _operate(self, operation: Coroutine[None, None, None]) -> None:
        """Run an operation to its end, even if the caller is cancelled."""
        await _end_of(self._tasks.start(operation))

    def _check_explicit(self) -> None:
        mode = self._options.mode
        if mode is not ControlMode.EXPLICIT:
            polling = " if polling is enabled" if mode is ControlMode.POLL else ""  # also in mode none, as in Triton
            raise unavailable(
                f"explicit model load / unload is not allowed{polling}: the model control mode of this server is "
                f"'{mode.value}', start it with --model-control-mode=explicit"
            )

    # Routing and rollbacks

    async def set_routing(self, name: str, document: object, revision: str) -> None:
        """Set the routing like `Server.set_routing`. With a `revision`, another worker has checked it, and writes."""
        table, latest = self._table, self._table.latest(name)
        if reasons := reading.rollbacks(document):
            present = (await scan(self._repositories, (name,))).models.get(name)
            for version in [version for version, reason in reasons.items() if reason]:
                if present is None or version not in present.versions:
                    raise invalid(
                        f"model '{name}' has no version {version} in a repository, which could be rolled back"
                    )
            table.latest(name)  # the model may have been removed during the scan
            decided = table.routings.decide(name, reasons)
            table.rank(name)
            await _end_of(*[self._keep_soon(name, version, each, present) for version, each in decided.items()])
            return
        if not revision:  # a version may have been removed since the check
            table.check_routing(name, document)
        table.routings.set(name, latest, document, revision)
        table.rank(name)
        if not revision:
            await self.keep_rollback(name)

    async def _look(self, look: Callable[[], Awaitable[SeenT]]) -> SeenT:
        """Read repositories while no rollback is being decided: they may lack what is being written."""
        routings = self._table.routings
        while True:
            await self._keeps.idle()
            decisions = routings.decisions
            seen = await look()
            if decisions == routings.decisions:
                return seen

    def _recall(self, listings: Iterable[Listing]) -> None:
        """Read the rolled-back versions of models to load from their listings, in the same turn as the look.

        Rollbacks that could not be written are written now, if possible.
        """
        routings = self._table.routings
        for listing in listings:
            routings.recall(listing.name, listing.rolled_back)
            for version, rolled_back in routings.rollbacks_of(listing.name).items():
                if rolled_back.unsaved:
                    self._keep_soon(listing.name, version, rolled_back, listing)

    def _keep_soon(
        self, name: str, version: int, rolled_back: RolledBack | None, listing: Listing | None = None
    ) -> asyncio.Task[None]:
        model = self._table.models.get(name)  # it may be unloaded meanwhile
        if listing is None and model is not None and model.blueprint is not None:
            listing = model.blueprint.listing
        return self._keeps.start(self._keep(name, listing, version, rolled_back))

    async def keep_rollback(self, name: str) -> None:
        """Write that no version of the model at this location is rolled back any more."""
        await _end_of(self._keep_soon(name, 0, None))

    async def _keep(self, name: str, listing: Listing | None, version: int, rolled_back: RolledBack | None) -> None:
        if listing is None:
            return
        repository = listing.repository
        async with self._keeping:
            if isinstance(repository, RollbackKeeper):
                why = await repository.keep_rollback(listing, version, rolled_back)
            else:
                remedy = rollbacks.remedy(listing, version, rolled_back)
                why = "" if rolled_back is None else f"the server writes nothing to {repository}: {remedy}"
        former = "" if rolled_back is None else rolled_back.unsaved
        if why != former:
            if why:
                _log.error("model '%s': %s", name, why)
            self._table.routings.mark_unsaved(name, version, why)

    # Polling

    async def poll(self) -> None:
        """Load new and changed models of the repositories, and unload removed ones."""
        try:
            present = together(await self._look(partial(self.outages.look, self._repositories)))
        except ModserveError as error:
            count_failure("repository_poll")
            _log.error("%s; loaded models stay", error.message)
            return
        listings = changes(self._seen, present.models)
        self._seen = dict(present.models)
        for name in present.duplicates:
            listings.pop(name, None)
            self._seen[name] = None
            self._table.refuse(name, DUPLICATE)
        gone = [name for name, listing in listings.items() if listing is None]
        for name in listings:
            _log.info("model '%s' %s", name, "is gone" if name in gone else "is new or has changed")
        if listings:
            changed = [listing for listing in listings.values() if listing is not None]
            self._recall(changed)
            blueprints = await self._manager.inspect(changed)
            self._targets = {name: each for name, each in self._targets.items() if name not in gone} | blueprints
            await self._manager.update({name: blueprints.get(name) for name in listings})
        for name in gone:
            self._table.forget(name)

    async def _keep_polling(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.poll()
            except Exception as error:  # the next poll may succeed
                count_failure("repository_poll", error)

    # Index

    async def index(self) -> list[IndexEntry]:
        """Return the index of the models, including never loaded models in the repositories."""
        counts: Counter[str] = Counter()
        try:
            counts = await self._names()
        except ModserveError as error:
            _log.warning("the repository index lists only models that were loaded: %s", error.message)
        entries = self._table.index()
        for name in counts.keys() - {entry.name for entry in entries}:
            entries.append(IndexEntry(name, None, LifecycleState.UNKNOWN, DUPLICATE if counts[name] > 1 else ""))
        return sorted(entries, key=lambda entry: (entry.name, entry.version or 0))

    async def _names(self) -> Counter[str]:
        """Return all model names, with the number of repositories that have each."""
        return Counter([name for repository in self._repositories for name in await repository.names()])


async def _end_of(*tasks: asyncio.Task[None]) -> None:
    await asyncio.wait(tasks)
    for task in tasks:
        if task.cancelled():
            raise unavailable("Server not ready")
        task.result()


def _not_in_repository(name: str) -> ModserveError:
    return not_found(f"failed to load '{name}', failed to poll from model repository")
