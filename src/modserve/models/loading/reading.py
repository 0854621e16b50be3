"""Reads a model's listing into its design: the configuration is checked once, before an engine opens anything.

The other files that a model's configuration names: labels of classes, states of new sequences.

The files of a model, looked at before any engine opens them: what a load would fail for.
"""

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from modserve import config as model_config
from modserve.backends.api import Backend
from modserve.backends.registry import BackendRegistry
from modserve.config import FORMATS, Draft
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.warm_up_config import WarmUpMode
from modserve.core.errors import ModserveError, from_exception, internal, invalid
from modserve.core.files import regular_file
from modserve.core.files.config_file import misspelt_config
from modserve.core.loading import Listing, Needs, UnreadableModelError
from modserve.core.requests.sequence import file_state
from modserve.core.servable import Servable
from modserve.core.statistics.metrics import MetricStore
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import describe_unserved, not_a_version
from modserve.execution.rate_limit import RateLimiter
from modserve.models.residency.admission import Residency
from modserve.models.residency.memory import Growth
from modserve.models.serving.caching import VersionCaches

from .assembly import count_cpu, only_reads, place
from .integrity import Guard

INITIAL_STATE_FOLDER = "initial_state"


def read_labels(
    directory: Path, config: ModelConfig, warn: Callable[[str], None] = lambda text: None
) -> dict[str, tuple[str, ...]]:
    """Read the lines of each output's label file. Raises as `_read`. Warns of files that are not UTF-8."""
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.outputs:
        if not output.label_filename:
            continue
        who = f"label_filename of output '{output.name}' of model '{config.name}'"
        path = directory / output.label_filename
        content = _read(path, who)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            warn(
                f"{who}, '{path}', is not UTF-8: byte 0x{content[error.start]:02x} in line {line}. HTTP requests for "
                "its classes fail; save it as UTF-8"
            )
            text = content.decode("utf-8-sig", "surrogateescape")
        text = text.replace("\r\n", "\n")
        labels[output.name] = tuple(text.removesuffix("\n").split("\n")) if text else ()
    return labels


def read_initial_states(directory: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Read the states of new sequences that come from files, by input. Raises as `_read`."""
    states: dict[str, Tensor] = {}
    for state in config.sequence_batching.states if config.sequence_batching is not None else ():
        initial = state.initial
        if initial is None or not initial.file:
            continue
        who = f"data_file of the initial_state of state '{state.input_name}' of model '{config.name}'"
        states[state.input_name] = file_state(
            state, initial, _read(directory / INITIAL_STATE_FOLDER / initial.file, who)
        )
    return states


def _read(path: Path, label: str) -> bytes:
    """Read a file that the configuration names. Raises INTERNAL, as Triton does, if that fails."""
    try:
        return regular_file.read_bytes(path)
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror} ({label})") from error


def of_files(
    directory: Path,
    versions: Iterable[int],
    config: ModelConfig,
    default_filename: str,
    installed: Collection[str],
    refusal: Callable[[ModelConfig, Path], ModserveError | None] | None = None,
) -> list[ModserveError]:
    """Return the faults of a model's files; `default_filename` is its backend's. Blocking.

    Nothing is said of a directory that is not on this machine, nor of a model file that the engine may do without.
    `refusal` is the backend's, for the model's configuration and file: why it would not load the file, if it knows
    without loading it.
    """
    if not directory.is_dir():
        return []
    failures: list[ModserveError] = []
    readers: tuple[Callable[[Path, ModelConfig], object], ...] = (read_labels, read_initial_states)
    for read in readers:
        try:
            read(directory, config)
        except ModserveError as error:
            failures.append(error)
    from ..diagnosis import advice, file_contents  # only where files are examined before a load

    own = {row.filename for row in FORMATS if row.backend == config.backend}
    filename = config.default_model_filename or default_filename
    if not own or not filename:
        return failures
    for version in versions:
        folder = directory / str(version)
        path = folder / filename
        if not path.exists():
            if not any((folder / name).exists() for name in own):
                failure = invalid(f"unable to find model file '{path}' for model '{config.name}'")
                failures.append(
                    advice.append_advice(
                        failure, advice.model_file(directory, version, path, installed, failure.message)
                    )
                )
        elif wrong := file_contents.problem(path):
            failures.append(invalid(wrong))
        elif refusal is not None and (refused := refusal(config, path)):
            failures.append(refused)
    return failures


def of_contents(
    directory: Path, versions: Iterable[int], draft: Draft, backend: Backend | None, guard: Guard
) -> list[ModserveError]:
    """Return the guard's findings on the versions of a model, each failure once. Blocking."""
    if not directory.is_dir() or (backend is None and not draft.is_ensemble):
        return []
    default = "" if backend is None else backend.default_model_filename
    filename = draft.provisional().default_model_filename or default
    return list(
        {
            failure.message: failure
            for version in versions
            for failure in guard.problems(draft, backend, directory, version, directory / str(version) / filename)
        }.values()
    )


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoaderOptions:
    """Loading options from the server's settings."""

    cores: int
    """The CPU cores to share out over all CPU instances."""
    auto_complete: bool = True
    backend_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shared_options: Collection[str] = ()
    """Names of the options that are set for all backends, even if a backend does not know them."""
    caches: VersionCaches = field(default_factory=VersionCaches)
    """Caches for the models that ask for it."""
    limiter: RateLimiter | None = None
    metrics: MetricStore = field(default_factory=MetricStore)
    """Metrics of engines."""
    measured: bool = False
    """True if backend `auto` runs models without a backend in their configuration."""
    on_notes: Callable[[str, model_config.SourceText, Sequence[model_config.Problem]], None] = lambda *notes: None
    """Called with a model's name and the parts of its configuration with no effect, or another one than it seems."""
    guard: Guard = field(default_factory=Guard)
    warm_up: WarmUpMode = WarmUpMode.CONFIG
    """Mode that selects the models that run samples before they take requests."""
    around: Callable[[Servable], Servable] | None = None
    """Puts something in front of each model that is loaded."""
    residency: Residency | None = None
    """Rules for when models come into memory; None: all of them when they are loaded."""
    execution_timeout_ns: int = 0
    """Time after which an execution is given up, unless a model sets another; 0: never."""
    growth: Growth | None = None
    """Measures the models that stay in memory; None: they are not measured."""


@dataclass(frozen=True)
class Design:
    """Design that all versions of a load share, from one reading of the configuration."""

    draft: model_config.Draft
    versions: tuple[int, ...]
    needs: Needs
    cpu_instances: int
    """Number of CPU instances of all the versions."""
    only_reads: bool
    """True if the backend only reads the model's files."""


class ModelReader:
    """Reads the configurations of models. Everything here blocks, and runs on a loading thread."""

    def __init__(self, registry: BackendRegistry, options: LoaderOptions) -> None:
        self._registry = registry
        self._options = options

    def inspect(self, listing: Listing) -> Design:
        draft = self.read(listing)
        self._check(draft, listing)
        if draft.is_ensemble:
            config, cpu_instances, reads = draft.provisional(), 0, False
        else:
            backend, config = self.backend(draft)
            cpu_instances, reads = self._count_cpu(draft), only_reads(backend)
        versions = self._select_versions(draft, listing)
        if note := model_config.routing_note(draft, versions, describe_unserved(listing.versions, versions)):
            self._options.on_notes(draft.name, draft.source, [note])
            _log.warning("%s", draft.source.headline(note))
        for remark in _remarks_on_versions(draft, listing, versions):
            self._options.on_notes(draft.name, draft.source, [model_config.Problem(remark)])
            level = logging.WARNING if remark == listing.remark else logging.INFO
            _log.log(level, "model '%s': %s", draft.name, remark)
        needs = config.ensemble.needs if config.ensemble is not None else {}
        return Design(draft, versions, needs, cpu_instances * len(versions), reads)

    def examine(self, listing: Listing) -> list[ModserveError]:
        """List the reasons not to load a model that show before an engine opens it. Blocking; may import the engine.

        `inspect` raises the first of them, and the load the rest.
        """
        try:
            draft = self.read(listing)
        except ModserveError as error:
            return [error]
        failures: list[ModserveError] = []

        def attempt(look: Callable[[model_config.Draft, Listing], Result]) -> Result | None:
            try:
                return map_errors(f"failed to examine model '{listing.name}'", look, draft, listing)
            except ModserveError as error:
                failures.append(error)
                return None

        attempt(functools.partial(self._check, files=listing.path if listing.path.is_dir() else None))
        engine = None
        if draft.backend and not draft.is_ensemble:
            engine = attempt(lambda draft, listing: self.backend(draft)[0])
        if engine is not None and not failures:  # else there might be a thousand million instances
            attempt(lambda draft, listing: self._count_cpu(draft))
        laid_out = not failures or draft.backend or listing.versions  # else that has been said
        versions = (attempt(self._select_versions) if laid_out else None) or ()
        filename = "" if engine is None else engine.default_model_filename
        config, names, guard = draft.provisional(), self._registry.names, self._options.guard
        refusal = self._refusal(draft, engine)
        files = attempt(lambda *_: of_files(listing.path, versions, config, filename, names, refusal))
        contents = attempt(lambda *_: of_contents(listing.path, versions, draft, engine, guard))
        return [*failures, *(files or ()), *(contents or ())]

    def look(self, draft: model_config.Draft, path: Path, version: int) -> list[ModserveError]:
        """Return what is wrong with the files of a version, as far as that shows before an engine opens them."""
        backend, config = self.backend(draft)
        filename, names, guard = backend.default_model_filename, self._registry.names, self._options.guard
        refusal = self._refusal(draft, backend)
        files = of_files(path, (version,), config, filename, names, refusal)
        return [*files, *of_contents(path, (version,), draft, backend, guard)]

    def _refusal(
        self, draft: model_config.Draft, backend: Backend | None
    ) -> Callable[[ModelConfig, Path], ModserveError | None] | None:
        refusal = getattr(backend, "refusal", None)
        if refusal is None:
            return None
        options = self._options.backend_options.get(draft.backend, {})
        return lambda config, path: refusal(config, path, options)

    def _select_versions(self, draft: model_config.Draft, listing: Listing) -> tuple[int, ...]:
        """Return the versions to serve. Raises INVALID_ARG if there are none."""
        versions = tuple(draft.provisional().version_policy.select(listing.versions, listing.rolled_back))
        if not versions:
            policy = f"the version policy of model '{listing.name}'"
            failure = invalid(f"at least one version must be available under {policy}")
            from ..diagnosis import advice

            hint = advice.versions(listing.path, listing.versions, self._registry.names)
            raise advice.append_advice(failure, hint) from draft.locate_error(failure, "version_policy")
        return versions

    def _count_cpu(self, draft: model_config.Draft) -> int:
        """Count the instances of a version that run on the CPU. Raises INVALID_ARG for GPUs that are not there."""
        backend, config = self.backend(draft)
        for index, group in enumerate(config.instance_groups):
            try:
                place(replace(config, instance_groups=(group,)), backend)
            except ModserveError as error:
                field = "gpus" if group.gpus else "kind"
                raise error from draft.locate_error(error, ("instance_group", index, field))
        return count_cpu(place(config, backend))

    def read(self, listing: Listing) -> model_config.Draft:
        """Read the configuration as it is written. Raises `UnreadableModelError`."""
        path = listing.path / listing.config_file
        try:
            if listing.refusal is not None:
                raise listing.refusal
            if listing.config is not None:
                draft = model_config.read_override(listing.config, path, listing.name)
            elif isinstance(listing.content, ModserveError):
                raise listing.content
            else:
                draft = model_config.decode(listing.content, path, listing.name)
        except ModserveError as error:
            raise UnreadableModelError(error.code, error.message) from error
        filenames = listing.filenames
        if filenames is None:
            filenames = model_config.version_filenames(listing.path)
        return replace(draft, backends=self._registry.known, measured=self._options.measured, filenames=filenames)

    def _check(self, draft: model_config.Draft, listing: Listing, files: Path | None = None) -> None:
        """Check a configuration as far as possible without the engine. Raises INVALID_ARG for errors in it."""
        on_notes = functools.partial(self._options.on_notes, draft.name, draft.source)
        try:
            model_config.check(draft, auto_complete=self._options.auto_complete, on_notes=on_notes, files=files)
        except ModserveError as error:
            if draft.backend or draft.is_ensemble:
                raise
            from ..diagnosis import advice

            installed = self._registry.names
            if model_config.only_lacks_backend(error) and (what := advice.correction(listing.path, installed)):
                raise invalid(what) from None
            raise advice.append_advice(error, advice.layout(listing.path, installed)) from error
        if not draft.exists and (warning := misspelt_config(listing.path)):
            on_notes([model_config.Problem(warning)])
            _log.warning("model '%s': %s", listing.name, warning)

    def backend(self, draft: model_config.Draft) -> tuple[Backend, ModelConfig]:
        """Return the engine, and the configuration as it sees it."""
        try:
            backend = self._registry.get(draft.backend)
        except ModserveError as error:
            from ..diagnosis import advice

            installed = self._registry.names
            hint = "" if draft.backend in self._registry.known else advice.backend_name(draft.backend, installed)
            if not draft.exists and draft.name.endswith(f".{draft.backend}"):
                hint = hint or advice.NAMED_BY_FOLDER
            raise advice.append_advice(error, hint) from draft.locate_error(error, "backend", "platform")
        return backend, draft.provisional(default_cpu_instances=backend.default_cpu_instances)


Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def map_errors(
    doing: str, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Run foreign code at the border of the server: any exception from it is raised as a `ModserveError`.

    Runs on a loading thread, where SystemExit means no more than that a backend cannot go on.
    """
    try:
        return work(*args, **kwargs)
    except ModserveError:
        raise
    except BaseException as error:
        _log.debug("%s", doing, exc_info=error)
        raise from_exception(error, doing) from error


def _remarks_on_versions(draft: model_config.Draft, listing: Listing, versions: Sequence[int]) -> Iterator[str]:
    """Yield a message for versions that are not served, and for each folder that only looks like a version."""
    others = set(listing.versions) - listing.rolled_back.keys()
    if not draft.message.HasField("version_policy") and (remark := describe_unserved(others, versions)):
        yield remark
    yield from listing.left_out(versions)
    if listing.remark:
        yield listing.remark
    yield from filter(None, map(not_a_version, listing.folders))
