"""Every query of the dashboard and of the alerts has data in a real Prometheus, once a server has had requests."""

import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import monitoring
import orjson
import pytest
import yaml
from repositories import EXAMPLES, write_identity
from server_process import ServerProcess, eventually, serving
from test_prometheus_scrape import Prometheus
from text_models import write_metered
from wire import HOST, Ask, Input, grpc_infer, http, http_infer, ints

WITHOUT_DATA = {"nv_gpu_": "there is no GPU", "nv_energy_": "there is no GPU"}
"""Beginnings of the metrics that are not here, and why."""
FAULTS = {
    'state="UNAVAILABLE"': 'state="READY"',
    'code=~"5.."': 'code=~"2.."',
    'code=~"UNKNOWN|INTERNAL|UNAVAILABLE|DATA_LOSS|RESOURCE_EXHAUSTED"': 'code="OK"',
    "unless on": "and on",
    "_limit_bytes > 0": "_limit_bytes >= 0",
    'instance=~".*"} > 0': 'instance=~".*"} >= 0',
}
"""Parts of queries that only a fault gives data, and what is looked for in their place."""
ROUTING = '{"labels": {"new": 2}, "split": {"1": 1}, "shadow": {"version": 2, "share": 1}}'
MODELS = {
    "cached": {"extra": "response_cache { enable: true }"},
    "padded": {
        "extra": "dynamic_batching { }",
        "parameters": {"padding.axis.INPUT0": "0", "padding.unpad.OUTPUT0": "0"},
    },
    "routed": {
        "extra": "version_policy { all { } }\n"
        f"parameters {{ key: 'routing' value {{ string_value: '{ROUTING}' }} }}"
    },
}


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two workers, with a model for each thing that there is to see, and traces, so that there are exemplars."""
    repository = tmp_path_factory.mktemp("busy")
    for name, how in MODELS.items():
        write_identity(repository, name, **how)  # type: ignore[arg-type]
    (repository / "routed" / "2").mkdir()
    write_metered(repository)
    traces = tmp_path_factory.mktemp("traces") / "trace.json"
    options = [
        *("--workers=2", "--model-memory-limit=1GB", "--load-lazily=false", "--cache-config=local,size=1000000"),
        *("--metrics-config=summary_latencies=true", "--metrics-interval-ms=100"),
        *(f"--trace-config=triton,file={traces}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"),
    ]
    with serving(EXAMPLES, repository, options=options) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(busy: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    target = f"{HOST}:{busy.metrics_port}"
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), target, "--enable-feature=exemplar-storage")
    yield running
    running.close()


def traffic(server: ServerProcess) -> None:
    assert http_infer(server.http_port, Ask()).status == 200
    grpc_infer(server.grpc_port, Ask())
    for model in MODELS:
        ask = Ask((Input("INPUT0", "INT32", (1, 2), ints(1, 2)),), model=model)
        assert http_infer(server.http_port, ask).status == 200, model
    values = {"IN": [1, 2], "DELAY": [1, 1], "WAIT": [0]}
    inputs = [
        {"name": name, "datatype": "INT32" if name == "IN" else "UINT32", "shape": [len(data)], "data": data}
        for name, data in values.items()
    ]
    chat = {"model": "metered", "messages": [{"role": "user", "content": "hello you"}]}
    assert http(server.http_port, "POST", "/v1/chat/completions", orjson.dumps(chat)).status == 200
    path = "/v2/models/repeat/infer_stream"
    assert http(server.http_port, "POST", path, orjson.dumps({"inputs": inputs})).status == 200


def queries() -> list[str]:
    """Of the panels, and of the alerts without the comparisons, which hold for nobody who is well."""
    panels = [query for row in monitoring.ROWS.values() for panel in row for query in panel.queries.values()]
    rules = yaml.safe_load(monitoring.RULES.read_text())
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return [
        *(monitoring.expression(query) for query in panels),
        *(re.sub(r" (==|>|<) (?!0\))", r" \1 bool ", expr) for expr in alerts),
    ]


def has_data(prometheus: Prometheus, query: str) -> bool:
    for mark in ("$job", "$instance", "$model"):
        query = query.replace(mark, ".*")
    for mark in ("$__rate_interval", "5m", "10m", "15m", "30m", "1h"):
        query = query.replace(f"[{mark}]", "[20s]")
    for fault, health in FAULTS.items():
        query = query.replace(fault, health)
    return any(not math.isnan(value) for value in prometheus.values(query))


def test_every_query_has_data(busy: ServerProcess, prometheus: Prometheus) -> None:
    missing = [query for query in queries() if not any(name in query for name in WITHOUT_DATA)]
    assert len(missing) > 80

    def nothing_is_missing() -> bool:
        traffic(busy)
        missing[:] = [query for query in missing if not has_data(prometheus, query)]
        return not missing

    try:
        eventually(nothing_is_missing, 30)
    except AssertionError:
        pytest.fail("no data for:\n" + "\n".join(missing), pytrace=False)


def test_what_has_no_data_is_not_on_the_page(busy: ServerProcess) -> None:
    page = http(busy.metrics_port, "GET", "/metrics").body.decode()
    assert [name for name in WITHOUT_DATA if name in page] == []
    names = " ".join(queries())
    assert [name for name in WITHOUT_DATA if name not in names] == []


def test_exemplars_lead_to_traces(busy: ServerProcess, prometheus: Prometheus) -> None:
    expression = urlencode({"query": "modserve_request_duration_seconds_bucket", "start": 0, "end": 4e9})

    def found() -> list[dict[str, Any]]:
        traffic(busy)
        return prometheus.get(f"/api/v1/query_exemplars?{expression}") or []

    series = eventually(found)
    assert all(each["labels"]["trace_id"] for one in series for each in one["exemplars"])


@pytest.mark.parametrize("accept", ["application/openmetrics-text", "text/plain"])
def test_summaries_in_both_formats(busy: ServerProcess, accept: str) -> None:
    traffic(busy)
    answer = http(busy.metrics_port, "GET", "/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(accept)
    page = answer.body.decode()
    assert re.search(
        r'^nv_inference_request_summary_us\{model="simple",quantile="0.99",version="1"\} [\d.e+]+$', page, re.M
    )
    assert page.endswith("# EOF\n") == ("openmetrics" in accept)
    assert (" # {" in page) == ("openmetrics" in accept)


def test_responses_are_counted_by_code(busy: ServerProcess) -> None:
    def counts() -> dict[str, float]:
        page = http(busy.metrics_port, "GET", "/metrics").body.decode()
        pattern = re.compile(r'^modserve_(http|grpc)_responses_total\{code="(\w+)"\} (\S+)$', re.MULTILINE)
        return {f"{protocol} {code}": float(value) for protocol, code, value in pattern.findall(page)}

    before = counts()
    assert http_infer(busy.http_port, Ask(model="absent")).status == 404
    assert http(busy.http_port, "GET", "/v2/nothing").status == 404
    assert http(busy.http_port, "GET", "/v2/models/absent").status == 404
    assert http_infer(busy.http_port, Ask()).status == 200
    grpc_infer(busy.grpc_port, Ask())
    with pytest.raises(Exception, match="unknown model"):
        grpc_infer(busy.grpc_port, Ask(model="absent"))
    after = counts()
    added = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
    assert added == {"http 404": 3, "http 200": 1, "grpc OK": 1, "grpc NOT_FOUND": 1}


def test_where_the_page_is(busy: ServerProcess) -> None:
    assert http(busy.http_port, "GET", "/metrics").status == 200
    assert b"/metrics" in http(busy.metrics_port, "GET", "/").body
    assert http(busy.metrics_port, "HEAD", "/metrics").status == 200
