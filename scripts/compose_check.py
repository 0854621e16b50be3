"""Start deploy/compose/compose.yaml with podman-compose, and ask its Prometheus what it sees.

scripts/image does that, where COMPOSE=1 asks for it, with the image that it has built. Debian's Prometheus stands in
for the image that the file names, under the same name. Grafana is not among Debian's packages, and is left out.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from image_check import ROOT, SECONDS, Client, podman, print_logs

COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
PROMETHEUS = "docker.io/" + re.findall(r"image: (prom/\S+)", COMPOSE.read_text())[0]
CONTAINERFILE = """
FROM docker.io/library/python:3.11-slim-bookworm
COPY prometheus /bin/prometheus
RUN mkdir /prometheus && chown 65534:65534 /prometheus
USER 65534
WORKDIR /prometheus
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]
"""
"""User, directories and entry point are those of Prometheus' own image."""

PAUSE = 0.5


def stand_in() -> None:
    program = shutil.which("prometheus")
    if program is None:
        raise RuntimeError("prometheus is not here; on Debian: apt-get install prometheus")
    with TemporaryDirectory() as context:
        shutil.copy(program, context)
        Path(context, "Containerfile").write_text(CONTAINERFILE)
        podman("build", "--quiet", "--pull-never", "--isolation=chroot", "--tag", PROMETHEUS, context)


def compose(*words: str) -> None:
    command = ["podman-compose", "-f", str(COMPOSE), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def until(condition: Callable[[], Any], what: str) -> Any:
    """What it returns, once that is true."""
    end = time.monotonic() + SECONDS
    while not (result := condition()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(PAUSE)
    return result


def scraped(prometheus: Client) -> bool:
    targets = prometheus.json("GET", "/api/v1/targets")["data"]["activeTargets"]
    up = {target["labels"]["instance"]: target["health"] == "up" for target in targets}
    assert set(up) <= {"modserve:8002"}, targets
    return bool(up.get("modserve:8002"))


def rules(prometheus: Client) -> list[dict[str, Any]]:
    """All, once each of them has been evaluated."""
    groups = prometheus.json("GET", "/api/v1/rules")["data"]["groups"]
    every = [rule for group in groups for rule in group["rules"]]
    assert not [rule for rule in every if rule["health"] == "err"], every
    return every if all(rule["health"] == "ok" for rule in every) else []


def main() -> None:
    stand_in()
    server, prometheus = Client("127.0.0.1:8000"), Client("127.0.0.1:9090")
    try:
        compose("up", "-d", "modserve", "prometheus")
        server.until_ready()
        until(lambda: prometheus.status("/-/ready") == 200, "Prometheus is not ready")
        until(lambda: scraped(prometheus), "Prometheus does not reach modserve:8002")
        alerts = until(lambda: rules(prometheus), "not all rules have been evaluated")
        ready = prometheus.json("GET", "/api/v1/query?query=modserve_ready")["data"]["result"]
        assert [each["value"][1] for each in ready] == ["1"], ready
        firing = [rule["name"] for rule in alerts if rule["state"] == "firing"]
        assert not firing, firing
        print(f"compose: Prometheus scrapes modserve:8002 and has evaluated {len(alerts)} rules; none fires")
    except BaseException:
        for name in podman("ps", "--all", "--format={{.Names}}").split():
            print_logs(name)
        raise
    finally:
        compose("down", "--volumes")


if __name__ == "__main__":
    main()
