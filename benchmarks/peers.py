"""modserve beside other servers: the same models, the same requests, in one run, window by window in turns.

    python benchmarks/peers.py                            # all servers, models and ways; see --seconds and --rounds
    python benchmarks/peers.py --write                    # and puts tables, figures (JSON) and picture into place
    python benchmarks/peers.py --only simple grpc --peers modserve triton-python --rounds 1
    python benchmarks/peers.py --list                     # the servers that there are here
    python benchmarks/peers.py --setup                    # only makes the other servers' virtual environments

Needs `pip install .[dev]` and the programs wrk and h2load (Debian: wrk, nghttp2-client); TorchServe needs Java, too.
The other servers are installed on the first run, each into a virtual environment of its own (`--cache`). Triton is the
one in the nvidia-pytriton wheel, with models in Python. Where the environment variable TRITON_SERVER_CMD has a command
that starts a Triton with an engine for ONNX, with ``{repository}``, ``{http_port}``, ``{grpc_port}`` and
``{metrics_port}`` where these belong, that one is measured as well. modserve takes part as it is, and compiled where
`--compiled` (default: build/compiled) holds that form. Before it is measured, each server's responses are compared
with those of ONNX Runtime alone. A server that cannot be had, or whose responses are wrong, is left out, and the report
says why.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import process_tree
from modserve.execution.placement import available_cores
from overhead import missing_programs, put_into_report
from side_by_side import environments, report
from side_by_side.dialects import GRPC, WAYS
from side_by_side.environments import Unavailable
from side_by_side.loads import Target, load, probe
from side_by_side.models import MODELS, ROOT, write_files
from side_by_side.report import Results, Server
from side_by_side.running import Running, started
from side_by_side.servers import PEERS, Peer, modserve_peers, triton_command

PICTURE = ROOT / "docs" / "performance" / "peers.svg"
FIGURES = ROOT / "benchmarks" / "results" / "peers.json"
CONNECTIONS = (1, 16, 64)
IDLE_S = 2.0


class Progress:
    """A line for each step, with how much is done and how long the rest will take."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done, self._began = steps, 0, time.monotonic()

    def step(self, words: str) -> None:
        self._done += 1
        left = (time.monotonic() - self._began) / self._done * (self._steps - self._done)
        percent = 100 * self._done // max(1, self._steps)
        say(f"[{percent:3d} %, {left // 60:.0f}:{left % 60:02.0f} left] {words}")


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def known_peers(compiled: Path) -> list[Peer]:
    help_text = subprocess.run(
        [sys.executable, "-m", "modserve", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    ).stdout
    peers = modserve_peers(compiled, help_text)
    if template := os.environ.get("TRITON_SERVER_CMD"):
        peers.append(triton_command(template))
    return [*peers, *PEERS]


def selection(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The models and the ways that `--only` names; all models if it names none, and all ways likewise."""
    models = [name for name in MODELS if name in words]
    ways = [way for word, way in WAYS.items() if word in words]
    return models or list(MODELS), ways or list(WAYS.values())


def measure(options: argparse.Namespace, peers: Sequence[Peer]) -> Results:
    models, ways = selection(options.only)
    results = Results(options.connections)
    with ExitStack() as stack:
        home = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        write_files(home / "files", [MODELS[name] for name in models])
        servers = _start(stack, home, peers, models, ways, options.cache, results)
        if not servers:
            raise SystemExit("no server to measure: " + "; ".join(results.notes))
        _measure_idle(servers)
        _take_turns(servers, models, ways, options, results)
        for each in servers:
            pid = each.process.pid
            costs = (each.start_seconds, each.ready_mb, process_tree.rss_mb(pid), process_tree.pss_mb(pid))
            results.servers.append(Server(each.peer.key, each.peer.name, *costs, each.idle_cpu))
        say("ending the servers")
    return results


def _start(
    stack: ExitStack,
    home: Path,
    peers: Sequence[Peer],
    models: Sequence[str],
    ways: Sequence[str],
    cache: Path,
    results: Results,
) -> list[Running]:
    servers = []
    for peer in peers:
        if not set(peer.dialects) & set(ways):
            continue
        own = ExitStack()
        try:
            chosen = [MODELS[name] for name in models]
            running = own.enter_context(started(peer, home / peer.key, home / "files", chosen, cache))
        except Unavailable as reason:
            results.notes.append(str(reason))
            say(f"left out: {reason}")
            continue
        stack.push(own)
        servers.append(running)
        say(f"{peer.name}: right responses {running.start_seconds:.2f} s after its start, {running.ready_mb:.0f} MB")
    return servers


def _measure_idle(servers: Sequence[Running]) -> None:
    time.sleep(1.0)
    before = [process_tree.cpu_seconds(each.process.pid) for each in servers]
    time.sleep(IDLE_S)
    for each, seconds in zip(servers, before, strict=True):
        each.idle_cpu = (process_tree.cpu_seconds(each.process.pid) - seconds) / IDLE_S


def _take_turns(
    servers: Sequence[Running],
    models: Sequence[str],
    ways: Sequence[str],
    options: argparse.Namespace,
    results: Results,
) -> None:
    """Window by window, the first server of one round being the last of the next. Each is warmed for each way."""
    takers = {way: [each for each in servers if way in each.peer.dialects] for way in ways}
    turns = sum(map(len, takers.values())) * len(models)
    progress = Progress(turns * (1 + options.rounds * len(options.connections)))
    for model in models:
        for way in ways:
            able = [each for each in takers[way] if _window(each, model, way, 16, 1, progress, results, warm=True)]
            for connections in options.connections:
                for number in range(options.rounds):
                    for each in able if number % 2 == 0 else able[::-1]:
                        _window(each, model, way, connections, options.seconds, progress, results)


def _window(
    server: Running,
    model: str,
    way: str,
    connections: int,
    seconds: int,
    progress: Progress,
    results: Results,
    warm: bool = False,
) -> bool:
    """One window; whether there was one. One to get warm leaves no figures."""
    place = f"{model}, {way}, {connections} connections, {server.peer.name}"
    if server.process.poll() is not None:
        progress.step(f"{place}: the server has ended")
        return False
    request = server.peer.dialects[way].write(MODELS[model])
    target = Target(server.process.pid, server.port(way), way, server.response_bytes.get(model, 0))
    cell = (model, way, connections)
    try:
        rate = server.rates.get(cell, 0.0)
        if way == GRPC and not rate:
            rate = probe(target, request, connections)
        window = load(target, request, connections, seconds, rate)
    except (subprocess.SubprocessError, ValueError) as error:
        reason = f"{error}; the process has ended with {code}" if (code := server.process.poll()) else str(error)
        results.notes.append(f"{place}: {reason}")
        progress.step(f"{place}: {reason}")
        return False
    server.rates[cell] = window.per_second
    rate_text, times, cpu = report.figures(window)
    progress.step(f"{place}: {'warm' if warm else f'{rate_text}/s; {times} ms; {cpu}'}")
    if not warm:
        results.windows.setdefault(cell, {}).setdefault(server.peer.name, []).append(window)
    return True


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*MODELS, *WAYS], default=[], help="models and ways; default: all")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="servers, by the names of --list; default: all")
    parser.add_argument("--connections", nargs="+", type=int, default=list(CONNECTIONS))
    parser.add_argument("--seconds", type=int, default=3, help="of each window; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="windows of each cell; default: %(default)s")
    parser.add_argument("--cache", type=Path, default=environments.CACHE, help="of virtual environments; %(default)s")
    parser.add_argument("--compiled", type=Path, default=ROOT / "build" / "compiled", help="modserve's compiled form")
    parser.add_argument("--json", type=Path, help="also write the figures into this file")
    parser.add_argument("--keep", type=Path, help="a new folder for the servers' files and logs; default: none is left")
    parser.add_argument("--write", action="store_true", help="put a summary into benchmarks/results/tables.md")
    parser.add_argument("--list", action="store_true", help="name the servers, and end")
    parser.add_argument("--setup", action="store_true", help="make the virtual environments, and end")
    return parser.parse_args()


def set_up(peers: Sequence[Peer], cache: Path) -> None:
    for name in environments.REQUIREMENTS:
        if any(peer.key.split("-")[0] == name for peer in peers):
            try:
                say(f"{name}: {environments.environment(name, cache)}")
            except Unavailable as reason:
                say(f"left out: {reason}")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that no server is left behind
    options = arguments()
    peers = known_peers(options.compiled.resolve())
    if options.list:
        print("\n".join(f"{peer.key:28} {peer.name}: {', '.join(peer.dialects)}" for peer in peers))
        return
    if unknown := sorted(set(options.peers or ()) - {peer.key for peer in peers}):
        raise SystemExit(f"--peers: no server {', '.join(unknown)}; known: {', '.join(peer.key for peer in peers)}")
    if options.peers:
        peers = [peer for peer in peers if peer.key in options.peers]
    if options.setup:
        set_up(peers, options.cache)
        return
    if missing := missing_programs():
        raise SystemExit(missing)
    results = measure(options, peers)
    cores, engine = available_cores(), environments.ENGINE.replace("onnxruntime==", "ONNX Runtime ")
    window = f"{options.rounds} windows of {options.seconds} s"
    print(report.text(results, engine, cores, window))
    figures = json.dumps(report.figures_json(results, engine, cores), indent=1) + "\n"
    if options.json:
        options.json.write_text(figures)
    if options.write:
        FIGURES.write_text(figures)
        PICTURE.write_text(report.picture(results))
        link = f"![Latency against throughput of each server](../../docs/performance/{PICTURE.name})"
        put_into_report("peers.py", f"{link}\n\n{report.summary(results, engine, cores, window)}")


if __name__ == "__main__":
    main()
