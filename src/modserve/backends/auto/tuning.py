"""Tuning of a model's instances and batch size for the chosen engine, where the configuration leaves them open."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from modserve.core.configuration.model_config import ModelConfig

from ..runner import UnmeasurableError
from .candidates import Candidate
from .choice import Choice
from .options import BATCH, INSTANCES, LATENCY
from .selection import OpenCandidate, Selection, close_quietly, error_text
from .setting import BatchSetting, TrialPool, batch_sizes, best_setting, instance_counts

_log = logging.getLogger(__name__)


def reopen_tuned(job: Selection, choice: Choice, opened: OpenCandidate) -> tuple[Choice, OpenCandidate]:
    """Reopen the engine with the best number of instances and batch size; unchanged if they cannot be found."""
    try:
        setting, facts = _find_setting(job, opened)
        again = job.open(choice.candidate, setting)
    except Exception as error:
        _log.warning("model '%s' is not tuned: %s", job.name, error_text(error))
        return choice, opened
    close_quietly(opened.model.close, choice.candidate)
    return replace(choice, details={**choice.details, "tuned": facts}), again


def _find_setting(job: Selection, opened: OpenCandidate) -> tuple[BatchSetting, dict[str, object]]:
    """Return the best setting, with 0 for values not tuned, and the measurements. Raises the engine's exceptions."""
    config, tune = job.complete(opened), job.options.tune
    if config.sequence_batching is not None or job.options.objective == LATENCY:
        raise UnmeasurableError("the latency of single requests counts, not throughput")
    made = job.samples(config)
    batch_open = BATCH in tune and config.batching and not job.source.config.max_batch_size
    count_open = INSTANCES in tune and not job.source.config.instance_groups
    if not batch_open and not count_open:
        raise UnmeasurableError("its configuration says how large batches are and how many instances there are")
    threads = job.source.cpu_threads * job.source.cpu_instances
    counts = instance_counts(threads) if count_open else [job.source.cpu_instances]
    batches = batch_sizes() if batch_open else [max(1, config.max_batch_size)]
    sample = made.checked[0]
    row = {name: array[:1] for name, array in sample.items()} if config.batching else sample
    open_crew = partial(_crew, job, opened.candidate, config)
    tried = best_setting(open_crew, counts, batches, row, job.options.budget_s, job.clock, job.sleep)
    best = tried.best
    said: dict[BatchSetting, dict[str, object]] = {
        **{setting: {"why": why} for setting, why in tried.left_out.items()},
        **{setting: {"rows_per_second": round(1 / took, 3)} for setting, took in tried.seconds.items()},
    }
    rows = [{"instances": each.instances, "batch_size": each.batch, **said[each]} for each in sorted(said)]
    setting = BatchSetting(best.batch if batch_open else 0, best.instances if count_open else 0)
    return setting, {"batch_size": setting.batch, "instances": setting.instances, "settings": rows}


@contextmanager
def _crew(job: Selection, candidate: Candidate, config: ModelConfig, count: int) -> Iterator[TrialPool]:
    opened = job.open(candidate, BatchSetting(0, count))
    with ExitStack() as stack:
        stack.callback(close_quietly, opened.model.close, candidate)
        crew = TrialPool([lambda: job.runner(opened, config, ())] * count)
        stack.callback(close_quietly, crew.close, candidate)
        yield crew
