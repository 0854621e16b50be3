"""KServe's Python client, REST (v1 and v2) and gRPC, gets from this server what it asks for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_clients import PYTHON, run_client
from server_process import ServerProcess
from test_client_flavours import A, B, expected_digits
from wire import HOST

IMAGES = np.random.default_rng(11).integers(0, 17, (4, 64)).astype(np.float32)
LABELS = expected_digits(2, IMAGES)[0].tolist()
UNKNOWN = "Request for unknown model: 'nosuch' is not found"
UNKNOWN_V1 = "Model with name nosuch does not exist."

SUM = {"OUTPUT0": (A + B).tolist()}
OUTPUTS = {**SUM, "OUTPUT1": (A - B).tolist()}
SIMPLE = {"id": "17", "model_name": "simple", "outputs": OUTPUTS}
DIGITS = {"model_name": "digits", "outputs": {"label": LABELS}}
TEXTS = {"model_name": "identity_BYTES", "outputs": {"OUTPUT0": [["ein", "zwei ü"]]}}

EXPECTED: dict[str, dict[str, Any]] = {
    "v1": {
        "live": True,
        "model-ready": True,
        "unknown-ready": [404, f"{{'message': '{UNKNOWN_V1}'"],  # OpenAI's form, whose clients ask here, too
        "infer": {"predictions": [{name: rows[0] for name, rows in OUTPUTS.items()}]},
        "digits": LABELS,
        "explain": [501, "'explain' is not supported: no model here has an explainer"],
        "unknown": [404, UNKNOWN_V1],
    },
    "v2": {
        "live": True,
        "ready": True,
        "model-ready": True,
        "unknown-ready": False,
        "infer-json": SIMPLE,
        "infer-binary": SIMPLE,
        "infer-binary-output": {**SIMPLE, "outputs": SUM},
        "digits-json": DIGITS,
        "digits-binary": DIGITS,
        "texts-json": TEXTS,
        "texts-binary": TEXTS,
        "unknown": [404, UNKNOWN],
    },
    "grpc": {
        "live": True,
        "ready": True,
        "model-ready": True,
        "unknown-ready": False,
        "infer-contents": SIMPLE,
        "infer-raw": SIMPLE,
        "digits-contents": DIGITS,
        "digits-raw": DIGITS,
        "texts-raw": TEXTS,
        "unknown": ["NOT_FOUND", UNKNOWN],
    },
}
CALLS = [(protocol, call) for protocol, calls in EXPECTED.items() for call in calls]


@pytest.fixture(scope="module")
def answers(server: ServerProcess) -> Any:
    """Of all calls, by protocol and name."""
    script = Path(__file__).with_name("kserve_calls.py")
    addresses = [f"http://{HOST}:{server.http_port}", f"{HOST}:{server.grpc_port}"]
    done = run_client([PYTHON, script, *addresses, json.dumps(IMAGES.tolist())])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("protocol", "call"), CALLS, ids=map("-".join, CALLS))
def test_call(answers: Any, protocol: str, call: str) -> None:
    found, expected = answers[protocol][call], EXPECTED[protocol][call]
    if isinstance(expected, list) and isinstance(expected[1], str):  # the client's own words come after the message
        assert (found[0], found[1][: len(expected[1])]) == tuple(expected)
    elif isinstance(expected, dict) and "id" not in expected:  # or one that the client has made up
        assert {name: value for name, value in found.items() if name != "id"} == expected
    else:
        assert found == expected


def test_every_call_is_looked_at(answers: Any) -> None:
    assert {protocol: set(calls) for protocol, calls in answers.items()} == {
        protocol: set(calls) for protocol, calls in EXPECTED.items()
    }
