"""What models in Python cost: the same model.py files in processes, in threads, on the event loop, and under Triton.

    python benchmarks/python_backend.py                              # prints the report; some 40 minutes
    python benchmarks/python_backend.py --write                      # and puts it, and its picture, into the docs
    python benchmarks/python_backend.py --models add_sub --clients 8 --runs 1 --seconds 2
    python benchmarks/python_backend.py --busy 2                     # beside two busy loops, with a table of its own

The models are those of the folder model_files. Needs what overhead.py needs: wrk, h2load, and for the comparison with
Triton its command in TRITON_SERVER_CMD. The interpreter that Triton's stub runs (the first python3 in PATH) needs NumPy
below 2, and onnxruntime for the model that uses it; without that, this model is left out under Triton. The servers run
side by side and take turns, window by window, so that what disturbs the machine disturbs all of them.
"""

import argparse
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import overhead
from bar_chart import Panel, draw
from modserve.execution.placement import available_cores
from modserve.pb import inference as pb
from overhead import ROOT, Contender, Load, ServerProcess, Way
from python_workloads import Workload, check, grpc_body, http_body, workloads, write_repository

PICTURE = ROOT / "docs" / "performance" / "python_backend.svg"
PROCESS, THREAD, INLINE, TRITON = "modserve, process", "modserve, thread", "modserve, inline", "Triton"
NOT_INLINE = ("bls", "numbers")
"""A model that waits for another one, and a decoupled one, cannot run on the event loop."""
PROTOCOLS = ("HTTP", "gRPC")
IDLE_SECONDS = 25
"""After the last request, before memory is looked at once more: servers may give some back when they rest."""


@dataclass
class Driver:
    """The load generators, which share the machine with the servers."""

    seconds: int
    busiest: float = 0.0
    """The most that a load generator used of one core, which is all it can use."""

    def run(self, seconds: int, window: Callable[[int], Load]) -> Load:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        load = window(seconds)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.busiest = max(self.busiest, used / seconds)
        return load

    def http(self, target: ServerProcess, workload: Workload, clients: int) -> Load:
        verb, body, length = http_body(workload)
        return self.run(
            self.seconds * workload.windows,
            lambda seconds: overhead.wrk(target, workload.model, body, length, clients, seconds, path_end=verb),
        )

    def grpc(self, target: ServerProcess, workload: Workload, clients: int) -> Load:
        method, body = grpc_body(workload)
        return self.run(
            self.seconds * workload.windows,
            lambda seconds: h2load(target, method, body, clients, seconds, workload.expected.nbytes),
        )


def h2load(target: ServerProcess, method: str, body: bytes, clients: int, seconds: int, least: int) -> Load:
    """Closed-loop clients of gRPC, each with a connection of its own and one call at a time.

    Raises SystemExit if calls fail, or responses have fewer than `least` bytes: h2load does not look at gRPC's status.
    """
    with tempfile.TemporaryDirectory() as directory:
        content, log = Path(directory) / "message", Path(directory) / "log"
        content.write_bytes(body)
        command = ["h2load", "-D", str(seconds), "-c", str(clients), "-m", "1", "-d", str(content)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={log}"]
        url = f"http://127.0.0.1:{target.grpc}/{pb.SERVICE}/{method}"
        before = target.cpu_seconds()
        text = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
        return read_h2load(text, log.read_text(), target.cpu_seconds() - before, least)


def read_h2load(text: str, log: str, cpu_seconds: float, least: int) -> Load:
    """What h2load has printed, and its log. Raises SystemExit for failures and for responses that are too short."""
    counts = re.search(r"(\d+) done, (\d+) succeeded", text)
    rate = re.search(r"finished in \S+, ([\d.]+) req/s", text)
    data = re.search(r"\((\d+)\) data", text)
    if not (counts and rate and data) or counts[1] != counts[2]:
        raise SystemExit(f"h2load saw failures:\n{text}")
    count = int(counts[2])
    if not count:
        raise SystemExit("no call ended within a window: --seconds allows longer ones")
    if int(data[1]) < count * least:
        raise SystemExit(f"responses have fewer than {least} bytes, so they are errors:\n{text}")
    times = sorted(int(line.split("\t")[2]) for line in log.splitlines())
    p50, p99, p999 = (overhead.quantile(times, share) for share in (0.5, 0.99, 0.999))
    return Load(float(rate[1]), p50, p99, p999, cpu_seconds / count * 1e6, count)


def ways(chosen: Sequence[Workload], protocols: Sequence[str], clients: Sequence[int], driver: Driver) -> list[Way]:
    loads = {"HTTP": driver.http, "gRPC": driver.grpc}
    return [
        Way(
            f"{workload.model}, {protocol}",
            clients,
            lambda target, count, load=loads[protocol], workload=workload: load(target, workload, count),  # type: ignore[misc]
        )
        for workload in chosen
        for protocol in protocols
    ]


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Processes that only burn CPU."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@dataclass
class Entry:
    """A server that is measured, the models that it has, and its memory by occasion."""

    contender: Contender
    models: Sequence[str]
    memory_mb: dict[str, float] = field(default_factory=dict)

    def remember(self, occasion: str) -> None:
        self.memory_mb[occasion] = self.contender.target.pss_mb()


@contextmanager
def entries(models: Sequence[str], directory: Path) -> Iterator[list[Entry]]:
    """The modes one after the other, then Triton, if there is a command for it."""
    with ExitStack() as stack:
        served = []
        for name in (PROCESS, THREAD, INLINE):
            chosen = [model for model in models if name != INLINE or model not in NOT_INLINE]
            repository = write_repository(directory / name, chosen, name.rpartition(" ")[2])
            if chosen:
                served.append(Entry(Contender(name, stack.enter_context(overhead.server(repository))), chosen))
        if template := os.environ.get("TRITON_SERVER_CMD"):
            served.append(_triton(stack, template, models, directory))
        yield served


def _triton(stack: ExitStack, template: str, models: Sequence[str], directory: Path) -> Entry:
    """With all models, or, if it does not start so, without the one that needs onnxruntime."""
    for without in ((), ("onnx_inside",)):
        chosen = [name for name in models if name not in without]
        own = ExitStack()
        repository = write_repository(directory / f"triton{len(without)}", chosen)
        started = own.enter_context(overhead.triton(template, repository))
        if started is not None:
            stack.push(own)
            return Entry(Contender(TRITON, started), chosen)
        own.close()
    raise SystemExit("TRITON_SERVER_CMD: the server did not become ready")


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """The median, and the least and the most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def loads_table(workload: Workload, served: Sequence[Contender]) -> list[str]:
    """Ratios are those of neighbouring windows."""
    lines = [
        "",
        f"**{workload.title}** (`{workload.model}`):",
        "",
        "| protocol | clients | server | requests/s | rate, × Triton | p50 | p99 | CPU a request | CPU, × Triton |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    triton = next((each.loads for each in served if each.name == TRITON), {})
    for way, clients in served[0].loads:
        model, _, protocol = way.partition(", ")
        for each in served if model == workload.model else ():
            loads = each.loads.get((way, clients), [])
            if not loads:
                continue
            pairs = list(zip(loads, triton.get((way, clients), ()), strict=False))
            ratios = ["", ""]
            if pairs and each.name != TRITON:
                ratios = [
                    spread([mine.per_second / theirs.per_second for mine, theirs in pairs], ".2f"),
                    spread([mine.cpu_us / theirs.cpu_us for mine, theirs in pairs], ".2f"),
                ]
            middle = overhead.median(loads)
            lines.append(
                f"| {protocol} | {clients} | {each.name} | {spread([load.per_second for load in loads])} | {ratios[0]} "
                f"| {middle.p50_us / 1e3:.2f} ms | {middle.p99_us / 1e3:.2f} ms "
                f"| {spread([load.cpu_us for load in loads])} µs | {ratios[1]} |"
            )
    return lines


def bls_table(served: Sequence[Contender]) -> list[str]:
    """What the call by a model adds to the call by a client: the two models' windows of the same number, subtracted."""
    lines: list[str] = []
    costs = {
        (way, clients, each.name): [
            (bls.p50_us - plain.p50_us, bls.cpu_us - plain.cpu_us)
            for bls, plain in zip(loads, each.loads.get((way.replace("bls", "add_sub"), clients), ()), strict=False)
        ]
        for each in served
        for (way, clients), loads in each.loads.items()
        if way.startswith("bls, ")
    }
    for (way, clients, name), pairs in costs.items():
        if not pairs:
            continue
        ratios = ["", ""]
        theirs = costs.get((way, clients, TRITON), [])
        if theirs and name != TRITON:
            medians = [[statistics.median(each[part] for each in side) for side in (pairs, theirs)] for part in (0, 1)]
            ratios = [f"{mine / other:.2f}" if min(mine, other) > 0 else "" for mine, other in medians]
        time, cpu = (spread([pair[part] for pair in pairs]) for part in (0, 1))
        lines.append(
            f"| {way.removeprefix('bls, ')} | {clients} | {name} | {time} µs | {ratios[0]} | {cpu} µs | {ratios[1]} |"
        )
    if not lines:
        return []
    return [
        "",
        "**What a BLS call costs**: p50 and CPU of `bls` less those of `add_sub`:",
        "",
        "| protocol | clients | server | p50 | p50, × Triton | CPU | CPU, × Triton |",
        "|---|---|---|---|---|---|---|",
        *lines,
    ]


def summary(chosen: Sequence[Workload], served: Sequence[Contender]) -> list[str]:
    """The part of the tables that benchmarks/results/tables.md shows: medians at the middle number of clients."""
    numbers = sorted({clients for _, clients in served[0].loads})
    clients = numbers[len(numbers) // 2]
    lines = [
        "",
        f"With {clients} client{'s' * (clients > 1)}:",
        "",
        "| model | protocol | server | requests/s | × Triton | p99 in ms | CPU a request in µs | × Triton |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for workload in chosen:
        for row in loads_table(workload, served):
            protocol, _, rest = row.removeprefix("| ").partition(f" | {clients} | ")
            if protocol in PROTOCOLS and rest:
                name, *figures = rest.split(" | ")
                rate, ratio, _, p99, cpu, cpu_ratio = (figure.partition(" ")[0] for figure in figures)
                lines.append(
                    f"| `{workload.model}` | {protocol} | {name} | {rate} | {ratio} | {p99} | {cpu} | {cpu_ratio} |"
                )
    return lines


def memory_table(served: Sequence[Entry]) -> list[str]:
    occasions = list(served[0].memory_mb)
    return [
        "",
        "| server | start to READY | " + " | ".join(f"memory {occasion}" for occasion in occasions) + " |",
        "|---|---|" + "---|" * len(occasions),
        *(
            f"| {each.contender.name}, {len(each.models)} models | {each.contender.target.start_seconds:.2f} s | "
            + " | ".join(f"{each.memory_mb[occasion]:.0f} MB" for occasion in occasions)
            + " |"
            for each in served
        ),
    ]


def picture(chosen: Sequence[Workload], served: Sequence[Contender]) -> str:
    """A row of panels for each model: requests per second and CPU, over each protocol."""

    def panel(workload: Workload, protocol: str, what: str, value: Callable[[Load], float]) -> Panel:
        way = f"{workload.model}, {protocol}"
        groups: dict[str, dict[str, float]] = {}
        for each in served:
            for (name, clients), loads in each.loads.items():
                if name == way:
                    label = f"{clients} client{'s' * (clients > 1)}"
                    groups.setdefault(label, {})[each.name] = value(overhead.median(loads))
        return Panel(f"{workload.model}, {protocol}: {what}", groups)

    protocols = list(dict.fromkeys(way.rpartition(", ")[2] for way, _ in served[0].loads))
    rows = [
        [panel(workload, protocol, "requests/s", lambda load: load.per_second) for protocol in protocols]
        + [panel(workload, protocol, "CPU ms/request", lambda load: load.cpu_us / 1e3) for protocol in protocols]
        for workload in chosen
    ]
    return draw(rows, [each.name for each in served])


def measure(
    arguments: argparse.Namespace, chosen: Sequence[Workload], driver: Driver
) -> tuple[list[str], list[str], str]:
    """All tables, those of the page, and the picture."""
    with (
        tempfile.TemporaryDirectory() as directory,
        entries([workload.model for workload in chosen], Path(directory)) as served,
    ):
        for each in served:
            each.remember("when READY")
        for workload in chosen:  # the large one is the last
            with_model = [each.contender for each in served if workload.model in each.models]
            for contender in with_model:
                check(contender.target, workload)
            chosen_ways = ways([workload], arguments.protocols, arguments.clients, driver)
            with busy_loops(arguments.busy):
                overhead.measure(with_model, chosen_ways, arguments.runs, 0)
            print(f"{workload.model} is measured", file=sys.stderr)
            if workload.model != "identity":
                for each in served:
                    each.memory_mb.pop("after small requests", None)
                    each.remember("after small requests")
        for each in served:
            each.remember("at the end")
        time.sleep(IDLE_SECONDS)
        for each in served:
            each.remember(f"{IDLE_SECONDS} s later")
        contenders = [each.contender for each in served]
        lines = [line for workload in chosen for line in loads_table(workload, contenders)]
        costs = memory_table(served)
        every = [*lines, *bls_table(contenders), *costs]
        return every, [*summary(chosen, contenders), *costs], picture(chosen, contenders)


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; known are {', '.join(known)}")
        return [name for name in known if name in chosen]

    return names


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parser(models: Sequence[str]) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5, help="windows of each load, of which the median counts")
    options.add_argument("--seconds", type=int, default=4, help="seconds of each window")
    options.add_argument("--models", type=_names(models), default=list(models), help="some of " + ",".join(models))
    options.add_argument("--protocols", type=_names(PROTOCOLS), default=list(PROTOCOLS), help="HTTP, gRPC or both")
    options.add_argument("--clients", type=_counts, default=[1, 8, 32], help="numbers of clients, 1,8,32 by default")
    options.add_argument("--busy", type=int, default=0, help="processes beside that only burn CPU")
    options.add_argument("--picture", type=Path, help="write the picture to this file")
    options.add_argument("--write", action="store_true", help="put report and picture into the docs")
    return options


def main() -> None:
    known = workloads()
    options = parser(list(known))
    arguments = options.parse_args()
    if missing := overhead.missing_programs():
        raise SystemExit(missing)
    driver = Driver(arguments.seconds)
    tables, short, image = measure(arguments, [known[name] for name in arguments.models], driver)
    conditions = (
        f"{available_cores()} cores, {platform.machine()}, Python {platform.python_version()}; clients and servers "
        f"share the cores{f' with {arguments.busy} busy loops' if arguments.busy else ''}. Medians of {arguments.runs} "
        f"windows of {arguments.seconds} s, 3 times that "
        "for 16 MB. CPU is the user and system time of the server and of its child processes, workers or stubs; memory "
        "is theirs too (PSS: shared pages count once). The busiest load generator used "
        f"{driver.busiest:.0%} of one core."
    )
    print("\n".join([conditions, *tables]))
    kept = arguments.write and not arguments.busy
    for path in [arguments.picture] * (arguments.picture is not None) + [PICTURE] * kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(image, encoding="utf-8")
    if arguments.write and arguments.busy:
        overhead.put_into_report("python_backend.py --busy", "\n".join([conditions, *tables]))
    elif arguments.write:
        link = f"![Requests per second and CPU of each model](../../docs/performance/{PICTURE.name})"
        overhead.put_into_report("python_backend.py", "\n".join([link, "", conditions, *short]))


if __name__ == "__main__":
    main()
