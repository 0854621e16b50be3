"""The report of a tuning as a page: rates against latencies of all points, and the table."""

import time
from html import escape

from modserve.__about__ import __version__

from ..plots import Plot, Points, document, draw, html_table
from .show import finals, rows
from .tuning import Trial, TuneResult, TuneSetup


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
