"""Run of a plan's loads one after the other, or search for the highest rate within a goal."""

import asyncio
import gc
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from modserve.core.runtime.clock import Clock, LoopClock

from .loops import LoadGenerator
from .measures import LoadLevel, Measurement, MeasurementWindow, to_json
from .plan import LoadPlan
from .profiler import LatencyGoal, Profiler, RateSearch
from .session import BenchSession, Interrupt, loop_factory, session, without_collections
from .show import Progress, progress
from .target import TargetModel
from .text_session import text_session


@dataclass(slots=True)
class BenchReport:
    """The results of all loads."""

    plan: LoadPlan
    model: TargetModel
    inputs: Sequence[str]
    """Each input, as text."""
    results: list[Measurement] = field(default_factory=list)
    met: list[bool] = field(default_factory=list)
    """True for each result that meets the goal, if there is one."""
    best: Measurement | None = None
    interrupted: bool = False

    def as_json(self) -> dict[str, Any]:
        goal = self.plan.goal
        rows = [to_json(result) for result in self.results]
        for row, met in zip(rows, self.met, strict=False):
            row["keeps_goal"] = met
        return {
            "model": self.model.name,
            "url": self.plan.url,
            "batch_size": self.plan.data.batch_size,
            "inputs": list(self.inputs),
            "openai": None if self.plan.texts is None else self.plan.texts.kind,
            "goodput_limits_ms": None if self.plan.texts is None else dict(self.plan.texts.limits),
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


def run_benchmark(plan: LoadPlan) -> BenchReport:
    """Measure. Raises OSError, UnreachableError, and INVALID_ARG."""
    with _session(plan) as opened:
        for remark in opened.remarks:
            print(f"modserve: {remark}", file=sys.stderr)
        report = BenchReport(plan, opened.model, opened.inputs)
        with progress(sys.stderr) as shown, asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_measure_all(report, opened, shown))
        return report


def _session(plan: LoadPlan) -> AbstractContextManager[BenchSession]:
    if plan.texts is not None:
        return text_session(plan.servers, plan.model, plan.texts)
    return session(
        plan.servers,
        plan.model,
        plan.version,
        plan.data,
        plan.format,
        streaming=plan.streaming,
        lengths=plan.lengths,
    )


async def _measure_all(report: BenchReport, opened: BenchSession, shown: Progress) -> None:
    plan = report.plan
    interrupt = Interrupt()
    await opened.first_responses()

    def on_window(load: LoadLevel, windows: Sequence[MeasurementWindow]) -> None:
        gc.collect()
        shown.window(load, windows, plan.rules)

    profiler = Profiler(plan.rules, opened.times, on_window, interrupt.sleep)
    timers = LoopClock(asyncio.get_running_loop())
    with without_collections():
        if plan.goal is not None:
            await _search(report, plan.goal, opened, profiler, interrupt, shown, timers)
        else:
            loads = [LoadLevel(False, each) for each in plan.concurrencies]
            loads += [LoadLevel(True, each) for each in plan.rates]
            for index, load in enumerate(loads):
                shown.begin(load, index, len(loads))
                result = await profiler.measure(opened.generator(load, plan.connections, plan.poisson, timers))
                if result.windows:
                    report.results.append(result)
                if interrupt.happened:
                    break
    report.interrupted = interrupt.happened


async def _search(
    report: BenchReport,
    goal: LatencyGoal,
    opened: BenchSession,
    profiler: Profiler,
    interrupt: Interrupt,
    shown: Progress,
    timers: Clock,
) -> None:
    """Search for the highest rate, from that of a single client upwards."""
    plan = report.plan

    def generator_of(load: LoadLevel) -> LoadGenerator:
        shown.begin(load, len(report.results), 0)
        return opened.generator(load, plan.connections, plan.poisson, timers)

    start = await profiler.single_client_rate(generator_of)
    if interrupt.happened:
        return
    async for result, met in profiler.highest_rate(RateSearch(max(start, 1.0), *plan.bounds), goal, generator_of):
        if interrupt.happened:
            break
        report.results.append(result)
        report.met.append(met)
        shown.show_trial(result, met, goal)
        report.best = result if met else None
    if interrupt.happened:
        within = [result for result, met in zip(report.results, report.met, strict=True) if met]
        report.best = max(within, key=lambda result: result.load.value, default=None)
