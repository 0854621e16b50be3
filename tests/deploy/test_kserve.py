"""deploy/kserve: the manifests have KServe's fields, and the server does with their arguments what KServe expects."""

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import yaml
from custom_resources import ROOT, kserve_faults
from repositories import EXAMPLES
from server_process import ServerProcess, serving
from sklearn.linear_model import LogisticRegression
from wire import http

import modserve.__about__

PLACE = ROOT / "deploy" / "kserve"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def manifests() -> list[Object]:
    return [item for path in sorted(PLACE.glob("*.yaml")) for item in yaml.safe_load_all(path.read_text())]


def named(manifests: list[Object], name: str) -> Object:
    (found,) = (item for item in manifests if item["metadata"]["name"] == name)
    return found


# --- the manifests ------------------------------------------------------------------------------------------------


def test_kserve_knows_every_field(manifests: list[Object]) -> None:
    assert kserve_faults(manifests) == [[]] * len(manifests)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("modserve-model", lambda spec: spec.update(supportedModelTypes=[]), "no field of V1alpha1ServingRuntimeSpec"),
        ("modserve-model", lambda spec: spec["containers"][0].update(args="serve"), "not a list"),
        ("iris", lambda spec: spec["predictor"]["model"].update(storageURI="s3://m"), "no field of V1beta1ModelSpec"),
        ("iris", lambda spec: spec["predictor"]["model"]["modelFormat"].update(version=1), "is no str"),
    ],
)
def test_a_mistake_is_found(manifests: list[Object], name: str, change: Callable[[Object], None], text: str) -> None:
    item = copy.deepcopy(named(manifests, name))
    change(item["spec"])
    ((fault,),) = kserve_faults([item])
    assert text in fault


def test_services_name_runtimes_that_can_do_it(manifests: list[Object]) -> None:
    runtimes = {item["metadata"]["name"]: item["spec"] for item in manifests if item["kind"] == "ClusterServingRuntime"}
    services = [item for item in manifests if item["kind"] == "InferenceService"]
    assert len(services) == 3
    for item in services:
        model = item["spec"]["predictor"]["model"]
        runtime = runtimes[model["runtime"]]
        assert model["protocolVersion"] in runtime["protocolVersions"]
        assert model["modelFormat"] in runtime["supportedModelFormats"]


def test_runtimes_run_this_image(manifests: list[Object]) -> None:
    for item in manifests:
        if item["kind"] == "ClusterServingRuntime":
            (container,) = item["spec"]["containers"]
            assert container["name"] == "kserve-container"
            assert container["image"] == f"modserve:{modserve.__about__.__version__}"
            assert item["spec"]["annotations"]["prometheus.kserve.io/port"] == "8002"


# --- the servers --------------------------------------------------------------------------------------------------


def arguments(manifests: list[Object], runtime: str, service: str, models: Path) -> list[str]:
    """What the container's entry point makes of a runtime's arguments, where the models are in another folder."""
    (container,) = named(manifests, runtime)["spec"]["containers"]
    container = {"args": container["args"] + named(manifests, service)["spec"]["predictor"]["model"].get("args", [])}
    words = [word.replace("{{.Name}}", service).replace("/mnt/models", str(models)) for word in container["args"]]
    ports = [word for word in words if re.fullmatch(r"--(http|grpc)-port=\d+", word)]
    assert ports == ["--grpc-port=9000", "--http-port=8080"]
    return [word for word in words if word not in (*ports, "tritonserver", "serve")]


@pytest.fixture(scope="module")
def repository(manifests: list[Object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The storage initializer has copied a repository of Triton's."""
    models = tmp_path_factory.mktemp("mnt") / "models"
    shutil.copytree(EXAMPLES / "simple", models / "simple")
    with serving(options=arguments(manifests, "modserve-repository", "repository", models)) as running:
        yield running


@pytest.fixture(scope="module")
def iris(manifests: list[Object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The storage initializer has copied the folder of one model, as KServe's examples have it."""
    models = tmp_path_factory.mktemp("mnt") / "models"
    models.mkdir()
    rows = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 4.0], [5.0, 4.0]])
    joblib.dump(LogisticRegression().fit(rows, [0, 0, 1, 1]), models / "model.joblib")
    with serving(options=arguments(manifests, "modserve-model", "iris", models)) as running:
        yield running


def test_the_arguments_of_kserves_runtime_for_triton(repository: ServerProcess) -> None:
    values = [1] * 16
    inputs = [{"name": f"INPUT{n}", "shape": [1, 16], "datatype": "INT32", "data": values} for n in range(2)]
    answer = http(repository.http_port, "POST", "/v2/models/simple/infer", json.dumps({"inputs": inputs}).encode())
    assert answer.json["outputs"][0]["data"] == [2] * 16


def test_one_model_has_the_services_name(iris: ServerProcess) -> None:
    instances = [[0.0, 0.5], [4.5, 4.0]]
    answer = http(iris.http_port, "POST", "/v1/models/iris:predict", json.dumps({"instances": instances}).encode())
    assert [each["predict"] for each in answer.json["predictions"]] == [[0], [1]]
    tensor = {"name": "input-0", "shape": [2, 2], "datatype": "FP32", "data": instances}
    answer = http(iris.http_port, "POST", "/v2/models/iris/infer", json.dumps({"inputs": [tensor]}).encode())
    assert answer.json["outputs"][0]["data"] == [0, 1]
    assert http(iris.http_port, "GET", "/v2/models/iris/ready").status == 200
