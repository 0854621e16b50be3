"""Load report of a server for load balancers."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

ReportFormat: TypeAlias = Literal["text", "json", "bin"]
REPORT_FORMATS: Final[tuple[ReportFormat, ...]] = ("text", "json", "bin")


class LoadReport(NamedTuple):
    """The figures of ORCA's ``OrcaLoadReport``. Rates are per second, utilizations parts of 1, or more."""

    cpu_utilization: float = 0.0
    mem_utilization: float = 0.0
    application_utilization: float = 0.0
    rps_fractional: float = 0.0
    eps: float = 0.0
    named_metrics: Mapping[str, float] = {}
