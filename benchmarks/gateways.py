"""What gateways make of servers that stop, die, freeze, are slow or have another version.

    python benchmarks/gateways.py                    # Envoy, nginx and HAProxy; a minute for each
    python benchmarks/gateways.py haproxy            # one of them
    python benchmarks/gateways.py --write            # also writes the table into benchmarks/results/tables.md

Three servers on this machine, the configuration in deploy/gateways before them, and clients of four kinds: REST
(JSON and binary), gRPC, streams of server-sent events, and streams in both directions. Each answer is compared with
the right one; no client sends anything again. Exit code 1 if a request was lost at SIGTERM, an answer was wrong
anywhere, or the numbers do not add up.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import gateway_stage
from gateway_load import GrpcCaller, HttpCaller, Load, Refused, Tally
from gateway_stage import NAMES, ROOT, Gateway, ModelServer
from overhead import put_into_report

EDITS: Mapping[str, Mapping[str, str]] = {
    "envoy": {"per_try_idle_timeout: 60s": "per_try_idle_timeout: 2s"},
    "nginx": {"_read_timeout 60s": "_read_timeout 2s"},
    "haproxy": {"timeout server 60s": "timeout server 2s"},
}
"""What a test changes besides addresses: 2 s are more than the slowest of these models takes."""


FROZEN_PATIENCE_S = 6.0


Tallies = dict[str, Tally]
"""By kind of request."""


@dataclass(frozen=True)
class Outcome:
    """Of one event at one gateway: what became of the requests, and what else there is to say."""

    tallies: Tallies
    note: str = ""


class Loads:
    """The same load through each of the gateways."""

    def __init__(self, loads: Mapping[str, Load]) -> None:
        self._loads = loads

    def __enter__(self) -> "Loads":
        for load in self._loads.values():
            load.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> dict[str, Tallies]:
        """By gateway, once all requests have ended."""
        return {name: load.stop() for name, load in self._loads.items()}

    def wait_for_answers(self, count: int) -> None:
        for load in self._loads.values():
            load.wait_for_answers(count)

    def wait_for_those_in_flight(self) -> None:
        for load in self._loads.values():
            load.wait_for_those_in_flight()


@dataclass(frozen=True)
class Stage:
    servers: Sequence[ModelServer]
    gateways: Sequence[Gateway]
    answers: int
    """How many right answers of each kind are waited for, before, between and after events."""
    pause_s: float
    """Of a client between two requests."""
    stops: int = gateway_stage.SERVER_COUNT
    """How many servers get SIGTERM, one after the other."""

    def load(self, model: str = "scaled", *, streams: bool = True, patience_s: float = 20.0) -> Loads:
        return Loads(
            {
                each.name: Load(each.http_port, each.grpc_port, model, streams, patience_s, self.pause_s)
                for each in self.gateways
            }
        )

    def wait_until_used(self) -> None:
        """Until each gateway has sent requests of both protocols to each server again."""
        for each in self.gateways:
            callers = HttpCaller(each.http_port, "scaled"), GrpcCaller(each.grpc_port, "scaled")
            for call in (callers[0].json, callers[1].unary):
                before = [server.executions("scaled") for server in self.servers]

                def used(call: Callable[[int], str] = call, before: Sequence[int] = before) -> bool:
                    with contextlib.suppress(Refused):
                        call(0)
                    now = [server.executions("scaled") for server in self.servers]
                    return all(count > earlier for count, earlier in zip(now, before, strict=True))

                gateway_stage.until(used, f"{each.name} sends requests to each server")
            for caller in callers:
                caller.close()


Outcomes = dict[str, Outcome]
"""By gateway."""


def _outcomes(tallies: Mapping[str, Tallies], note: str = "") -> Outcomes:
    return {name: Outcome(each, note) for name, each in tallies.items()}


def nothing(stage: Stage) -> Outcomes:
    with stage.load() as load:
        load.wait_for_answers(stage.answers)
    return _outcomes(load.stop())


def sigterm(stage: Stage) -> Outcomes:
    """Each server in turn, as a rolling update stops them."""
    sums: dict[str, Tallies] = {each.name: {} for each in stage.gateways}
    for server in stage.servers[: stage.stops]:
        with stage.load() as load:
            load.wait_for_answers(stage.answers)
            server.program.signal(signal.SIGTERM)
            code = server.program.wait()
            load.wait_for_answers(stage.answers)
        if code:
            raise RuntimeError(f"exit code {code}: {server.log}")
        for name, tallies in load.stop().items():
            for kind, tally in tallies.items():
                sums[name].setdefault(kind, Tally()).add(tally)
        server.start()
        server.wait_until_ready()
        stage.wait_until_used()
    return _outcomes(sums, "each server in turn" if stage.stops > 1 else "")


def killed(stage: Stage) -> Outcomes:
    """Leaves the server down."""
    with stage.load() as load:
        load.wait_for_answers(stage.answers)
        stage.servers[0].program.signal(signal.SIGKILL)
        stage.servers[0].program.wait()
        load.wait_for_those_in_flight()
        load.wait_for_answers(stage.answers)
    return _outcomes(load.stop())


def port_closed(stage: Stage) -> Outcomes:
    """The server has been down for a while; it starts in the middle, and gets requests again."""
    server = stage.servers[0]
    with stage.load() as load:
        load.wait_for_answers(stage.answers)
        server.start()
        server.wait_until_ready()
        gateway_stage.until(lambda: server.executions("scaled"), "the server gets requests again")
    stage.wait_until_used()
    return _outcomes(load.stop(), "nobody listens; then the server starts")


def frozen(stage: Stage) -> Outcomes:
    server = stage.servers[1]
    with stage.load(patience_s=FROZEN_PATIENCE_S) as load:
        load.wait_for_answers(stage.answers)
        server.program.signal(signal.SIGSTOP)
        try:
            load.wait_for_those_in_flight()
            load.wait_for_answers(stage.answers)
        finally:
            server.program.signal(signal.SIGCONT)
    stage.wait_until_used()
    return _outcomes(load.stop(), f"clients wait for {FROZEN_PATIENCE_S:g} s at most")


def slow(stage: Stage) -> Outcomes:
    """The model takes longer on one of the servers."""
    with stage.load("paced", streams=False) as load:
        load.wait_for_answers(4 * stage.answers)
    outcomes = {}
    for name, tallies in load.stop().items():
        latencies = [latency for tally in tallies.values() for latency in tally.latencies_s]
        share = sum(latency * 1e3 >= gateway_stage.SLOW_MS for latency in latencies) / len(latencies)
        outcomes[name] = Outcome(
            tallies, f"{gateway_stage.SLOW_MS} ms on one of three: it got {share:.0%} of the requests"
        )
    return outcomes


def other_version(stage: Stage) -> Outcomes:
    """One of the servers has a further version, which takes the requests without one."""
    with stage.load("versioned", streams=False) as load:
        load.wait_for_answers(2 * stage.answers)
    outcomes = {}
    for name, tallies in load.stop().items():
        versions: dict[str, int] = {}
        for tally in tallies.values():
            for version, count in tally.versions.items():
                versions[version] = versions.get(version, 0) + count
        note = ", ".join(f"version {version}: {versions[version]}" for version in sorted(versions))
        outcomes[name] = Outcome(tallies, note)
    return outcomes


EVENTS: Mapping[str, Callable[[Stage], Outcomes]] = {
    "nothing": nothing,
    "SIGTERM": sigterm,
    "kill -9": killed,
    "port closed": port_closed,
    "SIGSTOP (frozen)": frozen,
    "slow server": slow,
    "another version": other_version,
}
"""In this order: the port that is closed is that of the killed server."""


def run(
    names: Sequence[str],
    servers: Sequence[ModelServer],
    directory: Path,
    answers: int,
    pause_s: float = 0.004,
    stops: int = gateway_stage.SERVER_COUNT,
    edits: Mapping[str, Mapping[str, str]] = EDITS,
) -> dict[str, dict[str, Outcome]]:
    """All events behind these gateways, which have the same servers at the same time. By gateway and event."""
    addresses = [(server.http_port, server.grpc_port) for server in servers]
    with contextlib.ExitStack() as stack:
        gateways = [
            stack.enter_context(gateway_stage.gateway(name, addresses, directory / name, edits[name])) for name in names
        ]
        stage = Stage(servers, gateways, answers, pause_s, stops)
        stage.wait_until_used()
        outcomes: dict[str, dict[str, Outcome]] = {name: {} for name in names}
        for event, act in EVENTS.items():
            for name, outcome in act(stage).items():
                outcomes[name][event] = outcome
    return outcomes


def faults(outcomes: Mapping[str, Outcome]) -> list[str]:
    """What must not be."""
    complaints = []
    for event, outcome in outcomes.items():
        for kind, tally in outcome.tallies.items():
            if not tally.adds_up:
                complaints.append(f"{event}, {kind}: {tally.sent} sent, but the rest does not add up")
            complaints += [f"{event}, {kind}: wrong: {text}" for text in tally.wrong[:3]]
            lost = [text for text in (*tally.refused, *tally.failed) if event != "port closed" or not _is_early(text)]
            if event not in ("kill -9", "SIGSTOP (frozen)"):
                complaints += [f"{event}, {kind}: lost: {text}" for text in lost[:3]]
    return complaints


def _is_early(text: str) -> bool:
    """A server said it while it was starting. nginx, which asks nobody for health, has no other for a gRPC call."""
    return "is still loading" in text or "has not scanned its model repositories yet" in text


def table(outcomes: Mapping[str, Mapping[str, Outcome]]) -> str:
    """Requests sent through each gateway at each event, and those without a right answer."""
    names = list(outcomes)
    lines = [f"| event | {' | '.join(TITLES[name] for name in names)} |", f"|---|{'---|' * len(names)}"]
    for event in outcomes[names[0]]:
        lines.append(f"| {event} | {' | '.join(_cell(outcomes[name][event]) for name in names)} |")
    return "\n".join(lines)


def _cell(outcome: Outcome) -> str:
    """Such as `6,047: 2 refused, 1 failed`."""
    tallies = outcome.tallies.values()
    counts = {name: sum(len(getattr(each, name)) for each in tallies) for name in ("refused", "failed", "wrong")}
    losses = [f"{count} {name}" for name, count in counts.items() if count]
    sent = f"{sum(tally.sent for tally in tallies):,}"
    return f"{sent}: {', '.join(losses)}" if losses else sent


TITLES = {"envoy": "Envoy", "nginx": "nginx", "haproxy": "HAProxy"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gateways", nargs="*", metavar="GATEWAY", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--answers", type=int, default=100, help="right answers of each kind around each event")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    options = parser.parse_args()
    if unknown := set(options.gateways) - set(NAMES):
        parser.error(f"unknown gateway {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    if options.write and options.gateways:
        parser.error("--write is for all gateways: their table is one")
    complaints: list[str] = []
    outcomes: dict[str, dict[str, Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with gateway_stage.servers(directory, [ROOT / "model_repository"]) as servers:
            for name in options.gateways or NAMES:
                began = time.monotonic()
                outcomes |= run([name], servers, directory, options.answers)
                print(f"{TITLES[name]}, {time.monotonic() - began:.0f} s")
                for event, outcome in outcomes[name].items():
                    longest_s = max(tally.longest_s for tally in outcome.tallies.values())
                    print(f"  {event}: {_cell(outcome)}, longest {longest_s:.2f} s. {outcome.note}".rstrip(". "))
                    for kind, tally in outcome.tallies.items():
                        for text in sorted({*tally.refused, *tally.failed, *tally.wrong})[:3]:
                            print(f"    {kind}: {text}")
                complaints += [f"{TITLES[name]}: {text}" for text in faults(outcomes[name])]
    print(f"\n{datetime.now(UTC):%Y-%m-%d}\n\n{table(outcomes)}\n")
    if options.write:
        put_into_report("gateways.py", table(outcomes))
    print("\n".join(complaints) or "nothing lost at SIGTERM, nothing wrong")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
