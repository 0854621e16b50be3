"""``modserve bench MODEL``: measures, prints and writes reports."""

import csv
import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modserve.core.errors import invalid

from ..syntax import FAILED, INTERRUPTED, print_error
from .benchmark import BenchReport, run_benchmark
from .plan import bench_parser, read
from .show import table, verdict

PARSER = bench_parser()


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    plan = read(options)
    try:
        report = run_benchmark(plan)
    except OSError as error:
        raise invalid(f"cannot connect to {plan.url}: {error.strerror or error}") from error
    if plan.json != "-":
        print("\n".join(table(report.results, plan.rules, report.met, plan.goal)))
        if plan.goal is not None:
            print(verdict(report.results, report.met, plan.goal, report.best))
    try:
        _write(report)
    except OSError as error:
        print_error(
            f"cannot write '{error.filename}': {error.strerror}", "--json, --csv and --html name files to write"
        )
        return FAILED
    if report.interrupted:
        return INTERRUPTED
    failed = any(result.failed for result in report.results) if plan.goal is None else report.best is None
    return FAILED if failed else 0


def _write(report: BenchReport) -> None:
    plan = report.plan
    if plan.json:
        text = json.dumps(report.as_json(), indent=2, ensure_ascii=False)
        if plan.json == "-":
            print(text)
        else:
            Path(plan.json).write_text(text + "\n", "utf-8")
    if plan.csv:
        rows = [dict(_flat(row)) for row in report.as_json()["results"]]
        with open(plan.csv, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)
    if plan.html:
        from .page import page

        Path(plan.html).write_text(page(report), "utf-8")


def _flat(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the figures of a load by name, such as ``latency_ms.p99``; of the errors, their number."""
    for name, value in row.items():
        if name == "errors":
            yield name, sum(value.values())
        elif name == "servers":  # a row of their own each, which only JSON has
            continue
        elif isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value
