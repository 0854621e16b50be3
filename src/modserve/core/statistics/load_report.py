"""Load report of a server for load balancers."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

ReportFormat: TypeAlias = Literal["text", "json", "bin"]
REPORT_FORMATS: Final[tuple[ReportFormat, ...]] = ("text", "json", "bin")


class LoadReport(NamedTuple):
    """The figures of ORCA's ``OrcaLoadReport``. Rates are per second, utilizations parts of 1, or more."""

    cpu_utilization: float
    mem_utilization: float
    application_utilization: float
    rps_fractional: float
    eps: float
    named_metrics: Mapping[str, float]
