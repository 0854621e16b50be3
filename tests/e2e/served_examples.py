"""The folders of ``examples/``, prepared and served, with their clients as modules."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import tritonclient.grpc
import tritonclient.http
from server_process import ServerProcess, serving
from wire import HOST

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Example:
    """A served example, and its client as a module."""

    folder: Path
    server: ServerProcess
    client: ModuleType
    clients: ExitStack
    """Closes clients at the end: the collector would find their sockets open, in whichever test it comes to them."""

    def http(self) -> Any:
        return self.clients.enter_context(tritonclient.http.InferenceServerClient(f"{HOST}:{self.server.http_port}"))

    def grpc(self) -> Any:
        return self.clients.enter_context(tritonclient.grpc.InferenceServerClient(f"{HOST}:{self.server.grpc_port}"))

    def executions(self, model: str) -> int:
        (statistics,) = self.http().get_inference_statistics(model)["model_stats"]
        return int(statistics["execution_count"])


def load(path: Path) -> ModuleType:
    """An example's module; all examples use the same file names."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepared(name: str) -> Path:
    """The folder of an example, with the files that its `prepare.py` fetches."""
    folder = EXAMPLES / name
    if (folder / "prepare.py").exists():
        subprocess.run([sys.executable, "prepare.py"], cwd=folder, check=True)
    return folder


def run(name: str, serve: Callable[[Path], AbstractContextManager[ServerProcess]] = serving) -> Iterator[Example]:
    folder = prepared(name)
    with serve(folder / "model_repository") as server, ExitStack() as clients:
        yield Example(folder, server, load(folder / "client.py"), clients)
