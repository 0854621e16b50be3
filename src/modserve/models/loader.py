"""From a model directory to a model that takes requests."""

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from modserve import config as model_config
from modserve.backends.api import Backend, BackendModel, Executor, ModelSource
from modserve.backends.registry import BackendRegistry
from modserve.core.errors import ModserveError, from_exception, invalid
from modserve.core.loading import Blueprint, Listing, Needs, UnreadableModelError
from modserve.core.metrics import MetricStore, StoredMetrics
from modserve.core.model_config import ModelConfig, ModelDescription
from modserve.core.servable import Borrow, Servable
from modserve.core.version import ModelId
from modserve.core.warm_up_config import WarmUpMode
from modserve.execution.placement import thread_share
from modserve.execution.rate_limit import RateLimiter
from modserve.scheduling.scheduler import LoopClock

from . import advice, examination
from .assembly import bare_model, wrapped
from .caching import Caching
from .calls import ModelCalls, ModelControl
from .engine_report import engine_report
from .ensemble import LoadedEnsemble, assemble, nothing_to_borrow
from .instances import count_cpu, description_of, gpu_count, make_anew, make_instances, place, specs_of
from .model import Opened
from .model_files import read_initial_states, read_labels
from .warm_up import make_samples

_MOST_AT_A_TIME = 8
"""Instances of a version that are made at the same time, for backends that allow it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoaderOptions:
    """What the server's settings say about loading."""

    cores: int
    """The CPU cores to share out over all CPU instances."""
    auto_complete: bool = True
    backend_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    caching: Caching = field(default_factory=Caching)
    """For the models that ask for it."""
    limiter: RateLimiter | None = None
    metrics: MetricStore = field(default_factory=MetricStore)
    """Of engines."""
    measured: bool = False
    """Backend `auto` runs models whose configuration names no backend."""
    on_notes: Callable[[str, model_config.Source, Sequence[model_config.Problem]], None] = lambda *notes: None
    """Hears, by the model's name, what of its configuration has no effect, or another one than it seems."""
    warm_up: WarmUpMode = WarmUpMode.CONFIG
    """Which models run samples before they take requests."""
    around: Callable[[Servable], Servable] | None = None
    """Puts something in front of each model that is loaded."""


@dataclass(frozen=True)
class _Design:
    """What all versions of a load share, from one reading of the configuration."""

    draft: model_config.Draft
    versions: tuple[int, ...]
    needs: Needs
    cpu_instances: int
    """Of all the versions."""


class Loader:
    """Implements `core.loading.ModelLoader`. Blocking work runs on `executor`.

    Ensembles `borrow` other models, and so do engines that call them, each by its own `borrower`, if there is one;
    `control` is what such engines may do to them.
    `on_health` is called when a model may have become ready, or not ready, by itself.
    """

    def __init__(
        self,
        registry: BackendRegistry,
        options: LoaderOptions,
        executor: futures.Executor,
        borrow: Borrow = nothing_to_borrow,
        control: ModelControl | None = None,
        on_health: Callable[[], None] = lambda: None,
        borrower: Callable[[ModelId], Borrow] | None = None,
    ) -> None:
        self._borrow = borrow
        self._borrower = borrower or (lambda caller: borrow)
        self._control = control
        self._on_health = on_health
        self._registry = registry
        self._options = options
        self._executor = executor
        self._cpu_instances: dict[str, int] = {}
        self._clock: LoopClock | None = None
        self._checked: set[str] = set()
        """The backends whose options have been looked at."""

    async def inspect(self, listing: Listing) -> Blueprint:
        loop = asyncio.get_running_loop()
        doing = f"failed to look at model '{listing.name}'"
        design = await loop.run_in_executor(self._executor, _mapped, doing, self._inspect, listing)
        # Known before the first model loads, so that each gets its share of the cores from the start.
        self._cpu_instances[listing.name] = design.cpu_instances
        return Blueprint(listing, design.versions, design.needs, functools.partial(self._load_version, design))

    async def _load_version(self, design: _Design, path: Path, version: int) -> Servable:
        """Load one version from the model's directory at `path`."""
        loop = asyncio.get_running_loop()
        name = design.draft.name
        model_id = ModelId(name, version)
        self._cpu_instances.setdefault(name, design.cpu_instances)
        share = thread_share(self._options.cores, sum(self._cpu_instances.values()))
        calls = ModelCalls(model_id, self._borrower(model_id), self._control, loop)
        metrics = self._options.metrics.of_model()
        doing = f"failed to load model '{name}' version {version}"
        cache = await self._options.caching.of(model_id, path, design.draft, design.needs, self._executor)
        loading = self._executor.submit(_mapped, doing, self._load, design.draft, path, version, share, calls, metrics)
        try:
            loaded = await asyncio.wrap_future(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_discard)  # a load that has begun ends, and nobody takes what comes of it
            raise
        clock = self._clock = self._clock or LoopClock(loop)
        if isinstance(loaded, LoadedEnsemble):
            return wrapped(assemble(model_id, loaded, self._borrow, clock), clock, cache)
        around = self._options.around
        try:
            bare = bare_model(model_id, loaded, clock, self._options.limiter)
        except Exception as error:
            await loop.run_in_executor(self._executor, _discard, loading)
            raise from_exception(error, doing) from error
        try:
            await bare.warm_up(loaded.samples, loaded.warmed_at_a_time)
            model = wrapped(bare, clock, cache)
            return model if around is None else around(model)
        except BaseException as error:
            await bare.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise from_exception(error, doing) from error

    def forget(self, name: str) -> None:
        self._cpu_instances.pop(name, None)
        self._options.caching.forget(name)

    def _inspect(self, listing: Listing) -> _Design:
        draft = self._read(listing)
        self._check(draft, listing)
        if draft.is_ensemble:
            config, cpu_instances = draft.provisional(), 0
        else:
            backend, config = self._backend(draft)
            cpu_instances = count_cpu(place(config, backend))
        versions = self._selected(draft, listing)
        needs = config.ensemble.needs if config.ensemble is not None else {}
        return _Design(draft, versions, needs, cpu_instances * len(versions))

    def examine(self, listing: Listing) -> list[ModserveError]:
        """Every reason not to load a model that shows before an engine opens it. Blocking; may import the engine.

        `inspect` raises the first of them, and the load the rest.
        """
        try:
            draft = self._read(listing)
        except ModserveError as error:
            return [error]
        failures: list[ModserveError] = []

        def tried(look: Callable[[model_config.Draft, Listing], Result]) -> Result | None:
            try:
                return _mapped(f"failed to look at model '{listing.name}'", look, draft, listing)
            except ModserveError as error:
                failures.append(error)
                return None

        tried(self._check)
        engine = None
        if draft.backend and not draft.is_ensemble:
            engine = tried(lambda draft, listing: self._backend(draft)[0])
        versions = tried(self._selected) or ()
        filename = "" if engine is None else engine.default_model_filename
        failures += examination.of_files(listing.path, versions, draft.provisional(), filename, self._registry.names)
        return failures

    def _selected(self, draft: model_config.Draft, listing: Listing) -> tuple[int, ...]:
        """The versions to serve. Raises INVALID_ARG if there are none."""
        versions = tuple(draft.provisional().version_policy.select(listing.versions))
        if not versions:
            policy = f"the version policy of model '{listing.name}'"
            failure = invalid(f"at least one version must be available under {policy}")
            hint = advice.versions(listing.path, listing.versions, self._registry.names)
            raise advice.advised(failure, hint) from draft.placed(failure, "version_policy")
        return versions

    def _load(
        self,
        draft: model_config.Draft,
        path: Path,
        version: int,
        share: int,
        calls: ModelCalls,
        metrics: StoredMetrics,
    ) -> Opened | LoadedEnsemble:
        if draft.is_ensemble:
            ensemble = self._finish(draft, None)
            return LoadedEnsemble(ensemble, read_labels(path, ensemble.config))
        backend, provisional = self._backend(draft)
        filename = provisional.default_model_filename or backend.default_model_filename
        places = place(provisional, backend)
        options = self._options.backend_options.get(draft.backend, {})
        self._check_options(draft.backend, backend, options)
        source = ModelSource(
            config=provisional,
            version=version,
            path=path / str(version) / filename,
            model_directory=path,
            cpu_threads=share,
            cpu_instances=max(1, count_cpu(places)),
            placements=tuple(placement for _, placement in places),
            options=options,
            models=calls,
            metrics=metrics,
            write_config=functools.cache(lambda: model_config.to_text(draft.identified)),
            auto_complete=self._options.auto_complete,
            loop=calls.loop,
            options_of=self._options.backend_options,
            complete=lambda said: self._completed(draft, backend, said, path).config,
        )
        labels = read_labels(path, provisional)
        initial_states = read_initial_states(path, provisional)
        try:
            engine = backend.open(source)
        except BaseException as error:
            metrics.close()
            if not isinstance(error, ModserveError):
                raise
            installed = self._registry.names
            hint = advice.model_file(path, version, source.path, installed, str(error)) if filename else ""
            raise advice.advised(error, hint) from error
        instances: list[tuple[str, Executor]] = []
        try:
            complete = self._finish(draft, backend, description_of(draft.backend, engine), path)
            specs = specs_of(complete, place(complete.config, backend))
            sampling = functools.partial(make_samples, complete.config, self._options.warm_up, path, initial_states)
            samples, threads = sampling(), self._threads(backend, len(specs))
            make_instances(engine, specs, threads, instances)
        except BaseException:
            _close(engine, instances, metrics.close)
            raise
        message = complete.message.SerializeToString(deterministic=True)
        return Opened(
            complete.config,
            message,
            engine,
            instances,
            getattr(engine, "any_thread", backend.any_thread),
            labels,
            initial_states,
            lambda number, close: self._executor.submit(make_anew, engine, specs[number], close),
            self._on_health,
            metrics.close,
            engine_report(draft.backend, engine, specs),
            samples,
            functools.partial(self._executor.submit, sampling) if samples else None,
            threads,
        )

    def _threads(self, backend: Backend, count: int) -> int:
        """On how many threads `count` instances are made."""
        if getattr(backend, "parallel_instances", False) is not True:
            return 1
        return min(count, self._options.cores, _MOST_AT_A_TIME)

    def _finish(
        self,
        draft: model_config.Draft,
        backend: Backend | None,
        description: ModelDescription | None = None,
        path: Path | None = None,
    ) -> model_config.Complete:
        """As `_completed`, and its warnings are in the log."""
        complete = self._completed(draft, backend, description, path)
        self._options.on_notes(draft.name, draft.source, complete.notes)
        for warning in complete.warnings:
            _log.warning("%s", warning)
        return complete

    def _completed(
        self,
        draft: model_config.Draft,
        backend: Backend | None,
        description: ModelDescription | None,
        path: Path | None,
    ) -> model_config.Complete:
        """The complete configuration of a model, or of an ensemble, which has no backend. Raises INVALID_ARG.

        `path` is the model's directory.
        """
        described_instances = 0 if description is None else description.cpu_instances
        return model_config.finish(
            draft,
            description,
            default_cpu_instances=described_instances or (1 if backend is None else backend.default_cpu_instances),
            default_model_filename="" if backend is None else backend.default_model_filename,
            gpu_count=0 if backend is None else gpu_count(draft.backend, backend),
            auto_complete=self._options.auto_complete,
            files=path,
        )

    def _read(self, listing: Listing) -> model_config.Draft:
        """The configuration as it is written. Raises `UnreadableModelError`."""
        path = listing.path / listing.config_file
        try:
            if listing.config is not None:
                draft = model_config.read_override(listing.config, path, listing.name)
            elif isinstance(listing.content, ModserveError):
                raise listing.content
            else:
                draft = model_config.decode(listing.content, path, listing.name)
        except ModserveError as error:
            raise UnreadableModelError(error.code, error.message) from error
        return replace(draft, backends=self._registry.known, measured=self._options.measured)

    def _check(self, draft: model_config.Draft, listing: Listing) -> None:
        """Raises INVALID_ARG for what is wrong with a configuration, as far as that shows without the engine."""
        on_notes = functools.partial(self._options.on_notes, draft.name, draft.source)
        try:
            model_config.check(draft, auto_complete=self._options.auto_complete, on_notes=on_notes)
        except ModserveError as error:
            if draft.backend or draft.is_ensemble:
                raise
            raise advice.advised(error, advice.layout(listing.path, self._registry.names)) from error
        if not draft.exists and (warning := advice.misspelt_config(listing.path)):
            on_notes([model_config.Problem(warning)])
            _log.warning("model '%s': %s", listing.name, warning)

    def _check_options(self, name: str, backend: Backend, options: Mapping[str, str]) -> None:
        """Warn, once, of the server's options that a backend does not act on, if it says which it does."""
        known = getattr(backend, "known_options", None)
        if name in self._checked or not isinstance(known, Mapping):
            return
        self._checked.add(name)
        for warning in advice.unknown_options(name, options, known):
            _log.warning("%s", warning)

    def _backend(self, draft: model_config.Draft) -> tuple[Backend, ModelConfig]:
        """The engine, and the configuration as it sees it."""
        try:
            backend = self._registry.get(draft.backend)
        except ModserveError as error:
            installed = self._registry.names
            hint = "" if draft.backend in self._registry.known else advice.backend_name(draft.backend, installed)
            raise advice.advised(error, hint) from draft.placed(error, "backend", "platform")
        return backend, draft.provisional(default_cpu_instances=backend.default_cpu_instances)


Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def _mapped(doing: str, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """The border between foreign code and the server: what is raised beyond it is a `ModserveError`, whatever it was.

    Runs on a loading thread, where SystemExit means no more than that a backend cannot go on.
    """
    try:
        return work(*args, **kwargs)
    except ModserveError:
        raise
    except BaseException as error:
        _log.debug("%s", doing, exc_info=error)
        raise from_exception(error, doing) from error


def _close(engine: BackendModel, instances: Sequence[tuple[str, Executor]], on_closed: Callable[[], None]) -> None:
    """Close what a load has made and nobody takes; whatever of it fails to close, the rest is closed. Never raises."""
    try:
        with ExitStack() as stack:
            stack.callback(on_closed)
            stack.callback(engine.close)
            for _, instance in instances:
                stack.callback(instance.close)
    except BaseException:
        _log.exception("closing a model that was not taken failed")


def _discard(loading: "futures.Future[Opened | LoadedEnsemble]") -> None:
    """Close what a load has made that nobody takes. Runs on the thread of the load."""
    if not loading.cancelled() and loading.exception() is None and isinstance(loaded := loading.result(), Opened):
        _close(loaded.engine, loaded.instances, loaded.on_closed)
