"""Write deploy/grafana/modserve.json, and what is made of deploy/prometheus/modserve.rules.yaml.

The dashboard is made of the tables below. tests/deploy/test_monitoring.py compares the files with what this writes.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "modserve.json"
RULES = DEPLOY / "prometheus" / "modserve.rules.yaml"
KUBERNETES_RULE = DEPLOY / "k8s" / "prometheus-rule.yaml"
RUNBOOK = DEPLOY.parent / "docs" / "alerts.md"
CHART_RULES = DEPLOY / "helm" / "modserve" / "files" / "modserve.rules.yaml"

_SERVER = 'job=~"$job", instance=~"$instance"'
_MODEL = f'{_SERVER}, model=~"$model"'
_WIDTH, _HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """`queries` by what their legend says. In them S is the server's labels, M the model's, R a time."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    text: str = ""
    stacked: bool = False


def _quantiles(metric: str, by: str = "") -> dict[str, str]:
    """Three of them, or those of each label's values."""
    if by:
        return {f"{{{{{by}}}}}": f"histogram_quantile(0.99, sum by (le, {by}) (rate({metric}_bucket{{M}}[R])))"}
    return {
        f"p{100 * rank:g}": f"histogram_quantile({rank:g}, sum by (le) (rate({metric}_bucket{{M}}[R])))"
        for rank in (0.5, 0.9, 0.99)
    }


_PART = "sum(rate(nv_inference_{}_duration_us{{M}}[R])) / 1e6 / sum(rate(nv_inference_request_success{{M}}[R]))"

ROWS: dict[str, tuple[Panel, ...]] = {
    "Overview": (
        Panel(
            "Ready", {"{{instance}}": "modserve_ready{S}"}, kind="stat", width=4, text="1 while inference may be sent."
        ),
        Panel(
            "Model versions by state", {"{{state}}": "count by (state) (modserve_model_state{M})"}, kind="stat", width=8
        ),
        Panel("Requests", {"requests": "sum(rate(nv_inference_request_success{M}[R]))"}, "reqps", "stat", 4),
        Panel(
            "Failures",
            {
                "failed": "sum(rate(nv_inference_request_failure{M}[R])) / "
                "(sum(rate(nv_inference_request_success{M}[R])) + sum(rate(nv_inference_request_failure{M}[R])))"
            },
            "percentunit",
            "stat",
            4,
        ),
        Panel(
            "p99",
            {"p99": "histogram_quantile(0.99, sum by (le) (rate(modserve_request_duration_seconds_bucket{M}[R])))"},
            "s",
            "stat",
            4,
        ),
        Panel(
            "Requests by model",
            {"{{model}}": "sum by (model) (rate(nv_inference_request_success{M}[R]))"},
            "reqps",
            width=12,
        ),
        Panel(
            "Failures by reason",
            {"{{reason}}": "sum by (reason) (rate(nv_inference_request_failure{M}[R]))"},
            "reqps",
            width=12,
            text="REJECTED: too much came. CANCELED: clients left. BACKEND: engines failed. OTHER: wrong requests.",
        ),
        Panel("HTTP responses", {"{{code}}": "sum by (code) (rate(modserve_http_responses_total{S}[R]))"}, "reqps"),
        Panel("gRPC calls ended", {"{{code}}": "sum by (code) (rate(modserve_grpc_responses_total{S}[R]))"}, "reqps"),
        Panel("Connections", {"{{protocol}}": "sum by (protocol) (modserve_connections{S})"}),
        Panel("Requests in flight", {"{{model}}": "sum by (model) (modserve_requests_in_flight{M})"}, width=12),
        Panel("Servers", {"": "modserve_build_info{S}"}, kind="table", width=12),
    ),
    "Latency": (
        Panel("Requests", _quantiles("modserve_request_duration_seconds"), "s", text="From arrival to response."),
        Panel("p99 by model", _quantiles("modserve_request_duration_seconds", "model"), "s"),
        Panel(
            "Where the time goes, on average",
            {
                "waiting": _PART.format("queue"),
                "inputs": _PART.format("compute_input"),
                "engine": _PART.format("compute_infer"),
                "outputs": _PART.format("compute_output"),
            },
            "s",
            stacked=True,
        ),
        Panel("Waiting, p99 by model", _quantiles("modserve_queue_duration_seconds", "model"), "s", width=12),
        Panel("Computing, p99 by model", _quantiles("modserve_compute_duration_seconds", "model"), "s", width=12),
        Panel(
            "First response of decoupled models",
            _quantiles("nv_inference_first_response_histogram_ms"),
            "ms",
            text="From the arrival of a request to the first of its responses.",
            width=12,
        ),
        Panel(
            "Between responses of decoupled models",
            _quantiles("modserve_inter_response_latency_seconds"),
            "s",
            text="From a response of a request to the next one.",
            width=12,
        ),
        Panel(
            "Requests by duration",
            {"{{le}}": "sum by (le) (increase(modserve_request_duration_seconds_bucket{M}[R]))"},
            "s",
            "heatmap",
            24,
        ),
    ),
    "Batching and queues": (
        Panel(
            "Batch size, on average",
            {
                "{{model}}": "sum by (model) (rate(nv_inference_count{M}[R])) / sum by (model) "
                "(rate(nv_inference_exec_count{M}[R]))"
            },
        ),
        Panel(
            "Batches by why they did not grow",
            {"{{reason}}": "sum by (reason) (rate(modserve_batches_closed{M}[R]))"},
            "ops",
            stacked=True,
        ),
        Panel("Requests that wait", {"{{model}}": "sum by (model) (nv_inference_pending_request_count{M})"}),
        Panel("Batch sizes, p99", _quantiles("modserve_batch_size", "model")),
        Panel(
            "Responses from the cache",
            {
                "{{model}}": "sum by (model) (rate(nv_cache_num_hits_per_model{M}[R])) / (sum by (model) "
                "(rate(nv_cache_num_hits_per_model{M}[R])) + sum by (model) "
                "(rate(nv_cache_num_misses_per_model{M}[R])))"
            },
            "percentunit",
        ),
        Panel(
            "Work for padding",
            {
                "{{model}}": 'sum by (model) (rate(modserve_batch_elements{M, kind="padding"}[R])) / sum by (model) '
                "(rate(modserve_batch_elements{M}[R]))"
            },
            "percentunit",
            text="The share of the batches' elements that only filled them up.",
        ),
        Panel(
            "Oldest execution",
            {"{{model}}": "max by (model) (modserve_oldest_execution_seconds{M})"},
            "s",
            width=12,
            text="Of decoupled models the time without a response. If the line only rises, the engine hangs.",
        ),
        Panel(
            "Oldest request that waits",
            {"{{model}}": "max by (model) (modserve_oldest_waiting_seconds{M})"},
            "s",
            width=12,
        ),
    ),
    "Text generation": (
        Panel(
            "Time to first token",
            _quantiles("modserve_time_to_first_token_seconds"),
            "s",
            text="From the engine's receipt of a request. The time in the model's queue comes before.",
        ),
        Panel("Time between tokens", _quantiles("modserve_inter_token_latency_seconds"), "s"),
        Panel("Time to last token", _quantiles("modserve_e2e_request_latency_seconds"), "s"),
        Panel(
            "Tokens per second",
            {
                "{{model}}: generated": "sum by (model) (rate(modserve_generation_tokens_total{M}[R]))",
                "{{model}}: prompts": "sum by (model) (rate(modserve_prompt_tokens_total{M}[R]))",
            },
        ),
        Panel(
            "Outputs in the engine",
            {
                "{{model}}: running": "sum by (model) (modserve_num_requests_running{M})",
                "{{model}}: waiting": "sum by (model) (modserve_num_requests_waiting{M})",
            },
            text="Those that wait have no room in the engine's batch or KV cache.",
        ),
        Panel(
            "KV cache",
            {"{{model}} {{instance}}": "max by (model, instance) (modserve_kv_cache_usage_perc{M})"},
            "percentunit",
            text="A cache that grows as needed is always full.",
        ),
        Panel(
            "Outputs by why they ended",
            {"{{finished_reason}}": "sum by (finished_reason) (rate(modserve_request_success_total{M}[R]))"},
            "ops",
            width=12,
            stacked=True,
        ),
        Panel("First token, p99 by model", _quantiles("modserve_time_to_first_token_seconds", "model"), "s", width=12),
    ),
    "Models": (
        Panel("States", {"": "modserve_model_state{M}"}, kind="table", width=12),
        Panel("Engines", {"": "modserve_engine_info{M}"}, kind="table", width=12),
        Panel(
            "Loads that failed",
            {"{{model}} {{version}}": "sum by (model, version) (increase(modserve_model_load_failures_total{M}[R]))"},
        ),
        Panel(
            "Seconds that loads took",
            {"{{model}} {{version}}": "max by (model, version) (nv_model_load_duration_secs{M})"},
            "s",
        ),
        Panel("Instances", {"{{model}}: {{state}}": "sum by (model, state) (modserve_instances{M})"}),
        Panel(
            "Bytes in memory",
            {"{{model}}": "sum by (model) (modserve_model_resident_bytes{M})"},
            "bytes",
            stacked=True,
            text="As measured when each was loaded.",
        ),
        Panel(
            "Memory of all models",
            {"held": "sum(modserve_model_memory_bytes{S})", "limit": "sum(modserve_model_memory_limit_bytes{S})"},
            "bytes",
        ),
        Panel(
            "Models that came and left",
            {
                "came": "sum(rate(modserve_model_loads_total{M}[R]))",
                "left": "sum(rate(modserve_model_evictions_total{M}[R]))",
            },
            "ops",
        ),
        Panel(
            "Requests by route",
            {"{{model}} {{route}}": "sum by (model, route) (rate(modserve_routing_requests{M}[R]))"},
            "reqps",
            width=12,
        ),
        Panel(
            "Copies for shadows",
            {"{{model}} {{outcome}}": "sum by (model, outcome) (rate(modserve_routing_shadow{M}[R]))"},
            "reqps",
            width=12,
        ),
    ),
    "Resources": (
        Panel(
            "CPU of the server's processes", {"{{instance}}": "rate(process_cpu_seconds_total{S}[R])"}, text="In cores."
        ),
        Panel("Memory of the server's processes", {"{{instance}}": "process_resident_memory_bytes{S}"}, "bytes"),
        Panel(
            "File descriptors",
            {"{{instance}}: open": "process_open_fds{S}", "{{instance}}: limit": "process_max_fds{S}"},
        ),
        Panel("CPU of the machine", {"{{instance}}": "nv_cpu_utilization{S}"}, "percentunit"),
        Panel(
            "Memory of the machine",
            {"{{instance}}: used": "nv_cpu_memory_used_bytes{S}", "{{instance}}: all": "nv_cpu_memory_total_bytes{S}"},
            "bytes",
        ),
        Panel(
            "Memory of the container",
            {
                "{{instance}}: used": "modserve_container_memory_used_bytes{S}",
                "{{instance}}: limit": "modserve_container_memory_limit_bytes{S} > 0",
            },
            "bytes",
            text="With the processes of Python models, and without files that the system can drop. At the limit the "
            "system kills a process. A container without a limit has no line for it.",
        ),
        Panel(
            "Delay of the event loop",
            {
                "p50": "histogram_quantile(0.5, sum by (le) (rate(modserve_event_loop_lag_seconds_bucket{S}[R])))",
                "p99": "histogram_quantile(0.99, sum by (le) (rate(modserve_event_loop_lag_seconds_bucket{S}[R])))",
            },
            "s",
        ),
        Panel(
            "Memory of requests",
            {
                "{{instance}}: held": "modserve_request_memory_bytes{S}",
                "{{instance}}: most": "modserve_request_memory_peak_bytes{S}",
                "{{instance}}: limit": "modserve_request_memory_limit_bytes{S}",
            },
            "bytes",
            width=12,
        ),
        Panel(
            "Requests refused for lack of memory",
            {"{{instance}}": "rate(modserve_request_memory_refused{S}[R])"},
            "reqps",
            width=12,
        ),
        Panel("GPUs", {"{{gpu_uuid}}": "nv_gpu_utilization{S}"}, "percentunit"),
        Panel(
            "Memory of GPUs",
            {"{{gpu_uuid}}: used": "nv_gpu_memory_used_bytes{S}", "{{gpu_uuid}}: all": "nv_gpu_memory_total_bytes{S}"},
            "bytes",
        ),
        Panel(
            "Power of GPUs",
            {
                "{{gpu_uuid}}": "nv_gpu_power_usage{S}",
                "{{gpu_uuid}}: limit": "nv_gpu_power_limit{S}",
                "{{gpu_uuid}}: from energy": "rate(nv_energy_consumption{S}[R])",
            },
            "watt",
        ),
    ),
    "Workers": (
        Panel("Workers that serve", {"{{instance}}": "modserve_workers{S}"}),
        Panel("Workers started again", {"{{instance}}": "increase(modserve_worker_restarts_total{S}[R])"}),
        Panel(
            "Instances started again",
            {"{{model}}": "sum by (model) (increase(modserve_instance_restarts_total{M}[R]))"},
        ),
    ),
}


def expression(query: str) -> str:
    """A query as Grafana takes it."""
    for mark, meant in (("{M", "{" + _MODEL), ("{S", "{" + _SERVER), ("[R]", "[$__rate_interval]")):
        query = query.replace(mark, meant)
    return query


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    instant = panel.kind in ("table", "stat")
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": _SOURCE,
            "expr": expression(query),
            "legendFormat": legend,
            "format": {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
            "instant": instant,
            "range": not instant,
        }
        for place, (legend, query) in enumerate(panel.queries.items())
    ]
    custom: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        custom = {"fillOpacity": 30 if panel.stacked else 8, "showPoints": "never", "stacking": stacking}
        options = {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    elif panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "auto"}
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": 4 if panel.kind == "stat" else _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": options,
        "targets": targets,
    }
    if panel.kind == "table":
        hidden = {"Time": True, "Value": True, "__name__": True}
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return made


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
                "panels": [],
            }
        )
        x, y, high = 0, y + 1, 0
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y, high = 0, y + high, 0
            made = _panel(len(panels) + 1, panel, x, y)
            panels.append(made)
            x, high = x + panel.width, max(high, made["gridPos"]["h"])
        y += high
    return {
        "title": "modserve",
        "uid": "modserve",
        "description": "Inference servers: requests, latency, batches, models, resources, workers.",
        "tags": ["modserve", "inference"],
        "editable": True,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("job", "Job", "label_values(modserve_build_info, job)"),
                _variable("instance", "Server", 'label_values(modserve_build_info{job=~"$job"}, instance)'),
                _variable("model", "Model", f"label_values(modserve_model_state{{{_SERVER}}}, model)"),
            ]
        },
        "annotations": {"list": []},
        "panels": panels,
    }


_RULE_HEAD = """\
# Needs the Prometheus Operator; docs/kubernetes.md shows how to leave it out.
# Made of deploy/prometheus/modserve.rules.yaml: python scripts/monitoring.py
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: modserve
  labels:
    app.kubernetes.io/name: modserve
    app.kubernetes.io/component: inference-server
spec:
"""


def kubernetes_rule(rules: str) -> str:
    """The groups as they stand in the file, further in."""
    groups = rules[rules.index("groups:") :]
    return _RULE_HEAD + "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))


def runbook(rules: str) -> str:
    """docs/alerts.md: a table for each group of alerts."""
    lines = [
        "# Alerts",
        "",
        "What to do when an alert of [`modserve.rules.yaml`](../deploy/prometheus/modserve.rules.yaml) fires. The",
        "alert's text has server, model and value. Critical alerts are bold.",
    ]
    for group in yaml.safe_load(rules)["groups"]:
        lines += ["", f"## {group['name']}", "", "| alert | what to do |", "|---|---|"]
        for rule in group["rules"]:
            text = " ".join(rule["annotations"]["runbook"].split()).replace("|", "\\|")
            text = re.sub(r"docs/([\w/-]+)\.md", r"[\1](\1.md)", text)
            mark = "**" if rule["labels"]["severity"] == "critical" else ""
            lines.append(f"| {mark}`{rule['alert']}`{mark} | {text} |")
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """What is to be in each file."""
    return {
        DASHBOARD: json.dumps(dashboard(), indent=2) + "\n",
        KUBERNETES_RULE: kubernetes_rule(RULES.read_text("utf-8")),
        CHART_RULES: RULES.read_text("utf-8"),
        RUNBOOK: runbook(RULES.read_text("utf-8")),
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
