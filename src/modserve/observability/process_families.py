"""What the operating system says of the server's process, under the names that all Prometheus clients have for it."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .families import Family, family

_PROC = Path("/proc")
_UTIME, _STIME, _STARTTIME, _VSIZE, _RSS = 11, 12, 19, 20, 21
"""Places in ``/proc/self/stat`` after the command, which is in parentheses and may have spaces (proc(5))."""


class ProcessCollector:
    """Has no families where there is no ``/proc``, as on macOS. A figure that cannot be read is left out."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._process = proc / "self"
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._booted = 0.0
        with suppress(OSError, ValueError, StopIteration):
            lines = (proc / "stat").read_text().splitlines()
            self._booted = float(next(line.split()[1] for line in lines if line.startswith("btime ")))

    def collect(self) -> Iterator[Family]:
        with suppress(OSError, ValueError, IndexError):
            words = (self._process / "stat").read_text().rpartition(")")[2].split()
            cpu, began = int(words[_UTIME]) + int(words[_STIME]), int(words[_STARTTIME])
            virtual, resident = int(words[_VSIZE]), int(words[_RSS]) * self._page
            yield _single("virtual_memory_bytes", "Virtual memory size in bytes.", virtual)
            yield _single("resident_memory_bytes", "Resident memory size in bytes.", resident)
            if self._booted:
                text = "Start time of the process since the Unix epoch in seconds."
                yield _single("start_time_seconds", text, self._booted + began / self._ticks)
            text = "Total user and system CPU time spent in seconds."
            yield _single("cpu_seconds_total", text, cpu / self._ticks, "counter")
        with suppress(OSError, ValueError, StopIteration, IndexError):
            lines = (self._process / "limits").read_text().splitlines()
            limit = next(line.split()[3] for line in lines if line.startswith("Max open files"))
            yield _single("max_fds", "Maximum number of open file descriptors.", int(limit))
        with suppress(OSError):
            count = len(os.listdir(self._process / "fd"))
            yield _single("open_fds", "Number of open file descriptors.", count)


def _single(name: str, text: str, value: float, kind: str = "gauge") -> Family:
    return family(f"process_{name}", kind, text, [("", value)])
