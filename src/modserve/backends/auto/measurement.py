"""Measurement of a model's candidates: opens them, runs them alternately, and keeps the chosen one."""

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors.tensor import Array

from ..comparison import difference, not_comparable
from ..runner import AsyncRunner, Runner, UnmeasurableError
from ..tensors import output_datatypes
from .budget import Budget
from .candidates import FP32, Candidate
from .choice import CandidateRow, Choice, decide, refusal
from .options import LATENCY
from .race import race
from .samples import Samples, shapes_of
from .selection import OpenCandidate, Selection, close_quietly, error_text
from .tuning import reopen_tuned

_log = logging.getLogger(__name__)

_measuring = threading.Lock()
"""Process-wide lock: concurrent measurements would distort each other."""


def choose(job: Selection, rows: Sequence[CandidateRow]) -> tuple[Choice, OpenCandidate]:
    """Measure the candidates that can run here, and close all but the chosen one.

    If none can serve, raises the code of the first failure, with the reasons of all candidates.
    """
    with _measuring:
        with ExitStack() as stack:
            choice, opened = _Measurement(job, rows, stack).choose()
        return reopen_tuned(job, choice, opened) if job.options.tune else (choice, opened)


@dataclass(slots=True)
class _Trial:
    """An open candidate with its results so far."""

    row: CandidateRow
    opened: OpenCandidate
    config: ModelConfig
    runner: Runner | AsyncRunner | None = None
    estimate_s: float = 0.0

    @property
    def candidate(self) -> Candidate:
        return self.row.candidate


class _Measurement:
    """Measurement of all candidates. The stack closes every opened candidate except the chosen one."""

    def __init__(self, job: Selection, rows: Sequence[CandidateRow], stack: ExitStack) -> None:
        self._job = job
        self._rows = rows
        self._stack = stack
        self._keep: OpenCandidate | None = None
        self._failure: Exception | None = None
        self._budget = Budget(job.options.budget_s, job.clock)

    def choose(self) -> tuple[Choice, OpenCandidate]:
        tried = self._open()
        if all(each.candidate.precision != FP32 for each in tried):
            raise self._make_refusal()  # also without any candidate
        first = tried[0]
        details: dict[str, object] = {"reference": first.candidate.title}
        able = [each for each in tried if not each.row.why]
        if len(able) == 1:
            # A single candidate needs no comparison, and therefore no run.
            return self._settle(
                able[0], f"{able[0].candidate.title} is the only engine here that can serve it", details
            )
        try:
            made = self._job.samples(first.config)
        except UnmeasurableError as error:
            return self._settle(
                first, f"{first.candidate.title} is the default; nothing was measured: {error}", details
            )
        self._check(able, made)
        ran = [each for each in able if each.runner is not None]
        if not ran:
            reason = (
                f"{first.candidate.title} is the default; no engine could run the samples ({first.row.why}): "
                "model_warmup or the parameter 'sample_shape' describe others"
            )
            _log.warning("model '%s': %s", self._job.name, reason)
            first.row.why = ""
            return self._settle(first, reason, details)
        self._race([each for each in ran if not each.row.why])
        winners = [each for each in ran if not each.row.why]
        if not winners:
            raise self._make_refusal()
        reference = ran[0].candidate
        if winners[0].row.seconds is None:
            chosen = winners[0].row
            reason = f"{reference.title} is the default; {self._budget.over_text} all samples"
        else:
            chosen, reason = decide([each.row for each in winners], reference, made.source)
        details = {
            "reference": reference.title,
            "objective": self._job.objective(first.config),
            "batch_size": made.batch_size,
            "samples": made.source,
            "sample_shapes": shapes_of(made.timed),
            "tolerance": str(self._job.options.tolerance),
            "measuring_seconds": round(self._budget.spent, 3),
        }
        return self._settle(next(each for each in winners if each.row is chosen), reason, details)

    def _open(self) -> list[_Trial]:
        """Open the candidates. A candidate with other tensors than the first one is rejected."""
        tried: list[_Trial] = []
        for row in self._rows:
            if row.why:
                continue
            try:
                opened = self._job.open(row.candidate)
                self._stack.callback(self._close, opened)
                tried.append(_Trial(row, opened, self._job.complete(opened)))
            except Exception as error:
                self._failure = self._failure or error
                row.why = error_text(error)
        for each in tried:
            if _signature(each.config) != _signature(tried[0].config):
                each.row.why = f"it finds other inputs, outputs or batches in it than {tried[0].candidate.title}"
        return tried

    def _close(self, opened: OpenCandidate) -> None:
        if opened is not self._keep:
            forget = getattr(opened.model, "forget", None)
            if callable(forget):
                close_quietly(forget, opened.candidate)
            close_quietly(opened.model.close, opened.candidate)

    def _check(self, able: Sequence[_Trial], made: Samples) -> None:
        """Run the samples on each candidate and compare outputs with the reference, the first FP32 one that runs."""
        budget, expected, reference, unknowable = self._budget, list[Mapping[str, Array]](), None, ""
        for each in able:
            row = each.row
            if reference is not None and not budget.left:
                row.why = budget.over_text
                continue
            try:
                outputs = self._first_run(each, made)
            except Exception as error:
                each.runner = None
                row.why = error_text(error)
                continue
            names = output_datatypes(each.config)
            if reference is None and each.candidate.precision == FP32:
                reference, expected = each.candidate, outputs
                unknowable = not_comparable(expected, names)
            if reference is None:
                each.runner = None
                row.why = f"its outputs cannot be checked: no {FP32} engine before it could run the samples"
                continue
            if each.candidate.precision != FP32 and unknowable:
                row.why = f"{unknowable} on {made.source}, so nothing shows how exact {row.candidate.precision} is"
                continue
            if len(outputs) < len(made.checked):
                if each.candidate is not reference:
                    row.why = f"{budget.over_text} all samples"
                continue
            errors = [difference(ours, theirs, names) for ours, theirs in zip(outputs, expected, strict=True)]
            row.error, why = max(errors, key=lambda each: each[0])
            row.why = why or refusal(row, self._job.options.tolerance, reference)
            row.seconds, row.rounds = each.estimate_s, 1  # for the report

    def _first_run(self, tried: _Trial, made: Samples) -> list[Mapping[str, Array]]:
        """Return the outputs for the first sample, and for as many others as time allows."""
        alone = self._job.objective(tried.config) == LATENCY
        tried.runner = runner = self._job.runner(tried.opened, tried.config, made.timed, alone=alone)
        self._stack.callback(close_quietly, runner.close, tried.candidate)
        outputs: list[Mapping[str, Array]] = []
        with self._budget.running():
            for inputs in made.checked:
                if outputs and not self._budget.left:
                    return outputs
                start = self._job.clock()
                outputs.append(runner.outputs(inputs))
                if any(inputs is each for each in made.timed):
                    tried.estimate_s += self._job.clock() - start
            if self._budget.left:
                warm = self._job.clock()
                count = runner.run(1)
                tried.estimate_s = (self._job.clock() - warm) / count
        return outputs

    def _race(self, ready: Sequence[_Trial]) -> None:
        job, budget = self._job, self._budget
        entrants = {each.candidate.name: each.runner for each in ready if each.runner is not None}
        estimates = {each.candidate.name: each.estimate_s for each in ready}
        with budget.running():
            timings = race(entrants, estimates, budget.left, job.clock, job.sleep)
        for each in ready:
            timing = timings[each.candidate.name]
            each.row.why = timing.failure
            if timing.seconds or timing.failure:
                each.row.rounds = len(timing.seconds)
                each.row.seconds = timing.typical if timing.seconds else None

    def _settle(self, tried: _Trial, reason: str, details: Mapping[str, object]) -> tuple[Choice, OpenCandidate]:
        self._keep = tried.opened
        return Choice(tried.candidate, reason, tuple(row.to_json() for row in self._rows), details), tried.opened

    def _make_refusal(self) -> ModserveError:
        reasons = "".join(f"\n  {row.candidate.title}: {row.why}" for row in self._rows)
        code = self._failure.code if isinstance(self._failure, ModserveError) else Code.INVALID_ARG
        artifact = self._job.artifact
        who = f"model '{self._job.name}': no engine can serve '{artifact.path}', which is {artifact.format.name}"
        return ModserveError(code, who + reasons)


def _signature(config: ModelConfig) -> object:
    inputs = sorted((spec.name, spec.datatype.name, spec.optional) for spec in config.inputs)
    return inputs, sorted((spec.name, spec.datatype.name) for spec in config.outputs), config.batching
