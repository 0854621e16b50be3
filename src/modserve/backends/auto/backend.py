"""The ``auto`` backend: chooses a model's engine by measurement. ``modular`` is an alias."""

import functools
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.core.configuration.warm_up_config import WARM_UP_FOLDER

from ..api import Executor, InstanceSpec, ModelSource
from ..code import code_in
from ..options import MAX_BATCH_SIZE
from ..registry import BackendRegistry, new_instance
from ..user_cache import content_digest
from . import options as auto_options
from .cache import EDITION, ChoiceCache
from .candidates import Cpu, find_artifact, hindrance, missing_package, this_cpu
from .choice import CandidateRow, Choice, not_admitted, table
from .measurement import choose
from .options import engine_parameters, read_options
from .selection import OpenCandidate, Selection
from .setting import BatchSetting

_log = logging.getLogger(__name__)


_MOST_INSTANCES = 1024

_registry = functools.cache(BackendRegistry)
"""Registry shared by both names of the backend."""


class AutoBackend:
    """Backend for `candidates.FORMATS`. `registry` defaults to the process's registry, `cpu` to this machine's CPU."""

    default_model_filename = ""
    default_cpu_instances = 1
    any_thread = True
    known_options = auto_options.BACKEND_OPTIONS

    def __init__(
        self,
        registry: BackendRegistry | None = None,
        cpu: Cpu | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._registry = registry or _registry()
        self._cpu = cpu or this_cpu()
        self._clock = clock
        self._sleep = sleep
        self._choices: dict[str, Choice] = {}
        """Choices that cannot be cached on disk."""

    def gpu_count(self) -> int:
        """Return 0: engines are compared on the CPU only."""
        return 0

    def code_in(self, config: ModelConfig, path: Path) -> str:
        """Return the code that the first eligible engine by name would run; empty if none runs any."""
        artifact = find_artifact(path, config.name)
        names = {each.backend for each in artifact.format.candidates} & {*self._registry.names}
        reasons = (code_in(self._registry.get(name), name, config, artifact.path) for name in sorted(names))
        return next(filter(None, reasons), "")

    def open(self, source: ModelSource) -> "AutoModel":
        for warning in auto_options.warnings(source.config):
            _log.warning("%s", warning)
        options = read_options(source)
        artifact = find_artifact(source.path, source.config.name)
        job = Selection(source, artifact, options, self._registry, self._clock, self._sleep)
        rows = [CandidateRow(candidate) for candidate in artifact.format.candidates]
        available = self._registry.names
        for row in rows:
            row.why = hindrance(row.candidate, available, self._cpu.flags)
            if options.engines and row.candidate.backend not in options.engines:
                row.why = row.why or f"it is not among the engines that may be chosen: {', '.join(options.engines)}"
            row.why = row.why or not_admitted(row.candidate, options.tolerance) or missing_package(row.candidate)
        conditions = self._conditions(job, rows)
        cache = ChoiceCache(options.cache_directory, self._choices)
        choice = cache.load(conditions, [row.candidate for row in rows if not row.why])
        if choice is not None:
            try:
                opened = job.open(choice.candidate, _setting(choice))
            except Exception as error:  # of any engine; a fault in the file shows up below
                what = choice.candidate.title
                _log.warning("model '%s': %s was chosen before, but now fails: %s", source.config.name, what, error)
            else:
                return self._model(job, choice, opened, from_cache=True)
        choice, opened = choose(job, rows)
        if choice.details.get("objective") or choice.details.get("tuned"):
            cache.store(conditions, choice)
        return self._model(job, choice, opened, from_cache=False)

    def _model(self, job: Selection, choice: Choice, opened: OpenCandidate, *, from_cache: bool) -> "AutoModel":
        config = job.source.config
        _log.info(
            "model '%s', version %d: %s%s\n%s",
            config.name,
            job.source.version,
            choice.reason,
            " (measured before)" if from_cache else "",
            table(choice.rows, choice.candidate),
        )
        return AutoModel(job, choice, opened, from_cache)

    def _conditions(self, job: Selection, rows: list[CandidateRow]) -> dict[str, object]:
        """Return all conditions of the choice, for the cache. Raises OSError."""
        source, options = job.source, job.options
        config = source.config
        directory = source.model_directory / str(source.version)
        files = source.model_directory / WARM_UP_FOLDER
        return {
            "edition": EDITION,
            "content": content_digest(directory if directory.is_dir() else job.artifact.path),
            "file": job.artifact.path.name,
            "candidates": [
                [row.candidate.name, row.candidate.version, dict(row.candidate.parameters), row.why] for row in rows
            ],
            "cpu": [self._cpu.model, *sorted(self._cpu.flags)],
            "threads": [source.cpu_threads, source.cpu_instances],
            "tolerance": [options.tolerance.limit, options.tolerance.reduced],
            "objective": options.objective,
            "default_max_batch_size": source.options.get(MAX_BATCH_SIZE, ""),
            "tune": list(options.tune),
            "samples": [
                options.sample_shape,
                *(f"{each}" for each in config.warm_ups),
                content_digest(files) if config.warm_ups and files.is_dir() else "",
            ],
            "model": [config.max_batch_size, *(f"{spec}" for spec in (*config.inputs, *config.outputs))],
            "parameters": dict(config.parameters),
            "options": {
                name: dict(source.options_of.get(name, {})) for name in {row.candidate.backend for row in rows}
            },
        }


def _setting(choice: Choice) -> BatchSetting | None:
    """Return the tuned setting of a cached choice; None if nothing was tuned or the entry is invalid."""
    tuned = choice.details.get("tuned")
    if not isinstance(tuned, dict):
        return None
    batch, instances = (tuned.get(key) for key in ("batch_size", "instances"))
    if not isinstance(batch, int) or not isinstance(instances, int):
        return None
    return BatchSetting(batch, instances) if batch >= 0 and 0 <= instances <= _MOST_INSTANCES else None


class AutoModel:
    """Chosen model, with the reason. Delegates all other members to the engine's model."""

    def __init__(self, job: Selection, choice: Choice, opened: OpenCandidate, from_cache: bool) -> None:
        self._job = job
        self._choice = choice
        self._opened = opened
        self._from_cache = from_cache
        self.any_thread = bool(getattr(opened.model, "any_thread", opened.backend.any_thread))

    def describe(self) -> ModelDescription | None:
        return self._job.describe(self._opened)

    def instance(self, spec: InstanceSpec) -> Executor:
        return new_instance(self._opened.model, self._job.spec(spec, self._choice.candidate))

    def close(self) -> None:
        self._opened.model.close()

    def report(self) -> Mapping[str, object]:
        choice = self._choice
        said: Mapping[str, object] = getattr(self._opened.model, "report", dict)()
        return {
            "engine": choice.candidate.library,
            "version": choice.candidate.version,
            "precision": choice.candidate.precision,
            "device": "CPU",
            "threads": self._job.source.cpu_threads,
            **said,
            "chosen_backend": choice.candidate.backend,
            "chosen_parameters": engine_parameters(
                self._job.source.config, choice.candidate.backend, choice.candidate.parameters
            ),
            "reason": choice.reason,
            "from_cache": self._from_cache,
            **choice.details,
            "candidates": list(choice.rows),
        }
