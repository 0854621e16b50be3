"""Loads what should be served and unloads what should not: the loop that carries out what `plan.py` decides.

The life of a version. A look at a repository lists it (`Listing`), and the loader inspects the model's configuration
once (`Blueprint`). From then on `core.lifecycle` names its states:

- LOADING: its files are fetched, under a lease, and a servable is made of them.
- READY: the servable is in the table and takes requests. While the version is loaded again, the state stays READY, and
  the old servable serves until the new one takes its place, and on if the load fails. Where only the configuration has
  changed, and the loader can apply the change to what serves (`Change`), the servable stays.
- UNLOADING: the servable is out of the table's service, and is drained and closed in the background:
  first the handles that were lent are released, then everything accepted is settled, then the engine is closed, and
  at last the lease is released. Until then the servable continues the sequences that have begun (`finishing`).
- UNAVAILABLE, with a reason: unloaded on purpose, or failed. Only a failure keeps the server from being ready.

A servable that was replaced, or loaded and not taken, is closed in the same way without a state of its own.

Who may change what. Only this manager changes the states and servables in the table, always between two awaits, so that
every question to the table sees whole models. The control writes what should be there, by `update`. Updates of the same
models run one after the other: an update holds the names of all models that it may change or read (`Update.names`), and
lets each go as soon as it has had its turn. What loaders, backends and repositories raise is mapped here, in `inspect`
and `_load`, and nothing of it gets further than its own model.

When the server stops, `finish` comes first: everything accepted is settled while all versions are READY, since the
engines of some may yet call others. No client can reach a model any more by then. Models that a client unloads
together (`DrainGroups`) are not drained either before none of them is busy, as far as they keep no sequences.

The closing of a version is not part of the update that retires it, since an unload call returns when nothing new is
taken. Its parent is the manager's `Background`; `reconcile`, the last call of a server, waits for it.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter

from modserve.core.errors import ModserveError, from_exception, unavailable
from modserve.core.lifecycle import UNLOADED
from modserve.core.loading import Blueprint, DirectoryLease, Listing, LoadWatcher, ModelLoader
from modserve.core.runtime.background import Background
from modserve.core.servable import Finisher, Servable

from . import plan
from .plan import Action, Update
from .table import Loaded, ModelTable

_log = logging.getLogger(__name__)

_FAILED = "model '%s', version %d: %s"
_CANCELLED = "the load was cancelled"


class ModelManager:
    """Drives the models of one server towards what is requested. Lives on the event loop's thread.

    A version that fails to load is a state with a reason; it stops neither the other models nor the server. A load that
    fails is tried `load_retries` times again. At most `parallel_loads` versions are loaded at the same time.
    """

    def __init__(
        self,
        table: ModelTable,
        loader: ModelLoader,
        parallel_loads: int,
        load_retries: int = 0,
        watcher: LoadWatcher | None = None,
    ) -> None:
        self.table = table
        self._loader = loader
        self._load_retries = load_retries
        self._watcher = watcher
        self._loads = asyncio.Semaphore(max(1, parallel_loads))
        self._closing = Background("model_closing")

    def __repr__(self) -> str:
        return f"ModelManager({self.table!r})"

    async def inspect(self, listings: Iterable[Listing]) -> dict[str, Blueprint]:
        """Read and check the configurations of some models, each once; by name. A failure is part of the blueprint."""
        async with asyncio.TaskGroup() as tasks:
            inspections = [tasks.create_task(self._inspect(listing)) for listing in listings]
        return {inspection.result().listing.name: inspection.result() for inspection in inspections}

    async def _inspect(self, listing: Listing) -> Blueprint:
        try:
            return await self._loader.inspect(listing)
        except Exception as error:  # whatever a backend does to one model, the others are loaded
            failure = from_exception(error, f"failed to examine model '{listing.name}'")
            foreign = None if isinstance(error, ModserveError) else error
            # A configuration that came with a call is the mistake of its caller, who hears of it.
            level = logging.ERROR if listing.config is None else logging.WARNING
            _log.log(level, "model '%s' cannot be loaded: %s", listing.name, failure.message, exc_info=foreign)
            return Blueprint(listing, failure=failure)

    async def reconcile(self, blueprints: Mapping[str, Blueprint]) -> None:
        """Load and unload until exactly `blueprints` are served or have failed, and until all else is closed."""
        await self.update({name: blueprints.get(name) for name in {**self.table.models, **blueprints}})
        await self._closing.settle()

    async def finish(self) -> None:
        """Return when no model has anything to do, and all of them still take requests.

        The engines of requests that are under way may call any model until they have responded.
        """
        models = self.table.servables()
        for each in models:
            if isinstance(each, Finisher):
                each.hurry()
        await self._wait_until_finished(models)

    async def _wait_until_finished(self, group: Sequence[Servable]) -> None:
        """Return when none of some servables is lent or busy, at the same moment."""
        loans = self.table.loans
        while busy := [each for each in group if loans.lent(each) or (isinstance(each, Finisher) and each.busy)]:
            for each in busy:
                await loans.wait_until_returned(each)
                if isinstance(each, Finisher):
                    await each.idle()

    async def unload(self, name: str, dependents: bool, keep: Container[str] = ()) -> list[str]:
        """Retire a model, with `dependents` also models only it needed, except `keep`; returns the names of all."""
        if name not in self.table.models and name not in self.table.locks.busy:
            return []
        links = plan.graph(self.table.models, {})
        names = [name, *(plan.orphans(name, links, keep) if dependents else ())]
        models = [self.table.models[gone] for gone in names if gone in self.table.models]
        self.table.companions.leave(each for model in models for each in model.served.values())
        await self.update(dict.fromkeys(names))
        return names

    async def update(
        self, requested: Mapping[str, Blueprint | None], *, together: bool = False
    ) -> dict[str, ModserveError]:
        """Bring some models to their blueprints, or out of service for None; dependents follow.

        Returns when all loads have ended; unloading goes on. The failures are returned by name, as Triton words them
        for the caller of a load. With `together`, all new versions of a model are taken or none.
        """
        coming = {name for name, blueprint in requested.items() if blueprint is not None}
        self.table.announce(coming)
        held: set[str] = set()
        begin = functools.partial(plan.begin, self.table.models, requested, together)
        try:
            held |= await self.table.locks.hold(lambda: begin().names)
            failures = await self._carry_out(begin(), coming, held)
        finally:
            self.table.locks.release(*held)
            for name in coming:
                self.table.on_arrival(name)
            self.table.tidy(requested)
            self.table.changes.notify()
        return {name: failure for name, failure in failures.items() if name in requested}

    async def _carry_out(self, update: Update, coming: set[str], held: set[str]) -> dict[str, ModserveError]:
        """Give every model of the update its turn. A name leaves `coming` and `held` as soon as it has had it."""
        models = self.table.models
        self.table.want(update.requested)
        for action in plan.retirements(update, models):
            self._retire(action)
        failures: dict[str, ModserveError] = {}
        waiting = set(update.turns)
        ended: asyncio.Queue[tuple[str, ModserveError | None]] = asyncio.Queue()

        async def act(action: Action) -> None:
            ended.put_nowait((action.model, await self._act(action, action.model in update.requested)))

        turns = TopologicalSorter({name: sorted(first) for name, first in update.turns.items()})
        turns.prepare()
        async with asyncio.TaskGroup() as tasks:
            while turns.is_active():
                for name in turns.get_ready():
                    tasks.create_task(act(plan.decide(name, update, models, waiting, failures)))
                name, failure = await ended.get()
                if failure is not None:
                    failures[name] = failure
                    if update.together and name in update.requested:
                        models[name].blueprint = update.former(name).blueprint
                waiting.discard(name)
                if name in coming:
                    coming.remove(name)
                    self.table.on_arrival(name)
                held.discard(name)
                self.table.locks.release(name)
                turns.done(name)
        return failures

    async def _act(self, action: Action, requested: bool) -> ModserveError | None:
        """Carry out an action of the plan; returns the error for the client that requested it."""
        name = action.model
        model = self.table.models[name]
        level = logging.DEBUG if action.failure is None else logging.ERROR if requested else logging.INFO
        if action.reason:
            _log.log(level, "model '%s' %s", name, action.reason)
        if action.problem is not None:
            if action.problem and action.problem != model.problem:
                model.count_failure(0)
            model.problem = action.problem
        failure = action.failure
        failures = await self._load_versions(action, action.blueprint) if action.blueprint is not None else {}
        if not failures:
            self._retire(action)
        else:
            failure = plan.load_failed(name, failures)
            if action.stale:
                self._close_all(self.table.retire(name, model.served, failures[max(failures)].reason))
                model.problem = ""
        if not model.served:
            self._loader.forget(name)
        return failure

    # Loading

    async def _load_versions(self, action: Action, blueprint: Blueprint) -> dict[int, ModserveError]:
        """Load the versions of an action; the failures in ascending order of the versions."""
        name, table = action.model, self.table
        loads: dict[int, Loaded] = {}
        failures: dict[int, ModserveError] = {}
        table.begin(name, action.load)

        async def load(version: int) -> None:
            loaded = await self._load_watched(action, blueprint, version)
            if isinstance(loaded, ModserveError):
                failures[version] = loaded
                table.fail(name, version, loaded.reason)
            elif action.together:
                loads[version] = loaded
            else:
                self._take(blueprint, loaded)

        succeeded = False
        try:
            async with asyncio.TaskGroup() as tasks:
                for version in action.load:
                    tasks.create_task(load(version))
            succeeded = not failures
        finally:
            for version in action.load:
                loaded = loads.pop(version, None)
                if loaded is not None and succeeded:
                    self._take(blueprint, loaded)
                else:
                    reason = UNLOADED if failures else _CANCELLED
                    if loaded is not None and loaded.change is not None:
                        self._closing.start(loaded.change.discard())
                        loaded = None
                    self._close_all(table.abandon(name, version, reason, loaded))
        if succeeded:
            table.drop_failures(name, blueprint.listing.versions)
        return dict(sorted(failures.items()))

    async def _load_watched(self, action: Action, blueprint: Blueprint, version: int) -> Loaded | ModserveError:
        """Change a version in place if it can be, else load it."""
        watcher, loaded = self._watcher, None
        if watcher is not None:
            watcher.begins(action.model, version)
        try:
            loaded = await self._change(action, blueprint, version) or await self._load(blueprint, version)
            return loaded
        finally:
            if watcher is not None:
                watcher.ends(action.model, version, failed=not isinstance(loaded, Loaded))

    async def _change(self, action: Action, blueprint: Blueprint, version: int) -> Loaded | ModserveError | None:
        """Make ready to change a version in service in place; None if it has to be loaded."""
        listing = blueprint.listing
        former = self.table.models[listing.name].in_service(version)
        if former is None or action.anew or not listing.same_weights(former.listing, version):
            return None
        async with self._loads:
            try:
                change = await blueprint.change(former.servable, former.lease.path, version)
            except Exception as error:
                failure = from_exception(error, f"failed to change model '{listing.name}' version {version}")
                _log.error(_FAILED, listing.name, version, failure.message)
                return failure
        return None if change is None else Loaded(former.servable, listing, former.lease, former.load_ns, change)

    async def _load(self, blueprint: Blueprint, version: int) -> Loaded | ModserveError:
        """Fetch and load one version; the error is that of the last attempt."""
        listing = blueprint.listing
        attempt = 0
        async with self._loads:
            started_ns = time.monotonic_ns()
            while True:
                try:
                    lease = await listing.repository.fetch(listing, version)
                    try:
                        servable = await _load_still(blueprint, lease, version)
                    except BaseException:
                        await lease.release()
                        raise
                    return Loaded(servable, listing, lease, time.monotonic_ns() - started_ns)
                except Exception as error:
                    failure = from_exception(error, f"failed to load model '{listing.name}' version {version}")
                    attempt += 1
                    if attempt > self._load_retries:
                        foreign = None if isinstance(error, ModserveError) else error
                        _log.error(_FAILED, listing.name, version, failure.message, exc_info=foreign)
                        return failure
                    text = "model '%s', version %d: failed to load, attempt %d of %d: %s"
                    _log.warning(text, listing.name, version, attempt, self._load_retries + 1, failure.message)

    def _take(self, blueprint: Blueprint, loaded: Loaded) -> None:
        name, version = loaded.servable.id
        if loaded.change is not None:
            self.table.on_change(loaded._replace(servable=loaded.change.apply(), change=None))
            what = ", ".join(loaded.change.fields) or "an equivalent configuration"
            _log.info("model '%s', version %d: applied in place: %s", name, version, what)
            return
        replaced = self.table.take(loaded, blueprint.needs)
        _log.info("model '%s', version %d: ready after %.3f s", name, version, loaded.load_ns / 1e9)
        self._close_all(replaced)

    # Unloading

    def _retire(self, action: Action) -> None:
        self._close_all(self.table.retire(action.model, action.retire, action.state_reason))

    def _close_all(self, retired: Iterable[Loaded]) -> None:
        for each in retired:
            self._closing.start(self._close(each))

    async def _close(self, retired: Loaded) -> None:
        name, version = retired.servable.id
        try:
            await self._leave_together(retired.servable)
            await self.table.loans.wait_until_returned(retired.servable)
            await retired.servable.drain()
            await retired.servable.close()
        except Exception:  # an engine that cannot end well is gone all the same
            _log.exception("model '%s', version %d: closing its engine failed", name, version)
        finally:
            if self.table.closed(retired.servable):
                _log.info("model '%s', version %d: unloaded", name, version)
            self.table.tidy((name,))
            await retired.lease.release()

    async def _leave_together(self, servable: Servable) -> None:
        """Wait for what is unloaded together with a servable, so that its engine takes their last calls."""
        if isinstance(servable, Finisher):
            servable.hurry()
        for group in self.table.companions.groups_of(servable):
            await self._wait_until_finished(group)
            self.table.companions.left(group)


async def _load_still(blueprint: Blueprint, lease: DirectoryLease, version: int) -> Servable:
    """Load one version, once more if a file has changed since the look. Fails if one has changed again by then."""
    changed = ""
    for _ in range(2):
        try:
            servable = await blueprint.load(lease.path, version)
        except Exception as error:
            before, changed = changed, await lease.changed() if blueprint.only_reads else ""
            if changed and not before:
                continue
            if not changed:
                raise
            failure = from_exception(error, f"failed to load model '{blueprint.listing.name}' version {version}")
            raise ModserveError(failure.code, f"{failure.message}\n{changed}") from error
        if not blueprint.only_reads:
            return servable
        try:
            changed = await lease.changed()
        except BaseException:
            await servable.close()
            raise
        if not changed:
            return servable
        await servable.close()
    raise unavailable(f"failed to load model '{blueprint.listing.name}' version {version}: {changed}")
