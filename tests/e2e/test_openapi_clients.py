"""A client that a generator of another project makes from a model's OpenAPI document runs inferences."""

import json
from pathlib import Path

import pytest
from foreign_clients import PYTHON, run_client
from server_process import ServerProcess
from wire import HOST

PROGRAM = """
from simple_client.api.inference import generate
from simple_client.client import Client
from simple_client.models import GenerateRequest

client = Client(base_url="http://localhost:8000")
response = generate.sync(client=client, body=GenerateRequest(input0=list(range(16)), input1=[1] * 16))
print(response.output0)
"""


@pytest.fixture(scope="module")
def generated(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the clients."""
    folder = tmp_path_factory.mktemp("clients")
    (folder / "config.yml").write_text("post_hooks: []\n")  # which format the code
    for model in ("simple", "digits"):
        options = ["--meta=none", "--fail-on-warning", f"--config={folder / 'config.yml'}"]
        url = f"http://{HOST}:{server.http_port}/v2/models/{model}/openapi.json"
        options += [f"--url={url}", f"--output-path={folder / model}_client"]
        done = run_client([PYTHON, "-m", "openapi_python_client", "generate", *options])
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_program(server: ServerProcess, generated: Path) -> None:
    (generated / "program.py").write_text(PROGRAM.replace("localhost:8000", f"{HOST}:{server.http_port}"))
    done = run_client([PYTHON, generated / "program.py"])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == list(range(1, 17))


def test_calls(server: ServerProcess, generated: Path) -> None:
    address = f"http://{HOST}:{server.http_port}"
    done = run_client([PYTHON, Path(__file__).with_name("openapi_calls.py"), generated, address])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "id": "mine",
        "infer": {"OUTPUT0Output": list(range(1, 17)), "OUTPUT1Output": list(range(-1, 15))},
        "generate": [list(range(2, 18)), list(range(-2, 14))],
        "error": "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) "
        "['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s).",
        "digits": {"label": [[2, 1], 2], "probabilities": [[2, 10], 20]},
        "ready": True,
    }
