"""The report of a measurement as a page: plots of rates and latencies over the load, and the tables."""

import time
from collections.abc import Sequence
from html import escape

from modserve.__about__ import __version__

from ..plots import Plot, Points, document, draw, html_table
from .benchmark import BenchReport
from .measures import STREAM_PERCENTILES, Measurement
from .percentiles import PERCENTILES
from .show import TEXT_TITLE, client_rows, remarks, response_rows, server_rows, text_rows, verdict

_PARTS = {
    "overhead": None,
    "queue": "queue",
    "input": "input",
    "infer": "infer",
    "output": "output",
}


def page(report: BenchReport) -> str:
    plan, results = report.plan, report.results
    parts = [f"<p>{escape(line)}</p>" for line in _head(report)]
    if plan.goal is not None:
        parts.append(f'<p class="verdict">{escape(verdict(results, report.met, plan.goal, report.best).strip())}</p>')
    parts += ['<div class="plots">', *map(draw, _plots(report)), "</div>"]
    parts += ["<h2>Client-side latency in ms</h2>", html_table(*client_rows(results, plan.rules, report.met))]
    names, rows = text_rows(results)
    if rows:
        parts += [f"<h2>{TEXT_TITLE.rstrip(':')}</h2>", html_table(names, rows)]
    names, rows = response_rows(results)
    if rows:
        parts += ["<h2>Responses: ms to the first one of a request, and between two</h2>", html_table(names, rows)]
    names, rows = server_rows(results)
    if rows:
        parts += ["<h2>Server-side times, mean ms per request</h2>", html_table(names, rows)]
    if lines := list(remarks(results, plan.rules, plan.goal)):
        text = "\n".join(lines).strip()
        parts.append(f"<h2>Remarks</h2><pre>{escape(text)}</pre>")
    end = f"modserve {__version__}, {time.strftime('%Y-%m-%d %H:%M')}"
    return document(f"{report.model.name} at {plan.url}", parts, end)


def _head(report: BenchReport) -> list[str]:
    plan = report.plan
    is_open = bool(plan.rates or plan.bounds)
    kind = "Open loop: requests at a fixed rate; latency counts from when each was due."
    if not is_open:
        kind = "Closed loop: a fixed number of requests at a time; each is sent when the previous one has its response."
    ended = " It was stopped before all loads were measured." if report.interrupted else ""
    return [f"{kind}{ended}", f"Inputs: {', '.join(report.inputs)}."]


def _plots(report: BenchReport) -> list[Plot]:
    results = sorted(report.results, key=lambda result: result.load.value)
    is_rate = bool(results) and results[0].load.is_rate
    label = "requests/s due" if is_rate else "concurrency"
    goal = report.plan.goal
    latencies = {
        f"p{level:g}": _line(results, [result.percentiles[level] for result in results]) for level in PERCENTILES
    }
    plots = [
        Plot("requests/s", label, {"responses": _line(results, [result.rate for result in results])}),
        Plot("latency, ms", label, latencies, None if goal is None else goal.ms, log_y=True),
    ]
    if not is_rate:
        curves = {
            f"p{level:g}": [(result.rate, result.percentiles[level]) for result in results] for level in (50.0, 99.0)
        }
        plots.append(Plot("latency, ms, over throughput", "requests/s", curves, log_y=True))
    if streams := [(result, result.responses) for result in results if result.responses is not None]:
        times = {}
        for name in ("first", "between"):
            for level in STREAM_PERCENTILES:
                values = [(result.load.value, getattr(responses, name)[level]) for result, responses in streams]
                times[f"{name} p{level:g}"] = values
        plots.append(Plot("responses: ms to the first, and between two", label, times, log_y=True))
    counted = [result for result in results if result.server is not None and result.server.requests]
    if counted:
        plots.append(Plot("where the time goes, mean ms", label, _shares(counted)))
    return plots


def _shares(results: Sequence[Measurement]) -> dict[str, Points]:
    shares: dict[str, Points] = {}
    for name, part in _PARTS.items():
        values = []
        for result in results:
            assert result.server is not None
            time_ms = result.server.mean_ms(part) if part else max(0.0, result.mean - result.server.mean_ms("total"))
            values.append(time_ms)
        shares[name] = _line(results, values)
    return shares


def _line(results: Sequence[Measurement], values: Sequence[float]) -> Points:
    return [(result.load.value, value) for result, value in zip(results, values, strict=True)]
