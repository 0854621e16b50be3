"""Terminal output: a progress bar or lines, then tables."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from .. import terminal
from .measures import STREAM_PERCENTILES, WINDOWS, LoadLevel, Measurement, MeasurementWindow, round_rate
from .profiler import LatencyGoal, MeasurementRules

_SHOWN_ERRORS = 10


class Progress:
    """The progress of a benchmark: a bar of `rich` if there is one, otherwise lines."""

    def __init__(self, stream: TextIO, bar: Any = None) -> None:
        self._stream, self._bar = stream, bar
        self._task = None if bar is None else bar.add_task("first request", total=None, now="")
        self._index = 0

    def begin(self, load: LoadLevel, index: int, loads: int) -> None:
        """Show that a load begins, one of `loads`; 0: their number is unknown."""
        self._index = index
        total = loads * WINDOWS if loads else None
        self._update(description=str(load), completed=index * WINDOWS, total=total, now="warm-up")

    def window(self, load: LoadLevel, windows: Sequence[MeasurementWindow], rules: MeasurementRules) -> None:
        """Show a complete window."""
        line = window_line(windows, rules)
        self._update(completed=self._index * WINDOWS + min(len(windows), WINDOWS), now=line)
        if self._bar is None:
            print(f"{load}: {line}", file=self._stream, flush=True)

    def show_trial(self, result: Measurement, met: bool, goal: LatencyGoal) -> None:
        """Show a measured rate of a search."""
        line = format_trial(result, met, goal)
        if self._bar is None:
            print(line, file=self._stream, flush=True)
        else:
            self._bar.console.print(line, highlight=False)

    def _update(self, **fields: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, **fields)
            self._bar.refresh()


@contextmanager
def progress(stream: TextIO) -> Iterator[Progress]:
    """Show progress: a bar on a terminal if `rich` is installed, otherwise lines."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        try:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar
        except ImportError:
            pass
        else:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
            # Drawn between windows: a drawing thread would take CPU time from the load generator.
            bar = Bar(*columns, TimeElapsedColumn(), console=Console(file=stream), auto_refresh=False, transient=True)
            with bar:
                yield Progress(stream, bar)
            return
    yield Progress(stream)


def window_line(windows: Sequence[MeasurementWindow], rules: MeasurementRules) -> str:
    last = windows[-1]
    latency = milliseconds(last.percentile_ms(rules.percentile))
    line = f"window {len(windows)}: {last.rate:,.0f}/s, p{rules.percentile:g} {latency} ms"
    failed = sum(last.errors.values())
    return f"{line}, {failed:,} errors" if failed else line


def format_trial(result: Measurement, met: bool, goal: LatencyGoal) -> str:
    shown = f"p{goal.percentile:g} {milliseconds(result.percentiles[goal.percentile])} ms"
    why = ""
    if not met and result.failed:
        why = " (errors)"
    elif not met and not result.keeps_up:
        why = f" ({result.rate:,.0f}/s completed)"
    return f"rate {round_rate(result.load.value)}/s: {shown}, goal {goal.ms:g} ms: {'met' if met else 'missed'}{why}"


# The table


Rows = tuple[Sequence[str], Sequence[Sequence[str]]]


def table(
    results: Sequence[Measurement], rules: MeasurementRules, met: Sequence[bool] = (), goal: LatencyGoal | None = None
) -> Iterator[str]:
    """Yield client-side and server-side times, and remarks."""
    if not results:
        yield "Nothing was measured."
        return
    start = "when it was due" if results[0].load.is_rate else "sending"
    yield f"Client-side latency in ms, from {start} to the last byte:"
    yield from columns(*client_rows(results, rules, met))
    yield ""
    if any(each.texts is not None for each in results):
        yield TEXT_TITLE
        yield from columns(*text_rows(results))
        yield ""
    elif any(each.responses is not None for each in results):
        yield "Responses: ms to the first one of a request, and between two:"
        yield from columns(*response_rows(results))
        yield ""
    if any(each.servers for each in results):
        yield "Each server, client-side latency in ms:"
        yield from terminal.table(*share_rows(results), "  rrrrr")
        yield ""
    names, rows = server_rows(results)
    if rows:
        yield "Server-side times, mean ms per request:"
        yield from columns(names, rows)
    else:
        yield "The server has no statistics for this model."
    lines = list(remarks(results, rules, goal))
    yield from ["", *lines] if lines else []


def client_rows(results: Sequence[Measurement], rules: MeasurementRules, met: Sequence[bool]) -> Rows:
    levels = sorted(results[0].percentiles) if results else []
    has_sequences = any(each.sequences for each in results)
    names = ["load", "requests/s", *(["inferences/s"] if rules.rows > 1 else [])]
    names += [*(["sequences/s"] if has_sequences else []), "mean"]
    names += [*(f"p{level:g}" for level in levels), "errors", *(["goal"] if met else [])]
    rows = []
    for index, each in enumerate(results):
        row = [str(each.load), f"{each.rate:,.1f}", *([f"{each.inferences:,.1f}"] if rules.rows > 1 else [])]
        row += [f"{each.sequences:,.1f}"] if has_sequences else []
        row += [milliseconds(each.mean), *(milliseconds(each.percentiles[level]) for level in levels)]
        row += [f"{each.failed:,}", *(["met" if met[index] else "missed"] if index < len(met) else [])]
        rows.append(row)
    return names, rows


def response_rows(results: Sequence[Measurement]) -> Rows:
    """Return the response rows of a decoupled model; no rows for other models."""
    names = ["load", "responses/s", "per request"]
    names += [f"{what} p{level:g}" for what in ("first", "between") for level in STREAM_PERCENTILES]
    rows = []
    for each in results:
        if (responses := each.responses) is not None:
            times = [*responses.first.values(), *responses.between.values()]
            row = [str(each.load), f"{responses.rate:,.1f}", f"{responses.each:.2f}"]
            rows.append(row + [milliseconds(time) for time in times])
    return names, rows


TEXT_TITLE = "Tokens, per second and per request; ms to the first one (TTFT), and between two pieces of a stream (ITL):"


def text_rows(results: Sequence[Measurement]) -> Rows:
    """Return the rows of an OpenAI benchmark, without columns that have no figures. No rows for tensors."""
    texts = [(each.load, each.texts) for each in results if each.texts is not None]
    names = ["load"]
    rows = [[str(load)] for load, _ in texts]

    def column(name: str, values: Sequence[float | None], form: Callable[[float], str] = "{:,.1f}".format) -> None:
        if any(value is not None for value in values):
            names.append(name)
            for row, value in zip(rows, values, strict=True):
                row.append("-" if value is None else form(value))

    for direction in ("output", "input"):
        if any(getattr(each, f"{direction}_tokens") for _, each in texts):
            column(f"{direction}/s", [getattr(each, f"{direction}_rate") for _, each in texts])
            column(direction, [getattr(each, f"{direction}_tokens") for _, each in texts])
    for metric in ("ttft", "itl"):
        for part in ("mean", "p50", "p99"):
            column(f"{metric} {part}", [each.times.get(metric, {}).get(part) for _, each in texts], milliseconds)
    column("goodput/s", [each.goodput for _, each in texts])
    return names, rows


def share_rows(results: Sequence[Measurement]) -> Rows:
    """Return a row for each server among several."""
    rows = [
        [
            str(each.load),
            server.url,
            f"{server.rate:,.1f}",
            milliseconds(server.mean),
            *(milliseconds(server.percentiles[level]) for level in STREAM_PERCENTILES),
            f"{server.failed:,}",
        ]
        for each in results
        for server in each.servers
    ]
    return ["load", "server", "requests/s", "mean", *(f"p{level:g}" for level in STREAM_PERCENTILES), "errors"], rows


def server_rows(results: Sequence[Measurement]) -> Rows:
    parts = ("total", "queue", "input", "infer", "output")
    rows = []
    for each in results:
        server = each.server
        if server is None or not server.requests:
            continue
        batch = server.inferences / server.executions if server.executions else 0.0
        around = max(0.0, each.mean - server.mean_ms("total"))
        times = [milliseconds(value) for value in (*(server.mean_ms(part) for part in parts), around)]
        rows.append([str(each.load), f"{server.requests:,}", f"{batch:.2f}", *times])
    return ["load", "requests", "rows/batch", *parts, "overhead"], rows


def remarks(results: Sequence[Measurement], rules: MeasurementRules, goal: LatencyGoal | None) -> Iterator[str]:
    """Yield remarks on the loads, and errors by their texts."""
    texts: dict[str, int] = {}
    for each in results:
        for text, number in each.errors.items():
            texts[text] = texts.get(text, 0) + number
        if not each.stable and goal is None:
            yield (
                f"{each.load}: not stable: {each.windows} windows did not agree within {rules.stability:g} %; "
                "use a longer '--window-secs'"
            )
        if each.load.is_rate and not each.keeps_up:
            yield f"{each.load}: only {each.rate:,.0f} responses/s: the server cannot keep up, so latency keeps growing"
        if each.load.is_rate and each.lag > max(1.0, 0.1 * each.percentiles[rules.percentile]):
            yield f"{each.load}: the load generator sent {milliseconds(each.lag)} ms late (p99): it needs more CPU time"
        if each.texts is not None and not each.texts.counted and each.texts.output_tokens:
            yield f"{each.load}: the server does not count tokens: each piece of a stream counts as one"
        if idle := sum(not (server.requests or server.failed) for server in each.servers):
            yield f"{each.load}: {terminal.plural(idle, 'server')} got no request: the load has fewer connections"
        if each.unanswered:
            yield f"{each.load}: {each.unanswered} requests had no response at the end"
    if texts:
        yield ""
        yield "errors:"
        shown = sorted(texts.items(), key=lambda item: -item[1])
        yield from (f"{number:10,}  {text}" for text, number in shown[:_SHOWN_ERRORS])
        if len(shown) > _SHOWN_ERRORS:
            yield f"            and {len(shown) - _SHOWN_ERRORS} other errors"


def verdict(results: Sequence[Measurement], met: Sequence[bool], goal: LatencyGoal, best: Measurement | None) -> str:
    """Return the result of a search, in a sentence."""
    text = f"p{goal.percentile:g} of at most {goal.ms:g} ms"
    if best is None:
        lowest = min((each.load.value for each in results), default=0.0)
        return f"\nNo rate meets {text}" + (f", not even {round_rate(lowest)} requests/s." if lowest else ".")
    shown = f"p{goal.percentile:g} is {milliseconds(best.percentiles[goal.percentile])} ms there"
    missed = [each.load.value for each, fine in zip(results, met, strict=False) if not fine]
    above = min((rate for rate in missed if rate > best.load.value), default=0.0)
    end = f"; {round_rate(above)} does not" if above else ""
    return f"\nThe highest rate that meets {text}: {round_rate(best.load.value)} requests/s ({shown}){end}."


def columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table; all columns but the first are numbers."""
    return terminal.table(names, rows, " " + "r" * (len(names) - 1))


def milliseconds(value: float) -> str:
    """Format milliseconds with three digits or more."""
    digits = next(digits for limit, digits in ((1000, 0), (100, 1), (1, 2), (-math.inf, 3)) if value >= limit)
    return f"{value:,.{digits}f}"
