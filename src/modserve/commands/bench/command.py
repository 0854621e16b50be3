"""``modserve bench MODEL``: measures, prints and writes reports."""

import json
from argparse import Namespace
from pathlib import Path

from modserve.core.errors import invalid

from ..syntax import FAILED, INTERRUPTED, print_error
from .benchmark import BenchReport, run_benchmark
from .plan import bench_parser, read
from .show import table, verdict

PARSER = bench_parser()


def work(options: Namespace) -> int:
    """Runs the command; returns the exit code."""
    plan = read(options)
    try:
        report = run_benchmark(plan)
    except OSError as error:
        raise invalid(f"cannot connect to {plan.server.address}: {error.strerror or error}") from error
    if plan.json != "-":
        print("\n".join(table(report.results, plan.rules, report.met, plan.goal)))
        if plan.goal is not None:
            print(verdict(report.results, report.met, plan.goal, report.best))
    try:
        _write(report)
    except OSError as error:
        print_error(f"cannot write '{error.filename}': {error.strerror}", "--json and --html name files to write")
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
    if plan.html:
        from .page import page

        Path(plan.html).write_text(page(report), "utf-8")
