"""A client that a generator of another project makes from a model's OpenAPI document runs inferences."""

import json
import re
from pathlib import Path

import pytest
from foreign_clients import PYTHON, run_client
from server_process import ServerProcess
from wire import HOST

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


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


def test_the_program_of_the_documentation(server: ServerProcess, generated: Path) -> None:
    (program,) = re.findall(r"^```python\n(from simple_client.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (generated / "program.py").write_text(program.replace("localhost:8000", f"{HOST}:{server.http_port}"))
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
