"""The metrics page of a server with real models: what is on it, and that the event loop does not make it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from modserve import InferenceServer, Settings
from modserve.core.configuration.trace_settings import TraceLevel
from modserve.core.errors import OverloadedError
from modserve.core.requests.request import InferenceRequest
from modserve.core.tenants import Tenant
from modserve.core.tensors.tensor import Tensor
from modserve.frontends.call import HTTP, FutureCall
from modserve.frontends.metrics import takes_openmetrics
from modserve.observability.families import Collector, Family
from modserve.process.metrics_page import MetricsPage

IDENTITY = """backend: "identity" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
REPEAT = Path(__file__).parents[3] / "model_repository" / "repeat" / "config.pbtxt"


def write(repository: Path, name: str, text: str = IDENTITY) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(text)


@asynccontextmanager
async def page_of(
    repository: Path, *others: Collector, **options: Any
) -> AsyncIterator[tuple[InferenceServer, MetricsPage]]:
    settings = Settings(model_repository=repository, **options)
    async with AsyncExitStack() as stack:
        server = InferenceServer(settings)
        page = MetricsPage(server, server.engine_metrics, settings, dict, dict, others)
        stack.enter_context(page.counting())
        await stack.enter_async_context(server)
        yield server, page


async def infer(server: InferenceServer, name: str = "m") -> None:
    await server.infer(name, {"IN": np.zeros((1, 1), np.int32)})


def samples(page: bytes, name: str) -> dict[str, str]:
    """By labels."""
    found = [line.rpartition(" ") for line in page.decode().splitlines() if line.startswith((name + "{", name + " "))]
    return {labels.removeprefix(name): value for labels, _, value in found}


async def test_loads_that_failed(tmp_path: Path) -> None:
    write(tmp_path, "good")
    write(tmp_path, "bad", 'backend: "identity" max_batch_size: 8')
    write(tmp_path, "odd", "nonsense")
    options = {"model_control_mode": "explicit", "load_model": ("*",)}
    async with page_of(tmp_path, **options) as (server, page):
        name = "modserve_model_load_failures_total"
        first = samples(await page.text(), name)
        assert first['{model="good",version="1"}'] == "0.0"
        assert sum(float(value) for labels, value in first.items() if 'model="bad"' in labels) == 1
        assert sum(float(value) for labels, value in first.items() if 'model="odd"' in labels) == 1
        (tmp_path / "good" / "config.pbtxt").write_text('backend: "identity" max_batch_size: -1')
        with pytest.raises(Exception, match="good"):
            await server.load_model("good")
        text = await page.text()
        states = samples(text, "modserve_model_state")
    second = samples(text, name)
    assert sum(float(value) for labels, value in second.items() if 'model="good"' in labels) == 1
    assert '{model="good",state="READY",version="1"}' in states
    assert any('model="bad",state="UNAVAILABLE"' in labels for labels in states)


async def test_failed_loads_of_models_that_come_on_demand(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with page_of(tmp_path, load_lazily="true") as (server, page):
        assert samples(await page.text(), "modserve_model_load_failures_total") == {'{model="m",version="1"}': "0.0"}
        assert samples(await page.text(), "modserve_model_resident_bytes") == {'{model="m",version="1"}': "0.0"}
        await infer(server)
        assert list(samples(await page.text(), "modserve_model_resident")) == ['{model="m",version="1"}']


async def test_summaries(tmp_path: Path) -> None:
    write(tmp_path, "m")
    config = {"summary_latencies": "true", "summary_quantiles": "0.5:0.05,1:0"}
    async with page_of(tmp_path, metrics_config=config) as (server, page):
        for _ in range(5):
            await infer(server)
        text = await page.text()
        durations = samples(text, "nv_inference_request_duration_us")
        for part in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
            name = f"nv_inference_{part}_summary_us"
            assert samples(text, f"{name}_count") == {'{model="m",version="1"}': "5.0"}
            quantiles = samples(text, name)
            assert list(quantiles) == [f'{{model="m",quantile="{each}",version="1"}}' for each in ("0.5", "1")]
            assert sorted(map(float, quantiles.values())) == [*map(float, quantiles.values())]
        (total,) = samples(text, "nv_inference_request_summary_us_sum").values()
        assert float(total) == pytest.approx(float(next(iter(durations.values()))), abs=5)
        assert b"nv_cache_" not in text


async def test_no_summaries_unless_they_are_switched_on(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with page_of(tmp_path) as (server, page):
        await infer(server)
        assert b"summary" not in await page.text()


async def test_first_responses(tmp_path: Path) -> None:
    write(tmp_path, "m")
    write(tmp_path, "repeat", REPEAT.read_text())
    async with page_of(tmp_path) as (server, page):
        await infer(server)
        inputs = {
            "IN": np.array([1, 2], np.int32),
            "DELAY": np.array([0, 0], np.uint32),
            "WAIT": np.array([0], np.uint32),
        }
        assert len([each async for each in server.infer_stream("repeat", inputs)]) == 2
        text = await page.text()
    name = "nv_inference_first_response_histogram_ms"
    of_one, of_many = '{model="m",version="1"}', '{model="repeat",version="1"}'
    assert samples(text, f"{name}_count") == {of_one: "1.0", of_many: "1.0"}
    bounds = [labels.partition('le="')[2].rstrip('"}') for labels in samples(text, f"{name}_bucket")]
    assert bounds == 2 * ["100.0", "500.0", "2000.0", "5000.0", "+Inf"]
    requests = samples(text, "modserve_request_duration_seconds_sum")
    assert float(samples(text, f"{name}_sum")[of_one]) == pytest.approx(1000 * float(requests[of_one]))
    assert samples(text, "modserve_inter_response_latency_seconds_count") == {of_many: "1.0"}


async def test_build_and_machine(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with page_of(tmp_path) as (_, page):
        text = await page.text()
        (build,) = samples(text, "modserve_build_info")
        assert 'form="' in build
        assert any('backend="onnxruntime"' in labels for labels in samples(text, "modserve_engine_installed_info"))
        assert float(samples(text, "nv_cpu_memory_total_bytes")[""]) > 1e6
    async with page_of(tmp_path, allow_cpu_metrics=False, allow_gpu_metrics=False) as (_, page):
        assert b"nv_cpu_" not in await page.text()


async def test_the_page_is_made_on_a_thread(tmp_path: Path) -> None:
    threads = []

    def collect() -> list[Family]:
        threads.append(threading.current_thread())
        return []

    write(tmp_path, "m")
    async with page_of(tmp_path, collect) as (_, page):
        threads.clear()
        await asyncio.gather(page.text(), page.text())
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_exemplars(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with page_of(tmp_path, trace_file=str(tmp_path / "trace.json"), trace_rate=1) as (server, page):
        await infer(server)
        assert not page.has_exemplars()
        server.tracer.change({"level": TraceLevel.TIMESTAMPS})
        assert page.has_exemplars()
        server.tracer.change({"level": TraceLevel.OFF})
        (model,) = server.ready_models()
        model.statistics.request_histogram.exemplify(1e6, "4bf9", 1.5)
        assert page.has_exemplars()
        assert b"4bf9" not in await page.text()
        assert b' # {trace_id="4bf9"} 0.001 1.500\n' in await page.text(openmetrics=True)
        server.tracer.close()


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "plain", "preferred"),
    [
        (PROMETHEUS, False, True),
        ("application/openmetrics-text", True, True),
        ("Application/OpenMetrics-Text; version=1.0.0", True, True),
        ("application/openmetrics-text;q=0.3, text/plain", False, False),
        ("application/openmetrics-text;q=0, text/plain", False, False),
        ("application/openmetrics-text;q=x", False, False),
        ("text/plain", False, False),
        ("*/*", False, False),
        ("", False, False),
    ],
)
def test_who_gets_openmetrics(accept: str, plain: bool, preferred: bool) -> None:
    """Without exemplars to show, and with some."""
    ask: Callable[[bool], bool] = lambda shows: takes_openmetrics(accept, shows)  # noqa: E731
    assert (ask(False), ask(True)) == (plain, preferred)


async def test_tenants(tmp_path: Path) -> None:
    """The first request waits for a whole batch, so it is under way as long as the test needs it."""
    write(
        tmp_path,
        "m",
        IDENTITY + "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 600000000 }",
    )
    async with page_of(tmp_path) as (server, page):
        assert b"modserve_tenant_" not in await page.text()
        tenant, model = Tenant('team "a"', requests_per_second=1), server.model("m")
        calls = []
        for _ in range(2):
            call = FutureCall(server, HTTP, "m", None)
            call.tenant = tenant
            call.begin(model, 1)
            calls.append(call)
        inputs = {"IN": Tensor.from_array(np.zeros((3, 1), np.int32))}
        calls[0].submit(InferenceRequest("m", inputs))
        with pytest.raises(OverloadedError):
            calls[1].submit(InferenceRequest("m", inputs))
        text = await page.text()
        results = samples(text, "modserve_tenant_requests_total")
        label = 'tenant="team \\"a\\""'
        assert results[f'{{result="accepted",{label}}}'] == results[f'{{result="refused_rate",{label}}}'] == "1.0"
        assert samples(text, "modserve_tenant_rows_total") == {f"{{{label}}}": "3.0"}
        assert tenant_times(text) == {'team "a"': (0, 0)}
        await server.infer("m", {"IN": np.zeros((5, 1), np.int32)})
        await calls[0].future
        text = await page.text()
        assert samples(text, "modserve_tenant_requests_in_flight") == {f"{{{label}}}": "0.0"}
        ((name, (count, seconds)),) = tenant_times(text).items()
        assert (name, count, 0 < seconds < 30) == (tenant.name, 1, True)


def tenant_times(page: bytes) -> dict[str, tuple[float, float]]:
    """The count and the sum of seconds of each tenant, as Prometheus reads them."""
    by_name = {each.name: each for each in text_string_to_metric_families(page.decode())}
    times = by_name["modserve_tenant_request_duration_seconds"]
    assert times.type == "histogram"
    whole: dict[str, dict[str, float]] = {}
    for sample in times.samples:
        if sample.labels.get("le", "+Inf") == "+Inf":
            kind = sample.name.rpartition("_")[2]
            whole.setdefault(sample.labels["tenant"], {})[kind] = sample.value
    assert all(each["bucket"] == each["count"] for each in whole.values())
    return {name: (each["count"], each["sum"]) for name, each in whole.items()}


async def test_when_a_repository_could_be_read_last(tmp_path: Path) -> None:
    write(tmp_path, "m")
    name = "modserve_repository_read_timestamp_seconds"
    async with page_of(tmp_path, model_control_mode="poll") as (_, page):
        (repository, value) = samples(await page.text(), name).popitem()
        assert (repository, float(value) > 1.7e9) == (f'{{repository="{tmp_path}"}}', True)
    async with page_of(tmp_path) as (_, page):
        assert samples(await page.text(), name) == {}
