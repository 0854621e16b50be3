"""The load generators: wrk for HTTP/1.1, h2load for gRPC. Closed loops, fixed bodies, one thread."""

import re
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import process_tree

from .dialects import GRPC, Request, frame


@dataclass(frozen=True)
class Window:
    """What one run of a load generator saw, and what it cost the server."""

    per_second: float
    p50_us: float
    p99_us: float
    p999_us: float
    cpu_us: float
    """Of all processes of the server, for a request."""
    count: int
    errors: int


@dataclass(frozen=True)
class Target:
    """A server's process, and one of its listeners."""

    pid: int
    port: int
    way: str
    response_bytes: int = 0
    """Over gRPC: the length of a right response's message."""


_LUA = """wrk.method = "POST"
wrk.body = io.open("{body}", "rb"):read("*a")
{headers}
done = function(summary, latency, requests)
  local at = function(share) return latency:percentile(share) end
  local e = summary.errors
  io.write(string.format("percentiles %d %d %d\\n", at(50), at(99), at(99.9)))
  io.write(string.format("total %d in %d us, errors %d\\n", summary.requests, summary.duration,
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def load(target: Target, request: Request, connections: int, seconds: int, rate: float) -> Window:
    """One window. `rate` is about how many requests per second there will be.

    Raises subprocess.SubprocessError, and ValueError if the generator says nothing that can be read or the server has
    ended.
    """
    before = process_tree.cpu_seconds(target.pid)
    if target.way == GRPC:
        count = max(connections, round(rate * seconds))
        window = _h2load(target, request, connections, count, 4 * seconds)
    else:
        window = _wrk(target, request, connections, seconds)
    spent = process_tree.cpu_seconds(target.pid) - before
    if spent < 0 or not process_tree.alive(target.pid):
        raise ValueError("a process of the server has ended")
    return replace(window, cpu_us=spent / window.count * 1e6)


def probe(target: Target, request: Request, connections: int) -> float:
    """Requests per second, roughly, of some hundred milliseconds."""
    count = 2 * connections + 20
    first = _h2load(target, request, connections, count, 30)
    second = _h2load(target, request, connections, count + round(first.per_second * 0.2), 30)
    return second.per_second


def _wrk(target: Target, request: Request, connections: int, seconds: int) -> Window:
    with tempfile.TemporaryDirectory() as directory:
        script, body = Path(directory) / "request.lua", Path(directory) / "body"
        body.write_bytes(request.body)
        script.write_text(lua(body, request.headers))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script)]
        return read_wrk(_run([*command, f"http://127.0.0.1:{target.port}{request.path}"], seconds))


def lua(body: Path, headers: Mapping[str, str]) -> str:
    lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    return _LUA.format(body=body, headers="\n".join(lines))


def read_wrk(text: str) -> Window:
    """What wrk has printed, by the script above. Raises ValueError."""
    p50, p99, p999 = map(float, _search(r"percentiles (\d+) (\d+) (\d+)", text))
    count, duration, errors = map(int, _search(r"total (\d+) in (\d+) us, errors (\d+)", text))
    if count == 0:
        raise ValueError(f"no request was answered:\n{text}")
    return Window(max(0, count - errors) / duration * 1e6, p50, p99, p999, 0.0, count, errors)


def _h2load(target: Target, request: Request, connections: int, count: int, seconds: int) -> Window:
    """A number of requests, and not a time: at its end a time would cancel the calls that are under way.

    Triton 2.51 has ended with a segmentation fault when clients did that.
    """
    with tempfile.TemporaryDirectory() as directory:
        body, log = Path(directory) / "message", Path(directory) / "log"
        body.write_bytes(frame(request.body))
        command = ["h2load", "-t1", "-m1", f"-c{connections}", f"-n{count}", "-d", str(body), f"--log-file={log}"]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        text = _run([*command, f"http://127.0.0.1:{target.port}{request.path}"], seconds)
        return read_h2load(text, log.read_text(), len(frame(b"")) + target.response_bytes)


def read_h2load(text: str, log: str, data_bytes: int) -> Window:
    """What h2load has printed, and its log: a line a request, with start, status and microseconds. Raises ValueError.

    A gRPC error has status 200 and no message, so h2load does not see it: `data_bytes` are those of a right response,
    and tell how many there were.
    """
    (rate,) = _search(r"finished in \S+, ([\d.]+) req/s", text)
    total, done, succeeded = map(int, _search(r"requests: (\d+) total, \d+ started, (\d+) done, (\d+) succeeded", text))
    (data,) = _search(r"\((\d+)\) data", text)
    right = min(succeeded, int(data) // data_bytes)
    times = sorted(int(line.split("\t")[2]) for line in log.splitlines() if line.count("\t") >= 2)
    if not times or not done:
        raise ValueError(f"no request was answered:\n{text}")
    p50, p99, p999 = (quantile(times, share) for share in (0.5, 0.99, 0.999))
    return Window(float(rate) * right / done, p50, p99, p999, 0.0, done, total - right)


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values: the one below which this share of them is."""
    return values[min(len(values) - 1, int(len(values) * share))]


def median(windows: Sequence[Window]) -> Window:
    """The median of each figure, and the sums of the counts."""
    return Window(
        statistics.median(each.per_second for each in windows),
        statistics.median(each.p50_us for each in windows),
        statistics.median(each.p99_us for each in windows),
        statistics.median(each.p999_us for each in windows),
        statistics.median(each.cpu_us for each in windows),
        sum(each.count for each in windows),
        sum(each.errors for each in windows),
    )


def _run(command: Sequence[str], seconds: int) -> str:
    """Twice the window and a minute is plenty: a server that hangs must not hang the benchmark."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=2 * seconds + 60).stdout


def _search(pattern: str, text: str) -> tuple[str, ...]:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"no {pattern!r} in:\n{text}")
    return match.groups()
