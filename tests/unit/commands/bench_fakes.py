"""A server that exists only in numbers: slots and drivers on a clock that the test turns."""

import copy
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from modserve.commands.bench.measures import Load, ServerTimes, Window
from modserve.commands.bench.run import Surroundings

MS = 1_000_000


def window(
    milliseconds: Sequence[float], seconds: float = 1.0, errors: dict[str, int] | None = None, waiting: int = 0
) -> Window:
    latencies = array("q", [round(value * MS) for value in milliseconds])
    return Window(seconds, latencies, Counter(errors or {}), waiting=waiting)


@dataclass
class FakeDriver:
    """Each second brings the window that `windows` says, the last one for ever."""

    load: Load
    windows: Callable[[int], Window]
    log: list[str] = field(default_factory=list)
    number: int = 0
    elapsed: float = 0.0

    async def start(self) -> None:
        self.log.append("start")

    def cut(self) -> Window:
        if self.elapsed < 0.1:
            return window([])
        self.elapsed = 0.0
        self.number += 1
        return copy.deepcopy(self.windows(self.number - 1))

    async def stop(self, patience: float) -> int:
        self.log.append("stop")
        return 0


def surroundings(
    drivers: Callable[[], FakeDriver | None], log: list[str] | None = None, interrupt_after: int | None = None
) -> Surroundings:
    """Time passes for the driver that runs; `interrupt_after` so many windows, somebody presses Ctrl-C."""
    seen: list[Window] = []

    async def sleep(seconds: float) -> None:
        driver = drivers()
        if interrupt_after is not None and len(seen) >= interrupt_after:
            raise InterruptedError
        if driver is not None:
            driver.elapsed = seconds

    async def times() -> ServerTimes | None:
        return ServerTimes(requests=len(seen) * 10, total_ns=len(seen) * 10 * MS)

    def on_window(load: Load, windows: Sequence[Window]) -> None:
        seen.append(windows[-1])
        if log is not None:
            log.append(f"{load}: {len(windows)}")

    return Surroundings(times, on_window, sleep)
