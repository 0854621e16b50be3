"""What the soak calls growth."""

from dataclasses import replace
from typing import Any

import pytest

from soak import Sample, growth

STEADY = [Sample(float(number), 100 * number, 150.0, 40, 20, 2.0, 9.0) for number in range(10)]


def test_what_is_steady_has_not_grown() -> None:
    assert growth(STEADY) == []


def test_the_first_sample_does_not_count() -> None:
    assert growth([replace(STEADY[0], rss_mb=50.0), *STEADY[1:]]) == []


def test_handles_count_at_rest_only() -> None:
    assert growth([STEADY[0], *[replace(each, files=400, threads=90) for each in STEADY[1:-1]], STEADY[-1]]) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("rss_mb", 200.0), ("files", 60), ("threads", 40), ("p50_ms", 6.0)],
    ids=lambda value: str(value),
)
def test_what_has_grown(name: str, value: float) -> None:
    change: dict[str, Any] = {name: value}
    grown = [replace(each, **change) if number > 6 else each for number, each in enumerate(STEADY)]
    (text,) = growth(grown)
    assert text.startswith(f"{name} has grown from")


def test_a_peak_is_no_growth() -> None:
    assert growth([replace(each, rss_mb=900.0) if number == 5 else each for number, each in enumerate(STEADY)]) == []


def test_too_few_samples() -> None:
    assert growth(STEADY[:3]) == ["3 samples are too few to compare: at least 5"]
