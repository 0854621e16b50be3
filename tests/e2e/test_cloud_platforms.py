"""The requests of Amazon SageMaker and of Vertex AI, as their documentation has them, to a container's HTTP port."""

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server, ServerProcess, eventually, started
from wire import DIFFERENCE, SUM, Answer, Ask, binary_outputs, binary_request, grpc_infer, http

SIMPLE: dict[str, Any] = {
    "inputs": [
        {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": list(range(16))},
        {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16},
    ]
}
ROW = {"INPUT0": list(range(16)), "INPUT1": [1] * 16}
SAGEMAKER_BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX_BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
HEALTH, PREDICT = "/v1/endpoints/7/deployedModels/9", "/v1/endpoints/7/deployedModels/9:predict"
REDIRECT = "X-Vertex-Ai-Triton-Redirect"


def post(server: Server, path: str, document: object, **headers: str) -> Answer:
    more = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return http(server.http_port, "POST", path, json.dumps(document).encode(), more)


def binary(server: Server, path: str, media_type: str) -> Answer:
    body, headers = binary_request(Ask())
    return http(server.http_port, "POST", path, body, {"Content-Type": media_type + headers.popitem()[1]})


def assert_binary(answer: Answer, media_type: str) -> None:
    assert answer.status == 200, answer.body
    kind, _, length = answer.headers["Content-Type"].rpartition("=")
    assert kind + "=" == media_type
    plain = answer._replace(headers={"Inference-Header-Content-Length": length})
    assert binary_outputs(plain) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Server]:
    """Of one model, whose name SageMaker passes on; the repository has others."""
    environment = {"MODSERVE_PLATFORM": "sagemaker", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple"}
    with serving_here(EXAMPLES, options=["--grpc-port=0", "--metrics-port=0"], environment=environment) as server:
        yield server


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A multi-model endpoint, of two workers."""
    place = tmp_path_factory.mktemp("temporary")
    environment = {"SAGEMAKER_MULTI_MODEL": "true", "TMPDIR": str(place)}
    with started(options=["--platform=sagemaker", "--workers=2"], environment=environment) as server:
        eventually(lambda: http(server.http_port, "GET", "/ping").status == 200)
        yield server
        server.stop(errors=["model 'e11'"] if "e11" in server.log else [])


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    shutil.copytree(EXAMPLES / "simple", repository / "simple")
    environment = {
        "AIP_STORAGE_URI": str(repository),
        "AIP_HEALTH_ROUTE": HEALTH,
        "AIP_PREDICT_ROUTE": PREDICT,
        "AIP_MODE": "PREDICTION",
    }
    with serving_here(options=["--platform=vertex"], environment=environment) as server:
        yield server


def test_an_endpoint_of_one_model(endpoint: Server) -> None:
    ping = http(endpoint.http_port, "GET", "/ping")
    assert ping.status == 200
    answer = post(endpoint, "/invocations", SIMPLE)
    assert answer.json == post(endpoint, "/v2/models/simple/infer", SIMPLE).json
    assert answer.json["outputs"][0]["data"] == list(range(1, 17))
    assert_binary(binary(endpoint, "/invocations", SAGEMAKER_BINARY), SAGEMAKER_BINARY)
    assert_binary(binary(endpoint, "/invocations", SAGEMAKER_BINARY), SAGEMAKER_BINARY)  # by a head that is known
    wrong = http(endpoint.http_port, "POST", "/invocations", b"{}", {"Content-Type": SAGEMAKER_BINARY + "77"})
    assert (wrong.status, wrong.json["error"]) == (400, "inference header size should be in range (0, 2), got: 77")
    assert http(endpoint.http_port, "GET", "/invocations").status == 405
    assert http(endpoint.http_port, "GET", "/models").status == 404  # one model is not loaded by calls
    assert grpc_infer(endpoint.grpc_port, Ask()).model_name == "simple", "its port was given"
    assert http(endpoint.metrics_port, "GET", "/metrics").status == 200


def test_the_usual_calls_stay_as_they_are(endpoint: Server) -> None:
    body, headers = binary_request(Ask())
    answer = http(endpoint.http_port, "POST", "/v2/models/simple/infer", body, headers)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert binary_outputs(answer) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}


def test_models_come_and_go(many: ServerProcess, tmp_path: Path) -> None:
    """In the order in which SageMaker does it; names are its hashes, and folders have others."""
    archive = tmp_path / "7c9" / "model"
    shutil.copytree(EXAMPLES / "simple", archive / "simple")
    load = {"model_name": "7c9", "url": str(archive)}
    assert http(many.http_port, "GET", "/ping").status == 200
    assert http(many.http_port, "GET", "/models").json == {"models": []}
    assert post(many, "/models/7c9/invoke", SIMPLE).status == 404
    loaded = post(many, "/models", load, X_Amzn_SageMaker_Target_Model="simple.tar.gz")
    assert (loaded.status, loaded.body) == (200, b"")
    shown = {"modelName": "7c9", "modelUrl": str(archive)}
    for _ in range(4):  # of each worker, or one of them twice
        assert http(many.http_port, "GET", "/models").json == {"models": [shown]}
        assert http(many.http_port, "GET", "/models/7c9").json == shown
        answer = post(many, "/models/7c9/invoke", SIMPLE, X_Amzn_SageMaker_Target_Model="simple.tar.gz")
        assert (answer.status, answer.json["model_name"]) == (200, "7c9")
        assert answer.json["outputs"][0]["data"] == list(range(1, 17))
    assert_binary(binary(many, "/models/7c9/invoke", SAGEMAKER_BINARY), SAGEMAKER_BINARY)
    again = post(many, "/models", load)
    assert (again.status, again.json["error"]) == (409, "model '7c9' is loaded already")
    assert post(many, "/models", {**load, "url": "/nowhere"}).status == 400
    assert post(many, "/models/7c9/invoke", SIMPLE).status == 200
    gone = http(many.http_port, "DELETE", "/models/7c9")
    assert (gone.status, gone.body) == (200, b"")
    assert http(many.http_port, "GET", "/models/7c9").status == 404
    assert http(many.http_port, "DELETE", "/models/7c9").status == 404
    assert post(many, "/models/7c9/invoke", SIMPLE).status == 404
    assert post(many, "/models", load).status == 200  # it can come back
    assert http(many.http_port, "DELETE", "/models/7c9").status == 200


def test_a_load_that_fails_leaves_nothing(many: ServerProcess, tmp_path: Path) -> None:
    archive = tmp_path / "model"
    faulty = archive / "faulty" / "1" / "model.py"
    faulty.parent.mkdir(parents=True)
    (archive / "faulty" / "config.pbtxt").write_text('name: "faulty" backend: "python" max_batch_size: 1')
    faulty.write_text("raise RuntimeError('CUDA out of memory')")
    failed = post(many, "/models", {"model_name": "e11", "url": str(archive)})
    assert failed.status == 507
    assert "CUDA out of memory" in failed.json["error"]
    faulty.write_text("raise RuntimeError('no weights')")
    failed = post(many, "/models", {"model_name": "e11", "url": str(archive)})
    assert failed.status == 400
    assert "no weights" in failed.json["error"]
    assert http(many.http_port, "GET", "/models").json == {"models": []}
    for url in ("/proc/self", str(tmp_path / "nothing"), "model"):
        refused = post(many, "/models", {"model_name": "e12", "url": url})
        assert refused.status == 400, url
    assert post(many, "/models", {"model_name": "../e13", "url": str(archive)}).status == 400
    assert post(many, "/models", {"url": str(archive)}).json == {"error": "expected a text in 'model_name'"}


def test_predictions_of_vertex(vertex: Server) -> None:
    """In Triton's form and in Vertex AI's own; a head says nothing of which it is."""
    assert http(vertex.http_port, "GET", HEALTH).status == 200
    for _ in range(2):
        answer = post(vertex, PREDICT, SIMPLE)
        assert answer.json["outputs"][1]["data"] == list(range(-1, 15))
        own = post(vertex, PREDICT, {"instances": [ROW, ROW], "parameters": {}})
        predictions = own.json["predictions"]
        assert [each["OUTPUT0"] for each in predictions] == [list(range(1, 17))] * 2
        assert_binary(binary(vertex, PREDICT, VERTEX_BINARY), VERTEX_BINARY)
    packed = gzip.compress(json.dumps({"instances": [ROW]}).encode())
    inflated = http(vertex.http_port, "POST", PREDICT, packed, {"Content-Encoding": "gzip"})
    assert inflated.json == {"predictions": predictions[:1]}


def test_vertex_redirects(vertex: Server) -> None:
    """Its endpoints only have POST, and a header says which call is meant."""
    body, headers = binary_request(Ask())
    binary_type = {"Content-Type": VERTEX_BINARY + headers.popitem()[1]}
    infer = http(vertex.http_port, "POST", PREDICT, body, {REDIRECT: "v2/models/simple/infer", **binary_type})
    assert_binary(infer, VERTEX_BINARY)
    for path in ("v2", "v2/models/simple", "v2/models/simple/config", "v2/models/simple/stats", "v2/health/ready"):
        redirected = post(vertex, PREDICT, {}, **{REDIRECT: path})
        usual = http(vertex.http_port, "GET", f"/{path}")
        assert (redirected.status, redirected.body) == (usual.status, usual.body), path
    index = post(vertex, PREDICT, {}, **{REDIRECT: "v2/repository/index"})
    assert index.json == [{"name": "simple", "version": "1", "state": "READY"}]
    listed = post(vertex, PREDICT, {}, **{REDIRECT: "v1/models"})
    assert listed.json["models"] == ["simple"]
    own = post(vertex, PREDICT, {"instances": [ROW]}, **{REDIRECT: "v1/models/simple:predict"})
    assert len(own.json["predictions"]) == 1
    assert post(vertex, PREDICT, {}, **{REDIRECT: "v2/nothing"}).status == 404
