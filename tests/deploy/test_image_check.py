"""What scripts/image asks of the image, asked of a server in no container: building one takes minutes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import compose_check
import image_check
import image_models
import pytest
import yaml
from image_check import Client
from server_here import started_here
from server_process import started

ROOT = Path(__file__).parents[2]
ENTRYPOINT = ROOT / "deploy" / "docker" / "entrypoint.sh"


def pod() -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "deploy" / "k8s" / "deployment.yaml").read_text())
    return dict(document["spec"]["template"]["spec"])


def test_the_container_is_that_of_kubernetes() -> None:
    (container,) = pod()["containers"]
    # The check does not wait for load balancers.
    arguments = [word for word in container["args"] if not word.startswith("--shutdown-delay-secs=")]
    assert arguments == image_check.ARGUMENTS
    security = container["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": "--security-opt=no-new-privileges" not in image_check.LOCKED_DOWN,
        "readOnlyRootFilesystem": "--read-only" in image_check.LOCKED_DOWN,
        "capabilities": {
            "drop": [option.removeprefix("--cap-drop=") for option in image_check.LOCKED_DOWN if "cap-drop" in option]
        },
    }
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert [option for option in image_check.LOCKED_DOWN if "tmpfs=/" in option] == [
        f"--tmpfs={path}" for path in writable
    ]


def test_a_server_passes(tmp_path: Path) -> None:
    models = ["python", "openvino"]
    program = ROOT / "scripts" / "image_models.py"
    subprocess.run([sys.executable, program, tmp_path, *models], check=True, capture_output=True, timeout=120)
    options = [word for word in image_check.ARGUMENTS[1:] if not word.startswith("--model-repository")]
    with started(image_check.ROOT / "model_repository", tmp_path, options=options, before=[str(ENTRYPOINT)]) as server:
        client = Client(f"127.0.0.1:{server.http_port}")
        client.until_ready()
        image_check.served(client, models)
        image_check.drained(client, lambda: server.signal(signal.SIGTERM), 300)
        server.wait(0)
        assert client.status("/v2/health/live") is None


def test_models_that_are_not_ready_are_named(tmp_path: Path) -> None:
    version = tmp_path / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"no model")
    with started_here(tmp_path, options=["--exit-on-error=false"]) as server:
        server.wait_for("broken .*UNAVAILABLE")
        with pytest.raises(TimeoutError, match="broken"):
            Client(f"127.0.0.1:{server.http_port}").until_ready(seconds=0.0)


def test_every_engine_has_a_model_and_is_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    backends = set(project["entry-points"]["modserve.backends"])
    assert set(image_check.BACKENDS.values()) | {"python"} == set(image_models.WRITERS) <= backends
    assert sorted(image_check.backends_of("all")) == sorted(image_check.BACKENDS.values())
    assert image_check.backends_of("remote trees redis") == ["fil"]
    assert image_check.backends_of("") == []
    with pytest.raises(KeyError):
        image_check.backends_of("nosuch")


def test_engines_are_read_from_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "modserve", "engines"], capture_output=True, text=True, timeout=120, check=True
    )
    engines = image_check.engines(done.stdout)
    assert {"auto", "onnxruntime", "openvino", "python", "pytorch"} <= engines
    assert not {"tensorrt", "backend", "or"} & engines


STATUS = """
Name:	modserve
Uid:	10001	10001	10001	10001
CapEff:	0000000000000000
CapBnd:	0000000000000000
NoNewPrivs:	1
Seccomp:	2
Seccomp_filters:	1
"""


def test_a_locked_down_process_passes() -> None:
    image_check.locked_down(STATUS, "ro,relatime,lowerdir=/a")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Uid:	10001	10001", "Uid:	0	10001"),
        ("Name:	modserve", "Name:	sh"),
        ("CapEff:	0000000000000000", "CapEff:	00000000a80425fb"),
        ("CapBnd:	0000000000000000", "CapBnd:	0000000000000400"),
        ("NoNewPrivs:	1", "NoNewPrivs:	0"),
        ("Seccomp:	2", "Seccomp:	0"),
    ],
)
def test_a_process_that_is_not_locked_down_fails(right: str, wrong: str) -> None:
    assert right in STATUS
    with pytest.raises(AssertionError):
        image_check.locked_down(STATUS.replace(right, wrong), "ro,relatime")


def test_a_root_that_can_be_written_fails() -> None:
    with pytest.raises(AssertionError):
        image_check.locked_down(STATUS, "rw,relatime,upperdir=/ro")


# --- the compose file -------------------------------------------------------------------------------------------------


def test_the_stand_in_has_the_name_of_the_image() -> None:
    services = yaml.safe_load(compose_check.COMPOSE.read_text())["services"]
    assert f"docker.io/{services['prometheus']['image']}" == compose_check.PROMETHEUS


def test_prometheus_writes_to_its_volume() -> None:
    # The image's own arguments, which say so, are replaced by those of the file.
    service = yaml.safe_load(compose_check.COMPOSE.read_text())["services"]["prometheus"]
    (place,) = [word.partition("=")[2] for word in service["command"] if word.startswith("--storage.tsdb.path=")]
    assert f"prometheus:{place}" in service["volumes"]


# --- the scripts ------------------------------------------------------------------------------------------------------


def test_script_parses() -> None:
    done = subprocess.run(["bash", "-n", ROOT / "scripts" / "image"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("program", ["image_check.py", "compose_check.py", "image_models.py"])
def test_programs_need_nothing_but_python(program: str) -> None:
    # They run outside of any environment; image_models.py in one that has only what the image has.
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import {program[:-3]}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


BASE = re.compile(r"^FROM (\S+:\S+)", re.MULTILINE)


def test_the_base_that_is_made_is_the_one_that_is_wanted() -> None:
    (name,) = BASE.findall((ROOT / "Dockerfile").read_text())
    script = (ROOT / "scripts" / "image").read_text()
    assert f'buildah commit -q "$container" docker.io/library/{name}\n' in script
    assert f"FROM docker.io/library/{name}\n" in compose_check.CONTAINERFILE
