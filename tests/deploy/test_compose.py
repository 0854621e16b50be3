"""The compose file and what it mounts: read, and Prometheus' part checked by its own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "deploy" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((PLACE / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def plain(text: str) -> str:
    """With the defaults of the variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def mounts(service: str) -> dict[str, Path]:
    """What of this repository the service sees, by the path inside."""
    places = [plain(volume).split(":") for volume in SERVICES[service]["volumes"]]
    return {inside: (PLACE / outside).resolve() for outside, inside, *_ in places if outside.startswith(".")}


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_mounted_is_there_and_cannot_be_written(service: str) -> None:
    for inside, outside in mounts(service).items():
        assert outside.exists(), outside
        assert f":{inside}:ro" in " ".join(SERVICES[service]["volumes"])


def test_the_server_is_the_image_of_this_repository() -> None:
    service = SERVICES["modserve"]
    assert (PLACE / service["build"]["context"]).resolve() == ROOT
    arguments = re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(service["build"]["args"]) <= set(arguments)
    assert mounts("modserve") == {"/models": ROOT / "model_repository"}
    assert service["command"][-1] == "--model-repository=/models"
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > 30  # --exit-timeout-secs


def test_only_the_server_is_reached_from_elsewhere() -> None:
    everywhere = {
        name: [port for port in service["ports"] if port.count(":") == 1] for name, service in SERVICES.items()
    }
    assert everywhere == {"modserve": ["8000:8000", "8001:8001"], "prometheus": [], "grafana": []}


def test_images_of_others_are_of_a_fixed_release() -> None:
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])


def test_prometheus_asks_the_server_and_reads_the_rules(tmp_path: Path) -> None:
    config = yaml.safe_load((PLACE / "prometheus.yaml").read_text())
    targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == ["modserve:8002"]
    (rules,) = [inside for inside in mounts("prometheus") if "/rules/" in inside]
    assert [str(Path(rules).parent / "*.yaml")] == config["rule_files"]
    assert SERVICES["prometheus"]["command"][0].removeprefix("--config.file=") in mounts("prometheus")
    promtool = shutil.which("promtool")
    assert promtool, "Debian's package prometheus has it"
    shutil.copy(PLACE / "prometheus.yaml", tmp_path)
    command = [promtool, "check", "config", str(tmp_path / "prometheus.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_reads_prometheus_and_shows_the_dashboard() -> None:
    (source,) = yaml.safe_load((PLACE / "grafana" / "datasource.yaml").read_text())["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert SERVICES[host]["ports"][0].endswith(f":{port}")
    (provider,) = yaml.safe_load((PLACE / "grafana" / "dashboards.yaml").read_text())["providers"]
    (dashboard,) = [inside for inside in mounts("grafana") if inside.endswith(".json")]
    assert str(Path(dashboard).parent) == provider["options"]["path"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == dashboard
