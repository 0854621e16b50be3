"""KServe v1 and TensorFlow Serving REST, with bodies and reads as their own clients have them."""

import gzip
import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
from server_process import ServerProcess
from wire import HOST

ROW = {"INPUT0": list(range(16)), "INPUT1": [1] * 16}


def ask(server: ServerProcess, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """GET, or POST of `body`; the status and the JSON. Underscores in header names stand for hyphens."""
    names = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(f"http://{HOST}:{server.http_port}{path}", body, names)
    try:
        with urllib.request.urlopen(request) as answer:
            content = answer.read()
            if answer.headers["Content-Encoding"] == "gzip":
                content = gzip.decompress(content)
            return answer.status, json.loads(content)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def predict(server: ServerProcess, model: str, **body: Any) -> Any:
    status, found = ask(server, f"/v1/models/{model}:predict", json.dumps(body).encode())
    assert status == 200, found
    return found


def test_what_kserve_s_client_asks(server: ServerProcess) -> None:
    status, alive = ask(server, "/")
    assert (status, alive["status"].lower()) == (200, "alive")
    status, ready = ask(server, "/v1/models/simple")
    assert (status, ready["ready"]) == (200, True)
    status, unknown = ask(server, "/v1/models/nosuch")
    assert (status, unknown["error"]["message"]) == (404, "Model with name nosuch does not exist.")
    assert (
        predict(server, "simple", instances=[ROW, ROW])["predictions"]
        == [{"OUTPUT0": list(range(1, 17)), "OUTPUT1": list(range(-1, 15))}] * 2
    )


def test_what_tensorflow_serving_s_clients_ask(server: ServerProcess) -> None:
    status, found = ask(server, "/v1/models/digits")
    assert (status, found["model_version_status"][0]["state"]) == (200, "AVAILABLE")
    assert [each["version"] for each in found["model_version_status"]] == ["2", "1"]
    status, found = ask(server, "/v1/models/digits/versions/1/metadata")
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["image"]["dtype"] == "DT_FLOAT"
    columns = {name: [values] for name, values in ROW.items()}
    assert predict(server, "simple/versions/1", inputs=columns, signature_name="serving_default") == {
        "outputs": {"OUTPUT0": [list(range(1, 17))], "OUTPUT1": [list(range(-1, 15))]}
    }


@pytest.mark.parametrize("count", [1, 32, 75], ids=["one", "a full batch", "more than a batch"])
def test_any_number_of_instances(server: ServerProcess, count: int) -> None:
    """Beyond the digits model's 32; each instance's answer is what it gets alone."""
    images = np.random.default_rng(4).integers(0, 17, (count, 64)).astype(float)
    found = predict(server, "digits", instances=images.tolist())["predictions"]
    assert len(found) == count
    for index in {0, count // 2, count - 1}:
        (alone,) = predict(server, "digits", instances=[images[index].tolist()])["predictions"]
        assert found[index]["label"] == alone["label"]
        assert np.allclose(found[index]["probabilities"], alone["probabilities"], atol=1e-5)


def test_large_and_compressed_bodies(server: ServerProcess) -> None:
    values = [float(each) for each in range(20_000)]
    body = gzip.compress(json.dumps({"instances": [values]}).encode())
    path = "/v1/models/identity_FP32:predict"
    status, found = ask(server, path, body, Content_Encoding="gzip", Accept_Encoding="gzip")
    assert (status, found) == (200, {"predictions": [values]})


def test_binary_values_and_what_is_no_number(server: ServerProcess) -> None:
    path = "/v1/models/identity_FP32:predict"
    status, found = ask(server, path, b'{"instances": [[NaN, -Infinity, 0.5]]}')
    assert status == 200
    assert np.array_equal(found["predictions"], [[np.nan, -np.inf, 0.5]], equal_nan=True)
    assert predict(server, "identity_BYTES", instances=[[{"b64": "w6k="}, "b"]]) == {"predictions": [["é", "b"]]}


def test_instances_of_uneven_shapes(server: ServerProcess) -> None:
    body = b'{"instances": [[1, 2], [3]]}'
    assert ask(server, "/v1/models/identity_INT32:predict", body) == (
        400,
        {"error": "instances[1] has 1 elements where instances[0] has 2: lists of one depth must have one length"},
    )
