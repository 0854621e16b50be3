"""The command lines that the deployment files contain are ones the server takes."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from modserve import cli
from modserve.settings import Settings

ROOT = Path(__file__).parents[2]


def kubernetes() -> list[str]:
    deployment = yaml.safe_load((ROOT / "deploy" / "k8s" / "deployment.yaml").read_text(encoding="utf-8"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    arguments: list[str] = container["args"]
    return arguments


def dockerfile() -> list[str]:
    (command,) = re.findall(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    arguments: list[str] = json.loads(command)
    return arguments


def entrypoint() -> list[str]:
    script = (ROOT / "deploy" / "docker" / "entrypoint.sh").read_text(encoding="utf-8")
    (arguments,) = re.findall(r"set -- (.*)$", script, re.MULTILINE)
    return str(arguments).split()


SOURCES = {"kubernetes": kubernetes, "Dockerfile": dockerfile, "entrypoint.sh": entrypoint}
KSERVE = ["--model-store=/mnt/models", "--grpc-port=9000", "--http-port=8080", "--allow-grpc=true", "--allow-http=true"]
"""What KServe's runtime for Triton starts its container with."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> "Read":
    return Read(monkeypatch)


class Read:
    """The whole command line interface, up to the point where it would serve."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._runs: list[tuple[Settings, Sequence[str]]] = []
        monkeypatch.setattr(cli, "run", self._run)

    def _run(self, settings: Settings, without_effect: Sequence[str] = (), words: Sequence[str] = ()) -> int:
        self._runs.append((settings, without_effect))
        return 0

    def __call__(self, arguments: list[str]) -> Settings:
        assert cli.main(arguments) == 0
        ((settings, without_effect),) = self._runs
        assert not without_effect
        return settings


@pytest.mark.parametrize("source", SOURCES)
def test_arguments_are_accepted(read: Read, source: str) -> None:
    settings = read(SOURCES[source]())
    assert settings.model_repository == (Path("/models"),)
    assert (settings.http.port, settings.grpc.port, settings.metrics_port) == (8000, 8001, 8002)


def test_kubernetes_settings(read: Read) -> None:
    settings = read(kubernetes())
    assert settings.exit_timeout_secs == 30
    assert settings.exit_on_error is False
    assert settings.strict_readiness is True


def test_kserve_s_command_line(read: Read) -> None:
    settings = read(KSERVE)
    assert settings.model_repository == (Path("/mnt/models"),)
    assert (settings.http.port, settings.grpc.port) == (8080, 9000)


def test_a_wrong_argument_would_be_noticed(read: Read, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*kubernetes(), "--exit-timeout-sec-s=1"]) == 2
    assert "did you mean '--exit-timeout-secs'?" in capsys.readouterr().err
