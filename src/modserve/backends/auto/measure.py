"""Opens the candidates of a model, runs them in turns, and keeps the one that is to serve."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from modserve.core.errors import Code, ModserveError
from modserve.core.model_config import InstanceKind, ModelConfig, ModelDescription
from modserve.core.tensor import Array

from ..api import Backend, BackendModel, InstanceSpec, ModelSource
from ..options import integer
from ..registry import BackendRegistry, new_instance
from .candidates import FP32, Artifact, Candidate
from .choice import Choice, Row, decide, not_admitted, refusal
from .comparison import difference
from .options import LATENCY, MAX_BATCH_SIZE, THROUGHPUT, AutoOptions, engine_parameters
from .race import race
from .runner import AsyncRunner, Runner, runner
from .samples import Samples, UnmeasurableError, samples, shapes_of, warmup_of

_log = logging.getLogger(__name__)

_measuring = threading.Lock()
"""Of the process: two measurements at a time would disturb each other."""

_DEFAULT_MAX_BATCH_SIZE = 4


@dataclass(frozen=True, slots=True)
class Opened:
    """A candidate's model, open."""

    candidate: Candidate
    backend: Backend
    model: BackendModel


@dataclass(slots=True)
class _Tried:
    """A candidate that is open, with what came of it so far."""

    row: Row
    opened: Opened
    config: ModelConfig
    runner: Runner | AsyncRunner | None = None
    estimate_s: float = 0.0


class Job:
    """One model version, whose engine is to be chosen."""

    def __init__(
        self,
        source: ModelSource,
        artifact: Artifact,
        options: AutoOptions,
        registry: BackendRegistry,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.source = source
        self.artifact = artifact
        self.options = options
        self._registry = registry
        self._clock = clock
        self._spent_s = 0.0
        """On executions; what it takes to open engines does not count."""

    def open(self, candidate: Candidate) -> Opened:
        """Open the model by one engine. Raises what the engine raises."""
        source = self.source
        backend = self._registry.get(candidate.backend)
        config = replace(
            source.config,
            backend=candidate.backend,
            platform="",
            default_model_filename=self.artifact.path.name,
            parameters=engine_parameters(source.config, candidate.backend, candidate.parameters),
        )
        options = source.options_of.get(candidate.backend, {})
        model = backend.open(replace(source, config=config, path=self.artifact.path, options=options))
        return Opened(candidate, backend, model)

    def describe(self, opened: Opened) -> ModelDescription | None:
        """What an engine says of the model; the largest batch is the same whichever it is."""
        description = opened.model.describe()
        if description is None or not description.default_max_batch_size:
            return description
        size = integer("backend option", self.source.options, MAX_BATCH_SIZE, _DEFAULT_MAX_BATCH_SIZE)
        return replace(description, default_max_batch_size=size)

    def spec(self, spec: InstanceSpec, candidate: Candidate) -> InstanceSpec:
        """The instance as its engine is to see it."""
        parameters = engine_parameters(spec.config, candidate.backend, candidate.parameters)
        return replace(spec, config=replace(spec.config, backend=candidate.backend, parameters=parameters))

    def choose(self, rows: Sequence[Row]) -> tuple[Choice, Opened]:
        """Measure the candidates that nothing is in the way of, and close all but the one that serves.

        Raises the failure of the first candidate, with the reasons of the others, if none is able to serve.
        """
        with _measuring, ExitStack() as stack:
            choice, opened = self._choose(rows, stack)
        return choice, opened

    def _choose(self, rows: Sequence[Row], stack: ExitStack) -> tuple[Choice, Opened]:
        for row in rows:
            row.why = row.why or not_admitted(row.candidate, self.options.tolerance)
        keep: list[Opened] = []
        tried: list[_Tried] = []
        failure: Exception | None = None
        for row in rows:
            if row.why:
                continue
            try:
                tried.append(self._try_to_open(row, stack, keep, tried))
            except Exception as error:
                failure = failure or error
                row.why = _text(error)
        if all(each.row.candidate.precision != FP32 for each in tried):
            raise self._refused(rows, failure)  # also if there is none
        reference = tried[0]
        details: dict[str, object] = {"reference": reference.row.candidate.title}
        able = [each for each in tried if not each.row.why]
        if len(able) == 1:
            # Nothing to compare it with: it need not be run.
            reason = f"{able[0].row.candidate.title} is the only engine here that may serve it"
            return self._kept(able[0], reason, rows, details, keep)
        try:
            made = self._samples(reference.config)
        except UnmeasurableError as error:
            reason = f"{reference.row.candidate.title} comes first; nothing was measured: {error}"
            return self._kept(reference, reason, rows, details, keep)
        details |= {
            "objective": self._objective(reference.config),
            "batch_size": made.batch_size,
            "samples": made.source,
            "sample_shapes": shapes_of(made.timed),
            "tolerance": str(self.options.tolerance),
        }
        self._check(tried, made, stack)
        ready = {each.row.candidate.name: each for each in tried if not each.row.why and each.runner is not None}
        if not ready:
            reason = (
                f"{reference.row.candidate.title} comes first; no engine could run the samples ({reference.row.why}): "
                "model_warmup or the parameter 'sample_shape' describe others"
            )
            _log.warning("model '%s': %s", self.source.config.name, reason)
            reference.row.why = ""
            return self._kept(reference, reason, rows, {}, keep)
        self._race(ready)
        winners = [each for each in ready.values() if not each.row.why]
        if not winners:
            raise self._refused(rows, failure)
        compared = next(each for each in tried if each.runner is not None).row.candidate
        chosen, reason = decide([each.row for each in winners], compared)
        winner = next(each for each in winners if each.row is chosen)
        details |= {"reference": compared.title, "measuring_seconds": round(self._spent_s, 3)}
        return self._kept(winner, reason, rows, details, keep)

    def _try_to_open(self, row: Row, stack: ExitStack, keep: list[Opened], others: Sequence[_Tried]) -> _Tried:
        opened = self.open(row.candidate)

        def close() -> None:
            if opened not in keep:
                _closed(opened.model.close, row.candidate)

        stack.callback(close)
        config = self.source.completed(self.describe(opened))
        tried = _Tried(row, opened, config)
        if others and (_signature(config) != _signature(others[0].config)):
            row.why = f"it sees other inputs, outputs or batches in it than {others[0].row.candidate.title}"
        return tried

    def _objective(self, config: ModelConfig) -> str:
        return self.options.objective or (THROUGHPUT if config.max_batch_size > 1 else LATENCY)

    def _samples(self, config: ModelConfig) -> Samples:
        large = self._objective(config) == THROUGHPUT
        warmup = warmup_of(self.source.config_json)
        return samples(config, warmup, self.source.model_directory, self.options.sample_shape, large=large)

    def _check(self, tried: Sequence[_Tried], made: Samples, stack: ExitStack) -> None:
        """Run the samples on each, and compare the outputs with those of the first that can run them."""
        expected: list[Mapping[str, Array]] = []
        reference: Candidate | None = None
        for each in tried:
            row = each.row
            if row.why:
                continue
            if reference is not None and self._spent_s >= self.options.budget_s:
                row.why = f"the {self.options.budget_s:g} s for measuring were over before it had run"
                continue
            try:
                outputs = self._first_run(each, made, stack)
            except Exception as error:
                each.runner = None
                row.why = _text(error)
                continue
            if reference is None and row.candidate.precision == FP32:
                reference, expected = row.candidate, outputs
            if reference is None:
                row.why = "there is nothing to compare it with: the engines before it could not run the samples"
                continue
            names = _outputs(each.config)
            pairs = zip(outputs, expected, strict=True)
            errors = [difference(ours, theirs, names) for ours, theirs in pairs]
            row.error, why = max(errors, key=lambda each: each[0])
            row.why = why or refusal(row, self.options.tolerance, reference)

    def _first_run(self, tried: _Tried, made: Samples, stack: ExitStack) -> list[Mapping[str, Array]]:
        spec = InstanceSpec(
            f"{tried.config.name}_measured", InstanceKind.CPU, 0, 0, tried.config, self.source.write_config
        )
        candidate = tried.row.candidate
        instance = new_instance(tried.opened.model, self.spec(spec, candidate))
        alone = self._objective(tried.config) == LATENCY
        try:
            tried.runner = made_runner = runner(instance, _outputs(tried.config), made.timed, alone=alone)
        except BaseException:
            instance.close()
            raise
        stack.callback(_closed, made_runner.close, candidate)
        start = self._clock()
        outputs = [made_runner.outputs(inputs) for inputs in made.checked]
        warm = self._clock()
        count = made_runner.run(1)
        end = self._clock()
        tried.estimate_s = (end - warm) / count
        self._spent_s += end - start
        return outputs

    def _race(self, ready: Mapping[str, _Tried]) -> None:
        entrants = {name: each.runner for name, each in ready.items() if each.runner is not None}
        estimates = {name: each.estimate_s for name, each in ready.items()}
        start = self._clock()
        timings = race(entrants, estimates, max(0.0, self.options.budget_s - self._spent_s), self._clock)
        self._spent_s += self._clock() - start
        for name, timing in timings.items():
            row = ready[name].row
            row.rounds, row.why = len(timing.seconds), timing.failure
            row.seconds = timing.median if timing.seconds else None

    def _kept(
        self,
        tried: _Tried,
        reason: str,
        rows: Sequence[Row],
        details: Mapping[str, object],
        keep: list[Opened],
    ) -> tuple[Choice, Opened]:
        keep.append(tried.opened)
        return Choice(tried.row.candidate, reason, tuple(row.to_json() for row in rows), details), tried.opened

    def _refused(self, rows: Sequence[Row], failure: Exception | None) -> ModserveError:
        reasons = "".join(f"\n  {row.candidate.title}: {row.why}" for row in rows)
        code = failure.code if isinstance(failure, ModserveError) else Code.INVALID_ARG
        who = f"model '{self.source.config.name}': no engine can serve '{self.artifact.path}'"
        return ModserveError(code, f"{who}, which is {self.artifact.format.name}{reasons}")


def _signature(config: ModelConfig) -> object:
    tensors = [(spec.name, spec.datatype, spec.optional) for spec in config.inputs]
    return sorted(tensors, key=str), sorted((spec.name, spec.datatype.name) for spec in config.outputs), config.batching


def _outputs(config: ModelConfig) -> tuple[str, ...]:
    return (*config.output_names, *config.state_outputs)


def _closed(close: Callable[[], None], candidate: Candidate) -> None:
    try:
        close()
    except Exception:
        _log.warning("closing %s after it was measured failed", candidate.title, exc_info=True)


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
