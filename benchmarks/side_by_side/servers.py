"""The servers: how each is started, and what it speaks."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .dialects import (
    BINARY,
    GRPC,
    JSON,
    PLAIN_JSON,
    TORCHSERVE_GRPC,
    TORCHSERVE_JSON,
    V2_BINARY,
    V2_GRPC,
    V2_JSON,
    Dialect,
)
from .environments import Unavailable, environment, site_packages
from .models import ROOT, Model, write_repository

PROGRAMS = Path(__file__).with_name("programs")
V2 = {JSON: V2_JSON, BINARY: V2_BINARY, GRPC: V2_GRPC}


@dataclass(frozen=True)
class Site:
    """Where a server is started: its own folder, the models' files, ports, and the cache of environments."""

    folder: Path
    files: Path
    models: Sequence[Model]
    ports: Sequence[int]
    """HTTP, gRPC, and three more."""
    cache: Path

    @property
    def http(self) -> int:
        return self.ports[0]

    @property
    def grpc(self) -> int:
        return self.ports[1]


@dataclass(frozen=True)
class Command:
    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """A server, with what it speaks; `prepare` writes what it needs and raises Unavailable."""

    key: str
    name: str
    dialects: Mapping[str, Dialect]
    prepare: Callable[[Site], Command]


# ---- modserve


def modserve(key: str, name: str, *, tree: Path, options: Sequence[str] = (), dialects: Mapping[str, Dialect]) -> Peer:
    """The source in `tree`, started with `options`."""

    def prepare(site: Site) -> Command:
        repository = write_repository(site.folder / "models", site.files, site.models)
        words = [sys.executable, "-m", "modserve", "serve", "--model-repository", str(repository)]
        words += ["--http-port", str(site.http), "--grpc-port", str(site.grpc), "--metrics-port", str(site.ports[2])]
        return Command([*words, *options], {"PYTHONPATH": str(tree)})

    return Peer(key, name, dialects, prepare)


def modserve_peers(compiled: Path, help_text: str) -> list[Peer]:
    """Each form that there is, with the workers that the options of this version offer."""
    trees = {"modserve": ROOT / "src"}
    if (compiled / "modserve").is_dir():
        trees["modserve compiled"] = compiled
    peers = []
    for name, tree in trees.items():
        peers.append(modserve(name.replace(" ", "-"), name, tree=tree, dialects=V2))
    if "--workers" in help_text:
        name, tree = list(trees.items())[-1]
        key = f"{name.replace(' ', '-')}-workers"
        peers.append(modserve(key, f"{name}, 2 workers", tree=tree, options=["--workers", "2"], dialects=V2))
    return peers


# ---- Triton


def _triton_python(site: Site) -> Command:
    """The server in the nvidia-pytriton wheel, with the models in its Python backend."""
    folder = environment("triton", site.cache)
    packages = site_packages(folder)
    repository = write_repository(site.folder / "models", site.files, site.models, PROGRAMS / "triton_model.py")
    words = [str(packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"), "--allow-gpu-metrics=false"]
    words += ["--model-repository", str(repository), "--backend-directory", str(folder / "backends")]
    words += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", f"--http-port={site.http}"]
    words += [f"--grpc-port={site.grpc}", f"--metrics-port={site.ports[2]}"]
    libraries = packages / "nvidia_pytriton.libs"
    variables = {"PYTHONPATH": str(packages), "LD_LIBRARY_PATH": str(libraries)}
    return Command(words, {**variables, "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', '')}"})


def triton_command(template: str) -> Peer:
    """A Triton with an engine for ONNX, as TRITON_SERVER_CMD starts it. Raises SystemExit for other placeholders."""

    def prepare(site: Site) -> Command:
        repository = write_repository(site.folder / "models", site.files, site.models)
        values = {"repository": repository, "http_port": site.http, "grpc_port": site.grpc}
        try:
            words = [word.format(**values, metrics_port=site.ports[2]) for word in shlex.split(template)]
        except (KeyError, IndexError, ValueError) as error:
            known = "{repository}, {http_port}, {grpc_port} and {metrics_port}"
            raise SystemExit(f"TRITON_SERVER_CMD: {error!r}; the placeholders are {known}") from None
        return Command(words)

    return Peer("triton", "Triton, ONNX Runtime", V2, prepare)


# ---- Servers in Python


def _python_program(name: str, arguments: Callable[[Site], Sequence[str]]) -> Callable[[Site], Command]:
    def prepare(site: Site) -> Command:
        folder = environment(name, site.cache)
        program = str(PROGRAMS / f"{name}_server.py")
        return Command([str(folder / "bin" / "python"), program, *arguments(site)], _usual(folder))

    return prepare


def _usual(folder: Path) -> dict[str, str]:
    """No messages home, and the environment's programs first."""
    return {
        "PYTHONPATH": str(PROGRAMS),
        "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', '')}",
        "VIRTUAL_ENV": str(folder),
        "BENTOML_DO_NOT_TRACK": "True",
        "RAY_USAGE_STATS_ENABLED": "0",
        "DO_NOT_TRACK": "1",
    }


def _mlserver(site: Site) -> Command:
    folder = environment("mlserver", site.cache)
    settings = f'{{"debug": false, "host": "127.0.0.1", "http_port": {site.http}, "grpc_port": {site.grpc}, '
    settings += f'"metrics_port": {site.ports[2]}, "parallel_workers": 0}}'
    (site.folder / "settings.json").write_text(settings)
    for model in site.models:
        (site.folder / model.name).mkdir()
        text = f'{{"name": "{model.name}", "implementation": "mlserver_model.OnnxRuntime"}}'
        (site.folder / model.name / "model-settings.json").write_text(text)
    return Command([str(folder / "bin" / "mlserver"), "start", str(site.folder)], _usual(folder))


def _bentoml(site: Site) -> Command:
    folder = environment("bentoml", site.cache)
    words = [str(folder / "bin" / "bentoml"), "serve", "bento_service:Models", "--working-dir", str(PROGRAMS)]
    words += ["--host", "127.0.0.1", "--port", str(site.http)]
    return Command(words, {**_usual(folder), "BENTOML_HOME": str(site.folder / "home")})


def _torchserve(site: Site) -> Command:
    if shutil.which("java") is None:
        raise Unavailable("TorchServe needs Java (Debian: apt-get install default-jre-headless)")
    folder = environment("torchserve", site.cache)
    store = site.folder / "store"
    store.mkdir()
    for model in site.models:
        words = [str(folder / "bin" / "torch-model-archiver"), "--model-name", model.name, "--version", "1"]
        words += ["--handler", str(PROGRAMS / "torchserve_handler.py"), "--export-path", str(store)]
        subprocess.run(words, check=True, capture_output=True, env={**os.environ, **_usual(folder)})
    lines = [
        f"inference_address=http://127.0.0.1:{site.http}",
        f"management_address=http://127.0.0.1:{site.ports[2]}",
        f"metrics_address=http://127.0.0.1:{site.ports[3]}",
        "grpc_inference_address=127.0.0.1",
        f"grpc_inference_port={site.grpc}",
        "grpc_management_address=127.0.0.1",
        f"grpc_management_port={site.ports[4]}",
        "default_workers_per_model=1",
        "job_queue_size=1000",
        "disable_token_authorization=true",
        "disable_system_metrics=true",
        "",
    ]
    (site.folder / "config.properties").write_text("\n".join(lines))
    log = site.folder / "log4j2.xml"
    log.write_text(_LOG4J)
    words = [str(folder / "bin" / "torchserve"), "--start", "--foreground", "--ncs", "--model-store", str(store)]
    words += ["--models", *(f"{model.name}={model.name}.mar" for model in site.models), "--disable-token-auth"]
    words += ["--ts-config", str(site.folder / "config.properties"), "--log-config", str(log)]
    return Command(words, {**_usual(folder), "LOG_LOCATION": str(site.folder), "METRICS_LOCATION": str(site.folder)})


_LOG4J = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration>
  <Appenders><Console name="console" target="SYSTEM_OUT"><PatternLayout pattern="%d %p %c %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="console"/></Root></Loggers>
</Configuration>
"""
PEERS = (
    Peer("triton-python", "Triton, Python backend", V2, _triton_python),
    Peer("mlserver", "MLServer", {JSON: V2_JSON, GRPC: V2_GRPC}, _mlserver),
    Peer(
        "kserve",
        "KServe",
        V2,
        _python_program("kserve", lambda site: ["--http_port", str(site.http), "--grpc_port", str(site.grpc)]),
    ),
    Peer("litserve", "LitServe", {JSON: PLAIN_JSON}, _python_program("litserve", lambda site: [str(site.http)])),
    Peer(
        "ray",
        "Ray Serve",
        {JSON: PLAIN_JSON},
        _python_program("ray", lambda site: [str(site.http), str(site.folder / "ray")]),
    ),
    Peer("bentoml", "BentoML", {JSON: PLAIN_JSON}, _bentoml),
    Peer("torchserve", "TorchServe", {JSON: TORCHSERVE_JSON, GRPC: TORCHSERVE_GRPC}, _torchserve),
)
