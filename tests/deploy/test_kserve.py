"""deploy/kserve: the manifests have KServe's fields, and the server does with their arguments what KServe expects."""

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import yaml
from custom_resources import ROOT, kserve_faults
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server, ServerProcess, eventually, serving
from sklearn.linear_model import LogisticRegression
from wire import Answer, http

import modserve.__about__

PLACE = ROOT / "deploy" / "kserve"
FASTER = 20
"""The manifests' seconds are divided by it."""
Object = dict[str, Any]


@pytest.fixture(scope="module")
def manifests() -> list[Object]:
    return [item for path in sorted(PLACE.glob("*.yaml")) for item in yaml.safe_load_all(path.read_text())]


def named(manifests: list[Object], name: str) -> Object:
    (found,) = (item for item in manifests if item["metadata"]["name"] == name)
    return found


# --- the manifests ------------------------------------------------------------------------------------------------


MISTAKES: list[tuple[str, Callable[[Object], object], str]] = [
    ("modserve-model", lambda spec: spec.update(supportedModelTypes=[]), "no field of V1alpha1ServingRuntimeSpec"),
    ("modserve-model", lambda spec: spec["containers"][0].update(args="serve"), "not a list"),
    ("iris", lambda spec: spec["predictor"]["model"].update(storageURI="s3://m"), "no field of V1beta1ModelSpec"),
    ("iris", lambda spec: spec["predictor"]["model"]["modelFormat"].update(version=1), "is no str"),
    ("simple", lambda spec: spec["model"].update(frameWork="onnx"), "no field of V1alpha1ModelSpec"),
]


def test_kserve_knows_every_field_and_finds_mistakes(manifests: list[Object]) -> None:
    """In one run of its client, which takes seconds to import."""
    wrong = []
    for name, change, _ in MISTAKES:
        item = copy.deepcopy(named(manifests, name))
        change(item["spec"])
        wrong.append(item)
    faults = kserve_faults([*manifests, *wrong])
    assert faults[: len(manifests)] == [[]] * len(manifests)
    for (_, _, text), (fault,) in zip(MISTAKES, faults[len(manifests) :], strict=True):
        assert text in fault


def test_services_name_runtimes_that_can_do_it(manifests: list[Object]) -> None:
    runtimes = {item["metadata"]["name"]: item["spec"] for item in manifests if item["kind"] == "ClusterServingRuntime"}
    services = [item for item in manifests if item["kind"] == "InferenceService"]
    assert len(services) == 4
    for item in services:
        model = item["spec"]["predictor"]["model"]
        runtime = runtimes[model["runtime"]]
        assert model["protocolVersion"] in runtime["protocolVersions"]
        assert model["modelFormat"] in runtime["supportedModelFormats"]


def seconds_of(words: list[str], option: str) -> int:
    """Of an option, whose last value counts."""
    return int([word.rpartition("=")[2] for word in words if word.startswith(f"--{option}=")][-1])


def test_pods_have_the_time_to_leave(manifests: list[Object]) -> None:
    """Runtimes have no field for that, so 30 s have to do. Services have, and hooks, unless Knative runs them."""
    runtimes = {item["metadata"]["name"]: item["spec"] for item in manifests if item["kind"] == "ClusterServingRuntime"}
    assert not any("lifecycle" in container for spec in runtimes.values() for container in spec["containers"])
    for item in manifests:
        if item["kind"] == "InferenceService":
            predictor = item["spec"]["predictor"]
            model = predictor["model"]
            words = runtimes[model["runtime"]]["containers"][0]["args"] + model.get("args", [])
            grace = predictor.get("terminationGracePeriodSeconds", 30)
            needed = seconds_of(words, "shutdown-delay-secs") + seconds_of(words, "exit-timeout-secs")
            assert needed < grace, item["metadata"]["name"]
            if "lifecycle" in model:
                assert item["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"
                assert needed < seconds_of(model["lifecycle"]["preStop"]["exec"]["command"], "timeout") < grace


def test_trained_models_belong_to_a_service_whose_runtime_has_their_framework(manifests: list[Object]) -> None:
    """And whose pods get KServe's agent, since it has no storageUri."""
    trained = [item["spec"] for item in manifests if item["kind"] == "TrainedModel"]
    assert len(trained) == 1
    for spec in trained:
        model = named(manifests, spec["inferenceService"])["spec"]["predictor"]["model"]
        assert "storageUri" not in model
        formats = named(manifests, model["runtime"])["spec"]["supportedModelFormats"]
        assert spec["model"]["framework"] in {each["name"] for each in formats}


def test_runtimes_run_this_image(manifests: list[Object]) -> None:
    for item in manifests:
        if item["kind"] == "ClusterServingRuntime":
            (container,) = item["spec"]["containers"]
            assert container["name"] == "kserve-container"
            assert container["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": 8080}
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts == {"tmp": "/tmp"}
            assert [volume["name"] for volume in item["spec"]["volumes"]] == ["tmp"]
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
    words = [re.sub(r"(?<=-secs=)\d+$", lambda number: str(max(1, int(number[0]) // FASTER)), word) for word in words]
    return [word for word in words if word not in (*ports, "tritonserver", "serve")]


@pytest.fixture(scope="module")
def repository(manifests: list[Object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The storage initializer has copied a repository of Triton's."""
    models = tmp_path_factory.mktemp("mnt") / "models"
    shutil.copytree(EXAMPLES / "simple", models / "simple")
    with serving(options=arguments(manifests, "modserve-repository", "repository", models)) as running:
        yield running


@pytest.fixture(scope="module")
def iris(manifests: list[Object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The storage initializer has copied the folder of one model, as KServe's examples have it."""
    models = tmp_path_factory.mktemp("mnt") / "models"
    models.mkdir()
    rows = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 4.0], [5.0, 4.0]])
    joblib.dump(LogisticRegression().fit(rows, [0, 0, 1, 1]), models / "model.joblib")
    with serving_here(options=arguments(manifests, "modserve-model", "iris", models)) as running:
        yield running


def test_the_arguments_of_kserves_runtime_for_triton(repository: ServerProcess) -> None:
    values = [1] * 16
    inputs = [{"name": f"INPUT{n}", "shape": [1, 16], "datatype": "INT32", "data": values} for n in range(2)]
    answer = http(repository.http_port, "POST", "/v2/models/simple/infer", json.dumps({"inputs": inputs}).encode())
    assert answer.json["outputs"][0]["data"] == [2] * 16


def test_the_hook_drains(manifests: list[Object], repository: ServerProcess) -> None:
    """After it, the server only waits for SIGTERM, with which the fixture ends it."""
    hook = named(manifests, "repository")["spec"]["predictor"]["model"]["lifecycle"]["preStop"]["exec"]["command"]
    words = [word.replace(":8080", f":{repository.http_port}") for word in hook]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout[:15]) == (0, "drained, after "), done.stderr
    assert repository.running


def test_one_model_has_the_services_name(iris: Server) -> None:
    instances = [[0.0, 0.5], [4.5, 4.0]]
    answer = http(iris.http_port, "POST", "/v1/models/iris:predict", json.dumps({"instances": instances}).encode())
    assert [each["predict"] for each in answer.json["predictions"]] == [[0], [1]]
    tensor = {"name": "input-0", "shape": [2, 2], "datatype": "FP32", "data": instances}
    answer = http(iris.http_port, "POST", "/v2/models/iris/infer", json.dumps({"inputs": [tensor]}).encode())
    assert answer.json["outputs"][0]["data"] == [0, 1]
    assert http(iris.http_port, "GET", "/v2/models/iris/ready").status == 200


# --- many models, which KServe's agent loads --------------------------------------------------------------------------


class Agent:
    """Does what KServe 0.21's does, with the folder and by calls, in its order. It calls once, whatever comes of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = 0

    def add(self, name: str, source: Path) -> Answer:
        """Download a model, and note in a file beside its own that all of it is there."""
        shutil.copytree(source, self._folder / name)
        (self._folder / name / f"SUCCESS.{'71f376a9' * 8}").write_text(
            '{"storageUri":"s3://models/m","framework":"onnx"}'
        )
        return self._call(name, "load")

    def remove(self, name: str) -> Answer:
        shutil.rmtree(self._folder / name)
        return self._call(name, "unload")

    def _call(self, name: str, call: str) -> Answer:
        headers = {"Content-Type": "application/json"}
        return http(self.port, "POST", f"/v2/repository/models/{name}/{call}", b"{}", headers)


def test_many_models_come_and_go(manifests: list[Object], tmp_path: Path) -> None:
    """Also over a restart of the server, of which the agent knows nothing, and beside a model that never loads."""
    models, other, broken = tmp_path / "models", tmp_path / "other", tmp_path / "broken"
    models.mkdir()
    shutil.copytree(EXAMPLES / "simple", other)
    (other / "1").rename(other / "7")
    shutil.copytree(EXAMPLES / "simple", broken)
    next((broken / "1").iterdir()).write_bytes(b"no model")
    options = arguments(manifests, "modserve-repository", "many", models)
    agent = Agent(models)
    complaint = "model 'broken'"

    def ready() -> int:
        return http(agent.port, "GET", "/v2/health/ready").status

    def versions(name: str) -> object:
        answer = http(agent.port, "GET", f"/v2/models/{name}")
        return answer.json.get("versions") if answer.status == 200 else None

    with serving_here(options=options, errors=[complaint]) as running:
        agent.port = running.http_port
        assert ready() == 200  # or KServe would never write which models there are
        assert agent.add("simple", EXAMPLES / "simple").status == 200
        assert agent.add("broken", broken).status == 400
        assert (ready(), versions("simple"), versions("broken")) == (200, ["1"], None)
        assert agent.remove("simple").status == 200  # another storageUri
        assert versions("simple") is None
        assert agent.add("simple", other).status == 200
        assert versions("simple") == ["7"]
    with serving_here(options=options, errors=[complaint]) as running:
        agent.port = running.http_port
        eventually(lambda: ready() == 200)
        assert (versions("simple"), versions("broken")) == (["7"], None)
        assert [agent.remove(name).status for name in ("broken", "simple")] == [200, 200]
        assert (ready(), versions("simple")) == (200, None)
        assert http(agent.port, "POST", "/v2/repository/models/never/unload", b"{}").status == 200
