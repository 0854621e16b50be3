"""The programs that the API explorer shows for a model to copy run as they are, against models of every kind."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from open_server import OpenServer
from repositories import EXAMPLES, write_identity, write_sequence_echo
from server_process import ServerProcess
from wire import SECONDS, http

CLIENTS = ("curl", "python", "tritonclient")
IMAGES = """
backend: "identity"
max_batch_size: 4
input [ { name: "IMAGE" data_type: TYPE_%(type)s dims: [ 3, 20, 20 ] } ]
input [ { name: "SIZE" data_type: TYPE_INT64 dims: [ 2 ] } ]
output [ { name: "IMAGE_OUT" data_type: TYPE_%(type)s dims: [ 3, 20, 20 ] } ]
output [ { name: "SIZE_OUT" data_type: TYPE_INT64 dims: [ 2 ] } ]
"""
LARGE = ("FP16", "BF16", "UINT8", "BOOL", "STRING")

EXPECTED = {
    "simple": {"curl": "[1,2,3,4", "python": "[[ 1  2  3  4", "tritonclient": "[[ 1  2  3  4"},
    "digits": {"curl": '"label"', "python": "[[", "tritonclient": "[["},
    "repeat": {"curl": '"OUT"', "python": "[0]", "tritonclient": "[0]"},
    "sequence": {"curl": '"OUTPUT"', "python": "[[0]]", "tritonclient": "[[0]]"},
    "a text": {"curl": "text 0", "python": "b'text 0'", "tritonclient": "b'text 0'"},
    **{f"large {name}": {"curl": "[1,3,20,20]", "python": "[[1 1]]", "tritonclient": "[[1 1]]"} for name in LARGE},
}
"""Parts of the output, by model and client."""


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "a text", "BYTES")
    write_sequence_echo(repository, "sequence", "direct { }")
    for name in LARGE:
        (repository / f"large {name}" / "1").mkdir(parents=True)
        (repository / f"large {name}" / "config.pbtxt").write_text(IMAGES % {"type": name})
    with open_server.host(EXAMPLES, repository) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("model", EXPECTED)
def test_a_program_runs_as_it_is(varied: ServerProcess, tmp_path: Path, model: str, client: str) -> None:
    text = http(varied.http_port, "GET", f"/docs/snippets/{model.replace(' ', '%20')}").json[client]
    text = text.replace("localhost:8000", f"localhost:{varied.http_port}")
    text = text.replace("localhost:8001", f"localhost:{varied.grpc_port}")
    command = ["bash", "-c", f"{text} -fsS"] if client == "curl" else [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert EXPECTED[model][client] in done.stdout
