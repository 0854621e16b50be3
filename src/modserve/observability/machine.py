"""CPU and memory of the machine from Linux's ``/proc``, under Triton's names."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .families import Family, family

_PROC = Path("/proc")


class _Times(NamedTuple):
    """What all cores have done since the machine started, in ticks."""

    busy: int
    total: int


class MachineCollector:
    """Reads at each scrape, but not more often than every `interval_ms`. Has no families where there is no ``/proc``.

    The utilisation is that between two readings, as in Triton; the first one counts from when this was made.
    """

    def __init__(self, interval_ms: int, proc: Path = _PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval_ms / 1e3
        self._proc = proc
        self._clock = clock
        self._read = clock()
        self._times = self._now()
        self._utilisation = 0.0
        self._first = True

    def collect(self) -> Iterator[Family]:
        if self._times is not None:
            text = "Utilization of all cores between the last two readings, from 0 to 1"
            yield family("nv_cpu_utilization", "gauge", text, [("", self._current())])
        memory = self._memory()
        if memory is not None:
            total, available = memory
            yield family("nv_cpu_memory_total_bytes", "gauge", "Total memory of the machine in bytes", [("", total)])
            text = "Used memory of the machine in bytes"
            yield family("nv_cpu_memory_used_bytes", "gauge", text, [("", total - available)])

    def _current(self) -> float:
        now = self._clock()
        before = self._times
        if before is not None and (self._first or now - self._read >= self._interval):
            times = self._now()
            if times is not None and times.total > before.total:
                self._utilisation = (times.busy - before.busy) / (times.total - before.total)
                self._times, self._read, self._first = times, now, False
        return self._utilisation

    def _now(self) -> _Times | None:
        """The first line: user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's."""
        try:
            line = (self._proc / "stat").read_text().partition("\n")[0]
            ticks = [int(word) for word in line.split()[1:9]]
            return _Times(sum(ticks) - ticks[3] - ticks[4], sum(ticks))
        except (OSError, ValueError, IndexError):
            return None

    def _memory(self) -> tuple[int, int] | None:
        """Bytes in all, and those that are available."""
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
            values = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
            return values["MemTotal"], values["MemAvailable"]
        except (OSError, ValueError, KeyError, IndexError):
            return None
