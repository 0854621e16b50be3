"""Load reports in ORCA's formats."""

import base64
import json

import pytest

from modserve.core.statistics.load_report import LoadReport
from modserve.pb import orca
from modserve.protocol.control import load_report

REPORT = LoadReport(0.25, 0.5, 1.25, 1234567.25, 0.00001, {"queue.a-b": 3, "kv_cache_utilization": 1 / 3})
FIGURES = {"cpu_utilization": 0.25, "mem_utilization": 0.5, "application_utilization": 1.25}


def test_text() -> None:
    assert load_report.text(REPORT) == (
        "TEXT cpu_utilization=0.25, mem_utilization=0.5, application_utilization=1.25, rps_fractional=1234567.25, "
        "eps=0, named_metrics.queue.a-b=3, named_metrics.kv_cache_utilization=0.3333"
    )


def test_text_without_exponents() -> None:
    report = LoadReport(0.0001, 0.0, 0.0, 123456789.0, 0.0, {})
    assert load_report.text(report).startswith("TEXT cpu_utilization=0.0001, ")
    assert "rps_fractional=123456789," in load_report.text(report)


def test_json() -> None:
    word, _, document = load_report.json(REPORT).partition(" ")
    values = json.loads(document)
    assert word == "JSON"
    assert values.pop("named_metrics")["queue.a-b"] == 3
    assert values == {**FIGURES, "rps_fractional": 1234567.25, "eps": 0.0}
    assert "named_metrics" not in load_report.json(REPORT._replace(named_metrics={}))


def check(message: orca.OrcaLoadReport) -> None:
    for name in ("cpu_utilization", "mem_utilization", "application_utilization", "rps_fractional", "eps"):
        assert getattr(message, name) == pytest.approx(getattr(REPORT, name))
    assert dict(message.named_metrics) == pytest.approx(dict(REPORT.named_metrics))


def test_binary() -> None:
    word, _, text = load_report.binary(REPORT).partition(" ")
    assert word == "BIN"
    check(orca.OrcaLoadReport.FromString(base64.b64decode(text, validate=True)))
    check(orca.OrcaLoadReport.FromString(load_report.message(REPORT)))


def test_the_numbers_of_the_fields() -> None:
    """Which existing clients know (cncf/xds, orca_load_report.proto)."""
    fields = {field.name: field.number for field in orca.OrcaLoadReport.DESCRIPTOR.fields}
    assert fields == {
        "cpu_utilization": 1,
        "mem_utilization": 2,
        "rps": 3,
        "request_cost": 4,
        "utilization": 5,
        "rps_fractional": 6,
        "eps": 7,
        "named_metrics": 8,
        "application_utilization": 9,
    }


@pytest.mark.parametrize("size", range(4))
def test_a_trailer_has_no_padding(size: int) -> None:
    assert load_report.trailer(b"abc"[:size]) == base64.b64encode(b"abc"[:size]).rstrip(b"=")
