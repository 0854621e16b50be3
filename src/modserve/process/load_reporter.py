"""Measures the load again and again, and gives the front ends the bytes that they send of it."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from modserve.core.runtime.periodic import PeriodicTask
from modserve.core.statistics.load_report import LoadReport
from modserve.execution.placement import available_cores
from modserve.observability.load_meter import LoadMeter
from modserve.resources.machine_memory import read_memory_limit
from modserve.server.local import LocalServer

_EVERY: Final = 0.1
_SHARE: Final = 100
"""Minimum interval between reports, as a multiple of the time that one takes."""


class ReportingPort(Protocol):
    """A port that sends load reports."""

    def report_load(self, report: LoadReport) -> None: ...


def load_reporter(
    server: LocalServer, ports: Sequence[ReportingPort], workers: int, access: object | None
) -> "LoadReporter":
    """Return the reporter of one of `workers` processes. With `access`, callers may not know all models' names."""
    meter = LoadMeter(
        server.ready_models,
        server.engine_metrics,
        cores=max(1, available_cores() // workers),
        memory=read_memory_limit(),
        workers=workers,
        names=access is None,
    )
    return LoadReporter(meter, ports)


class LoadReporter:
    """Load reporter, for the event loop's thread."""

    def __init__(self, meter: LoadMeter, ports: Sequence[ReportingPort]) -> None:
        self._meter = meter
        self._ports = ports
        self._task = PeriodicTask("load_report", _EVERY, self._report)

    def start(self) -> None:
        self._report()
        self._task.start()

    def stop(self) -> None:
        self._task.stop()

    def _report(self) -> float:
        """Send the load to the ports, and return the seconds until the next report."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        report = self._meter.read(begun)
        for port in self._ports:
            port.report_load(report)
        return max(_EVERY, _SHARE * (loop.time() - begun))
