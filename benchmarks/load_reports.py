"""What load reports cost, and how long an idle server takes to drain.

    python benchmarks/load_reports.py
    PYTHONPATH=build/compiled python benchmarks/load_reports.py
    python benchmarks/load_reports.py --drain

Without --drain: microseconds of CPU time a request, of servers with and without `--orca`, in turns; and one report by
itself, with ten models. With it: seconds from the call or the signal to its end, of servers without clients.
"""

import argparse
import json
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import date
from http.client import HTTPConnection

from modserve.core.statistics.metrics import MetricStore
from modserve.form import form
from modserve.observability.load_meter import LoadMeter
from modserve.protocol.control import load_report

_ROUNDS = 11
_REQUESTS = 6_000
_AHEAD = 20
_INPUTS = [{"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for n in (0, 1)]
_BODY = json.dumps({"inputs": _INPUTS}).encode()


class Server:
    """One with the example models."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process = process
        self.port = port

    @property
    def cpu_s(self) -> float:
        with open(f"/proc/{self.process.pid}/schedstat") as file:
            main = int(file.read().split()[0])
        return main / 1e9


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "modserve", "serve", "--example", "--http-port=0", "--grpc-port=0"]
    command += ["--metrics-port=0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        port = next(int(line.rpartition(":")[2]) for line in process.stdout if line.startswith("HTTP listening"))
        next(line for line in process.stdout if "Try it" in line)
        try:
            yield Server(process, port)
        finally:
            process.kill()


def microseconds(server: Server, header: bytes) -> float:
    """CPU time of the event loop's thread for a request, of many on one connection, some of which are sent ahead."""
    head = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%b\r\n"
    request = head % (len(_BODY), header) + _BODY
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        begun = server.cpu_s
        for _ in range(_REQUESTS // _AHEAD):
            connection.sendall(request * _AHEAD)
            left, data = _AHEAD, b""
            while left:
                data += connection.recv(1 << 18)
                left = _AHEAD - data.count(b"HTTP/1.1 200")
            while not data.endswith(b"}"):
                data += connection.recv(1 << 18)
        return (server.cpu_s - begun) / _REQUESTS * 1e6


def reports() -> None:
    cases: Sequence[tuple[str, str, bytes]] = (
        ("off", "off", b""),
        ("text", "text", b""),
        ("bin", "bin", b""),
        ("request, not asked", "request", b""),
        ("request, asked for json", "request", b"endpoint-load-metrics-format: json\r\n"),
    )
    times: dict[str, list[float]] = {name: [] for name, _, _ in cases}
    with ExitStack() as stack:
        servers = {option: stack.enter_context(serving(f"--orca={option}")) for _, option, _ in cases if option}
        again = stack.enter_context(serving("--orca=off"))
        times["off, another server"] = []
        for _ in range(_ROUNDS):
            for name, option, header in cases:
                times[name].append(microseconds(servers[option], header))
            times["off, another server"].append(microseconds(again, b""))
    base = statistics.median(times["off"])
    for name, each in times.items():
        median = statistics.median(each)
        print(f"{name:26} {median:6.2f} us a request, {median - base:+.2f} us, ratio {median / base:.3f}")
    meter = LoadMeter(list, MetricStore(), cores=2, memory=1 << 30)
    begun = time.process_time()
    for number in range(1000):
        report = meter.read(float(number))
        load_report.text(report)
        load_report.message(report)
    print(f"one report without models: {(time.process_time() - begun) * 1e3:.0f} us, ten times a second")


def drains() -> None:
    calls, stops = [], []
    for _ in range(7):
        with serving() as server, closing(HTTPConnection("127.0.0.1", server.port)) as connection:
            begun = time.perf_counter()
            connection.request("POST", "/v2/health/drain")
            report = json.loads(connection.getresponse().read())
            assert report["drained"], report
            calls.append(time.perf_counter() - begun)
        with serving() as server:
            begun = time.perf_counter()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait() == 0
            stops.append(time.perf_counter() - begun)
    for name, each in (("the call that drains", calls), ("SIGTERM until the process has ended", stops)):
        print(f"{name}: median {statistics.median(each):.3f} s, longest {max(each):.3f} s of {len(each)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drain", action="store_true")
    drain = parser.parse_args().drain
    print(f"modserve is {form()}, Python {platform.python_version()}, {date.today()}")
    (drains if drain else reports)()


if __name__ == "__main__":
    main()
