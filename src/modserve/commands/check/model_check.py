"""Check of all models by the parts of a server that load them, which collects the findings.

It has no rules of its own: it uses a server's parts, down to the manager that loads ensembles after their models, and
a loader in front of the real one records its errors.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from modserve.backends.registry import BackendRegistry
from modserve.config import ConfigurationError, Position, Problem, SourceText
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, first_paragraph, from_exception, unavailable
from modserve.core.lifecycle import LifecycleState
from modserve.core.loading import Blueprint, Listing, Repository
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import ResponseSink
from modserve.core.servable import Servable
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId
from modserve.execution.placement import available_cores
from modserve.models.loading.loader import Loader
from modserve.process.model_setup import loader_options
from modserve.repository.control import ControlOptions, ModelControl
from modserve.repository.manager import ModelManager
from modserve.repository.table import ModelTable
from modserve.settings import Settings
from modserve.settings.options import did_you_mean

from ..remote_server import RemoteServer
from .server_comparison import compare

_SUGGESTION = re.compile(r"did you mean '([^']+)'\?")
_TRACEBACK = "Traceback (most recent call last):"
"""Marker of a traceback in a note. A note about a failure that is reported as a problem is dropped."""
_REASON = re.compile(r"^(?:[A-Z][a-z]+(?: [a-z]+)*): ")
"""The kind of failure at the beginning of a reason in the repository index."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem, or a note on a setting that is understood and has no effect."""

    file: str
    text: str
    line: int | None = None
    """1-based, like the column; both None for a problem of a whole file or directory."""
    column: int | None = None
    excerpt: tuple[str, ...] = ()
    """The line and, below it, a caret; empty where there is no line."""
    advice: str = ""
    """Lines of advice."""

    @property
    def suggestion(self) -> str | None:
        """The probable replacement for a misspelled word; None if unknown."""
        match = _SUGGESTION.search(self.text) or _SUGGESTION.search(self.advice)
        return match[1] if match else None


@dataclass
class ModelReport:
    """Results for one model."""

    name: str
    path: str = ""
    """The model's directory; empty if two repositories have a model of that name."""
    versions: tuple[int, ...] = ()
    """Versions to serve."""
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    source: SourceText | None = None
    """The configuration's text, if readable."""
    compared: int = 0
    """Number of the model's responses compared with another server's."""


@dataclass(frozen=True)
class CheckReport:
    models: list[ModelReport]
    """Reports, sorted by model name."""
    remarks: list[str]
    """Remarks on repository entries that are not models."""
    loaded: bool
    """True if the models were loaded."""
    against: str = ""
    """The other server's address, if there was one to compare with."""

    @property
    def problems(self) -> int:
        return sum(len(model.problems) for model in self.models)

    @property
    def compared(self) -> int:
        """Number of responses compared with the other server's."""
        return sum(model.compared for model in self.models)

    @property
    def inconclusive(self) -> bool:
        """True if there are no problems only because no response was compared."""
        return bool(self.against) and not self.compared and not self.problems

    @property
    def notes(self) -> int:
        return len(self.remarks) + sum(len(model.notes) for model in self.models)


@dataclass(frozen=True)
class Counterpart:
    """Another server to compare with."""

    server: RemoteServer
    url: str
    tolerance: float


async def check(
    repositories: Sequence[Repository], settings: Settings, *, load: bool, against: Counterpart | None = None
) -> CheckReport:
    """Check all models, and load them if `load`, one after the other; compare the loaded ones with `against`.

    Raises INVALID_ARG without a repository, and UnreachableError without the other server.
    """
    if against is not None:
        await asyncio.to_thread(against.server.extensions)
    remarks = [remark for repository in repositories for remark in await repository.remarks()]
    models: dict[str, ModelReport] = {}
    registry = BackendRegistry()
    table = ModelTable()
    with ThreadPoolExecutor(1, thread_name_prefix="load") as executor:
        options = dataclasses.replace(
            loader_options(settings, registry.names, available_cores()),
            on_notes=functools.partial(_keep_notes, models),
        )
        loader = Loader(registry, options, executor, table.borrow, borrower=table.borrower)
        manager = ModelManager(table, _RecordingLoader(loader, models, load=load), parallel_loads=1)
        control = ModelControl(manager, repositories, ControlOptions())
        try:
            await control.start()
            for entry in await control.index():
                report = models.setdefault(entry.name, ModelReport(entry.name))
                if entry.state is not LifecycleState.READY and not report.problems:
                    report.problems.append(_dependent(report, entry.reason, table))
            if against is not None:
                await _compare(models, table, against, remarks)
        finally:
            await control.stop()
    if not models:
        places = ", ".join(f"'{repository}'" for repository in repositories)
        remarks.append(f"no models in {places}: each of its folders would be a model")
    for report in models.values():
        report.notes.sort(key=lambda note: (note.line or 0, note.column or 0))
    return CheckReport([models[name] for name in sorted(models)], remarks, load, "" if against is None else against.url)


async def _compare(
    models: Mapping[str, ModelReport], table: ModelTable, against: Counterpart, remarks: list[str]
) -> None:
    """Add the differences from another server to the reports. Raises UnreachableError."""
    for name, report in sorted(models.items()):
        model = table.models.get(name)
        served = {} if model is None else model.served
        if not served:
            continue
        difference = await compare(served, against.server, against.url, against.tolerance)
        report.compared = difference.requests
        report.problems += (_about(report, *each) for each in difference.problems)
        report.notes += (_about(report, *each) for each in difference.notes)
    try:
        there = await asyncio.to_thread(against.server.ready_models)
    except ModserveError:  # not every server tells
        return
    if names := sorted(there - models.keys()):
        listed = ", ".join(f"'{name}'" for name in names)
        remarks.append(f"{against.url} serves models that are not here: {listed}")


def _about(report: ModelReport, name: str, text: str) -> Finding:
    """Make a finding at the place of a field, if the configuration has it."""
    position = report.source.locate((name,)) if name and report.source is not None else None
    if report.source is None or position is None:
        return Finding(report.path or report.name, text)
    return _finding(report.source, Problem(text, position))


class _RecordingLoader:
    """Implementation of `core.loading.ModelLoader` by another loader, which keeps the errors that it raises."""

    def __init__(self, loader: Loader, models: dict[str, ModelReport], *, load: bool) -> None:
        self._loader = loader
        self._models = models
        self._load = load

    async def inspect(self, listing: Listing) -> Blueprint:
        report = self._models.setdefault(listing.name, ModelReport(listing.name))
        report.path = str(listing.path)
        failures = await asyncio.to_thread(self._loader.examine, listing)
        if failures:
            for failure in failures:
                report.problems += (_without_said(each, report) for each in findings(failure, report.path))
            raise failures[0]
        blueprint = await self._loader.inspect(listing)
        report.versions = blueprint.versions
        return dataclasses.replace(blueprint, load=functools.partial(self._load_version, blueprint, report))

    async def _load_version(self, blueprint: Blueprint, report: ModelReport, path: Path, version: int) -> Servable:
        if not self._load:
            return _NotLoaded(ModelId(report.name, version))
        try:
            with _collect_warnings(report):
                return await blueprint.load(path, version)
        except Exception as error:
            failure = from_exception(error, f"failed to load model '{report.name}' version {version}")
            said = first_paragraph(failure.message)
            report.notes[:] = [note for note in report.notes if not (_TRACEBACK in note.text and said in note.text)]
            for finding in findings(failure, str(Path(report.path) / str(version))):
                if finding not in report.problems:  # as versions have the same configuration
                    report.problems.append(finding)
            raise

    def forget(self, name: str) -> None:
        self._loader.forget(name)


@contextlib.contextmanager
def _collect_warnings(report: ModelReport) -> Iterator[None]:
    """Turn backends' warnings in the log about a model into notes during the block: models load one after the other."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note = _about(report, "", record.getMessage())
            if note.text.startswith(f"model '{report.name}'") and note not in report.notes:
                report.notes.append(note)

    listener, logger = Listener(logging.WARNING), logging.getLogger("modserve.backends")
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)


class _NotLoaded:
    """Implementation of `core.servable.Servable` for a version that is only checked."""

    unready_reason: str | None = None

    def __init__(self, model_id: ModelId) -> None:
        self.id = model_id
        self.config = ModelConfig(name=model_id.name, backend="")
        self.config_message = b""
        self.statistics = ModelStatistics()
        self.labels: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        raise unavailable(f"model '{self.id.name}' is not loaded")

    async def drain(self) -> None:
        pass

    async def close(self) -> None:
        pass


def _keep_notes(models: dict[str, ModelReport], name: str, source: SourceText, notes: Sequence[Problem]) -> None:
    report = models.setdefault(name, ModelReport(name))
    report.source = source
    known = {(note.line, note.column, note.text) for note in report.notes}
    for finding in (_finding(source, note) for note in notes):
        if (finding.line, finding.column, finding.text) not in known:
            report.notes.append(finding)


def findings(failure: ModserveError, place: str) -> Iterator[Finding]:
    """Yield the problems of a failure; `place` is the file or folder of a failure that names none."""
    configuration = _configuration(failure)
    if configuration is None:
        text, _, advice = failure.message.partition("\n")
        yield Finding(place, text, advice=advice.strip("\n"))
        return
    advice = failure.message.removeprefix(configuration.message).strip("\n")
    about = [_finding(configuration.source, problem) for problem in configuration.problems]
    if advice:  # it is about the last one: the whole configuration, behind what has a line
        about[-1] = dataclasses.replace(about[-1], advice=advice)
    yield from about


def _without_said(finding: Finding, report: ModelReport) -> Finding:
    """Return the finding without the lines of advice that the report has already."""
    said = {line for problem in report.problems for line in problem.advice.splitlines()}
    advice = "\n".join(line for line in finding.advice.splitlines() if line not in said)
    return dataclasses.replace(finding, advice=advice)


def _configuration(error: BaseException | None) -> ConfigurationError | None:
    """Return the configuration error behind a failure, which may have advice after it or another name."""
    passed: set[int] = set()
    while error is not None and id(error) not in passed:  # the border raises ours as they are, from themselves
        if isinstance(error, ConfigurationError):
            return error
        passed.add(id(error))
        error = error.__cause__
    return None


def _finding(source: SourceText, problem: Problem) -> Finding:
    # A configuration that is not there, or came from elsewhere, has a name in place of a path.
    place = source.path.parent
    file = str(place if source.label or place.is_file() else source.path)
    line, column = problem.position or (None, None)
    return Finding(file, problem.text, line, column, source.excerpt(problem))


def _dependent(report: ModelReport, reason: str, table: ModelTable) -> Finding:
    """Return why a model without a problem of its own cannot be served, leaving out the problems of other models."""
    text = _REASON.sub("", reason)
    model = table.models.get(report.name)
    needs = model.blueprint.needs if model is not None and model.blueprint is not None else {}
    for need in needs:
        text = text.partition(f" Model '{need}' loading failed with error:")[0]
    text, _, advice = text.partition("\n")
    absent = [need for need in needs if need not in table.models]
    for need in absent:
        text += did_you_mean(need, [name for name in table.models if name != report.name])
    lacking = absent or [need for need in needs if table.models[need].latest is None]
    problem = Problem(text, _step(report.source, lacking))
    if report.source is None or problem.position is None:
        return Finding(report.path or report.name, text, advice=advice.strip("\n"))
    return dataclasses.replace(_finding(report.source, problem), advice=advice.strip("\n"))


def _step(source: SourceText | None, models: Collection[str]) -> Position | None:
    """Return the position in an ensemble's configuration of a step that uses one of these models."""
    rows = source.text.split("\n") if source is not None else []
    for path, position in source.positions.items() if source is not None else ():
        behind = rows[position.line - 1][position.column - 1 :]
        if path[-1] == "model_name" and any(
            re.match(rf"""model_name\s*:\s*["']{re.escape(each)}["']""", behind) for each in models
        ):
            return position
    return None
