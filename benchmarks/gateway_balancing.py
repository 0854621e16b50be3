"""How Envoy's ways to balance cope with a slow server of three: round robin, least requests, and load reports (ORCA).

    python benchmarks/gateway_balancing.py            # half a minute
    python benchmarks/gateway_balancing.py --write    # also writes the table into benchmarks/results/tables.md

Eight clients send one request after the other, half of them over each protocol. The model takes no time on two servers
and 150 ms on the third. The servers run with --orca=text; Envoy learns for some seconds before it is measured.
"""

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import gateway_stage
from gateway_load import Call, GrpcCaller, HttpCaller, Load
from gateway_stage import ROOT, ModelServer
from overhead import put_into_report

PAGE = ROOT / "docs" / "gateways.md"

_LINE = "lb_policy: LEAST_REQUEST # a slow server gets less"
_GRPC_LINE = "lb_policy: LEAST_REQUEST\n"


def load_reports() -> str:
    """The lines that the page shows, for a cluster of the configuration."""
    text = PAGE.read_text()
    block = text[text.index("# in the clusters http and grpc, instead of lb_policy\n") :]
    lines = block[: block.index("```")].splitlines()[1:]
    return "\n".join(f"      {line}" if number else line for number, line in enumerate(lines))


def edits(policy: str) -> Mapping[str, str]:
    return {_LINE: policy, _GRPC_LINE: f"{policy}\n"}


class Balance(NamedTuple):
    """`share`: of the requests, to the slow server."""

    rate: float
    share: float
    p50_ms: float
    p90_ms: float
    wrong: int


def _send_until_each_answers(call: Call, servers: Sequence[ModelServer]) -> None:
    """Envoy tells its worker up to a second later (update_merge_window) which servers have become healthy."""
    before = [server.executions("paced") for server in servers]

    def each_has_answered() -> bool:
        call(1)
        return all(server.executions("paced") > count for server, count in zip(servers, before, strict=True))

    gateway_stage.until(each_has_answered, "each server answers through Envoy")


def measure(
    servers: Sequence[ModelServer], directory: Path, policy: str, learn_s: float, measure_s: float, pause_s: float
) -> Balance:
    addresses = [(server.http_port, server.grpc_port) for server in servers]
    with gateway_stage.gateway("envoy", addresses, directory, edits(policy)) as gateway:
        with (
            closing(HttpCaller(gateway.http_port, "paced")) as rest,
            closing(GrpcCaller(gateway.grpc_port, "paced")) as rpc,
        ):
            for call in (rest.json, rpc.unary):
                _send_until_each_answers(call, servers)
        for seconds in (learn_s, measure_s):
            before = [server.executions("paced") for server in servers]
            load = Load(gateway.http_port, gateway.grpc_port, "paced", streams=False, pause_s=pause_s)
            load.start()
            began = time.monotonic()
            load.wait_for_seconds(seconds)
            tallies = load.stop().values()
            elapsed = time.monotonic() - began
    counts = [server.executions("paced") - earlier for server, earlier in zip(servers, before, strict=True)]
    latencies = sorted(latency for tally in tallies for latency in tally.latencies_s)
    lost = sum(len(tally.wrong) + len(tally.failed) + len(tally.refused) for tally in tallies)
    p50, p90 = (1e3 * latencies[int(len(latencies) * part)] for part in (0.5, 0.9))
    return Balance(len(latencies) / elapsed, counts[-1] / sum(counts), p50, p90, lost)


def policies() -> Mapping[str, str]:
    return {
        "round robin": "lb_policy: ROUND_ROBIN",
        "load reports": load_reports(),
        "least requests": "lb_policy: LEAST_REQUEST",
    }


def table(balances: Mapping[str, Balance]) -> str:
    lines = [
        "| Envoy's policy | requests a second | of them to the slow server | median | p90 |",
        "|---|---|---|---|---|",
    ]
    for name, each in balances.items():
        lines.append(f"| {name} | {each.rate:,.0f} | {each.share:.1%} | {each.p50_ms:.1f} ms | {each.p90_ms:.1f} ms |")
    return "\n".join(lines)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with gateway_stage.servers(directory, options=["--orca=text"]) as servers:
            balances = {
                name: measure(servers, directory / name.replace(" ", "-"), policy, 6.0, 6.0, 0.001)
                for name, policy in policies().items()
            }
    print(table(balances))
    if "--write" in sys.argv[1:]:
        put_into_report("gateway_balancing.py", table(balances))
    return int(any(each.wrong for each in balances.values()))


if __name__ == "__main__":
    sys.exit(main())
