"""Load reports on the wire: ORCA's header ``endpoint-load-metrics``, and its protobuf message."""

import base64
from typing import Final

import orjson

from modserve.core.statistics.load_report import LoadReport
from modserve.pb import orca

HEADER: Final = "endpoint-load-metrics"
"""Over HTTP, in any format."""
BINARY_HEADER: Final = "endpoint-load-metrics-bin"
"""Over gRPC: a trailer with the protobuf message."""
FORMAT_HEADER: Final = "endpoint-load-metrics-format"
"""Header by which clients of Triton request a report."""

_FIGURES: Final = ("cpu_utilization", "mem_utilization", "application_utilization", "rps_fractional", "eps")


def _round_figures(report: LoadReport) -> list[tuple[str, float]]:
    return [(name, round(getattr(report, name), 4)) for name in _FIGURES]


def text(report: LoadReport) -> str:
    """Return ``TEXT name=value, …``, as Envoy reads it; the application's begin with ``named_metrics.``."""
    named = [(f"named_metrics.{name}", value) for name, value in report.named_metrics.items()]
    return "TEXT " + ", ".join(f"{name}={_decimal(value)}" for name, value in (*_round_figures(report), *named))


def _decimal(value: float) -> str:
    """Format a number without an exponent, which not every reader knows."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def json(report: LoadReport) -> str:
    """Return ``JSON {…}``, with the names of the protobuf message."""
    document: dict[str, object] = dict(_round_figures(report))
    if report.named_metrics:
        document["named_metrics"] = dict(report.named_metrics)
    return "JSON " + orjson.dumps(document).decode("ascii")


def message(report: LoadReport) -> bytes:
    """Encode the report as ``xds.data.orca.v3.OrcaLoadReport``."""
    return orca.OrcaLoadReport(
        cpu_utilization=report.cpu_utilization,
        mem_utilization=report.mem_utilization,
        application_utilization=report.application_utilization,
        rps_fractional=report.rps_fractional,
        eps=report.eps,
        named_metrics=report.named_metrics,
    ).SerializeToString()


def binary(report: LoadReport) -> str:
    """Return ``BIN`` and the message in base64."""
    return "BIN " + base64.b64encode(message(report)).decode()


def trailer(serialised: bytes) -> bytes:
    """Return the message as gRPC's headers have bytes: base64 without padding."""
    return base64.b64encode(serialised).rstrip(b"=")


FORMATS: Final = {"text": text, "json": json, "bin": binary}
"""Report writers, by the format's name in the option and in requests for a report."""
