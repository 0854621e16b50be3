"""The metrics page: its lines, exactly, and as Prometheus' own parser reads them."""

import dataclasses
import itertools
import platform
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.routing_config import RouteFigures, ShadowFigures
from modserve.core.lifecycle import UNLOADED, IndexEntry, LifecycleState
from modserve.core.requests.memory import MemoryBudget, MemoryExhaustedError
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.servable import Oldest, Servable
from modserve.core.statistics.metrics import MetricStore
from modserve.core.statistics.model_statistics import FailureReason, ModelStatistics
from modserve.core.version import ModelId
from modserve.frontends.metrics import MetricsApplication
from modserve.observability import prometheus
from modserve.observability.families import render
from modserve.observability.server_metrics import ServerFigures
from modserve.observability.watchdog import Watchdog
from modserve.testing import config, inflight

MS = 1_000_000
COUNTERS = {
    "nv_inference_request_success": 2,
    "nv_inference_count": 3,
    "nv_inference_exec_count": 1,
    "nv_inference_request_duration_us": 24_000,
    "nv_inference_queue_duration_us": 2_000,
    "nv_inference_compute_input_duration_us": 2_000,
    "nv_inference_compute_infer_duration_us": 16_000,
    "nv_inference_compute_output_duration_us": 2_000,
}
"""After `used`."""
HISTOGRAMS = {
    "modserve_request_duration_seconds": (2, 0.024),
    "modserve_queue_duration_seconds": (2, 0.002),
    "modserve_compute_duration_seconds": (2, 0.02),
    "modserve_batch_size": (1, 3),
}


def loaded(model_config: ModelConfig, version: int = 1) -> Servable:
    """As much of a model version as metrics are made of."""
    found = SimpleNamespace(id=ModelId(model_config.name, version), config=model_config, statistics=ModelStatistics())
    return cast(Servable, found)


def used(model_config: ModelConfig, version: int = 1) -> Servable:
    """One that ran two requests of batch sizes 2 and 1 in one batch: 1 ms in the queue, then 1, 8 and 1 ms."""
    servable = loaded(model_config, version)
    timing = ExecutionTiming(3, "full")
    timing.compute_start_ns, timing.compute_input_end_ns = 2 * MS, 3 * MS
    timing.compute_output_start_ns, timing.compute_end_ns = 11 * MS, 12 * MS
    members = [inflight(2), inflight(1)]
    for member in members:
        member.request_start_ns, member.queue_start_ns = 0, 1 * MS
    servable.statistics.record_execution(timing, members, 1)
    servable.statistics.record_successes(members, timing, 12 * MS)
    return servable


def page(*servables: Servable) -> str:
    return render(prometheus.collectors(lambda: servables)).decode()


def lines(text: str, name: str) -> list[str]:
    """The samples of a metric."""
    return [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.mark.parametrize(("name", "value"), COUNTERS.items(), ids=COUNTERS.keys())
def test_a_counter(name: str, value: int) -> None:
    text = page(used(config("simple"), 3))
    assert f"# TYPE {name} counter\n" in text
    assert lines(text, name) == [f'{name}{{model="simple",version="3"}} {value}.0']
    assert f"{name}_total" not in text
    assert f"{name}_created" not in text


def test_the_help_of_every_metric_comes_right_before_its_type() -> None:
    found = page(used(config("simple"))).splitlines()
    described = [line.split(" ")[2] for line in found if line.startswith("# HELP ")]
    assert len(described) == len(set(described))
    for first, second in itertools.pairwise(found):
        assert first.startswith("# HELP ") == second.startswith("# TYPE ")
        if first.startswith("# HELP "):
            assert first.split(" ")[2] == second.split(" ")[2]


SECONDS = "0.0001 0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1.0 2.5 5.0 10.0 30.0 60.0 +Inf"


@pytest.mark.parametrize("name", [name for name in HISTOGRAMS if name.endswith("_seconds")])
def test_bounds_in_seconds(name: str) -> None:
    """As they are written, without what binary fractions add: the labels are names of time series."""
    buckets = lines(page(used(config("simple"))), f"{name}_bucket")
    assert [line.partition('le="')[2].partition('"')[0] for line in buckets] == SECONDS.split()


def test_process_metrics_keep_their_names() -> None:
    text = page()
    assert "# TYPE process_cpu_seconds_total counter\n" in text
    assert len(lines(text, "process_cpu_seconds_total")) == 1


def test_failures_by_reason_are_there_from_the_start() -> None:
    servable = loaded(config("simple"))
    servable.statistics.record_failure(inflight(), FailureReason.CANCELED, 1)
    text = page(servable)
    assert "# TYPE nv_inference_request_failure counter\n" in text
    assert lines(text, "nv_inference_request_failure") == [
        f'nv_inference_request_failure{{model="simple",reason="{reason}",version="1"}} {count}.0'
        for reason, count in (("REJECTED", 0), ("CANCELED", 1), ("BACKEND", 0), ("OTHER", 0))
    ]


def test_instances() -> None:
    servable = loaded(config("simple"))
    servable.statistics.instances, servable.statistics.instances_lost = 3, 1
    servable.statistics.instance_restarts = 5
    text = page(servable, loaded(config("ensemble")))
    assert lines(text, "modserve_instances") == [
        'modserve_instances{model="simple",state="running",version="1"} 2.0',
        'modserve_instances{model="simple",state="lost",version="1"} 1.0',
    ]
    assert "# TYPE modserve_instance_restarts_total counter\n" in text
    assert lines(text, "modserve_instance_restarts_total") == [
        'modserve_instance_restarts_total{model="simple",version="1"} 5.0'
    ]


def test_why_batches_did_not_grow() -> None:
    text = page(used(config("simple")), loaded(config("idle")))
    assert "# TYPE modserve_batches_closed counter\n" in text
    assert lines(text, "modserve_batches_closed") == [
        'modserve_batches_closed{model="simple",reason="full",version="1"} 1.0'
    ]


def test_waiting_requests() -> None:
    servable = loaded(config("simple"))
    servable.statistics.pending = 7
    text = page(servable)
    assert "# TYPE nv_inference_pending_request_count gauge\n" in text
    assert lines(text, "nv_inference_pending_request_count") == [
        'nv_inference_pending_request_count{model="simple",version="1"} 7.0'
    ]


def test_what_loading_took() -> None:
    servable = loaded(config("simple"))
    servable.statistics.load_ns = 1500 * MS
    text = page(servable)
    assert "# TYPE nv_model_load_duration_secs gauge\n" in text
    assert lines(text, "nv_model_load_duration_secs") == ['nv_model_load_duration_secs{model="simple",version="1"} 1.5']


def test_a_histogram_exactly() -> None:
    assert lines(page(used(config("simple"))), "modserve_batch_size_bucket") == [
        f'modserve_batch_size_bucket{{model="simple",version="1",le="{bound}"}} {count}.0'
        for bound, count in (
            *(("1.0", 0), ("2.0", 0), ("4.0", 1), ("8.0", 1), ("16.0", 1), ("32.0", 1), ("64.0", 1), ("128.0", 1)),
            *(("256.0", 1), ("512.0", 1), ("1024.0", 1), ("+Inf", 1)),
        )
    ]


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_a_histogram(name: str) -> None:
    count, total = HISTOGRAMS[name]
    family = families(page(used(config("simple"))))[name]
    assert family.type == "histogram"
    values = {sample.name.removeprefix(name): sample.value for sample in family.samples}
    assert values["_count"] == count
    assert values["_sum"] == pytest.approx(total)
    buckets = [
        (float(sample.labels["le"]), sample.value) for sample in family.samples if sample.name == f"{name}_bucket"
    ]
    bounds, counts = [bound for bound, _ in buckets], [found for _, found in buckets]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == float("inf")
    assert counts == sorted(counts)
    assert counts[-1] == count
    # The sum lies where the counts say.
    index = counts.index(count)
    assert bounds[index - 1] < total / count <= bounds[index]


def test_prometheus_reads_what_was_meant() -> None:
    found = families(page(used(config("a")), used(config("b"), 2), loaded(config("b"), 3)))
    for name, value in COUNTERS.items():
        assert found[name].type == "counter"
        assert {(sample.labels["model"], sample.labels["version"]): sample.value for sample in found[name].samples} == {
            ("a", "1"): value,
            ("b", "2"): value,
            ("b", "3"): 0,
        }
    assert "process_resident_memory_bytes" in found


def test_a_page_without_models() -> None:
    text = page()
    assert lines(text, "nv_inference_count") == []
    assert {family.type for name, family in families(text).items() if name in COUNTERS} <= {"counter"}
    assert text.endswith("\n")


def test_what_has_no_samples_is_not_mentioned() -> None:
    text = page(used(config("simple")))
    for prefix in ("nv_cache_", "modserve_batch_elements"):
        assert prefix not in text
    assert all(family.samples for family in families(text).values())
    assert "nv_" not in page()


@pytest.mark.parametrize("name", ['say "hi"', "back\\slash", "two\nlines", "é", "a,b={}"])
def test_label_values_survive(name: str) -> None:
    (sample,) = families(page(used(config(name))))["nv_inference_count"].samples
    assert sample.labels["model"] == name


def test_escapes_exactly() -> None:
    (line,) = lines(page(loaded(config('a"b\\c\nd'))), "nv_inference_count")
    assert line == r'nv_inference_count{model="a\"b\\c\nd",version="1"} 0.0'


def test_a_model_s_tags_are_labels_with_an_underscore() -> None:
    text = page(used(config("simple", metric_tags={"team": "a b", "tier": "1"})))
    for name in (*COUNTERS, "nv_inference_pending_request_count"):
        assert lines(text, name)[0].startswith(f'{name}{{_team="a b",_tier="1",model="simple",version="1"}} ')
    assert all('_team="a b"' in line for line in text.splitlines() if 'model="simple"' in line)


def test_series_vanish_with_their_model() -> None:
    servables = [used(config("stays")), used(config("goes"))]
    registry = prometheus.collectors(lambda: servables)
    assert b'model="goes"' in render(registry)
    del servables[1]
    text = render(registry)
    assert b'model="goes"' not in text
    assert b'model="stays"' in text


def test_a_page_is_read_from_the_statistics_each_time() -> None:
    servable = loaded(config("simple"))
    registry = prometheus.collectors(lambda: [servable])
    for count in (0, 5):
        servable.statistics.inference_count = count
        (sample,) = families(render(registry).decode())["nv_inference_count"].samples
        assert sample.value == count


def test_two_servers_in_one_process_share_no_metrics() -> None:
    first, second = page(used(config("a"))), page(used(config("b")))
    assert 'model="b"' not in first
    assert 'model="a"' not in second


ELSEWHERE = "Not Found: this port serves only /metrics, for Prometheus; other calls: HTTP at port 8000"
NOT_ALLOWED = "Method Not Allowed: /metrics takes GET and HEAD"


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/metrics", 200, "page"),
        ("GET", "/metrics/", 200, "page"),
        ("HEAD", "/metrics", 200, ""),
        ("GET", "/", 404, ELSEWHERE),
        ("GET", "/v2/health/ready", 404, ELSEWHERE),
        ("POST", "/v2/models/m/infer", 404, ELSEWHERE),
        ("GET", "/metrics/x", 404, ELSEWHERE),
        ("POST", "/metrics", 405, NOT_ALLOWED),
        ("OPTIONS", "/metrics/", 405, NOT_ALLOWED),
    ],
)
async def test_the_metrics_port(method: str, path: str, status: int, text: str) -> None:
    app = MetricsApplication(
        lambda: b"page", prometheus.CONTENT_TYPE, elsewhere=lambda: "; other calls: HTTP at port 8000"
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.request(method, path, headers={"Accept-Encoding": "identity"})
    assert answer.status_code == status
    if status == 200:
        assert (answer.text, answer.headers["content-type"]) == (text, "text/plain; charset=utf-8")
        assert answer.headers["content-length"] == "4"
    else:
        assert answer.json() == {"error": text}
    assert answer.headers.get("allow") == ("GET, HEAD" if status == 405 else None)


@pytest.mark.parametrize(
    ("method", "path", "status", "content"),
    [
        ("GET", "/v2/health/live", 200, {"live": True}),
        ("GET", "/v2/health/ready", 503, {"error": "Server exiting"}),
        ("POST", "/v2/health/live", 405, {"error": "Method Not Allowed: /v2/health/live takes GET and HEAD"}),
        ("GET", "/v2/health/drain", 404, {"error": ELSEWHERE.partition(";")[0]}),
    ],
)
async def test_the_metrics_port_has_the_server_s_health(
    method: str, path: str, status: int, content: dict[str, object]
) -> None:
    """For probes that have no certificate."""

    async def live() -> tuple[int, dict[str, Any]]:
        return 200, {"live": True}

    async def ready() -> tuple[int, dict[str, Any]]:
        return 503, {"error": "Server exiting"}

    health = {"/v2/health/live": live, "/v2/health/ready": ready}
    app = MetricsApplication(lambda: b"page", prometheus.CONTENT_TYPE, health=health)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.json()) == (status, content)


@pytest.mark.parametrize("method", ["OPTIONS", "POST", "DELETE"])
async def test_only_those_who_read_get_the_page(method: str) -> None:
    """A check of keys lets OPTIONS through."""
    transport = httpx.ASGITransport(MetricsApplication(lambda: b"page", prometheus.CONTENT_TYPE))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.request(method, "/metrics")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.json() == {"error": "Method Not Allowed: /metrics takes GET and HEAD"}


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip", "gzip"), ("gzip;q=0", None), ("identity", None), ("deflate;q=0.5, gzip", "gzip"), ("br", None)],
)
async def test_the_page_is_compressed_for_those_who_take_that(accepted: str, encoding: str | None) -> None:
    text = page(used(config("simple"))).encode()
    transport = httpx.ASGITransport(MetricsApplication(lambda: text, prometheus.CONTENT_TYPE))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/metrics", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding") == encoding
    assert answer.content == text
    assert (int(answer.headers["content-length"]) < len(text) / 3) == (encoding is not None)


# What engines make


def test_metrics_of_engines() -> None:
    store = MetricStore(prometheus.RESERVED)
    metrics = store.of_model()
    metrics.family("hits", "Line 1\nline \\2", "counter")
    metrics.family("waits_total", "Ends like OpenMetrics' counters", "counter")
    metrics.family("level", "", "gauge")
    metrics.family("sizes", "Sizes", "histogram")
    metrics.family("unused", "Nothing of it is on the page", "gauge")
    metrics.metric("hits", {"what": 'a "b"\n\\', "how": "ü"}).increment(2)
    metrics.metric("waits_total").increment()
    metrics.metric("level").set(float("inf"))
    metrics.metric("sizes", {"z": "1"}, [0.5, 10]).observe(3)
    text = render(prometheus.collectors(list, engines=store)).decode()
    assert text[text.index("# HELP hits") :].splitlines() == [
        r"# HELP hits Line 1\nline \\2",
        "# TYPE hits counter",
        r'hits{how="ü",what="a \"b\"\n\\"} 2.0',
        "# HELP level ",
        "# TYPE level gauge",
        "level +Inf",
        "# HELP sizes Sizes",
        "# TYPE sizes histogram",
        'sizes_bucket{z="1",le="0.5"} 0.0',
        'sizes_bucket{z="1",le="10.0"} 1.0',
        'sizes_bucket{z="1",le="+Inf"} 1.0',
        'sizes_count{z="1"} 1.0',
        'sizes_sum{z="1"} 3.0',
        "# HELP waits_total Ends like OpenMetrics' counters",
        "# TYPE waits_total counter",
        "waits_total 1.0",
    ]
    read = families(text)
    assert (read["hits"].type, read["hits"].documentation) == ("counter", "Line 1\nline \\2")
    assert read["hits"].samples[0].labels == {"what": 'a "b"\n\\', "how": "ü"}
    metrics.close()
    assert "hits" not in render(prometheus.collectors(list, engines=store)).decode()


def test_engines_cannot_take_the_names_of_the_server() -> None:
    made = prometheus.collectors(lambda: [used(config("a"))], figures)
    names = [family.name for collect in made for family in collect()]
    names += [family.name for family in Watchdog(100).collect()]
    assert len(names) > 40
    assert [name for name in names if not name.startswith(prometheus.RESERVED)] == []


# The server


def figures(**changes: Any) -> ServerFigures:
    index = [
        IndexEntry("bad", None, LifecycleState.UNAVAILABLE, "Invalid argument: no good"),
        IndexEntry("gone", 1, LifecycleState.UNAVAILABLE, UNLOADED),
        IndexEntry("good", 1, LifecycleState.READY, ""),
        IndexEntry("good", 2, LifecycleState.LOADING, ""),
    ]
    plain = ServerFigures("1.2", True, index, {"good": 3}, {"http": 5}, MemoryBudget())
    return dataclasses.replace(plain, **changes)


def server_page(**changes: Any) -> str:
    return render(prometheus.collectors(list, lambda: figures(**changes))).decode()


def test_which_server_this_is() -> None:
    python = platform.python_version()
    text = server_page()
    assert lines(text, "modserve_build_info") == [f'modserve_build_info{{python="{python}",version="1.2"}} 1.0']


def test_readiness() -> None:
    assert lines(server_page(), "modserve_ready") == ["modserve_ready 1.0"]
    assert lines(server_page(ready=False), "modserve_ready") == ["modserve_ready 0.0"]


def test_a_model_that_failed_to_load_can_be_told_from_one_that_nobody_wants() -> None:
    assert lines(server_page(), "modserve_model_state") == [
        'modserve_model_state{model="bad",state="UNAVAILABLE",version=""} 1.0',
        'modserve_model_state{model="gone",state="UNLOADED",version="1"} 1.0',
        'modserve_model_state{model="good",state="READY",version="1"} 1.0',
        'modserve_model_state{model="good",state="LOADING",version="2"} 1.0',
    ]


def test_routings() -> None:
    route = RouteFigures("m", "canary", 2, 0.25, 7, True)
    shadow = ShadowFigures("m", 3, {"same": 5, "different": 1}, 2)
    text = server_page(routings=[route, shadow])
    labels = '{model="m",route="canary",version="2"}'
    assert [line for line in text.splitlines() if line.startswith("modserve_routing_")] == [
        f"modserve_routing_requests{labels} 7.0",
        f"modserve_routing_share{labels} 0.25",
        f"modserve_routing_rolled_back{labels} 1.0",
        'modserve_routing_shadow{model="m",outcome="same",version="3"} 5.0',
        'modserve_routing_shadow{model="m",outcome="different",version="3"} 1.0',
        'modserve_routing_shadow_in_flight{model="m",version="3"} 2.0',
    ]
    assert "modserve_routing" not in server_page()


def test_the_oldest_executions_and_requests() -> None:
    text = server_page(oldest={ModelId("m", 2): Oldest(1_500_000_000, 0), ModelId("n", 1): Oldest(-5, 250_000_000)})
    assert [line for line in text.splitlines() if line.startswith("modserve_oldest")] == [
        'modserve_oldest_execution_seconds{model="m",version="2"} 1.5',
        'modserve_oldest_execution_seconds{model="n",version="1"} 0.0',
        'modserve_oldest_waiting_seconds{model="m",version="2"} 0.0',
        'modserve_oldest_waiting_seconds{model="n",version="1"} 0.25',
    ]


def test_requests_in_flight_and_connections() -> None:
    text = server_page()
    assert lines(text, "modserve_requests_in_flight") == [
        'modserve_requests_in_flight{model="bad"} 0.0',
        'modserve_requests_in_flight{model="gone"} 0.0',
        'modserve_requests_in_flight{model="good"} 3.0',
    ]
    assert lines(text, "modserve_connections") == ['modserve_connections{protocol="http"} 5.0']
    assert "modserve_connections" not in server_page(connections={})


def test_the_memory_of_requests() -> None:
    budget = MemoryBudget(100)
    budget.take(70)
    budget.give_back(40)
    with pytest.raises(MemoryExhaustedError):
        budget.take(71)
    text = server_page(memory=budget)
    assert [
        *lines(text, "modserve_request_memory_bytes"),
        *lines(text, "modserve_request_memory_peak_bytes"),
        *lines(text, "modserve_request_memory_limit_bytes"),
        *lines(text, "modserve_request_memory_refused"),
    ] == [
        "modserve_request_memory_bytes 30.0",
        "modserve_request_memory_peak_bytes 70.0",
        "modserve_request_memory_limit_bytes 100.0",
        "modserve_request_memory_refused 1.0",
    ]
    assert "# TYPE modserve_request_memory_refused counter\n" in text
    assert "# TYPE modserve_request_memory_bytes gauge\n" in text


def test_prometheus_reads_the_server_s_figures() -> None:
    found = families(server_page())
    assert found["modserve_model_state"].type == "gauge"
    assert len(found["modserve_model_state"].samples) == 4
