"""How busy a server is, from its counters and the time of its process."""

from types import SimpleNamespace
from typing import Any

import pytest

from modserve.core.statistics.metrics import MetricStore, StoredMetrics
from modserve.core.statistics.model_statistics import FailureReason, ModelStatistics
from modserve.observability.load_meter import LoadMeter, resident_bytes


class Model:
    """Stands in for a servable."""

    def __init__(self, name: str, instances: int = 1) -> None:
        self.id = SimpleNamespace(name=name)
        self.statistics = ModelStatistics()
        self.statistics.instances = instances

    def run(self, requests: int, seconds: float) -> None:
        self.statistics.success.count += requests
        self.statistics.batches[1].infer_ns += round(seconds * 1e9)

    def fail(self, reason: FailureReason, count: int) -> None:
        self.statistics.fail.count += count
        self.statistics.failures[reason] += count


class Machine:
    """A meter, and what it reads."""

    def __init__(self, *models: Model, **options: Any) -> None:
        self.models = list(models)
        self.store = MetricStore()
        self.cpu_s = 0.0
        self.now = 100.0
        settings: dict[str, Any] = {"cores": 4.0, "memory": 1000, **options}
        self.meter = LoadMeter(
            lambda: self.models,  # type: ignore[arg-type, return-value]
            self.store,
            cpu_s=lambda: self.cpu_s,
            resident=lambda: 250,
            **settings,
        )
        self.meter.read(self.now)

    def steady(self, step: Any, times: int = 300) -> Any:
        """The report after the same has happened again and again, every 0.1 s."""
        for _ in range(times):
            self.now += 0.1
            step()
            report = self.meter.read(self.now)
        return report


def test_a_server_at_rest() -> None:
    machine = Machine(Model("a"))
    report = machine.steady(lambda: None, 3)
    assert report == (0.0, 0.25, 0.0, 0.0, 0.0, {})


def test_the_first_reading_knows_no_rates() -> None:
    meter = LoadMeter(list, MetricStore(), cores=1.0, memory=0, cpu_s=lambda: 50.0)
    for _ in range(2):  # and no time has passed until the second
        assert meter.read(0.0) == (0.0, 0.0, 0.0, 0.0, 0.0, {})


def test_rates_and_the_busiest_model() -> None:
    slow, fast = Model("slow", instances=2), Model("fast")
    machine = Machine(slow, fast)

    def step() -> None:
        slow.run(2, 0.12)
        fast.run(10, 0.01)
        fast.fail(FailureReason.BACKEND, 1)
        fast.fail(FailureReason.CANCELED, 5)
        machine.cpu_s += 0.04

    report = machine.steady(step)
    assert report.cpu_utilization == pytest.approx(0.1)
    assert report.application_utilization == pytest.approx(0.6)
    assert report.rps_fractional == pytest.approx(130)
    assert report.eps == pytest.approx(10)


def test_the_cores_where_they_are_what_is_short() -> None:
    machine = Machine(Model("a"))

    def step() -> None:
        machine.cpu_s += 0.36

    assert machine.steady(step).application_utilization == pytest.approx(0.9)


def test_what_was_weighs_less_and_less() -> None:
    model = Model("a")
    machine = Machine(model)
    machine.steady(lambda: model.run(10, 0.05))
    assert machine.steady(lambda: None, 10).rps_fractional == pytest.approx(100 / 2.71828, rel=0.01)


def test_a_model_that_goes_takes_nothing_back() -> None:
    stays, goes = Model("stays"), Model("goes")
    goes.run(1000, 1.0)
    machine = Machine(stays, goes)
    machine.models.remove(goes)
    report = machine.steady(lambda: stays.run(1, 0.0))
    assert report.rps_fractional == pytest.approx(10)
    machine.models.append(goes)  # as loaded again, with all that it had counted
    machine.now += 0.1
    assert machine.meter.read(machine.now).rps_fractional < 11


def test_one_worker_of_several_stands_for_all() -> None:
    model = Model("a")
    machine = Machine(model, workers=4)
    report = machine.steady(lambda: model.run(1, 0.0))
    assert report.rps_fractional == pytest.approx(40)
    assert report.mem_utilization == 1.0


def test_the_longest_queues_have_names() -> None:
    models = [Model(f"m{number}") for number in range(12)]
    for number, model in enumerate(models):
        model.statistics.pending = number
    odd = Model("a=b, c")
    odd.statistics.pending = 100
    machine = Machine(*models, odd)
    report = machine.steady(lambda: None, 1)
    assert report.named_metrics == {f"queue.m{number}": number for number in range(5, 12)}
    assert Machine(*models, names=False).steady(lambda: None, 1).named_metrics == {}


def test_the_cache_of_language_models() -> None:
    machine = Machine(Model("a"))
    metrics = StoredMetrics(machine.store)
    metrics.family("modserve_kv_cache_usage_perc", "use", "gauge")
    first, second = (metrics.metric("modserve_kv_cache_usage_perc", {"model": name}) for name in "ab")
    first.set(0.4)
    second.set(0.1)
    assert machine.steady(lambda: None, 1).named_metrics == {"kv_cache_utilization": 0.4}


def test_the_memory_of_this_process() -> None:
    assert resident_bytes() > 1_000_000
