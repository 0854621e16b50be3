"""``modserve tune MODEL``: tries configurations, prints the results, and writes the recommended one."""

import asyncio
import os
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import text_format

from modserve.core.errors import invalid
from modserve.pb import inference as pb

from ..bench.plan import add_data, add_goal, add_rules, count, data_options, rules
from ..bench.profiler import LatencyGoal
from ..bench.session import loop_factory
from ..remote_server import connect
from ..syntax import (
    FAILED,
    INTERRUPTED,
    URL_VARIABLE,
    Parser,
    UsageError,
    option,
    parser,
    positive,
    print_error,
    reading,
)
from .repository import CONFIG_FILE, ModelCopy, model_repository, serving
from .show import finals, remarks, table, trial_line
from .space import CoordinateSearch, Point, SearchLimits, Value, apply, describe, space, text, why_not
from .tuning import Hooks, Trial, TrialRunner, TuneResult, TuneSetup, tune

_DESCRIPTION = """\
Searches for the configuration of a model that takes the highest rate within a goal: instances,
batch size, queue delay, engine threads, and with --try-auto the engine. It starts its own servers
with a copy of the model, and does not touch your files or servers. A configuration that is no
better than the best one so far is dropped after a second or two."""
_CODES = """0 done, 2 wrong command line, 130 ended by Ctrl-C (results so far), 1 otherwise:
            the model does not load, or nothing meets the goal"""
_EXAMPLES = """\
  modserve tune resnet50 --goal-ms 50
  modserve tune resnet50 --model-repository models --goal-ms 50 --output config.pbtxt
  modserve tune encoder --model-repository models --goal-ms 20 --budget-secs 600 --html tuned.html"""


def tune_parser() -> Parser:
    made = parser("tune", _DESCRIPTION, _EXAMPLES, _CODES)
    made.add_argument("model", metavar="MODEL", help="Its name.")
    option(
        made,
        "--model-repository DIR",
        "Local directory that contains the model. [default: a repository of the server on this machine that "
        f"{URL_VARIABLE} names, else the current folder, models or model_repository in it]",
    )
    add_goal(made, required=True)
    option(
        made,
        "--budget-secs N",
        "Approximate time limit; a quarter is reserved for the comparison at the end. [default: 300]",
        type=positive,
        default=300.0,
    )
    option(
        made,
        "--max-batch-size N",
        "Largest batch size to try. [default: the current one]",
        type=reading(count),
        default=0,
    )
    made.add_argument(
        "--try-auto", action="store_true", help="Also try backend auto, whose engine may round differently."
    )
    option(made, "--server-options TEXT", "Options for the servers, such as '--backend-config=…'.")
    option(made, "--load-secs N", "Time limit for loading the model. [default: 120]", type=positive, default=120.0)
    results = made.add_argument_group("results")
    option(results, "--output FILE", "Write the recommended config.pbtxt to a new file.")
    option(results, "--html FILE", "Write a page with a plot of rates and latencies.")
    add_data(made)
    add_rules(made)
    return made


PARSER = tune_parser()


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    repository = model_repository(options.model, options.model_repository)
    if options.output and Path(options.output).exists():
        raise UsageError(f"option '--output': '{options.output}' already exists; remove it, or name another file")
    model = repository / options.model
    print(f"model '{options.model}' of {repository}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="modserve-tune-") as directory:
        copies = ModelCopy(Path(directory) / "first", model), ModelCopy(Path(directory) / "second", model)
        setup, dimensions = _look(options, model, copies[0])
        print(f"trying {', '.join(dimensions)}; current: {describe(setup.present)}", file=sys.stderr)
        outcome = _search(options, setup, dimensions, copies)
    print("\n".join(table(outcome, setup)))
    print("\n".join(finals(outcome, setup)))
    try:
        _write(options, setup, outcome)
    except OSError as error:
        print_error(f"cannot write '{error.filename}': {error.strerror}", "--output and --html name files to write")
        return FAILED
    if outcome.interrupted:
        return INTERRUPTED
    return 0 if outcome.best.rate else FAILED


def _look(options: Namespace, model: Path, copy: ModelCopy) -> tuple[TuneSetup, dict[str, Sequence[Value]]]:
    """Return the present setup and the dimensions of the search. Raises INVALID_ARG if the model does not load."""
    file = model / CONFIG_FILE
    config = pb.ModelConfig()
    try:
        if file.exists():
            text_format.Parse(file.read_text("utf-8"), config)
    except (text_format.ParseError, UnicodeDecodeError, OSError) as error:
        raise invalid(f"cannot read '{file}': {error}; 'modserve check {model.parent}' says more") from None
    server_options = shlex.split(options.server_options)
    with serving(copy, server_options, options.load_secs) as place:
        server = connect(place)
        try:
            complete = server.config(options.model)
        finally:
            server.close()
    if not file.exists():
        config = _essence(complete)
    if why := why_not(complete):
        raise invalid(f"model '{options.model}' cannot be tuned: {why}")
    limits = SearchLimits(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        options.goal_ms,
        options.batch_size,
        options.max_batch_size,
        options.try_auto,
    )
    dimensions, present = space(config, complete.backend, limits)
    goal = LatencyGoal(options.goal_ms, options.percentile)
    return TuneSetup(
        options.model,
        config,
        complete.backend,
        present,
        goal,
        rules(options),
        data_options(options),
        options.load_secs,
        server_options,
    ), dimensions


def _essence(complete: pb.ModelConfig) -> pb.ModelConfig:
    """Return the fields worth writing of a configuration that the server generated."""
    config = pb.ModelConfig(name=complete.name, backend=complete.backend, max_batch_size=complete.max_batch_size)
    config.default_model_filename = complete.default_model_filename
    config.input.extend(complete.input)
    config.output.extend(complete.output)
    if complete.HasField("dynamic_batching"):
        config.dynamic_batching.CopyFrom(complete.dynamic_batching)
    return config


def _search(
    options: Namespace, setup: TuneSetup, dimensions: dict[str, Sequence[Value]], copies: tuple[ModelCopy, ModelCopy]
) -> TuneResult:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        trials = TrialRunner(setup, copies, runner)

        def on_trial(trial: Trial) -> None:
            print(trial_line(trial, setup), file=sys.stderr, flush=True)
            if trial.failure and trial.point == setup.present:
                raise invalid(f"model '{setup.model}': {trial.failure}")

        def search_from(rate: float) -> CoordinateSearch:
            return CoordinateSearch(dimensions, setup.present, rate)

        hooks = Hooks(trials.attempt, trials.compare, on_trial, trials.interrupted)
        return tune(search_from, setup.present, options.budget_secs, hooks)


def _write(options: Namespace, setup: TuneSetup, outcome: TuneResult) -> None:
    point: Point = outcome.best.point
    if options.output:
        Path(options.output).write_text(recommend(setup, outcome), "utf-8")
        print(f"\nwrote {options.output}")
    elif point != setup.present:
        print(f"\n{recommend(setup, outcome)}", end="")
    if options.html:
        from .show import page

        Path(options.html).write_text(page(outcome, setup), "utf-8")


def recommend(setup: TuneSetup, outcome: TuneResult) -> str:
    """Return the config.pbtxt, with its reasons above it."""
    config = apply(setup.config, outcome.best.point, setup.present, setup.backend)
    return text(config, remarks(outcome, setup))
