"""The dashboard and the alert rules: that they are what the script writes, well formed, and that each alert fires."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import monitoring
import pytest
import yaml

NO_PROMTOOL = (
    "promtool is not on PATH, and these tests check alert rules with it. On Debian: apt-get install prometheus. "
    "Elsewhere: https://prometheus.io/download/"
)
SEVERITIES = ("critical", "warning")
WHO = 'job="modserve",instance="a:8002"'
MODEL = f'{WHO},model="m",version="1"'


def histogram(name: str, labels: str, counts: dict[str, int]) -> dict[str, str]:
    """So many more values a minute up to each bound."""
    return {f'{name}_bucket{{{labels},le="{bound}"}}': f"0+{count}x90" for bound, count in counts.items()}


def slow(name: str, labels: str, quick: int = 50) -> dict[str, str]:
    """Of 100 values a minute only the `quick` are no longer than 2 seconds, the others at most 5."""
    counts = {"0.05": quick, "1.0": quick, "2.0": quick, "5.0": 100, "+Inf": 100}
    return {**histogram(name, labels, counts), f"{name}_count{{{labels}}}": "0+100x90"}


def quick(name: str, labels: str) -> dict[str, str]:
    counts = {"0.05": 100, "1.0": 100, "+Inf": 100}
    return {**histogram(name, labels, counts), f"{name}_count{{{labels}}}": "0+100x90"}


def failures(reason: str, a_minute: float = 10) -> dict[str, str]:
    return {
        f'nv_inference_request_failure{{{MODEL},reason="{reason}"}}': f"0+{a_minute}x90",
        f"nv_inference_request_success{{{MODEL}}}": "0+90x90",
    }


FIRING: dict[str, dict[str, str]] = {
    "ModserveDown": {f"up{{{WHO}}}": "0x90"},
    "ModserveNotReady": {f"modserve_ready{{{WHO}}}": "0x90"},
    "ModserveRestarts": {f"process_start_time_seconds{{{WHO}}}": "0+100x90"},
    "ModserveWorkerRestarts": {f"modserve_worker_restarts_total{{{WHO}}}": "0+1x90"},
    "ModserveWorkersMissing": {f"modserve_workers{{{WHO}}}": "4x30 3x60"},
    "ModserveEventLoopHeld": slow("modserve_event_loop_lag_seconds", WHO),
    "ModserveFileDescriptors": {f"process_open_fds{{{WHO}}}": "900x90", f"process_max_fds{{{WHO}}}": "1024x90"},
    "ModserveModelUnavailable": {
        f'modserve_model_state{{{MODEL},state="UNAVAILABLE"}}': "1x90",
        f'modserve_model_state{{{WHO},model="other",version="1",state="READY"}}': "1x90",
    },
    "ModserveVersionUnavailable": {
        f'modserve_model_state{{{WHO},model="m",version="2",state="UNAVAILABLE"}}': "1x90",
        f'modserve_model_state{{{MODEL},state="READY"}}': "1x90",
    },
    "ModserveModelLoadFails": {f"modserve_model_load_failures_total{{{MODEL}}}": "_x55 1x35"},
    "ModserveInstancesLost": {f'modserve_instances{{{MODEL},state="lost"}}': "1x90"},
    "ModserveExecutionStuck": {f"modserve_oldest_execution_seconds{{{MODEL}}}": "0+60x90"},
    "ModserveInstanceRestarts": {f"modserve_instance_restarts_total{{{MODEL}}}": "0+1x90"},
    "ModserveModelsTakeTurns": {f"modserve_model_evictions_total{{{MODEL}}}": "0+3x90"},
    "ModserveRouteRolledBack": {f'modserve_routing_rolled_back{{{MODEL},route="canary"}}': "1x90"},
    "ModserveRequestsFail": failures("BACKEND"),
    "ModserveRequestsRejected": failures("REJECTED"),
    "ModserveRequestsCanceled": failures("CANCELED", 50),
    "ModserveRequestsWait": {f"modserve_oldest_waiting_seconds{{{MODEL}}}": "90x90"},
    "ModserveHttpServerErrors": {
        f'modserve_http_responses_total{{{WHO},code="200"}}': "0+90x90",
        f'modserve_http_responses_total{{{WHO},code="503"}}': "0+10x90",
    },
    "ModserveGrpcServerErrors": {
        f'modserve_grpc_responses_total{{{WHO},code="OK"}}': "0+90x90",
        f'modserve_grpc_responses_total{{{WHO},code="UNAVAILABLE"}}': "0+10x90",
    },
    "ModserveLatencyHigh": slow("modserve_request_duration_seconds", MODEL),
    "ModserveQueueLong": slow("modserve_queue_duration_seconds", MODEL),
    "ModserveAvailabilityBurnsFast": failures("BACKEND", 2),
    "ModserveAvailabilityBurnsSlowly": failures("REJECTED", 0.8),
    "ModserveLatencyBurnsFast": slow("modserve_request_duration_seconds", MODEL, 80),
    "ModserveLatencyBurnsSlowly": slow("modserve_request_duration_seconds", MODEL, 92),
    "ModserveRequestMemoryFull": {
        f"modserve_request_memory_bytes{{{WHO}}}": "95x90",
        f"modserve_request_memory_limit_bytes{{{WHO}}}": "100x90",
    },
    "ModserveMachineMemory": {
        f"nv_cpu_memory_used_bytes{{{WHO}}}": "98x90",
        f"nv_cpu_memory_total_bytes{{{WHO}}}": "100x90",
    },
    "ModserveContainerMemory": {
        f"modserve_container_memory_used_bytes{{{WHO}}}": "95x90",
        f"modserve_container_memory_limit_bytes{{{WHO}}}": "100x90",
    },
    "ModserveGpuMemory": {
        f'nv_gpu_memory_used_bytes{{{WHO},gpu_uuid="GPU-a"}}': "99x90",
        f'nv_gpu_memory_total_bytes{{{WHO},gpu_uuid="GPU-a"}}': "100x90",
    },
}
"""By alert, series of a minute's interval that make it fire after an hour, and no others but those of `BESIDE`."""
_UNAVAILABLE = {"ModserveAvailabilityBurnsFast", "ModserveAvailabilityBurnsSlowly"}
_LATE = {"ModserveLatencyBurnsFast", "ModserveLatencyBurnsSlowly"}
BESIDE = {
    "ModserveRequestsFail": _UNAVAILABLE,
    "ModserveRequestsRejected": _UNAVAILABLE,
    "ModserveLatencyHigh": _LATE,
    "ModserveAvailabilityBurnsFast": {"ModserveAvailabilityBurnsSlowly"},
    "ModserveLatencyBurnsFast": {"ModserveLatencyHigh", "ModserveLatencyBurnsSlowly"},
    "ModserveLatencyBurnsSlowly": {"ModserveLatencyHigh"},
}
"""What fires with an alert."""
MORE_FIRING: list[tuple[str, dict[str, str]]] = [
    (
        "",  # no limit, and one that is nearly reached for less than five minutes
        {
            f"modserve_container_memory_used_bytes{{{WHO}}}": "95x90",
            f"modserve_container_memory_limit_bytes{{{WHO}}}": "0x90",
            'modserve_container_memory_used_bytes{job="modserve",instance="b:8002"}': "95x3 50x53 95x33",
            'modserve_container_memory_limit_bytes{job="modserve",instance="b:8002"}': "100x90",
        },
    ),
    ("ModserveModelLoadFails", {f"modserve_model_load_failures_total{{{MODEL}}}": "0x55 1x35"}),
    ("ModserveModelLoadFails", {f"modserve_model_load_failures_total{{{MODEL}}}": "2x55 3x35"}),
]
HEALTHY = {
    f"up{{{WHO}}}": "1x90",
    f"modserve_ready{{{WHO}}}": "1x90",
    f"process_start_time_seconds{{{WHO}}}": "100x90",
    f"modserve_worker_restarts_total{{{WHO}}}": "0x90",
    f"modserve_workers{{{WHO}}}": "4x90",
    f"process_open_fds{{{WHO}}}": "50x90",
    f"process_max_fds{{{WHO}}}": "1024x90",
    f'modserve_model_state{{{MODEL},state="READY"}}': "1x90",
    f'modserve_model_state{{{WHO},model="n",version="1",state="UNLOADED"}}': "1x90",
    f"modserve_model_load_failures_total{{{MODEL}}}": "3x90",
    f'modserve_model_load_failures_total{{{WHO},model="m",version="2"}}': "_x55 0x35",
    f'modserve_instances{{{MODEL},state="lost"}}': "0x90",
    f"modserve_oldest_execution_seconds{{{MODEL}}}": "100 0 5 100x87",
    f"modserve_oldest_waiting_seconds{{{MODEL}}}": "0 50 70 0x87",
    f"modserve_instance_restarts_total{{{MODEL}}}": "2x90",
    f"modserve_model_evictions_total{{{MODEL}}}": "0+1x90",
    f'modserve_routing_rolled_back{{{MODEL},route="canary"}}': "0x90",
    f'nv_inference_request_failure{{{MODEL},reason="BACKEND"}}': "0+1x90",
    f'nv_inference_request_failure{{{MODEL},reason="REJECTED"}}': "0x90",
    f'nv_inference_request_failure{{{MODEL},reason="CANCELED"}}': "0+50x90",
    f"nv_inference_request_success{{{MODEL}}}": "0+1000x90",
    f'modserve_http_responses_total{{{WHO},code="200"}}': "0+90x90",
    f'modserve_http_responses_total{{{WHO},code="404"}}': "0+90x90",
    f'modserve_grpc_responses_total{{{WHO},code="OK"}}': "0+90x90",
    f'modserve_grpc_responses_total{{{WHO},code="NOT_FOUND"}}': "0+90x90",
    **quick("modserve_event_loop_lag_seconds", WHO),
    **quick("modserve_request_duration_seconds", MODEL),
    **quick("modserve_queue_duration_seconds", MODEL),
    f"modserve_request_memory_bytes{{{WHO}}}": "95x90",
    f"modserve_request_memory_limit_bytes{{{WHO}}}": "0x90",
    f"nv_cpu_memory_used_bytes{{{WHO}}}": "50x90",
    f"nv_cpu_memory_total_bytes{{{WHO}}}": "100x90",
    f"modserve_container_memory_used_bytes{{{WHO}}}": "50x90",
    f"modserve_container_memory_limit_bytes{{{WHO}}}": "100x90",
    f'nv_gpu_memory_used_bytes{{{WHO},gpu_uuid="GPU-a"}}': "50x90",
    f'nv_gpu_memory_total_bytes{{{WHO},gpu_uuid="GPU-a"}}': "100x90",
}
"""Series of a server with all that is usual: no alert fires."""


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(monitoring.RULES.read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments: str) -> str:
    executable = shutil.which("promtool")
    if executable is None:
        pytest.fail(NO_PROMTOOL, pytrace=False)
    done = subprocess.run([executable, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_files_are_what_the_script_writes() -> None:
    for path, text in monitoring.files().items():
        assert path.read_text("utf-8") == text, f"run scripts/monitoring.py: {path}"


def test_the_rules_are_well_formed() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(monitoring.RULES))


def test_every_alert_says_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in SEVERITIES, rule["alert"]
        assert rule["annotations"].keys() == {"summary", "runbook"}, rule["alert"]
        assert len(rule["annotations"]["runbook"]) > 80, rule["alert"]
        assert "{{" in rule["annotations"]["summary"], rule["alert"]


def test_there_is_a_series_for_every_alert() -> None:
    assert [rule["alert"] for rule in rules()] == list(FIRING)


def test_each_alert_fires_alone_and_none_where_all_is_well(tmp_path: Path) -> None:
    """In one run: the groups of series do not see each other."""
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in inputs.items()],
            "promql_expr_test": [
                {
                    "expr": "count by (alertname) (ALERTS{alertstate='firing'})",
                    "eval_time": "60m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{each}"}}', "value": 1}
                        for each in sorted({alert, *BESIDE.get(alert, ())} - {""})
                    ],
                }
            ],
        }
        for alert, inputs in [*FIRING.items(), *MORE_FIRING, ("", HEALTHY)]
    ]
    file = tmp_path / "tests.yaml"
    document = {"rule_files": [str(monitoring.RULES)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(yaml.safe_dump(document))
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_the_dashboard_s_panels_have_places_of_their_own() -> None:
    panels = json.loads(monitoring.DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == ["Overview", "Latency", "Batching and queues", "Text generation", "Models", "Resources", "Workers"]


def test_every_metric_of_dashboard_and_alerts_is_described() -> None:
    page = (monitoring.DEPLOY.parent / "docs" / "metrics.md").read_text()
    queries = [query for row in monitoring.ROWS.values() for panel in row for query in panel.queries.values()]
    queries += [rule["expr"] for rule in rules()]
    names = {name for query in queries for name in re.findall(r"\b(?:modserve|nv)_[a-z0-9_]+", query)}
    unknown = [
        name for name in sorted(names) if name not in page and re.sub("_(bucket|count|sum)$", "", name) not in page
    ]
    assert unknown == []
