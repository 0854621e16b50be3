"""`modserve serve` with every callback of its event loop timed, for benchmarks/mix.py: python mix_server.py serve …

A line of JSON goes to the file LOOP_HOLDS for each callback that takes longer than LOOP_HOLDS_MS: when it ended, how
long it took, the CPU time of the loop's thread in it and that of the process, its name, and where the loop's thread was
when a second thread looked. A hold with little CPU time of the loop's thread is a wait: for the interpreter lock that
another thread keeps, whose innermost frames the line has too, or for a core. The loop is asyncio's own, as uvloop's
callbacks cannot be timed.
"""

import asyncio
import gc
import json
import os
import sys
import threading
import time
from types import FrameType
from typing import IO, Any

from modserve.cli import entry

FRAMES = 4


class Holds:
    def __init__(self, file: IO[str], limit_s: float) -> None:
        self._file, self._limit_s = file, limit_s
        self._loop_thread = 0
        self._began = 0.0
        self._places: list[str] = []
        self._others: list[str] = []
        self._collecting_s = 0.0
        self._collection_began = 0.0

    def timed(self, handle: Any, run: Any) -> None:
        self._loop_thread = threading.get_ident()
        self._places, self._others, self._collecting_s = [], [], 0.0
        process_cpu, cpu, self._began = time.process_time(), time.thread_time(), time.perf_counter()
        try:
            run(handle)
        finally:
            took = time.perf_counter() - self._began
            self._began = 0.0
            if took > self._limit_s:
                self._write(handle, took, time.thread_time() - cpu, time.process_time() - process_cpu)

    def watch(self) -> None:
        """Look where the loop's thread is, and the others, when a callback takes too long."""
        while True:
            time.sleep(self._limit_s / 3)
            began = self._began
            if began and time.perf_counter() - began > self._limit_s * 0.6 and len(self._places) < 20:
                frames = sys._current_frames()
                place = _place(frames.get(self._loop_thread))
                own = (self._loop_thread, threading.get_ident())
                others = [_place(frame, 2) for thread, frame in frames.items() if thread not in own]
                if self._began == began:
                    self._places.append(place)
                    self._others += [each for each in others if "threading.py" not in each and "_worker" not in each]

    def collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.perf_counter()
        else:
            self._collecting_s += time.perf_counter() - self._collection_began

    def _write(self, handle: Any, took: float, cpu: float, process_cpu: float) -> None:
        line = {
            "at": time.time(),
            "ms": took * 1e3,
            "cpu_ms": cpu * 1e3,
            "process_cpu_ms": process_cpu * 1e3,
            "gc_ms": self._collecting_s * 1e3,
            "callback": _name(handle),
            "place": _most(self._places),
            "others": _most(self._others),
        }
        self._file.write(json.dumps(line) + "\n")


def _most(places: list[str]) -> str:
    return max(places, key=places.count) if places else ""


def _place(frame: FrameType | None, count: int = FRAMES) -> str:
    names: list[str] = []
    while frame is not None and len(names) < count:
        file = frame.f_code.co_filename.rpartition("/src/modserve/")[2]
        if file.endswith(("mix_server.py", "asyncio/events.py", "asyncio/base_events.py")):
            break
        names.append(f"{'/'.join(file.split('/')[-3:])}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(names)


def _name(handle: Any) -> str:
    callback = getattr(handle._callback, "func", handle._callback)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return str(getattr(callback, "__qualname__", callback))


def main() -> None:
    file = open(os.environ["LOOP_HOLDS"], "a", buffering=1)  # noqa: SIM115 it stays open as long as the process
    holds = Holds(file, float(os.environ.get("LOOP_HOLDS_MS", "3")) / 1e3)
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        holds.timed(handle, run)

    sys.modules["uvloop"] = None  # type: ignore[assignment]
    setattr(asyncio.Handle, "_run", timed)  # noqa: B010 mypy knows of no such assignment
    gc.callbacks.append(holds.collection)
    threading.Thread(target=holds.watch, name="holds", daemon=True).start()
    entry()


if __name__ == "__main__":
    main()
