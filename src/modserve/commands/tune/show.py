"""What a tuning has found, for people: a line for each point, the table, and what comes of it."""

from collections.abc import Iterator, Sequence

from .. import terminal
from ..bench.measures import Measurement, rounded
from ..bench.show import milliseconds
from .space import changes, shown
from .tuning import Trial, TuneResult, TuneSetup


def difference(tried: Trial, setup: TuneSetup) -> str:
    """A point by what differs from the present one."""
    names = [name for name, value in tried.point.items() if value != setup.present[name]]
    return shown(tried.point, names) if names else "current"


def tried_line(tried: Trial, setup: TuneSetup) -> str:
    return f"{difference(tried, setup)}: {verdict(tried, setup)}"


def verdict(tried: Trial, setup: TuneSetup) -> str:
    level = setup.goal.percentile
    if tried.failure:
        return tried.failure
    if tried.rate and tried.best is not None:
        return f"{rounded(tried.rate)}/s at p{level:g} {milliseconds(tried.best.percentiles[level])} ms"
    if tried.results:
        last, _ = tried.results[-1]
        return f"misses the goal at {rounded(last.load.value)}/s: {_why(last, level)}"
    return "not measured"


def _why(result: Measurement, level: float) -> str:
    if result.failed:
        return f"{result.failed:,} errors"
    if not result.keeps_up:
        return f"{rounded(result.rate)}/s completed"
    return f"p{level:g} {milliseconds(result.percentiles[level])} ms"


def table(outcome: TuneResult, setup: TuneSetup) -> Iterator[str]:
    yield f"{len(outcome.tried)} configurations of '{setup.model}', in the order in which they were tried:"
    yield from terminal.table(*rows(outcome, setup))


def rows(outcome: TuneResult, setup: TuneSetup) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    names = ["configuration", "", "result"]
    tags = {id(outcome.tried[0]): "current"}
    tags |= {id(each): "better" for each in outcome.tried[1:] if each.better}
    tags[id(outcome.best)] = "best" if outcome.best is not outcome.tried[0] else "current, best"
    return names, [[difference(each, setup), tags.get(id(each), ""), verdict(each, setup)] for each in outcome.tried]


def finals(outcome: TuneResult, setup: TuneSetup) -> Iterator[str]:
    """The measurement at the end, and what is to be done."""
    yield ""
    goal = f"p{setup.goal.percentile:g} of at most {setup.goal.ms:g} ms"
    if outcome.out_of_time:
        yield "The time limit was reached before all configurations were tried; '--budget-secs' raises it."
    if not outcome.best.rate:
        yield f"No configuration meets {goal} at any rate."
        return
    if outcome.best is outcome.tried[0]:
        yield f"No configuration is better than the current one: {rounded(outcome.best.rate)}/s within {goal}."
        return
    if outcome.finals is not None:
        present, best = outcome.finals
        yield f"Final comparison, highest rates within {goal}:"
        yield from terminal.table(
            ["configuration", "rate", "result"],
            [
                ["current", f"{rounded(present.rate)}/s", verdict(present, setup)],
                ["recommended", f"{rounded(best.rate)}/s", verdict(best, setup)],
            ],
        )
        yield ""
        yield gain_line(outcome)
    else:
        yield "The recommended configuration was not compared with the current one."
    yield from (f"  {each}" for each in changes(outcome.best.point, setup.present))


def gain_line(outcome: TuneResult) -> str:
    gain = outcome.gain
    if gain is None:
        return "Recommended, since the current configuration meets the goal at no rate:"
    if gain <= 1:
        return f"It is no better in the final comparison ({gain:.2f} times the rate): noise. The changes were:"
    return f"Recommended, with {gain:.2f} times the rate:"


def remarks(outcome: TuneResult, setup: TuneSetup) -> list[str]:
    """What stands above the configuration that is written."""
    goal = f"p{setup.goal.percentile:g} <= {setup.goal.ms:g} ms"
    lines = [f"The configuration of model '{setup.model}' that 'modserve tune' recommends for {goal}."]
    if outcome.finals is not None and outcome.gain is not None:
        rates = [f"{rounded(each.rate)}/s" for each in outcome.finals]
        lines.append(f"Measured side by side: {rates[0]} before, {rates[1]} after, {outcome.gain:.2f} times the rate.")
    return [*lines, *(f"- {each}" for each in changes(outcome.best.point, setup.present))]
