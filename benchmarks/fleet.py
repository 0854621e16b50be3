"""How many servers a load needs, by simulation: modserve's own scheduling rules, and the rules of a load balancer.

    python benchmarks/fleet.py plan --rate 2000 --goal-ms 80 --service 18,0.4 --instances 2 --max-batch 8
    python benchmarks/fleet.py plan --rate 2000 --goal-ms 80 --measured http://localhost:8000 --model detector
    python benchmarks/fleet.py check --write      # against three real servers behind Envoy, two minutes
    python benchmarks/fleet.py scale --write      # from 1 to 1,000 servers, some minutes

Arrivals are a Poisson process. An execution takes `service` milliseconds: so much, and so much more for each request in
the batch; `--measured` fits both to the statistics of a server that has batches of several sizes behind it. `overhead`
is what a request takes beside waiting and execution, gateway included.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import curve_chart
import gateway_stage
from modserve.core.configuration.model_config import DynamicBatching
from modserve.core.requests.inflight import Inflight
from modserve.scheduling import batching
from modserve.scheduling.queued import QueuedScheduler
from modserve.testing import FakeClock, inflight
from overhead import put_into_report

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "results" / "tables.md"
PICTURE = ROOT / "docs" / "scale.svg"


@dataclass(frozen=True)
class Plan:
    """What is simulated. `service_ms`: of an execution, and of each request in it."""

    rate: float
    servers: int
    service_ms: tuple[float, float]
    instances: int = 1
    max_batch: int = 1
    delay_ms: float = 0.0
    overhead_ms: float = 1.0
    balancer: str = "least_request"
    requests: int = 20_000
    slow: float = 1.0
    """How many times longer an execution takes on the last server."""

    @property
    def capacity(self) -> float:
        """Requests a second that all servers can bear, with full batches."""
        each_ms = self.service_ms[0] + self.service_ms[1] * self.max_batch
        per_server = 1e3 * self.instances * self.max_batch / each_ms
        return per_server * (self.servers - 1 + 1 / self.slow)


@dataclass(frozen=True)
class Outcome:
    """Milliseconds from the client's request to its response, and the mean batch."""

    mean_ms: float
    p50_ms: float
    p99_ms: float
    batch: float


class Server:
    """Implements `scheduling.scheduler.BatchRunner`: instances whose executions take the time that the plan says."""

    def __init__(self, plan: Plan, clock: FakeClock, done: Callable[[Inflight], None], slowness: float) -> None:
        self._clock, self._done, self._free = clock, done, plan.instances
        self._fixed_ns, self._each_ns = (round(1e6 * slowness * ms) for ms in plan.service_ms)
        self.active = 0
        """Requests that the balancer has sent here and that have no response."""
        self.batches = 0
        policy = DynamicBatching(max_queue_delay_ns=round(1e6 * plan.delay_ms))
        self._scheduler = QueuedScheduler(
            batching.dynamic(policy, plan.max_batch),
            self,
            clock,
            _never,
            policy,
            ripe_size=batching.ripe_size(policy, plan.max_batch),
        )

    def send(self, member: Inflight) -> None:
        self.active += 1
        self._scheduler.enqueue(member)

    def reserve(self) -> int | None:
        if not self._free:
            return None
        self._free -= 1
        return 0

    def release(self, slot: int) -> None:
        self._free += 1

    def run(self, slot: int, batch: list[Inflight], close_reason: str) -> None:
        self.batches += 1
        members = list(batch)

        def end() -> None:
            self._free += 1
            self.active -= len(members)
            for member in members:
                self._done(member)
            self._scheduler.dispatch()

        self._clock.call_at(self._clock.now_ns() + self._fixed_ns + self._each_ns * len(members), end)


def _never(member: Inflight, error: Exception) -> None:
    raise error


def round_robin(servers: Sequence[Server], chance: random.Random) -> Callable[[], Server]:
    turn = 0

    def choose() -> Server:
        nonlocal turn
        turn += 1
        return servers[turn % len(servers)]

    return choose


def at_random(servers: Sequence[Server], chance: random.Random) -> Callable[[], Server]:
    return lambda: chance.choice(servers)


def least_request(servers: Sequence[Server], chance: random.Random) -> Callable[[], Server]:
    """Envoy's: of two servers at random, the one with fewer requests."""

    def choose() -> Server:
        one, other = chance.choice(servers), chance.choice(servers)
        return one if one.active <= other.active else other

    return choose


BALANCERS: Mapping[str, Callable[[Sequence[Server], random.Random], Callable[[], Server]]] = {
    "least_request": least_request,
    "round_robin": round_robin,
    "random": at_random,
}


def simulate(plan: Plan, seed: int = 0) -> Outcome:
    """Arrivals at the plan's rate; the first tenth is warm-up, and does not count."""
    clock, chance = FakeClock(), random.Random(seed)
    arrived: dict[int, int] = {}
    times_ms: list[float] = []
    warm_up = plan.requests // 10

    def done(member: Inflight) -> None:
        begin = arrived.pop(id(member))
        times_ms.append((clock.now_ns() - begin) / 1e6 + plan.overhead_ms)

    servers = [
        Server(plan, clock, done, plan.slow if number == plan.servers - 1 else 1.0) for number in range(plan.servers)
    ]
    choose = BALANCERS[plan.balancer](servers, chance)
    for _ in range(plan.requests):
        clock.advance(int(chance.expovariate(plan.rate / 1e9)))
        member = inflight()
        arrived[id(member)] = clock.now_ns()
        choose().send(member)
    while arrived:
        clock.advance(10**9)
    counted = sorted(times_ms[warm_up:])
    return Outcome(
        math.fsum(counted) / len(counted),
        _quantile(counted, 0.5),
        _quantile(counted, 0.99),
        plan.requests / sum(server.batches for server in servers),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def needed(plan: Plan, p99_ms: float, most: int = 10_000) -> tuple[int, Outcome]:
    """The smallest number of servers whose p99 is at most that, and what they do. Raises ValueError if none does."""
    alone = plan.service_ms[0] + plan.service_ms[1] + plan.overhead_ms
    if alone > p99_ms:
        raise ValueError(f"a request alone takes {alone:g} ms: no number of servers has a p99 of {p99_ms:g} ms")
    low = max(1, math.ceil(plan.rate / replace(plan, servers=1).capacity))
    high = low
    while (outcome := simulate(replace(plan, servers=high))).p99_ms > p99_ms:
        low, high = high + 1, high * 2
        if high > most:
            raise ValueError(f"{most} servers have a p99 of {outcome.p99_ms:.1f} ms at this rate")
    while low < high:
        middle = (low + high) // 2
        if simulate(replace(plan, servers=middle)).p99_ms <= p99_ms:
            high = middle
        else:
            low = middle + 1
    return high, simulate(replace(plan, servers=high))


# ---- What an execution takes


def measured(url: str, model: str) -> tuple[float, float]:
    """Milliseconds of an execution and of each request in it, by least squares over the statistics of a server.

    Raises ValueError if all batches it has run had the same size.
    """
    with urllib.request.urlopen(f"{url.rstrip('/')}/v2/models/{model}/stats", timeout=10) as response:
        versions = json.load(response)["model_stats"]
    points = [
        (int(each["batch_size"]), int(each["compute_infer"]["count"]), int(each["compute_infer"]["ns"]) / 1e6)
        for version in versions
        for each in version["batch_stats"]
        if int(each["compute_infer"]["count"])
    ]
    if len({size for size, _, _ in points}) < 2:
        raise ValueError(f"model {model!r} has run batches of one size only; `modserve bench --concurrency=1:32` first")
    weight = sum(count for _, count, _ in points)
    mean_size = sum(size * count for size, count, _ in points) / weight
    mean_ms = sum(total for _, _, total in points) / weight
    spread = sum(count * (size - mean_size) ** 2 for size, count, _ in points)
    each = sum((size - mean_size) * (total - mean_ms * count) for size, count, total in points) / spread
    return max(0.0, mean_ms - each * mean_size), max(0.0, each)


# ---- Against real servers

CHECKED = Plan(rate=0, servers=3, service_ms=(20.0, 0.0), instances=2, max_batch=4, requests=60_000)
"""Executions that sleep, so that three servers, a gateway and the clients have room on two cores."""
LOADS = (0.2, 0.4, 0.6, 0.75)
_CONFIGURATION = """
backend: "identity" max_batch_size: {plan.max_batch}
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }} ]
instance_group [ {{ count: {plan.instances} kind: KIND_CPU }} ]
dynamic_batching {{ }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{plan.service_ms[0]:g}" }} }}
"""
POLICIES: Mapping[str, str] = {"least_request": "LEAST_REQUEST", "round_robin": "ROUND_ROBIN"}
"""Our names for Envoy's policies."""


def bench(url: str, rate: float, seconds: float) -> Outcome:
    """An open loop of one-row requests by `modserve bench`."""
    words = ["bench", "sleeper", "--url", url, f"--rate={rate:g}", "--poisson", "--shape=INPUT0:1"]
    words += [f"--window-secs={seconds:g}", "--windows=1", "--warm-up-secs=2", "--stability=10000", "--json=-"]
    done = subprocess.run([sys.executable, "-m", "modserve", *words], capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)["results"]
    if row["errors"]:
        raise SystemExit(f"at {rate:g} requests a second: {row['errors']}")
    latency = row["latency_ms"]
    return Outcome(latency["mean"], latency["p50"], latency["p99"], math.nan)


def check(seconds: float) -> tuple[str, list[curve_chart.Curves]]:
    """Three servers behind Envoy, at several loads and by both policies, beside their simulation."""
    rows = [
        "| Envoy's policy | requests/s | p50 off by | p99 off by |",
        "|---|---|--:|--:|",
    ]
    panels = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "models" / "sleeper"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(_CONFIGURATION.format(plan=CHECKED))
        with gateway_stage.servers(folder, [folder / "models"]) as servers:
            addresses = [(server.http_port, server.grpc_port) for server in servers]
            for policy, envoys in POLICIES.items():
                edits = {"lb_policy: LEAST_REQUEST": f"lb_policy: {envoys}"} if envoys != "LEAST_REQUEST" else {}
                with gateway_stage.gateway("envoy", addresses, folder / policy, edits) as envoy:
                    url = f"http://127.0.0.1:{envoy.http_port}"
                    # What a request takes beside its execution, alone.
                    overhead = max(0.0, bench(url, 5, seconds).p50_ms - CHECKED.service_ms[0])
                    series: dict[str, list[tuple[float, float]]] = {"p99, measured": [], "p99, simulated": []}
                    series |= {"mean, measured": [], "mean, simulated": []}
                    pairs: list[tuple[Outcome, Outcome]] = []
                    for load in LOADS:
                        plan = replace(CHECKED, rate=load * CHECKED.capacity, overhead_ms=overhead, balancer=policy)
                        real, simulated = bench(url, plan.rate, seconds), simulate(plan)
                        pairs.append((real, simulated))
                        for title, outcome in (("measured", real), ("simulated", simulated)):
                            series[f"p99, {title}"].append((plan.rate, outcome.p99_ms))
                            series[f"mean, {title}"].append((plan.rate, outcome.mean_ms))
                    panels.append(curve_chart.Curves(policy, series))
                    rates = f"{LOADS[0] * CHECKED.capacity:.0f} to {LOADS[-1] * CHECKED.capacity:.0f}"
                    rows.append(
                        f"| {policy} | {rates} | {_deviation(pairs, 'p50_ms')} | {_deviation(pairs, 'p99_ms')} |"
                    )
    return "\n".join(rows), panels


def _deviation(pairs: Sequence[tuple[Outcome, Outcome]], name: str) -> str:
    """The largest between measured and simulated outcomes."""
    return f"{max(abs(getattr(simulated, name) / getattr(real, name) - 1) for real, simulated in pairs):.0%}"


# ---- From 1 to 1,000

SIZES = (1, 3, 10, 30, 100, 300, 1000)
SCALED = Plan(rate=0, servers=1, service_ms=(16.0, 0.5), instances=2, max_batch=8, delay_ms=1.0)
GOAL_MS = 60.0


def scale() -> str:
    """How much load fleets of several sizes bear within a p99, by policy."""
    rows = [
        f"| servers | {' | '.join(BALANCERS)} |",
        f"|--:|{'--:|' * len(BALANCERS)}",
    ]
    for servers in SIZES:
        cells = []
        for balancer in BALANCERS:
            plan = replace(SCALED, servers=servers, balancer=balancer, requests=max(40_000, 60 * servers))
            best = 0.0
            low, high = 0.0, 1.0
            for _ in range(6):
                middle = (low + high) / 2
                if simulate(replace(plan, rate=middle * plan.capacity)).p99_ms <= GOAL_MS:
                    low = best = middle
                else:
                    high = middle
            cells.append(f"{best * plan.capacity / servers:.0f} ({best:.0%})" if best else "none")
        rows.append(f"| {servers:,} | {' | '.join(cells)} |")
    return "\n".join(rows)


# ---- The command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_plan = commands.add_parser("plan", help="how many servers a load needs")
    of_plan.add_argument("--rate", type=float, required=True, help="requests a second")
    of_plan.add_argument("--goal-ms", type=float, required=True, help="of the latency, at most")
    of_plan.add_argument("--service", help="milliseconds of an execution, and of each request in it: 18,0.4")
    of_plan.add_argument("--measured", metavar="URL", help="a server that says what executions take")
    of_plan.add_argument("--model", help="of the server at --measured")
    of_plan.add_argument("--instances", type=int, default=1)
    of_plan.add_argument("--max-batch", type=int, default=1)
    of_plan.add_argument("--delay-ms", type=float, default=0.0, help="max_queue_delay_microseconds of the model")
    of_plan.add_argument("--overhead-ms", type=float, default=1.0, help="of a request beside waiting and execution")
    of_plan.add_argument("--balancer", choices=BALANCERS, default="least_request")
    for name, text in (("check", "against three real servers"), ("scale", "from 1 to 1,000 servers")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
        if name == "check":
            command.add_argument("--seconds", type=float, default=10, help="of each measurement")
    options = parser.parse_args(arguments)
    if options.command == "plan":
        print(_planned(parser, options))
        return
    if options.command == "check":
        text, panels = check(options.seconds)
        if options.write:
            PICTURE.write_text(curve_chart.draw([panels], "requests a second", "milliseconds"))
    else:
        text = scale()
    print(text)
    if options.write:
        put_into_report(f"fleet.py {options.command}", text, PAGE)


def _planned(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    try:
        if options.measured:
            service = measured(options.measured, options.model or parser.error("--measured needs --model"))
        elif options.service:
            fixed, _, each = options.service.partition(",")
            service = float(fixed), float(each or 0)
        else:
            parser.error("what does an execution take? --service, or --measured and --model")
        plan = Plan(
            options.rate,
            1,
            service,
            options.instances,
            options.max_batch,
            options.delay_ms,
            options.overhead_ms,
            options.balancer,
        )
        servers, outcome = needed(plan, options.goal_ms)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    load = options.rate / replace(plan, servers=servers).capacity
    return (
        f"an execution takes {service[0]:.2f} ms, and {service[1]:.3f} ms more for each request in it\n"
        f"{servers} servers: p50 {outcome.p50_ms:.1f} ms, p99 {outcome.p99_ms:.1f} ms, batches of {outcome.batch:.1f}, "
        f"{load:.0%} of what they can do at most; one more for the day when one is down"
    )


if __name__ == "__main__":
    main()
