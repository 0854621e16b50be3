"""Runs the loads of a plan against its server, one after the other, or searches for the highest rate."""

import asyncio
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .loops import LoadGenerator
from .measures import LoadLevel, Measurement, MeasurementWindow, to_json
from .plan import LoadPlan
from .run import LatencyGoal, Surroundings, highest_rate, measure
from .search import RateSearch
from .session import BenchSession, Interrupt, loop_factory, session, without_collections
from .show import Progress, progress
from .target import TargetModel


@dataclass(slots=True)
class BenchReport:
    """What came of it."""

    plan: LoadPlan
    model: TargetModel
    inputs: Sequence[str]
    """Each input in words."""
    results: list[Measurement] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    """Whether each keeps the goal, if there is one."""
    best: Measurement | None = None
    interrupted: bool = False

    def as_json(self) -> dict[str, Any]:
        goal = self.plan.goal
        rows = [to_json(result) for result in self.results]
        for row, kept in zip(rows, self.kept, strict=False):
            row["keeps_goal"] = kept
        return {
            "model": self.model.name,
            "url": str(self.plan.server.address),
            "batch_size": self.plan.data.batch_size,
            "inputs": list(self.inputs),
            "decoupled": self.model.decoupled,
            "sequences": self.model.sequences is not None,
            "interrupted": self.interrupted,
            "goal": None
            if goal is None
            else {
                "ms": goal.ms,
                "percentile": goal.percentile,
                "highest_rate": None if self.best is None else self.best.load.value,
            },
            "results": rows,
        }


def conduct(plan: LoadPlan) -> BenchReport:
    """Measure. Raises OSError, UnreachableError, and INVALID_ARG."""
    with session(
        plan.server,
        plan.model,
        plan.version,
        plan.data,
        plan.format,
        streaming=plan.streaming,
        lengths=plan.lengths,
    ) as opened:
        for remark in opened.remarks:
            print(f"modserve: {remark}", file=sys.stderr)
        report = BenchReport(plan, opened.model, opened.inputs)
        with progress(sys.stderr) as shown, asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_measure_all(report, opened, shown))
        return report


async def _measure_all(report: BenchReport, opened: BenchSession, shown: Progress) -> None:
    plan = report.plan
    interruption = Interrupt()
    await opened.first_response()

    def on_window(load: LoadLevel, windows: Sequence[MeasurementWindow]) -> None:
        gc.collect()
        shown.window(load, windows, plan.rules)

    around = Surroundings(opened.times, on_window, interruption.sleep)
    with without_collections():
        if plan.goal is not None:
            await _search(report, plan.goal, opened, around, interruption, shown)
        else:
            loads = [LoadLevel(False, each) for each in plan.concurrencies] or [
                LoadLevel(True, each) for each in plan.rates
            ]
            for index, load in enumerate(loads):
                shown.begin(load, index, len(loads))
                result = await measure(opened.generator(load, plan.connections, plan.poisson), plan.rules, around)
                if result.windows:
                    report.results.append(result)
                if interruption.happened:
                    break
    report.interrupted = interruption.happened


async def _search(
    report: BenchReport,
    goal: LatencyGoal,
    opened: BenchSession,
    around: Surroundings,
    interruption: Interrupt,
    shown: Progress,
) -> None:
    """From the rate that one client at a time gets."""
    plan = report.plan

    def generator_of(load: LoadLevel) -> LoadGenerator:
        shown.begin(load, len(report.results), 0)
        return opened.generator(load, plan.connections, plan.poisson)

    single = await measure(generator_of(LoadLevel(False, 1)), plan.rules, around, lambda windows: True)
    if interruption.happened:
        return
    search = RateSearch(max(single.rate, 1.0), *plan.bounds)
    async for result, kept in highest_rate(
        search, goal, plan.rules, around, lambda rate: generator_of(LoadLevel(True, rate))
    ):
        if interruption.happened:
            break
        report.results.append(result)
        report.kept.append(kept)
        shown.tried(result, kept, goal)
        report.best = result if kept else None
    if interruption.happened:
        kept_ones = [result for result, kept in zip(report.results, report.kept, strict=True) if kept]
        report.best = max(kept_ones, key=lambda result: result.load.value, default=None)
