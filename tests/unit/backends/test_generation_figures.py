"""What the server hears of the tokens of a language model, and how often."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from modserve.backends.generation.program.figures import Figures


class Module:
    """triton_python_backend_utils, as far as it makes metrics. `changes` has what was told of them."""

    def __init__(self) -> None:
        changes: list[tuple[str, ...]] = []
        self.changes: list[Any] = changes
        self.buckets: dict[str, list[float]] = {}
        """Bounds by the names of the histograms."""
        bounds = self.buckets

        class MetricFamily:
            COUNTER, GAUGE, HISTOGRAM = "increment", "set", "observe"

            def __init__(self, name: str, description: str, kind: str) -> None:
                self._name, self._kind = name.removeprefix("modserve_"), kind

            def Metric(self, labels: Mapping[str, str], buckets: Any = None) -> SimpleNamespace:
                if buckets:
                    bounds[self._name] = buckets

                def change(*values: Any) -> None:
                    changes.append((self._name, *values))

                return SimpleNamespace(**{self._kind: change})

        self.MetricFamily = MetricFamily


@pytest.fixture
def module() -> Module:
    return Module()


@pytest.fixture
def figures(module: Module) -> Figures:
    return Figures(module, {"model": "m", "version": "1"}, "m_0")


def test_what_tokens_change_comes_with_a_report(module: Module, figures: Figures) -> None:
    figures.first_token(0.007)
    for seconds in (0.006, 0.5, 0.009, 0.0095):
        figures.count("generation_tokens_total", 2)
        figures.next_tokens(seconds)
    for reason in ("stop", "length", "stop"):
        figures.count_end(reason)
    assert module.changes == []
    figures.report(1.0)
    tokens, first, short, long, *ends = module.changes
    assert tokens == ("generation_tokens_total", 8)
    assert first == ("time_to_first_token_seconds", 0.007, 1)
    assert short == ("inter_token_latency_seconds", pytest.approx(0.0245 / 3), 3)  # one bucket, the sum of its values
    assert long == ("inter_token_latency_seconds", 0.5, 1)
    assert ends == [("request_success_total", 2), ("request_success_total", 1)]
    figures.report(2.0)
    assert len(module.changes) == 6


def test_bounds_of_buckets_rise(module: Module, figures: Figures) -> None:
    assert len(module.buckets) == 3
    for bounds in module.buckets.values():
        assert bounds == sorted(set(bounds))


def test_a_report_is_due_a_while_after_the_last(figures: Figures) -> None:
    assert figures.is_due(100.0)
    figures.report(100.0)
    assert not figures.is_due(100.2)
    assert figures.is_due(100.25)


def test_a_gauge_is_told_when_it_changes(module: Module, figures: Figures) -> None:
    for value in (1, 1, 0):
        figures.set("num_requests_running", value)
    assert module.changes == [("num_requests_running", 1), ("num_requests_running", 0)]
