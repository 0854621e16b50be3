"""Opens a model's files as an engine with instances: the blocking part of a load, on a loading thread."""

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from modserve import config as model_config
from modserve.backends.api import Backend, BackendModel, Executor, InstanceSpec, ModelSource
from modserve.backends.registry import BackendRegistry
from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.core.errors import ModserveError
from modserve.core.statistics.metrics import StoredMetrics
from modserve.models.serving.opened_model import engine_report

from ..serving.ensemble import LoadedEnsemble
from ..serving.model_calls import ModelCalls
from ..serving.opened_model import OpenedModel
from ..serving.warm_up import make_samples
from .assembly import (
    count_cpu,
    description_of,
    gpu_count,
    make_instances,
    make_replacement,
    only_reads,
    place,
    specs_of,
    threads_for,
)
from .changing import Revision, find_changed_fields, match_instances
from .reading import LoaderOptions, ModelReader, read_initial_states, read_labels

_log = logging.getLogger(__name__)


class Opener:
    """Opens model versions. Replacements of lost instances are created on `executor`.

    `on_health` is called when a model's readiness may have changed.
    """

    def __init__(
        self,
        registry: BackendRegistry,
        options: LoaderOptions,
        reader: ModelReader,
        executor: futures.Executor,
        on_health: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._options = options
        self._reader = reader
        self._executor = executor
        self._on_health = on_health
        self._checked: set[str] = set()
        """Backends with checked options."""

    def open(
        self,
        draft: model_config.Draft,
        path: Path,
        version: int,
        share: int,
        calls: ModelCalls,
        metrics: StoredMetrics,
    ) -> OpenedModel | LoadedEnsemble:
        admit = functools.partial(self._options.guard.admit, draft)
        if draft.is_ensemble:
            admit(None, path, version, path / str(version))
            ensemble = self._finish(draft, None)
            return LoadedEnsemble(ensemble, self._labels(draft, path, ensemble.config))
        backend, provisional = self._reader.backend(draft)
        filename = provisional.default_model_filename or backend.default_model_filename
        places = place(provisional, backend)
        options = self._options.backend_options.get(draft.backend, {})
        self._check_options(draft.backend, backend, options)
        source = ModelSource(
            config=provisional,
            version=version,
            path=_folder(path, version) / filename,
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
            complete=lambda description: self._complete(draft, backend, description, path).config,
        )
        admit_again = functools.partial(admit, backend, path, version, source.path)
        check_unchanged = admit_again()
        if only_reads(backend):
            check_unchanged = _nothing_to_check  # the lender of the files checks them, and repeats the load
        labels = self._labels(draft, path, provisional)
        initial_states = read_initial_states(path, provisional)
        try:
            engine = backend.open(source)
        except BaseException as error:
            metrics.close()
            check_unchanged()
            if not isinstance(error, ModserveError):
                raise
            from ..diagnosis import advice

            installed = self._registry.names
            hint = advice.model_file(path, version, source.path, installed, str(error)) if filename else ""
            raise advice.append_advice(error, hint) from error
        instances: list[tuple[str, Executor]] = []
        try:
            description = description_of(draft.backend, engine)
            description = self._try_out(draft, backend, engine, description, path, version)
            complete = self._finish(draft, backend, description, path)
            specs = dict(enumerate(specs_of(complete, place(complete.config, backend))))
            sampling = functools.partial(make_samples, complete.config, self._options.warm_up, path, initial_states)
            samples, threads = sampling(), threads_for(backend, len(specs), self._options.cores)
            make_instances(engine, list(specs.values()), threads, instances)
            check_unchanged()
        except BaseException:
            close_untaken(engine, instances, metrics.close)
            raise
        message = complete.message.SerializeToString(deterministic=True)
        return OpenedModel(
            complete.config,
            message,
            engine,
            instances,
            getattr(engine, "any_thread", backend.any_thread),
            labels,
            initial_states,
            lambda number, close: self._executor.submit(make_replacement, engine, specs[number], close, admit_again),
            self._on_health,
            metrics.close,
            engine_report(draft.backend, engine, list(specs.values())),
            samples,
            functools.partial(self._executor.submit, sampling) if samples else None,
            threads,
            description,
            specs,
            execution_timeout_ns=self._options.execution_timeout_ns,
        )

    def revise(
        self,
        draft: model_config.Draft,
        path: Path,
        version: int,
        former: OpenedModel,
        before: Mapping[int, InstanceSpec],
    ) -> Revision | None:
        """Prepare another configuration of an open engine. None if it must be opened again.

        `before`: instances that may stay, by number. The files at `path` are unchanged.
        """
        if draft.is_ensemble or draft.backend != former.config.backend:
            return None
        backend, provisional = self._reader.backend(draft)
        engine = former.engine
        complete = self._complete(draft, backend, former.description, path)
        fields = find_changed_fields(former.message, complete, getattr(backend, "in_place", ()))
        if fields is None or (complete.config.default_batch_size and not former.config.default_batch_size):
            return None  # a batch trial is missing
        specs = specs_of(complete, place(complete.config, backend))
        if not {spec.placement for spec in before.values()}.issuperset(spec.placement for spec in specs):
            return None  # an engine may depend on the places known when it was opened
        self._tell(draft, complete)
        sampling = functools.partial(make_samples, complete.config, self._options.warm_up, path, former.initial_states)
        samples, threads = sampling(), threads_for(backend, len(specs), self._options.cores)
        staying, new = match_instances(before, specs)
        instances: list[tuple[str, Executor]] = []
        check_unchanged = _nothing_to_check
        if new and not only_reads(backend):  # instances read the files again
            filename = provisional.default_model_filename or backend.default_model_filename
            file = _folder(path, version) / filename
            check_unchanged = self._options.guard.admit(draft, backend, path, version, file)
        try:
            make_instances(engine, new, threads, instances)
            check_unchanged()
        except BaseException:
            close_instances(instances)
            raise
        opened = replace(
            former,
            config=complete.config,
            message=complete.message.SerializeToString(deterministic=True),
            engine_report=engine_report(draft.backend, engine, specs),
            samples=samples,
            make_samples=functools.partial(self._executor.submit, sampling) if samples else None,
            warmed_at_a_time=threads,
        )
        added = [(spec, instance) for spec, (_, instance) in zip(new, instances, strict=True)]
        removed = tuple(number for number in before if number not in staying)
        return Revision(fields, opened, staying, removed, added)

    def _try_out(
        self,
        draft: model_config.Draft,
        backend: Backend,
        engine: BackendModel,
        description: ModelDescription | None,
        path: Path,
        version: int,
    ) -> ModelDescription | None:
        """Return the description, with a trial's objections to batches that are not configured."""
        complete = self._complete(draft, backend, description, path)
        config = complete.config
        merges = config.dynamic_batching or config.sequence_batching
        merged_otherwise = config.batch_inputs or any(spec.ragged for spec in config.inputs)
        if description is None or not config.default_batch_size or not merges or merged_otherwise:
            return description
        from modserve.backends import batch_trial  # imported with the first model that needs it

        spec = replace(specs_of(complete, place(config, backend)[:1])[0], index=-1)
        obstacle = batch_trial.batching_obstacle(engine, spec, description, path / str(version))
        return replace(description, batching_obstacle=obstacle)

    def _finish(
        self,
        draft: model_config.Draft,
        backend: Backend | None,
        description: ModelDescription | None = None,
        path: Path | None = None,
    ) -> model_config.Complete:
        """Return the result of `_complete`, and log its warnings."""
        complete = self._complete(draft, backend, description, path)
        self._tell(draft, complete)
        return complete

    def _labels(self, draft: model_config.Draft, path: Path, config: ModelConfig) -> dict[str, tuple[str, ...]]:
        def warn(text: str) -> None:
            self._options.on_notes(draft.name, draft.source, [model_config.Problem(text)])
            _log.warning("%s", text)

        return read_labels(path, config, warn)

    def _tell(self, draft: model_config.Draft, complete: model_config.Complete) -> None:
        self._options.on_notes(draft.name, draft.source, complete.notes)
        for warning in complete.warnings:
            _log.warning("%s", warning)
        for remark in complete.defaults:
            _log.info("%s", remark)

    def _complete(
        self,
        draft: model_config.Draft,
        backend: Backend | None,
        description: ModelDescription | None,
        path: Path | None,
    ) -> model_config.Complete:
        """Return the complete configuration of a model, or of an ensemble, which has no backend. Raises INVALID_ARG.

        `path`: the model's directory.
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

    def _check_options(self, name: str, backend: Backend, options: Mapping[str, str]) -> None:
        """Warn once about server options without effect on a backend, if it lists its options."""
        known = getattr(backend, "known_options", None)
        if name in self._checked or not isinstance(known, Mapping):
            return
        self._checked.add(name)
        if all(known.get(key) == "" for key in options):
            return
        from ..diagnosis import advice

        for level, line in advice.unknown_options(name, options, known, self._options.shared_options):
            _log.log(level, "%s", line)


def close_untaken(
    engine: BackendModel, instances: Sequence[tuple[str, Executor]], on_closed: Callable[[], None]
) -> None:
    """Close the result of an abandoned load; a failure to close one part does not affect others. Never raises."""
    try:
        with ExitStack() as stack:
            stack.callback(on_closed)
            stack.callback(engine.close)
            for _, instance in instances:
                stack.callback(instance.close)
    except BaseException:
        _log.exception("closing an unused model failed")


def close_instances(instances: Sequence[tuple[str, Executor]]) -> None:
    """Close instances like `close_untaken`, of an engine that stays open."""
    try:
        with ExitStack() as stack:
            for _, instance in instances:
                stack.callback(instance.close)
    except BaseException:
        _log.exception("closing unused instances failed")


def _folder(path: Path, version: int) -> Path:
    """Return the version's directory; for a file outside a repository, its own folder, for messages."""
    folder = path / str(version)
    is_of_file = folder.is_symlink() and len(os.listdir(path)) == 1
    return folder.readlink() if is_of_file and folder.readlink().is_absolute() else folder


def _nothing_to_check() -> None: ...
