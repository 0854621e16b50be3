"""The number that autoscalers go by, in replayed incidents: by promtool, with the expressions of the files."""

import re
from pathlib import Path

import pytest
import yaml
from kustomizing import BASE
from test_monitoring import promtool

COMPONENTS = BASE / "components"
CHART = BASE.parent / "helm" / "modserve"
HPA = yaml.safe_load((COMPONENTS / "hpa" / "autoscaler.yaml").read_text())["spec"]["metrics"][0]["pods"]
KEDA = yaml.safe_load((COMPONENTS / "keda" / "scaled-object.yaml").read_text())["spec"]["triggers"][0]["metadata"]
ADAPTER = yaml.safe_load((COMPONENTS / "hpa" / "adapter-rule.yaml").read_text())["rules"][0]
PODS = 2


def of_adapter() -> str:
    """All pods together, as an HPA's `AverageValue` takes them: what it compares with the target, times the pods."""
    assert ADAPTER["name"]["as"] == HPA["metric"]["name"]
    assert ADAPTER["seriesQuery"].startswith(ADAPTER["name"]["matches"] + "{")
    query: str = ADAPTER["metricsQuery"]
    parts = {"Series": ADAPTER["name"]["matches"], "LabelMatchers": 'namespace="inference"', "GroupBy": "namespace,pod"}
    for name, text in parts.items():
        query = query.replace(f"<<.{name}>>", text)
    return f"sum({query})"


def of_chart() -> str:
    define = (CHART / "templates" / "_helpers.tpl").read_text().partition('define "modserve.load" -}}\n')[2]
    query = define.partition("\n")[0].replace("{{ .Release.Namespace }}", "inference")
    return query.replace('{{ include "modserve.name" . }}', "modserve")


NUMBERS = {"hpa": of_adapter(), "keda": KEDA["query"], "chart": of_chart()}


def series(values: str, name: str, labels: str = "") -> list[dict[str, str]]:
    return [
        {"series": f'{name}{{namespace="inference",pod="modserve-{pod}"{labels}}}', "values": values}
        for pod in range(PODS)
    ]


def test_the_thresholds_are_the_same() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    thresholds = (HPA["target"]["averageValue"], KEDA["threshold"], str(values["autoscaling"]["requestsPerPod"]))
    assert thresholds == ("8", "8", "8")


@pytest.mark.parametrize("number", list(NUMBERS))
def test_what_the_autoscalers_want(number: str, tmp_path: Path) -> None:
    """A model hangs: 16 requests are in each pod, their clients time out and ask again, and none succeeds."""
    incidents = {
        "all requests time out": (16, "0x40", 4),
        "as many succeed": (16, "0+960x40", 4),
        "at the slots": (8, "0+480x40", 2),
        "idle": (0, "3000x40", 0),
    }
    tests = [
        {
            "name": name,
            "interval": "15s",
            "input_series": [
                *series(f"{in_flight}x40", "modserve_requests_in_flight", ',model="m"'),
                *series("0x40", "modserve_requests_in_flight", ',model="other"'),
                *series(durations, "modserve_request_duration_seconds_sum", ',model="m",version="1"'),
            ],
            "promql_expr_test": [
                {
                    "expr": f"ceil(({NUMBERS[number]}) / {KEDA['threshold']})",
                    "eval_time": "10m",
                    "exp_samples": [{"labels": "{}", "value": pods}],
                }
            ],
        }
        for name, (in_flight, durations, pods) in incidents.items()
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "15s", "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_the_guide_has_the_same_number() -> None:
    guide = (BASE.parents[1] / "docs" / "kubernetes.md").read_text()
    assert re.findall(r"```promql\n(.+)\n```", guide) == [KEDA["query"]]
