"""Terminal output of a tuning: a line per trial, the table, and the recommendation.

The report of a tuning as a page: rates against latencies of all points, and the table.
"""

import time
from collections.abc import Iterator, Sequence
from html import escape

from modserve.__about__ import __version__
from modserve.commands import terminal
from modserve.commands.bench.measures import Measurement, round_rate
from modserve.commands.bench.show import milliseconds
from modserve.commands.plots import Plot, Points, document, draw, html_table

from .space import changes, describe
from .tuning import Trial, TuneResult, TuneSetup


def difference(trial: Trial, setup: TuneSetup) -> str:
    """Describe a point by its differences from the present one."""
    names = [name for name, value in trial.point.items() if value != setup.present[name]]
    return describe(trial.point, names) if names else "current"


def trial_line(trial: Trial, setup: TuneSetup) -> str:
    return f"{difference(trial, setup)}: {verdict(trial, setup)}"


def verdict(trial: Trial, setup: TuneSetup) -> str:
    level = setup.goal.percentile
    if trial.failure:
        return trial.failure
    if trial.rate and trial.best is not None:
        rate = f"{'at least ' * trial.unfinished}{round_rate(trial.rate)}/s"
        return f"{rate} at p{level:g} {milliseconds(trial.best.percentiles[level])} ms"
    if trial.results:
        last, _ = trial.results[-1]
        return f"misses the goal at {round_rate(last.load.value)}/s: {_why(last, level)}"
    return "not measured"


def _why(result: Measurement, level: float) -> str:
    if result.failed:
        return f"{result.failed:,} errors"
    if not result.keeps_up:
        return f"{round_rate(result.rate)}/s completed"
    return f"p{level:g} {milliseconds(result.percentiles[level])} ms"


def table(outcome: TuneResult, setup: TuneSetup) -> Iterator[str]:
    yield f"{len(outcome.trials)} configurations of '{setup.model}', in the order in which they were tried:"
    yield from terminal.table(*rows(outcome, setup))


def rows(outcome: TuneResult, setup: TuneSetup) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    names = ["configuration", "", "result"]
    tags = {id(outcome.trials[0]): "current"}
    tags |= {id(each): "better" for each in outcome.trials[1:] if each.better}
    tags[id(outcome.best)] = "best" if outcome.best is not outcome.trials[0] else "current, best"
    return names, [[difference(each, setup), tags.get(id(each), ""), verdict(each, setup)] for each in outcome.trials]


def finals(outcome: TuneResult, setup: TuneSetup) -> Iterator[str]:
    """Yield the final measurement and the next steps."""
    yield ""
    goal = f"p{setup.goal.percentile:g} of at most {setup.goal.ms:g} ms"
    at_present = outcome.best is outcome.trials[0]
    if at_present and (why := _why_not_compared(outcome)):
        rate = f"{round_rate(outcome.best.rate)}/s" if outcome.best.rate else "no rate"
        yield f"{why} So far, the current one reaches {rate} within {goal}."
        return
    if outcome.out_of_time:
        yield "The time limit was reached before all configurations were tried; '--budget-secs' raises it."
    if not outcome.best.rate:
        yield f"No configuration meets {goal} at any rate."
        return
    if at_present:
        yield f"No configuration is better than the current one: {round_rate(outcome.best.rate)}/s within {goal}."
        return
    if outcome.finals is not None:
        present, best = outcome.finals
        yield f"Final comparison, highest rates within {goal}:"
        yield from terminal.table(
            ["configuration", "rate", "result"],
            [
                ["current", f"{round_rate(present.rate)}/s", verdict(present, setup)],
                ["recommended", f"{round_rate(best.rate)}/s", verdict(best, setup)],
            ],
        )
        yield ""
        yield gain_line(outcome)
    else:
        yield "The recommended configuration was not compared with the current one."
    yield from (f"  {each}" for each in changes(outcome.best.point, setup.present))


def _why_not_compared(outcome: TuneResult) -> str:
    """Return why a better configuration may have been missed; empty if all were measured to the end."""
    if outcome.interrupted:
        return "Interrupted before all configurations were compared."
    if outcome.out_of_time or any(each.unfinished for each in outcome.trials):
        return "Not enough time to compare the configurations: raise '--budget-secs'."
    return ""


def gain_line(outcome: TuneResult) -> str:
    gain = outcome.gain
    if gain is None:
        return "Recommended, since the current configuration meets the goal at no rate:"
    if gain <= 1:
        return f"It is no better in the final comparison ({gain:.2f} times the rate): noise. The changes were:"
    return f"Recommended, with {gain:.2f} times the rate:"


def remarks(outcome: TuneResult, setup: TuneSetup) -> list[str]:
    """Return the comment lines above the written configuration."""
    goal = f"p{setup.goal.percentile:g} <= {setup.goal.ms:g} ms"
    lines = [f"The configuration of model '{setup.model}' that 'modserve tune' recommends for {goal}."]
    if outcome.finals is not None and outcome.gain is not None:
        rates = [f"{round_rate(each.rate)}/s" for each in outcome.finals]
        lines.append(f"Measured side by side: {rates[0]} before, {rates[1]} after, {outcome.gain:.2f} times the rate.")
    return [*lines, *(f"- {each}" for each in changes(outcome.best.point, setup.present))]


def page(outcome: TuneResult, setup: TuneSetup) -> str:
    goal = setup.goal
    text = "\n".join(finals(outcome, setup)).strip()
    parts = [
        f"<p>Goal: p{goal.percentile:g} of at most {goal.ms:g} ms, in an open loop: latency counts from when a request "
        "was to be sent.</p>",
        f"<pre>{escape(text)}</pre>",
        '<div class="plots">',
        *map(draw, _plots(outcome, setup)),
        "</div>",
        "<h2>Configurations tried</h2>",
        html_table(*rows(outcome, setup)),
    ]
    end = f"modserve {__version__}, {time.strftime('%Y-%m-%d %H:%M')}"
    return document(f"Tuning of {setup.model}", parts, end)


def _plots(outcome: TuneResult, setup: TuneSetup) -> list[Plot]:
    level, goal = setup.goal.percentile, setup.goal.ms
    first, best = outcome.trials[0], outcome.best
    others = [each for each in outcome.trials if each is not first and each is not best]
    label = f"p{level:g}, ms, over the rate"
    series: dict[str, Points] = {"current": _points([first], level)}
    if best is not first:
        series["best"] = _points([best], level)
    series["others"] = _points(others, level)
    plots = [Plot(label, "requests a second", series, goal, log_y=True, dots_only=True)]
    if outcome.finals is not None:
        names = ("current", "recommended")
        ends = {name: _points([trial], level) for name, trial in zip(names, outcome.finals, strict=True)}
        plots.append(Plot(f"{label}, side by side", "requests a second", ends, goal, log_y=True, dots_only=True))
    rates = [(float(number), each.rate) for number, each in enumerate(outcome.trials, 1)]
    plots.append(Plot("highest rate within the goal", "trial", {"requests/s": rates}, dots_only=True))
    return plots


def _points(several: list[Trial], level: float) -> Points:
    return sorted(
        (result.load.value, result.percentiles[level])
        for trial in several
        for result, _ in trial.results
        if result.requests
    )
