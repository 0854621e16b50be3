"""Models written in Python, and calls of them that are the same over both protocols.

Each model is in the repository twice, as ``name_process`` and as ``name_thread``: both behave alike. Those that do not
wait are there as ``name_inline``, too, on the server's event loop. Tests that use
`serving_python` run against a Triton, too, if TRITON_SERVER_CMD has a command that starts one, with ``{repository}``,
``{http_port}``, ``{grpc_port}`` and ``{metrics_port}`` in it; what is peculiar to modserve fails there.
"""

import json
import os
import queue
import shlex
import subprocess
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from repositories import CONFIG_TYPES
from server_here import serving_here
from server_process import eventually, free_port
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from wire import HOST, SECONDS, http

MODES = ("process", "thread")
EVERY_MODE = (*MODES, "inline")
every_mode = pytest.mark.parametrize("mode", EVERY_MODE)
PROTOCOLS = ("http", "grpc")
TRITON = os.getenv("TRITON_SERVER_CMD", "")

Array = np.ndarray[Any, Any]


def tensors(kind: str, **described: str) -> str:
    """``tensors("input", IN="INT32 -1")``: a block of a configuration."""
    lines = []
    for name, text in described.items():
        datatype, *dims = text.split()
        optional = "optional: true" if "optional" in dims else ""
        shape = ", ".join([dim for dim in dims if dim != "optional"])
        lines.append(f'{kind} {{ name: "{name}" data_type: {CONFIG_TYPES[datatype]} dims: [ {shape} ] {optional} }}')
    return "\n".join(lines)


def write_python(
    repository: Path,
    name: str,
    code: str,
    config: str,
    *,
    modes: Sequence[str] = MODES,
    files: Mapping[str, str] | None = None,
) -> None:
    """`code` is the model.py, which imports numpy as np and pb_utils; MODE in `code` and `config` is the mode.

    `files` are others, by their paths in the version's directory. One instance unless `config` has groups of them.
    """
    for mode in modes:
        directory = repository / f"{name}_{mode}" / "1"
        directory.mkdir(parents=True)
        head = "import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
        (directory / "model.py").write_text(head + textwrap.dedent(code).replace("MODE", mode))
        lines = ['backend: "python"', config.replace("MODE", mode)]
        if mode != "process":
            lines.append(f'parameters {{ key: "EXECUTION_MODE" value {{ string_value: "{mode}" }} }}')
        (directory.parent / "config.pbtxt").write_text("\n".join(lines))
        for path, text in (files or {}).items():
            file = directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text).replace("MODE", mode))


class TritonProcess:
    """As much of a `server_process.ServerProcess` as the tests of Python models use."""

    def __init__(self, repository: Path, options: Sequence[str]) -> None:
        self.http_port, self.grpc_port, self.metrics_port = free_port(), free_port(), free_port()
        ports = {"http_port": self.http_port, "grpc_port": self.grpc_port, "metrics_port": self.metrics_port}
        words = [word.format(repository=repository, **ports) for word in shlex.split(TRITON)]
        self._log = tempfile.NamedTemporaryFile("r", suffix=".log")  # noqa: SIM115
        with open(self._log.name, "w") as log:
            self._process = subprocess.Popen([*words, *options], stdout=log, stderr=log)
        try:
            eventually(lambda: self._ready() or self._process.poll() is not None, 60)
            assert self._process.poll() is None, self.log
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> bool:
        try:
            return http(self.http_port, "GET", "/v2/health/live").status == 200
        except OSError:
            return False

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def wait_for(self, pattern: str) -> None:
        """Triton's log is not compared."""

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()


@contextmanager
def serving_python(
    repository: Path,
    options: Sequence[str] = (),
    errors: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    serving: Callable[..., AbstractContextManager[Any]] = serving_here,
) -> Iterator[Any]:
    """A server with the models of `repository`; `errors` must be in its log, and no others.

    `serving` starts it: `server_process.serving` for a log with what models print.
    """
    if TRITON:
        triton = TritonProcess(repository, [option for option in options if not option.startswith("--metrics")])
        try:
            yield triton
        finally:
            triton.stop()
        return
    with serving(repository, options=options, errors=errors, environment=environment or {}) as server:
        yield server


@dataclass
class Response:
    """Outputs by name, or an error: its status as the protocol has it, and its message."""

    outputs: dict[str, Array] = field(default_factory=dict)
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    status: str = ""
    message: str = ""

    def __getitem__(self, name: str) -> Any:
        """The output's values as lists."""
        assert not self.message, self.message
        return self.outputs[name].tolist()


def failed(error: InferenceServerException) -> Response:
    return Response(status=str(error.status()).removeprefix("StatusCode."), message=error.message())


def infer_inputs(protocol: str, inputs: Mapping[str, Any]) -> list[Any]:
    """Lists of integers are INT32; a pair is a datatype and an array that it does not follow from."""
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    prepared = []
    for name, value in inputs.items():
        datatype, array = value if isinstance(value, tuple) else ("", value)
        if not isinstance(array, np.ndarray):
            array = np.array(array, np.int32)
        one = module.InferInput(name, array.shape, datatype or np_to_triton_dtype(array.dtype))
        one.set_data_from_numpy(array)
        prepared.append(one)
    return prepared


def infer(
    server: Any, protocol: str, model: str, inputs: Mapping[str, Any], outputs: Sequence[str] = (), **how: Any
) -> Response:
    """One call by `tritonclient`; `how` are further arguments of its `infer`."""
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    port = server.http_port if protocol == "http" else server.grpc_port
    if outputs:
        how["outputs"] = [module.InferRequestedOutput(name) for name in outputs]
    if protocol == "grpc":
        how.setdefault("client_timeout", SECONDS)
    with module.InferenceServerClient(f"{HOST}:{port}") as client:
        try:
            result = client.infer(model, infer_inputs(protocol, inputs), **how)
        except InferenceServerException as error:
            return failed(error)
        return received(result)


def received(result: Any) -> Response:
    response = result.get_response()
    if isinstance(response, dict):
        names = [output["name"] for output in response.get("outputs", [])]
        parameters = response.get("parameters", {})
        id = response.get("id", "")
    else:
        names = [output.name for output in response.outputs]
        parameters = {
            name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in response.parameters.items()
        }
        id = response.id
    return Response({name: result.as_numpy(name) for name in names}, id, parameters)


class Stream:
    """A stream of gRPC: what comes back on it, in order."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._responses: queue.SimpleQueue[Response] = queue.SimpleQueue()

    def callback(self, result: Any, error: InferenceServerException | None) -> None:
        self._responses.put(failed(error) if error is not None else received(result))

    def send(self, model: str, inputs: Mapping[str, Any], id: str = "", **how: Any) -> None:
        how.setdefault("enable_empty_final_response", True)
        self.client.async_stream_infer(model, infer_inputs("grpc", inputs), request_id=id, **how)

    def next(self) -> Response:
        return self._responses.get(timeout=SECONDS)

    def until_final(self, count: int = 1) -> list[Response]:
        """Everything until `count` requests are over: those that end with an error, too."""
        responses = []
        while count:
            responses.append(self.next())
            count -= bool(responses[-1].message or responses[-1].parameters.get("triton_final_response"))
        return responses

    @property
    def quiet(self) -> bool:
        return self._responses.empty()


@contextmanager
def stream(server: Any, **how: Any) -> Iterator[Stream]:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        opened = Stream(client)
        client.start_stream(opened.callback, **how)
        yield opened


def events(server: Any, path: str, document: Mapping[str, Any]) -> list[Any]:
    """The server-sent events that a POST returns, as JSON."""
    response = http(server.http_port, "POST", path, json.dumps(document).encode(), {"Content-Type": "application/json"})
    assert response.status == 200, response.body
    blocks = response.body.decode().split("\n\n")
    return [json.loads(block.removeprefix("data:")) for block in blocks if block.strip()]


def at_once(count: int, call: Any) -> list[Any]:
    """What `call(0)` to `call(count - 1)` return, called by as many threads at the same time."""
    results: list[Any] = [None] * count

    def run(index: int) -> None:
        results[index] = call(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return results
