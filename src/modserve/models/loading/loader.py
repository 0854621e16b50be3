"""Loader: turns a model directory into a servable model."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent import futures
from dataclasses import replace
from pathlib import Path

from modserve.backends.registry import BackendRegistry
from modserve.core.errors import ModserveError, from_exception
from modserve.core.loading import Blueprint, InPlaceChange, Listing
from modserve.core.runtime.clock import LoopClock
from modserve.core.servable import Borrow, Servable, base, process_ids
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.execution.placement import thread_share
from modserve.models.residency.memory import Growth

from ..serving.ensemble import LoadedEnsemble, assemble, nothing_to_borrow
from ..serving.model import Model
from ..serving.model_calls import CallControl, ModelCalls
from ..serving.opened_model import OpenedModel
from .assembly import bare_model, wrap
from .changing import Revision, prepare
from .opening import Opener, close_instances, close_untaken
from .reading import Design, LoaderOptions, ModelReader, map_errors

__all__ = ["Loader", "LoaderOptions"]


class Loader:
    """Implements `core.loading.ModelLoader`. Blocking work runs on `executor`.

    Ensembles `borrow` other models. So do engines that call models, each with its own `borrower`, if there is one;
    `control` lets such engines load and unload models. `on_health` is called when a model's readiness may have changed.
    """

    def __init__(
        self,
        registry: BackendRegistry,
        options: LoaderOptions,
        executor: futures.Executor,
        borrow: Borrow = nothing_to_borrow,
        control: CallControl | None = None,
        on_health: Callable[[], None] = lambda: None,
        borrower: Callable[[ModelId], Borrow] | None = None,
    ) -> None:
        self._borrow = borrow
        self._borrower = borrower or (lambda caller: borrow)
        self._control = control
        self._reader = ModelReader(registry, options)
        self._opener = Opener(registry, options, self._reader, executor, on_health)
        self._options = options
        self._executor = executor
        self._cpu_instances: dict[str, int] = {}
        self._clock: LoopClock | None = None

    async def inspect(self, listing: Listing) -> Blueprint:
        loop = asyncio.get_running_loop()
        doing = f"failed to examine model '{listing.name}'"
        design = await loop.run_in_executor(self._executor, map_errors, doing, self._reader.inspect, listing)
        # Set before the first model loads, so that each gets its share of the cores from the start.
        self._cpu_instances[listing.name] = design.cpu_instances
        return Blueprint(
            listing,
            design.versions,
            design.needs,
            self._load_of(design),
            functools.partial(self._change, design),
            design.only_reads,
        )

    def _load_of(self, design: Design) -> Callable[[Path, int], Awaitable[Servable]]:
        """Return the function that loads a version, either at once or with its first request."""
        load, residency = functools.partial(self._load_version, design), self._options.residency
        if residency is not None:
            look = functools.partial(self._reader.look, design.draft)
            around = residency.around(design.draft, design.needs, load, look, self._borrow)
            if around is not load:
                return around
        if self._options.growth is None or design.draft.is_ensemble:
            return load
        return functools.partial(self._load_measured, design, self._options.growth)

    async def _load_measured(self, design: Design, growth: Growth, path: Path, version: int) -> Servable:
        """Load a version that stays in memory, and record its memory in its statistics."""
        loop = asyncio.get_running_loop()
        loading = await asyncio.to_thread(growth.begin, path / str(version))
        try:
            servable = await self._load_version(design, path, version)
        except BaseException:
            loop.run_in_executor(None, growth.end, loading)
            raise
        statistics = servable.statistics
        measuring = loop.run_in_executor(None, growth.end, loading, process_ids(servable), statistics.set_memory)
        try:
            report = await asyncio.shield(measuring)
        except BaseException:
            await servable.close()
            raise
        report()
        return servable

    async def _load_version(
        self, design: Design, path: Path, version: int, statistics: ModelStatistics | None = None
    ) -> Servable:
        """Load a version from the model's directory at `path`."""
        loop = asyncio.get_running_loop()
        name = design.draft.name
        model_id = ModelId(name, version)
        self._cpu_instances.setdefault(name, design.cpu_instances)
        share = thread_share(self._options.cores, sum(self._cpu_instances.values()))
        calls = ModelCalls(model_id, self._borrower(model_id), self._control, loop, statistics)
        metrics = self._options.metrics.of_model()
        doing = f"failed to load model '{name}' version {version}"
        cache = await self._options.caches.of(model_id, path, design.draft, design.needs, self._executor)
        loading = self._executor.submit(
            map_errors, doing, self._opener.open, design.draft, path, version, share, calls, metrics
        )
        try:
            loaded = await asyncio.wrap_future(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_discard)  # a begun load runs to its end; its result is dropped
            raise
        clock = self._clock = self._clock or LoopClock(loop)
        if isinstance(loaded, LoadedEnsemble):
            return wrap(assemble(model_id, loaded, self._borrow, clock), clock, cache)
        around = self._options.around
        if statistics is not None:
            loaded = replace(loaded, statistics=statistics)
        try:
            bare = bare_model(model_id, loaded, clock, self._options.limiter)
        except Exception as error:
            await loop.run_in_executor(self._executor, _discard, loading)
            raise from_exception(error, doing) from error
        try:
            await bare.warm_up(loaded.samples, loaded.warmed_at_a_time)
            model = wrap(bare, clock, cache)
            return model if around is None else around(model)
        except BaseException as error:
            await bare.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise from_exception(error, doing) from error

    async def _change(self, design: Design, servable: Servable, path: Path, version: int) -> InPlaceChange | None:
        """Prepare an in-place change of a serving version; None if it needs a reload."""
        model = base(servable)
        if not isinstance(model, Model) or self._clock is None:
            return None
        cache = await self._options.caches.of(model.id, path, design.draft, design.needs, self._executor)
        doing = f"failed to change model '{design.draft.name}' version {version}"
        revising = self._executor.submit(
            map_errors, doing, self._opener.revise, design.draft, path, version, model.opened, model.staying
        )
        try:
            revision = await asyncio.wrap_future(revising)
        except asyncio.CancelledError:
            revising.add_done_callback(_discard_revision)
            raise
        if revision is None:
            return None
        try:
            return await prepare(servable, model, revision, self._clock, cache, self._options.around)
        except Exception as error:
            raise from_exception(error, doing) from error

    def forget(self, name: str) -> None:
        self._cpu_instances.pop(name, None)
        self._options.caches.forget(name)

    def examine(self, listing: Listing) -> list[ModserveError]:
        """List the reasons not to load a model that are known before an engine opens it. Blocking; may import the
        engine.

        `inspect` raises the first of them, and the load the rest.
        """
        return self._reader.examine(listing)


def _discard(loading: "futures.Future[OpenedModel | LoadedEnsemble]") -> None:
    """Close the result of an abandoned load. Runs on the thread of the load."""
    if not loading.cancelled() and loading.exception() is None and isinstance(loaded := loading.result(), OpenedModel):
        close_untaken(loaded.engine, loaded.instances, loaded.on_closed)


def _discard_revision(revising: "futures.Future[Revision | None]") -> None:
    """Close the result of an abandoned change, like `_discard`."""
    if not revising.cancelled() and revising.exception() is None and (revision := revising.result()) is not None:
        close_instances([(spec.name, instance) for spec, instance in revision.added])
