"""What handing a batch to an instance's thread costs, for a model so small that it need not be (`execution/quick.py`).

    python benchmarks/hop.py            # about half a minute
    python benchmarks/hop.py --write    # and puts the table into benchmarks/results/tables.md

Two servers in one process serve `simple` in turns, one of them with an engine that insists on its threads. No sockets:
16 callers, CPU time of the process over the requests.
"""

import argparse
import asyncio
import statistics
import time

import numpy as np

from modserve import InferenceServer, Settings
from modserve.backends.onnxruntime.backend import OnnxRuntimeBackend
from overhead import ROOT, put_into_report

CALLERS = 16
ONES = np.ones((1, 16), np.int32)


class OnThreads(OnnxRuntimeBackend):
    any_thread = False


async def cpu_us(server: InferenceServer, requests: int) -> float:
    """Microseconds of process CPU a request, `CALLERS` requests being under way at any time."""

    async def call() -> None:
        for _ in range(requests // CALLERS):
            await server.infer("simple", {"INPUT0": ONES, "INPUT1": ONES})

    before = time.process_time()
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return (time.process_time() - before) / requests * 1e6


async def table(rounds: int, requests: int) -> str:
    settings = Settings(model_repository=(ROOT / "model_repository",))
    async with (
        InferenceServer(settings) as quick,
        InferenceServer(settings, backends={"onnxruntime": OnThreads()}) as threads,
    ):
        for server in (quick, threads):
            await cpu_us(server, requests // 4)
        pairs = [(await cpu_us(quick, requests), await cpu_us(threads, requests)) for _ in range(rounds)]
    here, there = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    return (
        f"| `simple`, {CALLERS} callers in process | CPU a request |\n|---|---|\n"
        f"| on the event loop's thread | {here:.0f} µs |\n| on the instance's thread | {there:.0f} µs |\n"
        f"| ratio, median of {rounds} pairs | {ratio:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs, of which the median counts")
    parser.add_argument("--requests", type=int, default=32_000, help="requests of each half of a pair")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    arguments = parser.parse_args()
    text = asyncio.run(table(arguments.rounds, arguments.requests))
    print(text)
    if arguments.write:
        put_into_report("hop.py", text)


if __name__ == "__main__":
    main()
