"""What tenants cost, and what they get of a server that one of them floods.

    python benchmarks/tenants.py                      # about two minutes
    python benchmarks/tenants.py --only decisions
    python benchmarks/tenants.py --picture docs/design/tenants.svg

`decisions`: the time to choose and take the next batch, for each request in it, by how many tenants wait.
`simulation`: three tenants in simulated time, one of which floods; the picture has their shares. `flood`: a real server
with a model that takes 10 ms for each batch of up to 8, and two keys; the latency of one key's requests while the other
one floods, as keys of one tenant, which have no shares, and of a tenant each.
"""

import argparse
import asyncio
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from html import escape
from pathlib import Path

import numpy as np

import modserve
from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.requests.inflight import Inflight
from modserve.core.tenants import Tenant
from modserve.form import form
from modserve.scheduling import batching
from modserve.scheduling.fair_queue import FairQueue, rows
from modserve.scheduling.level_queue import LevelQueue
from modserve.scheduling.queue import QueueSettings
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
    queue = FairQueue(QueueSettings(), rows) if tenants else LevelQueue(QueueSettings())
    known: list[Tenant | None] = [Tenant(str(number)) for number in range(tenants)] or [None]
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
        batching.dynamic(policy, BATCH), runner, clock, lambda entry, error: entry.settle(error), policy
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
        parts.append(
            f'<text x="{x(step):.0f}" y="{_TOP + _HIGH + 16}" text-anchor="middle">{step * seconds:g} s</text>'
        )
    for colour, values in zip(_COLOURS, served.values(), strict=True):
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
import time

import numpy as np
from numpy.typing import NDArray

import modserve

@modserve.model(max_batch_size=8)
def work(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Holds its device for 10 ms for each batch."""
    time.sleep(0.01)
    return x
'''


def _keys(folder: Path, *tenants: str) -> tuple[Path, list[str]]:
    """A file with a key for each tenant, and the secrets."""
    file = folder / f"{'-'.join(tenants)}.yaml"
    secrets = []
    for index, tenant in enumerate(tenants):
        command = [sys.executable, "-m", "modserve", "keys", "add", f"key{index}", "--tenant", tenant]
        command += ["--scope", "*=infer,read", "--file", str(file)]
        secrets.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return file, secrets


async def _ask(client: modserve.AsyncClient, until: float, pause_s: float, times: list[float]) -> None:
    """One request after the other; the time of each in milliseconds."""
    x = np.ones((1, 4), np.float32)
    while time.monotonic() < until:
        begin = time.perf_counter()
        await client.infer("work", {"x": x})
        times.append((time.perf_counter() - begin) * 1e3)
        if pause_s:
            await asyncio.sleep(pause_s)


async def _latencies(url: str, victim: str, other: str, clients: int, seconds: float) -> tuple[list[float], int]:
    """The victim's latencies while another key has so many clients, and how many requests those had answered."""
    times: list[float] = []
    flood: list[float] = []
    async with (
        modserve.connect_async(url, headers={"x-api-key": victim}) as one,
        modserve.connect_async(url, headers={"x-api-key": other}) as many,
    ):
        until = time.monotonic() + seconds
        await asyncio.gather(_ask(one, until, 0.02, times), *(_ask(many, until, 0.0, flood) for _ in range(clients)))
    return times, len(flood)


def flood(seconds: float, clients: int) -> str:
    lines = [f"{'':>34} {'p50 ms':>7} {'p99 ms':>7} {'requests':>9} {'of the flood':>13}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flooded_model.py").write_text(_MODEL)
        for label, tenants, many in (
            ("alone", ("victim", "flood"), 0),
            ("flood, both keys of one tenant", ("both", "both"), clients),
            ("flood, a tenant each", ("victim", "flood"), clients),
        ):
            file, (victim, other) = _keys(folder, *tenants)
            with _serving(folder, file) as url:
                asyncio.run(_latencies(url, victim, other, 1, 1.0))  # warm
                times, answered = asyncio.run(_latencies(url, victim, other, many, seconds))
            p50, p99 = np.percentile(times, [50, 99])
            lines.append(f"{label:>34} {p50:>7.1f} {p99:>7.1f} {len(times):>9} {answered:>13}")
            file.unlink()
    return "\n".join(lines)


@contextmanager
def _serving(folder: Path, file: Path) -> Iterator[str]:
    """A server with the model and a file of keys, on a port of its own; its address."""
    command = [sys.executable, "-m", "modserve", "serve", "flooded_model:work", f"--auth-file={file}"]
    command += ["--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false"]
    log = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            url = ""
            for line in process.stdout:
                if line.startswith("HTTP listening on "):
                    url = f"http://{line.split()[-1]}"
                if line.startswith("work "):
                    break
            yield url
        finally:
            process.terminate()
            process.stdout.read()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("decisions", "simulation", "flood"))
    parser.add_argument("--picture", type=Path, help="write the simulation's picture here")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--clients", type=int, default=64, help="of the tenant that floods")
    options = parser.parse_args(arguments)
    print(f"{platform.processor() or platform.machine()}, {form()} form, {date.today()}")
    if options.only in (None, "decisions"):
        print(decisions())
    if options.only in (None, "simulation"):
        served = simulate()
        print(shares_in_flood(served))
        if options.picture is not None:
            options.picture.write_text(drawn(served))
    if options.only in (None, "flood"):
        print(flood(options.seconds, options.clients))


if __name__ == "__main__":
    main()
