"""What ``--record`` costs a server: its CPU a request, without it, and with one of so many requests recorded.

    python benchmarks/recording.py                      # prints a table, about a minute
    python benchmarks/recording.py --baseline ../old    # another checkout of the source beside this one
    python benchmarks/recording.py --parts              # what each part takes, without a server, in a few seconds

Needs ``pip install .[dev]`` and the program wrk. The servers take turns, window by window; each figure is the median of
their windows, and the ratio is that of the pairs of windows.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from modserve.core.configuration.record_settings import RecordSettings
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import NOBODY, InferenceResponse, ResponseSink
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.recording.record import RecordFolder
from modserve.recording.recorder import Recorder
from modserve.testing import config
from overhead import server, write_repository
from traces import measure


def variants(folder: str) -> dict[str, list[str]]:
    """Options of servers by name; what is first is what the others are compared with."""
    return {
        "no recording": [],
        "another model is recorded": [f"--record=dir={folder}/0,models=other:1"],
        "one request of 1000": [f"--record=dir={folder}/1,rate=0.001"],
        "one request of 100": [f"--record=dir={folder}/2,rate=0.01"],
        "one request of 10": [f"--record=dir={folder}/3,rate=0.1"],
        "every request": [f"--record=dir={folder}/4,rate=1,size=100MB"],
    }


class Model:
    """As much of a servable as a recorder needs."""

    id = ModelId("simple", 1)
    config = config("simple")

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        return Inflight(request, sink, request.inputs, (), 1, None, now_ns)


def requests(recorder: Recorder | None, model: Any, count: int, array: Any = None) -> None:
    """Requests with two tensors of 16 numbers in and out, or with this one out, as the event loop sees them."""
    inputs = {name: Tensor.from_raw(_INT32, (1, 16), bytes(64)) for name in ("INPUT0", "INPUT1")}
    for _ in range(count):
        request = InferenceRequest("simple", inputs)
        submitter = model if recorder is None else recorder.sample(model, request)
        inflight = submitter.submit(request, NOBODY, 1)
        arrays = {"OUTPUT0": _ONES, "OUTPUT1": _ONES} if array is None else {"OUTPUT0": array}
        outputs = {name: Tensor.from_array(each) for name, each in arrays.items()}
        inflight.settle(InferenceResponse("simple", 1, outputs))


_ONES = np.ones((1, 16), np.int32)
_INT32 = Tensor.from_array(_ONES).datatype


def parts(runs: int, count: int = 5000) -> None:
    """The least of several runs, in microseconds of CPU for a request."""
    each = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as place:
            each.append(_parts(Path(place), count))
    print("| | µs of CPU |\n|---|---|")
    for name in each[0]:
        print(f"| {name} | {min(one[name] for one in each):.2f} |")


class Kept:
    """In place of the writer's thread: keeps its work."""

    def __init__(self) -> None:
        self.works: list[Callable[[], None]] = []

    def put(self, work: Callable[[], None]) -> bool:
        self.works.append(work)
        return True


def _parts(place: Path, count: int) -> dict[str, float]:
    def recorder(**settings: Any) -> Recorder:
        made = Recorder(RecordSettings(str(place), **settings), RecordFolder(place, 1 << 30, "run", "benchmark"))
        made.open()
        return made

    model: Any = Model()
    seldom, never, always, kept = recorder(rate=1e-9), recorder(models=(("x", 1.0),)), recorder(rate=1.0), Kept()
    replaced: Any = always
    replaced._writer = kept
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("the event loop, nothing recorded", lambda: requests(None, model, count)),
        ("the same, a model that is not recorded", lambda: requests(never, model, count)),
        ("the same, a request that is not sampled", lambda: requests(seldom, model, count)),
        ("the same, one that is recorded", lambda: requests(always, model, count)),
        ("the writer's thread", lambda: [work() for work in kept.works]),
    )
    took: dict[str, float] = {}
    for name, step in steps:
        began = time.process_time()
        step()
        took[name] = (time.process_time() - began) / count * 1e6
    replaced = long = recorder(rate=1.0)
    replaced._writer = Kept()
    began = time.process_time()
    requests(long, model, 10, np.ones(2_500_000, np.float32))
    took["the event loop, one with an output of 10 MB"] = (time.process_time() - began) / 10 * 1e6
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="windows of each server")
    parser.add_argument("--seconds", type=int, default=2, help="seconds of each window")
    parser.add_argument("--baseline", type=Path, help="another checkout, whose server runs without recording")
    parser.add_argument("--parts", action="store_true", help="what each part takes")
    arguments = parser.parse_args()
    if arguments.parts:
        parts(arguments.runs)
        return
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "models").mkdir()
        repository = write_repository(place / "models")
        names, targets = [], []
        for name, options in variants(str(place)).items():
            names.append(name)
            targets.append(stack.enter_context(server(repository, None, options)))
        if arguments.baseline is not None:
            names.append("the baseline, no recording")
            targets.append(stack.enter_context(server(repository, arguments.baseline)))
        loads = measure(targets, arguments.runs, arguments.seconds)
    print("| | CPU a request, µs | beside no recording | requests/s |\n|---|---|---|---|")
    for name, windows in zip(names, loads, strict=True):
        ratio = statistics.median(one.cpu_us / other.cpu_us for one, other in zip(windows, loads[0], strict=True))
        cpu_us = statistics.median(window.cpu_us for window in windows)
        rate = statistics.median(window.per_second for window in windows)
        print(f"| {name} | {cpu_us:.1f} | {ratio:.3f} | {rate:.0f} |")


if __name__ == "__main__":
    main()
