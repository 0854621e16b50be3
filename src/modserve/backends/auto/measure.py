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
from .options import BATCH, INSTANCES, LATENCY, MAX_BATCH_SIZE, THROUGHPUT, AutoOptions, engine_parameters
from .race import race
from .runner import AsyncRunner, Runner, runner
from .samples import Samples, UnmeasurableError, samples, shapes_of, warmup_of
from .tuning import Crew, Setting, batch_sizes, best_setting, instance_counts

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
    tuned: Setting | None = None
    """What it was opened for, if that was chosen by measuring; 0 stands for what was not."""


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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.source = source
        self.artifact = artifact
        self.options = options
        self._registry = registry
        self._clock = clock
        self._sleep = sleep
        self._spent_s = 0.0
        """On executions; what it takes to open engines does not count."""

    def open(self, candidate: Candidate, tuned: Setting | None = None) -> Opened:
        """Open the model by one engine. Raises what the engine raises."""
        source = self.source
        if tuned is not None and tuned.instances:
            threads = max(1, source.cpu_threads * source.cpu_instances // tuned.instances)
            source = replace(source, cpu_threads=threads, cpu_instances=tuned.instances)
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
        return Opened(candidate, backend, model, tuned)

    def describe(self, opened: Opened) -> ModelDescription | None:
        """What an engine says of the model; the largest batch is the same whichever it is, unless it was tuned."""
        description, tuned = opened.model.describe(), opened.tuned
        if description is None:
            return None
        size = integer("backend option", self.source.options, MAX_BATCH_SIZE, _DEFAULT_MAX_BATCH_SIZE)
        if tuned is not None:
            size, description = tuned.batch or size, replace(description, cpu_instances=tuned.instances)
        return replace(description, default_max_batch_size=size) if description.default_max_batch_size else description

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
            if not self.options.tune:
                return choice, opened
            stack.close()
            return self._tuned(choice, opened)

    def _tuned(self, choice: Choice, opened: Opened) -> tuple[Choice, Opened]:
        """The same engine with the best number of instances and size of batches; as it was if they cannot be found."""
        try:
            tuned, facts = self._find_setting(opened)
            again = self.open(choice.candidate, tuned)
        except Exception as error:
            _log.warning("model '%s' is not tuned: %s", self.source.config.name, _text(error))
            return choice, opened
        _closed(opened.model.close, choice.candidate)
        return replace(choice, details={**choice.details, "tuned": facts}), again

    def _find_setting(self, opened: Opened) -> tuple[Setting, dict[str, object]]:
        """What is to be tuned, with 0 for what is not, and what was measured. Raises what an engine raises."""
        config, tune = self.source.completed(self.describe(opened)), self.options.tune
        if config.sequence_batching is not None or self.options.objective == LATENCY:
            raise UnmeasurableError("its throughput is not what counts")
        made = self._samples(config)
        batch_open = BATCH in tune and config.batching and not self.source.config.max_batch_size
        count_open = INSTANCES in tune and not self.source.config.instance_groups
        if not batch_open and not count_open:
            raise UnmeasurableError("its configuration says how large batches are and how many instances there are")
        threads = self.source.cpu_threads * self.source.cpu_instances
        counts = instance_counts(threads) if count_open else [self.source.cpu_instances]
        batches = batch_sizes() if batch_open else [max(1, config.max_batch_size)]
        with ExitStack() as stack:
            crews = {count: self._crew(opened.candidate, count, config, stack) for count in counts}
            best, seconds = best_setting(
                crews, batches, made.checked[0], self.options.budget_s, self._clock, self._sleep
            )
        rows = [
            {"instances": each.instances, "batch_size": each.batch, "rows_per_second": round(1 / took, 3)}
            for each, took in sorted(seconds.items())
        ]
        tuned = Setting(best.batch if batch_open else 0, best.instances if count_open else 0)
        facts = {"batch_size": tuned.batch, "instances": tuned.instances, "settings": rows}
        return tuned, facts

    def _crew(self, candidate: Candidate, count: int, config: ModelConfig, stack: ExitStack) -> Crew:
        opened = self.open(candidate, Setting(0, count))
        stack.callback(_closed, opened.model.close, candidate)

        def make() -> Runner | AsyncRunner:
            instance = new_instance(opened.model, self._measured_spec(config, candidate))
            return runner(instance, _outputs(config), ())

        crew = Crew([make] * count)
        stack.callback(_closed, crew.close, candidate)
        return crew

    def _measured_spec(self, config: ModelConfig, candidate: Candidate) -> InstanceSpec:
        name = f"{config.name}_measured"
        return self.spec(InstanceSpec(name, InstanceKind.CPU, 0, 0, config, self.source.write_config), candidate)

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
            row.seconds, row.rounds = each.estimate_s, 1  # for people: what the engine would take

    def _first_run(self, tried: _Tried, made: Samples, stack: ExitStack) -> list[Mapping[str, Array]]:
        candidate = tried.row.candidate
        instance = new_instance(tried.opened.model, self._measured_spec(tried.config, candidate))
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
        timings = race(entrants, estimates, max(0.0, self.options.budget_s - self._spent_s), self._clock, self._sleep)
        self._spent_s += self._clock() - start
        for name, timing in timings.items():
            row = ready[name].row
            row.rounds, row.why = len(timing.seconds), timing.failure
            row.seconds = timing.typical if timing.seconds else None

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
