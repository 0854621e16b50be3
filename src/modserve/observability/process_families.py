"""Figures of the operating system of the server's process, under the names that all Prometheus clients have for it.

And of the processes that run models.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .families import Family, family

_PROC = Path("/proc")
_UTIME, _STIME, _STARTTIME, _VSIZE, _RSS = 11, 12, 19, 20, 21
"""Places in ``/proc/self/stat`` after the command, which is in parentheses and may have spaces (proc(5))."""


class _Status(NamedTuple):
    cpu_s: float
    began_s: float
    """After the start of the machine."""
    virtual: int
    resident: int


def _status(process: Path) -> _Status:
    """Read a process by its folder in ``/proc``. Raises OSError, ValueError or IndexError."""
    words = (process / "stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    cpu_s = (int(words[_UTIME]) + int(words[_STIME])) / ticks
    resident = int(words[_RSS]) * os.sysconf("SC_PAGE_SIZE")
    return _Status(cpu_s, int(words[_STARTTIME]) / ticks, int(words[_VSIZE]), resident)


class ModelProcesses:
    """The processes that run models. What those have used that have ended stays counted, as of the last page.

    `read` has the labels of each model, a number of its load, and its processes.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[str, int, Sequence[int]]]], proc: Path = _PROC) -> None:
        self._read = read
        self._proc = proc
        self._used: dict[tuple[str, int], dict[tuple[int, float], float]] = {}
        """CPU seconds by the load of a model and the process; under 0 those of processes that have ended."""

    def collect(self) -> Iterator[Family]:
        used: dict[tuple[str, int], dict[tuple[int, float], float]] = {}
        resident = []
        for labels, load, ids in self._read():
            now: dict[tuple[int, float], float] = {}
            size = 0
            for id in ids:
                with suppress(OSError, ValueError, IndexError):
                    status = _status(self._proc / str(id))
                    now[id, status.began_s] = status.cpu_s
                    size += status.resident
            before = self._used.get((labels, load), {})
            if now or before:
                ended = sum(cpu_s for process, cpu_s in before.items() if process not in now)
                used[labels, load] = {**now, (0, 0.0): ended}
            if now:
                resident.append((labels, size))
        self._used = used
        text = "Resident memory of the processes that run a model, in bytes"
        yield family("modserve_model_process_resident_bytes", "gauge", text, resident)
        rows = [(labels, sum(each.values())) for (labels, _), each in used.items()]
        text = "CPU time of the processes that run a model, in seconds"
        yield family("modserve_model_process_cpu_seconds_total", "counter", text, rows)


class ProcessCollector:
    """Has no families where there is no ``/proc``, as on macOS. A figure that cannot be read is left out."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._process = proc / "self"
        self._booted = 0.0
        with suppress(OSError, ValueError, StopIteration):
            lines = (proc / "stat").read_text().splitlines()
            self._booted = float(next(line.split()[1] for line in lines if line.startswith("btime ")))

    def collect(self) -> Iterator[Family]:
        with suppress(OSError, ValueError, IndexError):
            status = _status(self._process)
            yield _single("virtual_memory_bytes", "Virtual memory size in bytes.", status.virtual)
            yield _single("resident_memory_bytes", "Resident memory size in bytes.", status.resident)
            if self._booted:
                text = "Start time of the process since the Unix epoch in seconds."
                yield _single("start_time_seconds", text, self._booted + status.began_s)
            text = "Total user and system CPU time spent in seconds."
            yield _single("cpu_seconds_total", text, status.cpu_s, "counter")
        with suppress(OSError, ValueError, StopIteration, IndexError):
            lines = (self._process / "limits").read_text().splitlines()
            limit = next(line.split()[3] for line in lines if line.startswith("Max open files"))
            yield _single("max_fds", "Maximum number of open file descriptors.", int(limit))
        with suppress(OSError):
            count = len(os.listdir(self._process / "fd"))
            yield _single("open_fds", "Number of open file descriptors.", count)


def _single(name: str, text: str, value: float, kind: str = "gauge") -> Family:
    return family(f"process_{name}", kind, text, [("", value)])
