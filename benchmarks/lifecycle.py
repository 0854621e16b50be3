"""Models that change while they are used: does one request fail, or get a wrong response?

    python benchmarks/lifecycle.py                    # 100 reloads, 50 changes of instances, 20 versions added, ...
    python benchmarks/lifecycle.py --short
    python benchmarks/lifecycle.py --phase reloads --times 1000
    python benchmarks/lifecycle.py --write            # all of it, and the table into benchmarks/results/tables.md

Sixteen clients, half of them over HTTP and half over gRPC, send one request after the other and check every response.
Meanwhile the phases of a table change the models: each has a function that makes one change, and says so if the server
did not say of it what it should have, or did not do it. The phases of a stage share a server. A line is printed for
each phase. Exit code 1 if a request has failed or had a wrong response, or if there is such a complaint.
"""

import argparse
import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import lifecycle_models as models
import lifecycle_phases as changes
from lifecycle_clients import CLIENTS, Count, Traffic
from lifecycle_phases import Control
from process_tree import end
from side_by_side.running import free_ports, ready

BETWEEN_S = 0.05
"""From the end of one change to the next."""


@dataclass(frozen=True)
class Phase:
    name: str
    times: int
    change: Callable[[Control, int], Awaitable[str]]
    short: int


@dataclass(frozen=True)
class Stage:
    """A server, where its models are, and what happens to them."""

    name: str
    options: tuple[str, ...]
    site: Callable[[Path], AbstractAsyncContextManager[models.Site]]
    phases: tuple[Phase, ...]
    needs: tuple[str, ...] = ()
    """Packages without which it is left out."""


STAGES = (
    Stage(
        "loads",
        ("--model-control-mode=explicit", "--load-model=*"),
        models.one_model,
        (
            Phase("reloads", 100, changes.reload, 8),
            Phase("changes of instances", 50, changes.change_instances, 8),
            Phase("changes of the queue", 30, changes.change_queue, 6),
            Phase("configurations with the call", 30, changes.change_by_call, 6),
            Phase("versions added and removed", 20, changes.add_and_remove, 4),
            Phase("versions that are cut off", 20, changes.break_version, 4),
        ),
    ),
    Stage("canary", (), models.stable_and_canary, (Phase("canaries rolled back", 20, changes.roll_back, 2),)),
    Stage(
        "memory",
        ("--model-memory-limit=110MB",),
        models.large_models,
        (Phase("rounds of evictions", 50, changes.evict, 4),),
    ),
    Stage(
        "bucket",
        ("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-timeout-secs=2"),
        models.in_a_bucket,
        (Phase("outages of the bucket", 3, changes.lose_bucket, 1),),
        ("boto3", "moto", "flask", "obstore"),
    ),
)

Show = Callable[[Phase, float, Count], None]


async def run(stage: Stage, show: Show, outage_s: float) -> list[Count]:
    """The phases one after the other under load, on a server of its own; the counts of each."""
    with tempfile.TemporaryDirectory() as folder:
        async with stage.site(Path(folder)) as site:
            log = Path(folder) / "log"
            http_port, grpc_port, metrics_port = free_ports(3)
            ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
            process = start(stage.options, site, ports, log)
            try:
                deadline = time.monotonic() + 60
                while not await asyncio.to_thread(ready, http_port):
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise SystemExit(f"the server did not start:\n{changes.read(log)}")
                    await asyncio.sleep(0.05)
                traffic = Traffic(http_port, grpc_port, site.targets)
                control = Control(site, http_port, log, traffic, outage_s)
                return await drive(stage.phases, control, traffic, show)
            finally:
                await asyncio.to_thread(end, process)
                if kept := os.environ.get("LIFECYCLE_LOG"):
                    shutil.copy(log, f"{kept}.{stage.name}")


def start(options: Sequence[str], site: models.Site, ports: Mapping[str, int], log: Path) -> "subprocess.Popen[bytes]":
    """A server, not yet ready."""
    command = [sys.executable, "-m", "modserve", "serve", *options]
    command += ["--model-repository", site.repository or str(site.models)]
    for name, port in ports.items():
        command += [f"--{name}-address=127.0.0.1", f"--{name}-port={port}"]
    with log.open("wb") as output:
        environment = {**os.environ, **site.environment}
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


async def drive(phases: Sequence[Phase], control: Control, traffic: Traffic, show: Show) -> list[Count]:
    counts = []
    async with asyncio.TaskGroup() as group:
        group.create_task(traffic.run())
        try:
            for phase in phases:
                count = traffic.count = Count()
                began = time.monotonic()
                for time_ in range(phase.times):
                    if complaint := await phase.change(control, time_):
                        count.complain(f"{phase.name}, time {time_ + 1}: {complaint}")
                    await asyncio.sleep(BETWEEN_S)
                counts.append(count)
                show(phase, time.monotonic() - began, count)
        finally:
            traffic.end()
    return counts


def lacking(stage: Stage) -> str:
    """Why the stage cannot be run here; empty if it can."""
    absent = [name for name in stage.needs if importlib.util.find_spec(name) is None]
    return f"{stage.name}: skipped without {', '.join(absent)}: pip install '.[dev]'" if absent else ""


def short_form(stage: Stage) -> Stage:
    return replace(stage, phases=tuple(replace(each, times=each.short) for each in stage.phases))


def events(count: Count) -> str:
    return ", ".join(f"{times:,} {what}" for what, times in count.events.items())


def print_line(phase: Phase, seconds: float, count: Count) -> None:
    print(
        f"{phase.name:<30} {phase.times:5} {seconds:7.1f} {count.http:8,} {count.grpc:8,} {count.failed:7} "
        f"{count.wrong:6} {count.slowest_ms:11.0f}  {events(count)}",
        flush=True,
    )
    for text in count.said:
        print(f"    {text}", flush=True)


class Report:
    """Prints the phases, and keeps them as a table."""

    def __init__(self) -> None:
        self.counts: list[Count] = []
        self._rows: list[str] = []

    def show(self, phase: Phase, seconds: float, count: Count) -> None:
        print_line(phase, seconds, count)
        self.counts.append(count)
        columns = [phase.name, f"{phase.times}", f"{seconds:.0f} s", events(count), f"{count.http + count.grpc:,}"]
        columns += [f"{count.failed}", f"{count.wrong}", f"{count.slowest_ms:.0f} ms"]
        self._rows.append(f"| {' | '.join(columns)} |")

    def totals(self) -> str:
        requests = sum(count.http + count.grpc for count in self.counts)
        failed, wrong = (sum(getattr(count, name) for count in self.counts) for name in ("failed", "wrong"))
        return f"{requests:,} responses, {failed} failed, {wrong} wrong"

    def table(self) -> str:
        """In Markdown."""
        lines = ["| what changes | times | in | what happened | responses | failed | wrong | slowest |"]
        lines += ["|---|---|---|---|---|---|---|---|", *self._rows, "", f"{self.totals()}, of {CLIENTS} clients."]
        return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few times of each phase")
    parser.add_argument("--phase", action="append", help="only the phases whose names have this in them")
    parser.add_argument("--times", type=int, default=0, help="how often each phase changes something")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    options = parser.parse_args(arguments)
    report = Report()
    print(f"{'phase':<30} {'times':>5} {'s':>7} {'HTTP':>8} {'gRPC':>8} {'failed':>7} {'wrong':>6} {'slowest ms':>11}")
    for stage in map(short_form, STAGES) if options.short else STAGES:
        phases = [each for each in stage.phases if any(part in each.name for part in options.phase or ("",))]
        chosen = replace(stage, phases=tuple(replace(each, times=options.times or each.times) for each in phases))
        if phases and (reason := lacking(stage)):
            print(reason, flush=True)
        elif phases:
            asyncio.run(run(chosen, report.show, changes.SHORT_OUTAGE_S if options.short else changes.OUTAGE_S))
    print(report.totals())
    if options.write:
        from overhead import put_into_report  # here, for it needs packages that nothing else here needs

        put_into_report("lifecycle.py", report.table())
    return 1 if any(count.failed + count.wrong + len(count.said) for count in report.counts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
