"""The load generators: wrk for HTTP/1.1, h2load for gRPC. Closed loops, fixed bodies, one thread."""

import re
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


def load(
    pid: int, port: int, way: str, request: Request, connections: int, seconds: int, response_bytes: int
) -> Window:
    """One window. Over gRPC, `response_bytes` is the length of a right response's message.

    Raises subprocess.CalledProcessError, and ValueError if the generator says nothing that can be read.
    """
    if way == GRPC:
        return _h2load(pid, port, request, connections, seconds, response_bytes)
    return _wrk(pid, port, request, connections, seconds)


def _wrk(pid: int, port: int, request: Request, connections: int, seconds: int) -> Window:
    with tempfile.TemporaryDirectory() as directory:
        script, body = Path(directory) / "request.lua", Path(directory) / "body"
        body.write_bytes(request.body)
        script.write_text(lua(body, request.headers))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script)]
        before = process_tree.cpu_seconds(pid)
        text = _run([*command, f"http://127.0.0.1:{port}{request.path}"], seconds)
        return read_wrk(text, process_tree.cpu_seconds(pid) - before)


def lua(body: Path, headers: Mapping[str, str]) -> str:
    lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    return _LUA.format(body=body, headers="\n".join(lines))


def read_wrk(text: str, cpu_seconds: float) -> Window:
    """What wrk has printed, by the script above. Raises ValueError."""
    p50, p99, p999 = map(float, _search(r"percentiles (\d+) (\d+) (\d+)", text))
    count, duration, errors = map(int, _search(r"total (\d+) in (\d+) us, errors (\d+)", text))
    right = max(0, count - errors)
    return Window(
        right / duration * 1e6 if duration else 0.0, p50, p99, p999, cpu_seconds / max(1, count) * 1e6, count, errors
    )


def _h2load(pid: int, port: int, request: Request, connections: int, seconds: int, response_bytes: int) -> Window:
    with tempfile.TemporaryDirectory() as directory:
        body, log = Path(directory) / "message", Path(directory) / "log"
        body.write_bytes(frame(request.body))
        command = ["h2load", "-t1", "-m1", f"-c{connections}", f"-D{seconds}", "-d", str(body), f"--log-file={log}"]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        before = process_tree.cpu_seconds(pid)
        text = _run([*command, f"http://127.0.0.1:{port}{request.path}"], seconds)
        cpu_seconds = process_tree.cpu_seconds(pid) - before
        return read_h2load(text, log.read_text(), cpu_seconds, len(frame(b"")) + response_bytes)


def read_h2load(text: str, log: str, cpu_seconds: float, data_bytes: int) -> Window:
    """What h2load has printed, and its log: a line a request, with start, status and microseconds. Raises ValueError.

    A gRPC error has status 200 and no message, so h2load does not see it; the bytes that came back tell.
    """
    (rate,) = _search(r"finished in \S+, ([\d.]+) req/s", text)
    done, succeeded = map(int, _search(r"(\d+) done, (\d+) succeeded", text))
    failed, errored, timeout = map(int, _search(r"(\d+) failed, (\d+) errored, (\d+) timeout", text))
    (data,) = _search(r"\((\d+)\) data", text)
    whole = min(succeeded, int(data) // data_bytes) if data_bytes else succeeded
    times = sorted(int(line.split("\t")[2]) for line in log.splitlines() if line.count("\t") >= 2)
    if not times:
        raise ValueError(f"h2load logged no request:\n{text}")
    p50, p99, p999 = (quantile(times, share) for share in (0.5, 0.99, 0.999))
    errors = failed + errored + timeout + (succeeded - whole)
    return Window(
        float(rate) * whole / max(1, done), p50, p99, p999, cpu_seconds / max(1, done) * 1e6, max(1, done), errors
    )


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
