"""What tenants cost, and what they get of a server that one of them floods.

    python benchmarks/tenants.py                      # about two minutes
    python benchmarks/tenants.py --only decisions
    python benchmarks/tenants.py --picture docs/design/tenants.svg

`decisions`: the time to choose and take the next batch, for each request in it, by how many tenants wait.
`simulation`: three tenants in simulated time, one of which floods; the picture has their shares. `flood`: a real server
with a model that takes milliseconds, and two tenants with keys of their own; the latency of one while the other floods,
with and without shares.
"""

import argparse
import asyncio
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from html import escape
from pathlib import Path

import numpy as np

import modserve
from modserve.client.http_async import AsyncHttpClient
from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.requests.inflight import Inflight
from modserve.core.tenants import Tenant
from modserve.form import form
from modserve.scheduling import batching
from modserve.scheduling.fair_queue import FairQueue, rows
from modserve.scheduling.level_queue import LevelQueue
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import FakeClock, PuppetRunner, inflight

# ---- Decisions

TENANTS = (1, 10, 100, 1_000, 10_000)
WAITING = 20_000
BATCH = 8
DECISIONS = 1_000
ROUNDS = 5


def decision_us(tenants: int) -> float:
    """CPU microseconds to choose and take a request, in batches, while `WAITING` wait; 0 tenants: no shares at all."""
    queue: FairQueue | LevelQueue
    queue = FairQueue(sums=False, cost=rows) if tenants else LevelQueue(sums=False)
    known = [Tenant(str(number)) for number in range(tenants)] or [None]
    entries = [inflight(tenant=known[number % len(known)]) for number in range(WAITING)]
    for entry in entries:
        queue.append(entry)
    rule = batching.dynamic(DynamicBatching(), BATCH)
    measured = []
    for _ in range(ROUNDS):
        taken: list[Inflight] = []
        begin_ns = time.process_time_ns()
        for _ in range(DECISIONS):
            together = next(iter(queue.candidates()))
            decision = rule(together, 0)
            assert isinstance(decision, batching.Dispatch)
            taken += queue.take(together, decision.count)
        measured.append((time.process_time_ns() - begin_ns) / len(taken) / 1e3)
        for entry in taken:
            queue.append(entry)
    return statistics.median(measured)


def decisions() -> str:
    lines = [f"{'tenants that wait':>18} {'µs for a request':>17}"]
    lines += [f"{tenants or 'no shares':>18} {decision_us(tenants):>17.2f}" for tenants in (0, *TENANTS)]
    return "\n".join(lines)


# ---- Simulation

MS = 1_000_000
STEP_MS, STEPS, RUN_MS = 500, 60, 10
FLOOD = range(20, 40)
"""The steps in which a tenant floods."""


def simulate() -> dict[str, list[float]]:
    """Rows a second that each of three tenants is served, by step. A batch of 8 takes 10 ms: 800 rows a second."""
    clock, runner = FakeClock(), PuppetRunner()
    policy = DynamicBatching()
    scheduler = QueuedScheduler(
        batching.dynamic(policy, BATCH), runner, clock, lambda entry, error: entry.settle(error), policy, alike=True
    )
    runner.serve(scheduler)
    tenants = {"a: 250 rows a second": Tenant("a"), "b: 400, weight 2": Tenant("b", 2.0), "c: floods": Tenant("c")}
    rates = {"a": 2.5, "b": 4.0, "c": 0.5}  # in 10 ms
    due = dict.fromkeys(rates, 0.0)
    served: dict[str, list[float]] = {label: [] for label in tenants}
    for step in range(STEPS):
        count = dict.fromkeys(rates, 0)
        for _ in range(STEP_MS // RUN_MS):
            for tenant in tenants.values():
                due[tenant.name] += 40 if tenant.name == "c" and step in FLOOD else rates[tenant.name]
                while due[tenant.name] >= 1:
                    due[tenant.name] -= 1
                    scheduler.enqueue(inflight(tenant=tenant))
            clock.advance(RUN_MS * MS)
            if runner.running:
                for entry in runner.finish():
                    assert entry.request.tenant is not None
                    count[entry.request.tenant.name] += 1
            runner.batches.clear()
        if step == FLOOD.stop - 1:
            scheduler.fail_waiting(modserve.ModserveError(modserve.Code.UNAVAILABLE, "its client has gone"))
        for label, tenant in tenants.items():
            served[label].append(count[tenant.name] * 1000 / STEP_MS)
    return served


_COLOURS = ("#2f6fb0", "#3a8f5c", "#d98b3a")
_WIDTH, _HIGH, _LEFT, _TOP, _FOOT = 760, 240, 50, 30, 62


def drawn(served: dict[str, list[float]], most: float = 800) -> str:
    """The rows a second of each tenant over time, as an SVG picture."""

    def x(step: float) -> float:
        return _LEFT + step * _WIDTH / STEPS

    def y(value: float) -> float:
        return _TOP + _HIGH * (1 - value / most)

    seconds = STEP_MS / 1000
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {_TOP + _HIGH + _FOOT}">',
        "<style>text { font-family: system-ui, sans-serif; font-size: 11px; fill: #1d2b3a } "
        ".grid { stroke: #dfe6ec } polyline { fill: none; stroke-width: 2 }</style>",
        f'<rect width="{_LEFT + _WIDTH + 20}" height="{_TOP + _HIGH + _FOOT}" fill="#fff"/>',
        f'<rect x="{x(FLOOD.start):.0f}" y="{_TOP}" width="{x(FLOOD.stop) - x(FLOOD.start):.0f}" height="{_HIGH}" '
        'fill="#f6efe4"/>',
        f'<text x="{x(FLOOD.start) + 6:.0f}" y="{_TOP + 14}">c sends 4,000 rows a second</text>',
        f'<text x="{_LEFT}" y="18">Rows a second that each tenant is served; the model runs 800</text>',
    ]
    for value in range(0, int(most) + 1, 200):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{x(STEPS):.0f}" y1="{y(value):.0f}" y2="{y(value):.0f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value}</text>')
    for step in range(0, STEPS + 1, 10):
        parts.append(f'<text x="{x(step):.0f}" y="{_TOP + _HIGH + 16}" text-anchor="middle">{step * seconds:g} s</text>')
    for colour, (label, values) in zip(_COLOURS, served.items(), strict=True):
        points = " ".join(f"{x(step + 0.5):.1f},{y(value):.1f}" for step, value in enumerate(values))
        parts.append(f'<polyline points="{points}" stroke="{colour}"/>')
    for index, (colour, label) in enumerate(zip(_COLOURS, served, strict=True)):
        left = _LEFT + 200 * index
        parts.append(f'<rect x="{left}" y="{_TOP + _HIGH + 34}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{left + 18}" y="{_TOP + _HIGH + 44}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def shares_in_flood(served: dict[str, list[float]]) -> str:
    lines = [f"{'rows a second':>26} {'before':>7} {'in the flood':>13} {'after':>7}"]
    for label, values in served.items():
        parts = (values[2 : FLOOD.start], values[FLOOD.start + 2 : FLOOD.stop], values[FLOOD.stop + 2 :])
        before, during, after = (statistics.mean(part) for part in parts)
        lines.append(f"{label:>26} {before:>7.0f} {during:>13.0f} {after:>7.0f}")
    return "\n".join(lines)


# ---- A real flood

_MODEL = '''
import numpy as np
import modserve

A = np.random.default_rng(0).standard_normal((384, 384)).astype(np.float32)

@modserve.model(max_batch_size=8)
def work(x: np.ndarray) -> np.ndarray:
    """Some milliseconds of multiplications for each batch."""
    out = A
    for _ in range(4):
        out = np.tanh(out @ A)
    return x + out[0, 0]
'''
