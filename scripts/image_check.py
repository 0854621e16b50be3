"""Run the image as Kubernetes would, with podman, and try it from outside: ``image_check.py IMAGE EXTRAS``.

scripts/image does that. The container is that of deploy/k8s/deployment.yaml: its arguments, no capabilities, a
read-only root, the models read-only at /models. A model for each engine of the extras answers over a published port,
and SIGTERM lets a response finish that is still under way. tests/deploy/test_image_check.py does it with no container.
"""

import json
import math
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import BadStatusLine, HTTPConnection, HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
ARGUMENTS = ["serve", "--model-repository=/models", "--exit-timeout-secs=30", "--exit-on-error=false"]
LOCKED_DOWN = [
    "--read-only",
    "--read-only-tmpfs=false",  # podman's own extra: writable /run and /var/tmp
    "--tmpfs=/tmp",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
]
BACKENDS = {"openvino": "openvino", "torch": "pytorch", "trees": "fil", "sklearn": "sklearn", "mlflow": "mlflow"}
"""Of the extras that are engines."""

SECONDS = 60.0
PAUSE = 0.05
"""Between looks at a server that starts; a kubelet takes a second."""


def podman(*words: str) -> str:
    """What a command prints. Raises RuntimeError with it if it fails."""
    done = subprocess.run(
        ["podman", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5 * SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"podman {' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def print_logs(name: str) -> None:
    state = podman("inspect", "--format={{.State.Status}}, exit status {{.State.ExitCode}}", name)
    print(f"{name}: {state}. Its last lines:", file=sys.stderr, flush=True)
    subprocess.run(["podman", "logs", "--tail=50", name], stdout=sys.stderr, timeout=SECONDS, check=True)


def inside(image: str, *words: str, options: Sequence[str] = ()) -> str:
    """What a command in a container of its own prints."""
    return podman("run", "--rm", "--pull=never", "--network=none", *options, image, *words)


@contextmanager
def network() -> Iterator[str]:
    """The name of one whose addresses nothing else on this machine has, which podman's usual one does not look at."""
    name = podman("network", "create")
    try:
        yield name
    finally:
        podman("network", "rm", "--force", name)


@contextmanager
def container(image: str, *words: str, options: Sequence[str] = ()) -> Iterator[str]:
    """The name of one that runs. Its logs are printed if the block fails."""
    # podman leaves the health check to systemd; here it is run by hand.
    options = ["--detach", "--pull=never", "--health-interval=disable", *options]
    name = podman("run", *options, image, *words)
    try:
        yield name
    except BaseException:
        print_logs(name)
        raise
    finally:
        podman("rm", "--force", "--time=0", name)


class Client:
    """Of an address, HOST:PORT."""

    def __init__(self, address: str) -> None:
        self._address = address

    @contextmanager
    def response(self, method: str, path: str, body: object = None, **headers: str) -> Iterator[HTTPResponse]:
        with closing(HTTPConnection(self._address, timeout=SECONDS)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            with connection.getresponse() as response:
                yield response

    def status(self, path: str) -> int | None:
        """None where nobody listens."""
        try:
            with self.response("GET", path) as response:
                return response.status
        except (ConnectionError, BadStatusLine):
            return None

    def json(self, method: str, path: str, body: object = None) -> Any:
        with self.response(method, path, body) as response:
            text = response.read().decode()
            if response.status != 200:
                raise RuntimeError(f"{path}: {response.status} {text}")
            return json.loads(text)

    def until_ready(self, seconds: float = SECONDS) -> None:
        """Raises TimeoutError with what the server says, if it is still not ready."""
        end = time.monotonic() + seconds
        while self.status("/v2/health/ready") != 200:
            if time.monotonic() > end:
                with self.response("GET", "/v2/health/ready") as response:
                    raise TimeoutError(response.read().decode())
            time.sleep(PAUSE)


def engines(text: str) -> set[str]:
    """The backends that `modserve engines` lists as installed."""
    rows = text.partition("Not installed:")[0].splitlines()
    return {row.split()[0] for row in rows if re.match(r"\w", row)} - {"backend"}


def backends_of(extras: str) -> list[str]:
    """The backends of some extras, and of those that these name."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    parts = extras.split()
    for extra in extras.split():
        for line in lines[extra]:
            if own := re.fullmatch(r"modserve\[([\w,-]+)\]", line):
                parts += own[1].split(",")
    return [BACKENDS[part] for part in parts if part in BACKENDS]


def doubled(client: Client, model: str) -> list[float]:
    """What a model of scripts/image_models.py makes of a one."""
    (tensor,) = client.json("GET", f"/v2/models/{model}")["inputs"]
    one = {"name": tensor["name"], "datatype": tensor["datatype"], "shape": [1, 1], "data": [1]}
    (output, *_) = client.json("POST", f"/v2/models/{model}/infer", {"inputs": [one]})["outputs"]
    return [float(value) for value in output["data"]]


@contextmanager
def under_way(client: Client, milliseconds: int) -> Iterator[Iterator[int]]:
    """The responses of a request of two, the second of which comes so much later. The first has come."""

    def tensor(name: str, kind: str, *values: int) -> dict[str, object]:
        return {"name": name, "datatype": kind, "shape": [len(values)], "data": values}

    inputs = [tensor("IN", "INT32", 7, 8), tensor("DELAY", "UINT32", 0, milliseconds), tensor("WAIT", "UINT32", 0)]
    path = "/v2/models/repeat/infer_stream"
    with client.response("POST", path, {"inputs": inputs}, Accept="application/x-ndjson") as response:
        outputs = (json.loads(line).get("outputs", []) for line in response)
        values = (each["data"][0] for some in outputs for each in some if each["name"] == "OUT")
        assert next(values) == 7
        yield values


def served(client: Client, backends: Sequence[str]) -> None:
    """All models answer."""
    ones = [{"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for n in range(2)]
    assert client.json("POST", "/v2/models/simple/infer", {"inputs": ones})["outputs"][0]["data"] == [2] * 16
    for backend in backends:
        (value,) = doubled(client, backend)
        assert math.isclose(value, 2.0, rel_tol=1e-6), f"{backend}: {value}"
        print(f"a model of the backend {backend} answers")


def drained(client: Client, terminate: Callable[[], object], milliseconds: int = 2000) -> None:
    """SIGTERM with a response under way: nobody else is let in, and it still comes."""
    with under_way(client, milliseconds) as values:
        terminate()
        end = time.monotonic() + SECONDS
        while client.status("/v2/health/ready") == 200:
            assert time.monotonic() < end, "ready after SIGTERM"
            time.sleep(PAUSE)
        assert list(values) == [8]


def locked_down(status: str, root: str) -> None:
    """By ``/proc/1/status`` and the options of what is mounted at ``/``."""
    fields = dict(re.findall(r"^(\w+):\s+(.*?)\s*$", status, re.MULTILINE))
    assert fields["Uid"].split() == ["10001"] * 4, fields["Uid"]
    assert fields["Name"] == "modserve", fields["Name"]
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert "ro" in root.split(","), root


def check(image: str, backends: Sequence[str], models: Path) -> None:
    volumes = [f"--volume={models}:/models:ro"]
    ports = [f"--publish=127.0.0.1::{port}" for port in (8000, 8001, 8002)]
    began = time.monotonic()
    with (
        network() as net,
        container(image, *ARGUMENTS, options=[*LOCKED_DOWN, *volumes, *ports, f"--network={net}"]) as name,
    ):
        client, metrics = (Client(podman("port", name, f"{port}/tcp")) for port in (8000, 8002))
        client.until_ready()
        print(f"ready {time.monotonic() - began:.1f} s after podman was called")
        locked_down(
            podman("exec", name, "cat", "/proc/1/status"),
            podman("exec", name, "findmnt", "--noheadings", "--output=OPTIONS", "/"),
        )
        print("uid 10001, no capabilities, read-only root")
        podman("healthcheck", "run", name)
        served(client, backends)
        with metrics.response("GET", "/metrics") as response:
            assert "modserve_ready 1" in response.read().decode()
        podman("exec", name, "modserve", "infer", "simple", "--sample", "--grpc")
        print("health, inference and metrics over published ports, and gRPC inside")
        drained(client, lambda: podman("kill", "--signal=TERM", name))
        assert podman("wait", name) == "0"
        print("SIGTERM: the response under way still came, then exit status 0")


def main(image: str, extras: str) -> None:
    backends = ["python", *backends_of(extras)]
    with TemporaryDirectory() as directory:
        models = Path(directory, "models")
        shutil.copytree(ROOT / "model_repository", models)
        program = f"--volume={ROOT / 'scripts' / 'image_models.py'}:/image_models.py:ro"
        write = ["--user=0", f"--volume={models}:/write", program]
        inside(image, "python", "/image_models.py", "/write", *backends, options=write)
        listed = inside(image, "modserve", "engines")
        missing = set(backends) - engines(listed)
        assert not missing, f"{missing} not in:\n{listed}"
        print(listed)
        variables = podman("inspect", "--format={{range .Config.Env}}{{println .}}{{end}}", image)
        assert "PIP_" not in variables, f"of the machine that built it:\n{variables}"
        version = inside(image, "modserve", "--version")
        assert "(compiled)" in version, version
        check(image, backends, models)


if __name__ == "__main__":
    main(*sys.argv[1:])
