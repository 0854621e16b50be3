"""Runs the loads of a plan against its server, one after the other, or searches for the highest rate."""

import asyncio
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .loops import Driver
from .measures import Load, Result, Window, to_json
from .plan import Plan
from .run import Goal, Surroundings, highest_rate, measure
from .search import RateSearch
from .session import Interruption, Session, loop_factory, session, without_collections
from .show import Progress, progress
from .target import ModelDescription


@dataclass(slots=True)
class Report:
    """What came of it."""

    plan: Plan
    model: ModelDescription
    inputs: Sequence[str]
    """Each input in words."""
    results: list[Result] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    """Whether each keeps the goal, if there is one."""
    best: Result | None = None
    interrupted: bool = False

    def as_json(self) -> dict[str, Any]:
        goal = self.plan.goal
        rows = [to_json(result) for result in self.results]
        for row, kept in zip(rows, self.kept, strict=False):
            row["keeps_goal"] = kept
        return {
            "model": self.model.name,
            "url": str(self.plan.server.address),
            "batch_size": self.plan.wishes.batch_size,
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


def conduct(plan: Plan) -> Report:
    """Measure. Raises OSError, UnreachableError, and INVALID_ARG."""
    with session(
        plan.server,
        plan.model,
        plan.version,
        plan.wishes,
        plan.format,
        streaming=plan.streaming,
        lengths=plan.lengths,
    ) as opened:
        for remark in opened.remarks:
            print(f"modserve: {remark}", file=sys.stderr)
        report = Report(plan, opened.model, opened.inputs)
        with progress(sys.stderr) as shown, asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_measure_all(report, opened, shown))
        return report


async def _measure_all(report: Report, opened: Session, shown: Progress) -> None:
    plan = report.plan
    interruption = Interruption()
    await opened.first_response()

    def on_window(load: Load, windows: Sequence[Window]) -> None:
        gc.collect()
        shown.window(load, windows, plan.rules)

    around = Surroundings(opened.times, on_window, interruption.sleep)
    with without_collections():
        if plan.goal is not None:
            await _search(report, plan.goal, opened, around, interruption, shown)
        else:
            loads = [Load(False, each) for each in plan.concurrencies] or [Load(True, each) for each in plan.rates]
            for index, load in enumerate(loads):
                shown.begin(load, index, len(loads))
                result = await measure(opened.driver(load, plan.connections, plan.poisson), plan.rules, around)
                if result.windows:
                    report.results.append(result)
                if interruption.happened:
                    break
    report.interrupted = interruption.happened


async def _search(
    report: Report, goal: Goal, opened: Session, around: Surroundings, interruption: Interruption, shown: Progress
) -> None:
    """From the rate that one client at a time gets."""
    plan = report.plan

    def driver_of(load: Load) -> Driver:
        shown.begin(load, len(report.results), 0)
        return opened.driver(load, plan.connections, plan.poisson)

    single = await measure(driver_of(Load(False, 1)), plan.rules, around, lambda windows: True)
    if interruption.happened:
        return
    search = RateSearch(max(single.rate, 1.0), *plan.bounds)
    async for result, kept in highest_rate(search, goal, plan.rules, around, lambda rate: driver_of(Load(True, rate))):
        if interruption.happened:
            break
        report.results.append(result)
        report.kept.append(kept)
        shown.tried(result, kept, goal)
        report.best = result if kept else None
    if interruption.happened:
        kept_ones = [result for result, kept in zip(report.results, report.kept, strict=True) if kept]
        report.best = max(kept_ones, key=lambda result: result.load.value, default=None)
