"""Forests and scikit-learn's models through a real server, with Triton's client; damaged files beside them."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("treelite")
pytest.importorskip("xgboost")
pytest.importorskip("lightgbm")
pytest.importorskip("skops")

import skops.io
from forests import data, lightgbm_model, sklearn_model, write, xgboost_model
from server_process import ServerProcess, serving
from sklearn.linear_model import LogisticRegression
from tritonclient import grpc, http
from wire import HOST

PAGES = Path(__file__).parents[2] / "docs" / "engines"


def shown(page: str) -> str:
    """The configuration of a page."""
    match = re.search(r"^```\n(backend: .*?)^```", (PAGES / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("trees")
    write(repository, "cancer", xgboost_model("breast_cancer"), "xgboost.json", shown("fil.md"))
    write(repository, "light", lightgbm_model("breast_cancer"), "model.txt")
    damaged = write(repository, "damaged", sklearn_model("RandomForestClassifier", "iris"), "checkpoint.tl")
    content = bytearray((damaged / "checkpoint.tl").read_bytes())
    content[300:1200] = b"\xff" * 900
    (damaged / "checkpoint.tl").write_bytes(content)
    estimator = repository / "estimator" / "1"
    estimator.mkdir(parents=True)
    skops.io.dump(LogisticRegression(max_iter=500).fit(*data("iris")), estimator / "model.skops")
    (estimator.parent / "config.pbtxt").write_text(shown("sklearn.md"))
    with serving(repository, options=["--exit-on-error=false"], errors=["damaged"]) as running:
        yield running


def test_a_forest_over_http(server: ServerProcess) -> None:
    rows = data("breast_cancer")[0][:20]
    with http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        tensor = http.InferInput("input__0", list(rows.shape), "FP32").set_data_from_numpy(rows)
        probabilities = client.infer("cancer", [tensor]).as_numpy("output__0")
        expected = xgboost_model("breast_cancer").predict_proba(rows)[:, 1:]
        np.testing.assert_allclose(probabilities, expected, rtol=2e-5, atol=1e-6)


def test_null_is_a_missing_value(server: ServerProcess) -> None:
    """On each call with JSON, the result is that for NaN."""
    rows = data("breast_cancer")[0][:2].copy()
    rows[:, ::3] = np.nan
    expected = xgboost_model("breast_cancer").predict_proba(rows)[:, 1]
    values = [[None if np.isnan(value) else float(value) for value in row] for row in rows]
    tensor = {"name": "input__0", "datatype": "FP32", "shape": list(rows.shape), "data": values}
    long = {"name": "input__0", "datatype": "FP32", "shape": [1000, 30], "data": values * 500}
    base = f"http://{HOST}:{server.http_port}"

    def answer(path: str, body: object) -> Any:
        request = urllib.request.Request(f"{base}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    for inputs in (tensor, long, tensor):
        found = answer("/v2/models/cancer/infer", {"inputs": [inputs]})["outputs"][0]["data"]
        np.testing.assert_allclose(found[:2], expected, rtol=2e-5, atol=1e-6)
    for count in (1, 500):
        found = answer("/v1/models/cancer:predict", {"instances": values * count})["predictions"]
        np.testing.assert_allclose(np.ravel(found)[:2], expected, rtol=2e-5, atol=1e-6)
    found = answer("/v2/models/cancer/generate", {"input__0": values[0]})["output__0"]
    np.testing.assert_allclose(found, expected[0], rtol=2e-5, atol=1e-6)


def test_a_forest_that_is_served_alone_gives_probabilities(tmp_path: Path) -> None:
    model = lightgbm_model("breast_cancer")
    write(tmp_path, "light", model, "model.txt")
    rows = data("breast_cancer")[0][:20]
    with (
        serving(options=[f"alone={tmp_path / 'light' / '1' / 'model.txt'}"]) as server,
        http.InferenceServerClient(f"{HOST}:{server.http_port}") as client,
    ):
        tensor = http.InferInput("input__0", list(rows.shape), "FP32").set_data_from_numpy(rows)
        probabilities = client.infer("alone", [tensor]).as_numpy("output__0")
    np.testing.assert_allclose(np.ravel(probabilities), model.predict_proba(rows)[:, 1], rtol=2e-5, atol=1e-6)


def test_a_forest_over_grpc(server: ServerProcess) -> None:
    rows = data("breast_cancer")[0][:20]
    with grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        tensor = grpc.InferInput("input__0", list(rows.shape), "FP32").set_data_from_numpy(rows)
        classes = client.infer("light", [tensor]).as_numpy("output__0")
        assert np.array_equal(classes.ravel(), lightgbm_model("breast_cancer").predict(rows))


def test_an_estimator(server: ServerProcess) -> None:
    rows = data("iris")[0].astype(np.float64)
    with grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        tensor = grpc.InferInput("features", list(rows.shape), "FP64").set_data_from_numpy(rows)
        scores = client.infer("estimator", [tensor]).as_numpy("scores")
        expected = LogisticRegression(max_iter=500).fit(*data("iris")).decision_function(rows)
        np.testing.assert_allclose(scores, expected, rtol=1e-9)


def test_what_runs_a_forest(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"http://{HOST}:{server.http_port}/v2/models/cancer/engine") as response:
        report = json.loads(response.read())
    assert (report["engine"], report["precision"], report["file"]) == ("ONNX Runtime", "fp32", "xgboost.json")
    assert (report["model_type"], report["trees"], report["features"]) == ("xgboost_json", 20, 30)


def test_a_damaged_neighbour_harms_nobody(server: ServerProcess) -> None:
    with grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        rows = {row.name: row for row in client.get_model_repository_index().models}
        assert "checkpoint.tl" in rows["damaged"].reason
        assert rows["cancer"].state == "READY"
