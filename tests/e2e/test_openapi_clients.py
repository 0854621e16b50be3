"""A client that a generator of another project makes from a model's OpenAPI document runs inferences."""

import json
from pathlib import Path

from foreign_clients import PYTHON, run_client
from server_process import ServerProcess
from wire import HOST


def test_inferences_by_a_generated_client(server: ServerProcess, tmp_path: Path) -> None:
    address = f"http://{HOST}:{server.http_port}"
    (tmp_path / "config.yml").write_text("post_hooks: []\n")  # which format the code
    for model in ("simple", "digits"):
        options = ["--meta=none", "--fail-on-warning", f"--config={tmp_path / 'config.yml'}"]
        options += [f"--url={address}/v2/models/{model}/openapi.json", f"--output-path={tmp_path / model}"]
        done = run_client([PYTHON, "-m", "openapi_python_client", "generate", *options])
        assert done.returncode == 0, done.stdout + done.stderr
    done = run_client([PYTHON, Path(__file__).with_name("openapi_calls.py"), tmp_path, address])
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
