"""What a line in the access log costs, and an id for a request: microseconds a request, without a server around them.

    python benchmarks/access_log.py
    PYTHONPATH=build/compiled python benchmarks/access_log.py

`recorded` is the event loop's part of a request, which formats its line; `written` is the thread's part, which writes
many lines to a file. Both are processor time, the best of several runs; their sum is what a request costs.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from modserve.core.configuration.log_settings import AccessMode, AccessSettings, LogFormat, LogSettings
from modserve.core.requests import request_ids
from modserve.core.requests.origin import Origin
from modserve.core.requests.timing import ExecutionTiming
from modserve.form import form
from modserve.frontends.http.wire.responses import header_lines
from modserve.observability.access_log import AccessLog
from modserve.observability.logging import Logs
from modserve.protocol.http.request_head import RequestHead

_REQUESTS = 20_000
_RUNS = 7
_HEAD = RequestHead()
_CLIENT = ("127.0.0.1", 51234)


def best(work: Callable[[], object]) -> float:
    """Microseconds a request."""
    times = []
    for _ in range(_RUNS):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times) / _REQUESTS * 1e6


def lines(logs: Logs) -> tuple[float, float]:
    """What it takes to record a request, and to write its line."""
    log = AccessLog(AccessSettings(AccessMode.ALL), logs, most=_REQUESTS, start=False)
    timing = ExecutionTiming(4, "full", 10_000, 12_000, 90_000, 100_000)
    written = []
    origin = Origin(_CLIENT, ((b"user-agent", b"python-httpx/0.28.1"),))

    def record() -> None:
        for _ in range(_REQUESTS):
            log.record(
                "HTTP", origin, "infer", "simple", 1, 200, 512, 300, 1, "", "0a1b2c3d4e-1f", 1_000, 5_000, timing
            )

    recorded = []
    for _ in range(_RUNS):
        began = time.thread_time()
        record()
        middle = time.thread_time()
        log.drain()
        recorded.append(middle - began)
        written.append(time.thread_time() - middle)
    assert not log.lost
    return min(recorded) / _REQUESTS * 1e6, min(written) / _REQUESTS * 1e6


def made() -> None:
    """An id for each request, and the header line that repeats it."""
    for _ in range(_REQUESTS):
        header_lines(_HEAD, request_ids.make(), False, {})


def repeated() -> None:
    """A client's id."""
    for _ in range(_REQUESTS):
        header_lines(_HEAD, request_ids.choose(request_ids.check("6ba7b810-9dad-11d1-80b4-00c04fd430c8")), False, {})


def main() -> None:
    print(f"modserve is {form()}")
    for each in LogFormat:
        with tempfile.TemporaryDirectory() as folder:
            logs = Logs(LogSettings(format=each, file=str(Path(folder) / "log")))
            logs.install()
            recorded, written = lines(logs)
        both = recorded + written
        print(f"{each.value:8} recorded {recorded:5.2f} us, written {written:5.2f} us, together {both:5.2f} us")
    print(f"an id of ours, with its header: {best(made):.2f} us; a client's: {best(repeated):.2f} us")


if __name__ == "__main__":
    main()
