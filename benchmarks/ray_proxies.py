"""What Ray costs: requests a second of a small and of a slow model, alone, by Ray's own proxy, and by HAProxy.

    scripts/ray_tests --collect-only -q                 # once: the environment
    .venv-ray/bin/python benchmarks/ray_proxies.py

Each row is a cluster of its own with one replica, since the proxy is chosen when Ray starts; the server alone runs in
between. `modserve bench` is the client on the same machine: 16 requests at a time of `simple`, which takes
microseconds, and of `repeat` with one response after 50 ms.
"""

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np

_ROOT = Path(__file__).parents[1]
_PATIENCE = 180.0
_ROWS = {"server alone": "", "Ray's own proxy": "0", "HAProxy mode": "1"}
"""What RAY_SERVE_ENABLE_HA_PROXY is; empty: no Ray."""
_CLUSTER = """
import sys, time
import ray
from ray import serve
from ray.serve.config import HTTPOptions
import modserve.ray
ray.init(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
serve.start(http_options=HTTPOptions(host="127.0.0.1", port=int(sys.argv[1])))
app = modserve.ray.app(sys.argv[2], model_control_mode="explicit", load_model=["simple", "repeat"])
serve.run(app, name="modserve")
time.sleep(3600)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def served(mode: str) -> Iterator[str]:
    """The address of one server, alone or on Ray."""
    port, models = free_port(), str(_ROOT / "model_repository")
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}
    if mode:
        environment["RAY_SERVE_ENABLE_HA_PROXY"] = mode
        command = [sys.executable, "-c", _CLUSTER, str(port), models]
    else:
        command = [sys.executable, "-m", "modserve", "serve", "--model-repository", models, "--http-port", str(port)]
        command += ["--allow-grpc", "false", "--allow-metrics", "false", "--model-control-mode", "explicit"]
        command += ["--load-model", "simple", "--load-model", "repeat", "--http-address", "127.0.0.1"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + _PATIENCE
        while not _ready(url):
            if time.monotonic() > end or process.poll() is not None:
                raise SystemExit(f"no server at {url}")
            time.sleep(0.5)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/models/simple/ready", timeout=10) as response:
            return int(response.status) == 200
    except (OSError, urllib.error.URLError):
        return False


def throughput(url: str, model: str) -> tuple[float, float]:
    """Requests a second, and milliseconds of the median, of 16 clients."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, "-m", "modserve", "bench", model, "--url", url, "--concurrency", "16"]
        command += ["--window-secs", "2", "--windows", "3", "--stability", "1000", "--json", str(file)]
        if model == "repeat":
            for name, values in (("IN", [1]), ("DELAY", [50]), ("WAIT", [0])):
                command += ["--input", f"{name}=@{_values(folder, name, values)}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
        result = json.loads(file.read_text())
    (row,) = result["results"]
    return row["requests_per_second"], row["latency_ms"]["p50"]


def _values(folder: str, name: str, values: list[int]) -> Path:
    file = Path(folder) / f"{name}.npy"
    np.save(file, np.array(values, np.int32 if name == "IN" else np.uint32))
    return file


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=2)
    options = arguments.parse_args()
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for row, mode in _ROWS.items():
            with served(mode) as url:
                for model in ("simple", "repeat"):
                    figures.setdefault((row, model), []).append(throughput(url, model))
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.0f} at the end, {date.today()}\n")
    print(
        "| 16 clients | simple | | repeat, 50 ms | |\n|---|--:|--:|--:|--:|\n| | requests/s | p50 | requests/s | p50 |"
    )
    for row in _ROWS:
        cells = []
        for model in ("simple", "repeat"):
            rate, latency = (statistics.median(each) for each in zip(*figures[row, model], strict=True))
            cells.append(f"{rate:,.0f} | {latency:.1f} ms")
        print(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
