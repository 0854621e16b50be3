"""What the live console costs: CPU time of the server with no page open, with one, and with several.

    python benchmarks/console.py                      # 200 models, 20 seconds a row, beside the server without it
    python benchmarks/console.py --models 5 --workers 2

The pages are connections that read the figures, as browsers do. The rows take turns, a second each, so that whatever
else the machine does meets all of them. Figures are shares of one core; what a page costs is the difference to no page.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from process_tree import cpu_seconds, end, rss_mb

CONFIG = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]}'


def started(repository: Path, port: int, workers: int) -> "subprocess.Popen[bytes]":
    """A server that is ready."""
    command = [sys.executable, "-m", "modserve", "serve", "--model-repository", str(repository)]
    command += ["--http-address", "127.0.0.1", "--http-port", str(port), "--allow-grpc=false", "--allow-metrics=false"]
    command += ["--workers", str(workers), "--log-info=false"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).close()
            return process
        except OSError:
            if process.poll() is not None:
                raise SystemExit("the server has ended") from None
            time.sleep(0.1)


class Page:
    """A connection that reads the figures and does nothing with them."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(b"GET /console/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.bytes = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := self._socket.recv(1 << 16):
                self.bytes += len(data)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


class Load:
    """Requests to one model after the other, so many a second."""

    def __init__(self, port: int, models: int, rate: float) -> None:
        self._port, self._models, self._rate = port, models, rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if rate:
            self._thread.start()

    def _run(self) -> None:
        begun, number = time.monotonic(), 0
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            while not self._stopping.wait(max(0.0, begun + number / self._rate - time.monotonic())):
                head = f"POST /v2/models/model_{number % self._models:03}/infer HTTP/1.1\r\nHost: a\r\n"
                connection.sendall(f"{head}Content-Length: {len(_BODY)}\r\n\r\n".encode() + _BODY)
                connection.recv(1 << 16)
                number += 1

    def stop(self) -> None:
        self._stopping.set()
        if self._rate:
            self._thread.join()


def measured(pid: int, port: int, rows: list[int], seconds: int) -> tuple[dict[int, float], int]:
    """CPU seconds in a second by the number of open pages, and the bytes that a page gets in a second."""
    spent = dict.fromkeys(rows, 0.0)
    bytes_read = 0
    for _ in range(seconds // 4):
        for pages in rows:
            with ExitStack() as stack:
                opened = [Page(port) for _ in range(pages)]
                for page in opened:
                    stack.callback(page.close)
                time.sleep(0.5)  # the first picture, which is whole, is not what each second costs
                read, before = sum(page.bytes for page in opened), cpu_seconds(pid)
                time.sleep(4)
                spent[pages] += cpu_seconds(pid) - before
                bytes_read += (sum(page.bytes for page in opened) - read) if pages == 1 else 0
    return {pages: value / (seconds // 4 * 4) for pages, value in spent.items()}, bytes_read // (seconds // 4 * 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0, help="requests a second to all models together")
    parser.add_argument("--seconds", type=int, default=20, help="for each row")
    parser.add_argument("--pages", type=int, nargs="*", default=[0, 1, 8])
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.models):
            model = Path(folder) / f"model_{number:03}"
            (model / "1").mkdir(parents=True)
            (model / "config.pbtxt").write_text(CONFIG)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = started(Path(folder), port, options.workers)
        load = Load(port, options.models, options.rate)
        try:
            memory = rss_mb(process.pid)
            spent, size = measured(process.pid, port, options.pages, options.seconds)
            grown = rss_mb(process.pid) - memory
        finally:
            load.stop()
            end(process)
    base = spent.get(0, 0.0)
    if options.json:
        print(json.dumps({"cores": spent, "bytes_a_second": size, "grown_mb": grown, **vars(options)}))
        return
    print(f"{options.models} models, {options.workers} worker(s), {options.rate:g} requests a second")
    print("pages open   share of a core   more than without")
    for pages, value in spent.items():
        print(f"{pages:10}   {value:13.2%}   {value - base:15.2%}")
    print(f"a page reads {size:,} bytes a second; memory grew by {grown:.1f} MB")


if __name__ == "__main__":
    main()
