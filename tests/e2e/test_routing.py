"""Routing between the versions of a model: labels, splits, sequences, shadows and rollbacks on a real server."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from python_models import tensors
from repositories import write_accumulator
from server_here import serving_here
from server_process import Server, eventually, started
from tritonclient.utils import InferenceServerException
from wire import HOST, Answer, http

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            BODY
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
        return responses
"""
BODIES = {
    "plain": "value = np.full_like(value, self.version)",
    "failing": "if self.version == 2:\n                raise ValueError('no')",
    "differing": "value = value + (0.25 if self.version == 2 and value[0] < 0 else 1e-7 * value)",
    "slow": "import time; time.sleep(0.03 if self.version == 2 else 0.0)",
}
CONFIGURED = '{"labels": {"stable": 1, "canary": 2}, "split": {"stable": 3, "canary": 1}, "sticky": "parameter:user"}'


def write_versions(repository: Path, name: str, body: str, extra: str = "", versions: int = 2) -> None:
    for version in range(1, versions + 1):
        directory = repository / name / str(version)
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(MODEL.replace("BODY", body))
    config = ['backend: "python"', tensors("input", IN="FP32 1"), tensors("output", OUT="FP32 1")]
    config += ["version_policy { all { } }", extra]
    config.append('parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }')
    (repository / name / "config.pbtxt").write_text("\n".join(config))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("routed")
    for name, body in BODIES.items():
        write_versions(made, name, body)
    parameter = f"parameters {{ key: \"routing\" value {{ string_value: '{CONFIGURED}' }} }}"
    write_versions(made, "configured", BODIES["plain"], parameter)
    (made / "whole" / "1").mkdir(parents=True)
    step = 'step { model_name: "configured" model_version: -1 input_map { key: "IN" value: "IN" } '
    step += 'output_map { key: "OUT" value: "OUT" } }'
    whole = [tensors("input", IN="FP32 1"), tensors("output", OUT="FP32 1"), f"ensemble_scheduling {{ {step} }}"]
    (made / "whole" / "config.pbtxt").write_text("\n".join(['platform: "ensemble"', *whole]))
    write_accumulator(made, "sum", "direct { }", "max_sequence_idle_microseconds: 600000000")
    shutil.copytree(made / "sum" / "1", made / "sum" / "2")
    with (made / "sum" / "config.pbtxt").open("a") as config:
        config.write("\nversion_policy { all { } }")
    return made


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    options = ["--model-control-mode=explicit", "--load-model=*", "--http-header-forward-pattern=(?i)x-.*"]
    with serving_here(repository, options=options, errors=[r"model 'failing'", "Traceback"]) as running:
        yield running


def call(server: Server, method: str, path: str, document: object = None, **headers: str) -> Answer:
    body = b"" if document is None else json.dumps(document).encode()
    return http(server.http_port, method, path, body, headers)


def route(server: Server, model: str, document: object) -> dict[str, Any]:
    answer = call(server, "POST", f"/v2/models/{model}/routing", document)
    assert answer.status == 200, answer.body
    report: dict[str, Any] = answer.json
    return report


def report(server: Server, model: str) -> dict[str, Any]:
    answer = call(server, "GET", f"/v2/models/{model}/routing")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def infer(server: Server, path: str, value: float = 0.0, parameters: Any = None, **headers: str) -> Answer:
    document: dict[str, Any] = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [value]}]}
    if parameters:
        document["parameters"] = parameters
    return call(server, "POST", f"/v2/models/{path}/infer", document, **headers)


def version(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json["model_version"])


SPLIT = {"labels": {"stable": 1, "canary": 2}, "split": {"stable": 90, "canary": 10}}


def test_the_shares_of_a_split(server: Server) -> None:
    route(server, "plain", SPLIT)
    versions = Counter(version(infer(server, "plain")) for _ in range(100))
    assert versions == {"1": 90, "2": 10}
    shown = {each["name"]: each for each in report(server, "plain")["routes"]}
    assert shown["stable"] == {"name": "stable", "version": 1, "weight": 90, "share": 0.9, "requests": 90}
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    labels = '{model="plain",route="canary",version="2"}'
    assert f"modserve_routing_requests{labels} 10.0" in page
    assert f"modserve_routing_share{labels} 0.1" in page
    assert f"modserve_routing_rolled_back{labels} 0.0" in page
    assert call(server, "DELETE", "/v2/models/plain/routing").status == 200
    assert version(infer(server, "plain")) == "2"
    unlabelled = infer(server, "plain/versions/canary")
    assert (unlabelled.status, unlabelled.json) == (404, {"error": "Not Found"})
    answer = call(server, "GET", "/v2/models/plain/routing")
    text = "model 'plain' has no routing: requests that name no version go to the latest one"
    assert (answer.status, answer.json) == (404, {"error": text})


@pytest.mark.parametrize("suffix", ["", "/ready", "/config", "/stats", "/engine"])
def test_labels_in_paths(server: Server, suffix: str) -> None:
    assert call(server, "GET", f"/v2/models/plain/versions/stable{suffix}").json == {"error": "Not Found"}
    route(server, "plain", SPLIT)
    assert call(server, "GET", f"/v2/models/plain/versions/stable{suffix}").status == 200
    unknown = call(server, "GET", f"/v2/models/plain/versions/beta{suffix}")
    text = (
        "model 'plain' has no version with the label 'beta', its labels are: 'stable' (version 1), 'canary' (version 2)"
    )
    assert (unknown.status, unknown.json) == (404, {"error": text})
    assert call(server, "GET", f"/v2/models/other/versions/stable{suffix}").status == 404
    call(server, "DELETE", "/v2/models/plain/routing")


def test_labels_of_inferences_over_both_protocols(server: Server) -> None:
    route(server, "plain", SPLIT)
    for label, home in (("stable", "1"), ("canary", "2")):
        assert version(infer(server, f"plain/versions/{label}")) == home
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [0.0]}]}
    streamed = call(server, "POST", "/v2/models/plain/versions/canary/infer_stream", document)
    assert (streamed.status, b'"model_version":"2"' in streamed.body) == (200, True)
    unknown = infer(server, "plain/versions/beta")
    assert (unknown.status, "no version with the label 'beta'" in unknown.json["error"]) == (404, True)
    for client, port in ((tritonclient.http, server.http_port), (tritonclient.grpc, server.grpc_port)):
        with client.InferenceServerClient(f"{HOST}:{port}") as opened:
            tensor = client.InferInput("IN", [1], "FP32")
            tensor.set_data_from_numpy(np.zeros(1, np.float32))
            for label, number in (("stable", 1), ("canary", 2), ("1", 1)):
                result = opened.infer("plain", [tensor], model_version=label)
                assert result.as_numpy("OUT").tolist() == [number]
            assert opened.is_model_ready("plain", "canary")
            opened.get_model_metadata("plain", "canary")
            opened.get_inference_statistics("plain", "canary")
            with pytest.raises(InferenceServerException, match="no version with the label 'beta'"):
                opened.infer("plain", [tensor], model_version="beta")
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as opened:
        tensor = tritonclient.grpc.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        with pytest.raises(InferenceServerException, match="failed to get model version") as caught:
            opened.infer("plain", [tensor], model_version="1.5")
        assert caught.value.status() == str(grpc.StatusCode.INVALID_ARGUMENT)
        call(server, "DELETE", "/v2/models/plain/routing")
        text = (
            r"failed to get model version from specified version string 'canary' \(details: stol\), version should "
            "be an integral value > 0"
        )
        with pytest.raises(InferenceServerException, match=text):
            opened.infer("plain", [tensor], model_version="canary")


def test_labels_in_tensorflow_servings_paths(server: Server) -> None:
    path, body = "/v1/models/plain/labels/stable", {"instances": [0.0]}
    assert call(server, "GET", path).status == 404
    route(server, "plain", SPLIT)
    assert call(server, "GET", path).json["model_version_status"][0]["version"] == "1"
    assert call(server, "GET", f"{path}/metadata").json["model_spec"]["version"] == "1"
    assert call(server, "POST", f"{path}:predict", {"inputs": [0.0]}).json == {"outputs": [1.0]}
    assert call(server, "POST", f"{path}:classify", body).status == 501
    beta = call(server, "POST", "/v1/models/plain/labels/beta:predict", body)
    assert (beta.status, "no version with the label 'beta'" in beta.json["error"]) == (404, True)
    call(server, "DELETE", "/v2/models/plain/routing")


def test_a_configured_routing_is_sticky_by_a_parameter(server: Server) -> None:
    shown = report(server, "configured")
    assert (shown["source"], shown["routing"]) == ("config", json.loads(CONFIGURED))
    homes: dict[str, str] = {}
    for _ in range(3):
        for user in range(40):
            home = version(infer(server, "configured", parameters={"user": f"u{user}"}))
            assert homes.setdefault(f"u{user}", home) == home
    assert 2 <= sum(home == "2" for home in homes.values()) <= 20
    route(server, "configured", {"labels": {"canary": 2}, "split": {"canary": 1}})
    assert report(server, "configured")["source"] == "api"
    assert version(infer(server, "configured", parameters={"user": "u1"})) == "2"
    call(server, "DELETE", "/v2/models/configured/routing")
    assert report(server, "configured")["source"] == "config"
    assert version(infer(server, "configured", parameters={"user": "u1"})) == homes["u1"]


def test_the_steps_of_ensembles_are_routed(server: Server) -> None:
    values = Counter(infer(server, "whole").json["outputs"][0]["data"][0] for _ in range(40))
    assert set(values) == {1.0, 2.0}
    assert 29 <= values[1.0] <= 31


def test_sticky_by_a_forwarded_header(server: Server) -> None:
    route(server, "plain", {**SPLIT, "split": {"stable": 1, "canary": 1}, "sticky": "header:X-User"})
    homes = {
        name: {version(infer(server, "plain", 0.0, None, **{"X-USER": name})) for _ in range(5)}
        for name in map(str, range(20))
    }
    assert all(len(home) == 1 for home in homes.values())
    assert set.union(*homes.values()) == {"1", "2"}
    infer(server, "plain")
    assert report(server, "plain")["requests_without_key"] == 1
    call(server, "DELETE", "/v2/models/plain/routing")


def test_sequences_stay_where_they_began(server: Server) -> None:
    def step(client: Any, id: int, value: int, **flags: bool) -> tuple[str, int]:
        tensor = tritonclient.http.InferInput("INPUT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.full((1, 1), value, np.int32))
        result = client.infer("sum", [tensor], sequence_id=id, **flags)
        return result.get_response()["model_version"], int(result.as_numpy("OUTPUT")[0, 0])

    route(server, "sum", {"split": {"1": 1, "2": 1}})
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        homes = {id: step(client, id, 1, sequence_start=True)[0] for id in (1, 2)}
        assert set(homes.values()) == {"1", "2"}
        for id in (1, 2):
            assert step(client, id, 10) == (homes[id], 11)
        for document in ({"split": {"1": 1}}, {"split": {"2": 1}}, None):
            if document is None:
                call(server, "DELETE", "/v2/models/sum/routing")
            else:
                route(server, "sum", document)
            for id in (1, 2):
                assert step(client, id, 0) == (homes[id], 11)
        for id in (1, 2):
            assert step(client, id, 100, sequence_end=True) == (homes[id], 111)
        assert step(client, 1, 1, sequence_start=True, sequence_end=True) == ("2", 1)
    refused = call(server, "POST", "/v2/models/sum/routing", {"split": {"1": 1}, "shadow": {"version": 2, "share": 1}})
    assert (refused.status, "a model with sequences" in refused.json["error"]) == (400, True)


def test_a_version_that_the_policy_leaves_out_is_said(tmp_path: Path) -> None:
    write_versions(tmp_path, "m", BODIES["plain"])
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text(config.read_text().replace("version_policy { all { } }", ""))
    left_out = "version 1 in the model's folder is not served: version_policy selects 2; version_policy { all { } } in"
    with serving_here(tmp_path) as server:
        answer = infer(server, "m/versions/1")
        assert (answer.status, left_out in answer.json["error"]) == (404, True)
        answer = call(server, "GET", "/v2/models/m/versions/1/ready")
        assert (answer.status, left_out in answer.json["error"]) == (404, True)
        answer = call(server, "POST", "/v2/models/m/routing", {"split": {"1": 1, "2": 1}})
        assert (answer.status, left_out in answer.json["error"]) == (400, True)
        assert left_out not in infer(server, "m/versions/3").json["error"]


def test_a_canary_that_fails_is_rolled_back(server: Server) -> None:
    rollback = {"version": "canary", "error_share": 0.2, "least_requests": 5}
    route(server, "failing", {**SPLIT, "split": {"stable": 1, "canary": 1}, "rollback": rollback})
    statuses = [infer(server, "failing").status for _ in range(60)]
    assert [status for status in statuses if status != 200] == [500] * 5
    assert statuses[10:] == [200] * 50
    canary = report(server, "failing")["routes"][1]
    assert (canary["weight"], canary["share"], canary["requests"]) == (0, 0.0, 5)
    assert canary["rolled_back"]["reason"] == "5 of the last 5 requests failed (100.0%), and at most 20.0% may"
    server.wait_for(r"model 'failing', version 2: rolled back.*5 of the last 5 requests failed")
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    assert 'modserve_routing_rolled_back{model="failing",route="canary",version="2"} 1.0' in page
    assert infer(server, "failing/versions/canary").status == 500


def test_a_canary_that_is_slow_is_rolled_back(server: Server) -> None:
    rollback = {"version": "canary", "p95_ms": 20, "last_requests": 20, "least_requests": 5}
    route(server, "slow", {**SPLIT, "split": {"stable": 1, "canary": 1}, "rollback": rollback})
    for _ in range(30):
        assert infer(server, "slow").status == 200
    canary = report(server, "slow")["routes"][1]
    assert canary["rolled_back"]["reason"].startswith("95 % of the last 5 requests took up to ")
    assert canary["requests"] == 5


def test_a_shadow_is_compared(server: Server) -> None:
    shadow = {"version": "canary", "share": 1, "tolerance": 1e-4}
    route(server, "differing", {"labels": {"canary": 2}, "split": {"1": 1}, "shadow": shadow})
    for value in (1.0, 2.0, -1.0, 3.0):
        before = sum(shadowed(server).values())
        assert version(infer(server, "differing", value)) == "1"
        eventually(lambda total=before: sum(shadowed(server).values()) == total + 1)  # type: ignore[misc]
    assert shadowed(server) == {"same": 3, "different": 1, "failed": 0, "dropped": 0}
    difference = report(server, "differing")["shadow"]["last_difference"]
    assert difference == "output 'OUT' differs in 1 of 1 elements, by up to 0.25 of their size"
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    assert 'modserve_routing_shadow{model="differing",outcome="different",version="2"} 1.0' in page
    call(server, "DELETE", "/v2/models/differing/routing")


def shadowed(server: Server) -> dict[str, int]:
    shadow = report(server, "differing")["shadow"]
    return {outcome: shadow[outcome] for outcome in ("same", "different", "failed", "dropped")}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"split": {"beta": 1}}, 'routing.split is "beta", expected a label of routing.labels, which has none,'),
        ({"labels": {"Beta": 1}}, "routing.labels has the label 'Beta', expected a lower-case letter"),
        ({"weights": {}}, "routing has the unknown member 'weights', known are: labels, split"),
        (
            {"labels": {"canary": 7}, "split": {"1": 9, "canary": 1}},
            "model 'plain': routing.labels.canary is version 7, which is not there; the versions are: 1, 2",
        ),
        ({"allow_missing": 1}, "routing.allow_missing is 1, expected true or false"),
        ([1], "attempt to access JSON non-object as object"),
    ],
)
def test_what_is_wrong_is_refused(server: Server, document: object, text: str) -> None:
    answer = call(server, "POST", "/v2/models/plain/routing", document)
    assert answer.status == 400
    assert text in answer.json["error"]
    assert call(server, "GET", "/v2/models/plain/routing").status == 404


def test_a_version_that_is_to_come_is_accepted_where_the_routing_says_so(server: Server) -> None:
    answer = route(server, "plain", {"split": {"1": 9, "7": 1}, "allow_missing": True})
    assert answer["routes"][1]["not_ready"]
    assert version(infer(server, "plain")) == "1"
    call(server, "DELETE", "/v2/models/plain/routing")


def test_reloads_under_a_routing(server: Server, repository: Path) -> None:
    """The routing outlives loads of its versions; one that goes away leaves its share to the others."""
    route(server, "plain", {**SPLIT, "split": {"stable": 1, "canary": 1}})
    stop = False

    def ask() -> list[int]:
        statuses = []
        while not stop:
            statuses.append(infer(server, "plain").status)
        return statuses

    config = (repository / "plain" / "config.pbtxt").read_text()
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        for round in range(3):
            (repository / "plain" / "config.pbtxt").write_text(f"{config}\n# {round}")
            assert call(server, "POST", "/v2/repository/models/plain/load", {}).status == 200
        only = config.replace("{ all { } }", "{ specific { versions: 1 } }")
        (repository / "plain" / "config.pbtxt").write_text(only)
        assert call(server, "POST", "/v2/repository/models/plain/load", {}).status == 200
        stop = True
        statuses = Counter(status for future in asking for status in future.result())
    assert set(statuses) == {200}
    canary = report(server, "plain")["routes"][1]
    assert canary["share"] == 0
    assert canary["not_ready"].startswith("Request for unknown model: 'plain' version 2 is not ")
    assert {version(infer(server, "plain")) for _ in range(4)} == {"1"}
    (repository / "plain" / "config.pbtxt").write_text(config)
    assert call(server, "POST", "/v2/repository/models/plain/load", {}).status == 200
    assert {version(infer(server, "plain")) for _ in range(4)} == {"1", "2"}
    assert call(server, "POST", "/v2/repository/models/plain/unload", {}).status == 200
    assert call(server, "GET", "/v2/models/plain/routing").status == 404
    assert call(server, "POST", "/v2/repository/models/plain/load", {}).status == 200
    assert version(infer(server, "plain")) == "2"


def test_workers_share_a_routing(repository: Path) -> None:
    options = ["--workers=2", "--model-control-mode=explicit", "--load-model=plain", "--load-model=failing"]
    with started(repository, options=options) as server:
        server.wait_for(r"^model +version +state +load time$")
        route(server, "plain", SPLIT)
        versions = Counter(version(infer(server, "plain")) for _ in range(100))
        assert 8 <= versions["2"] <= 12
        shown = report(server, "plain")["routes"]
        assert sum(each["requests"] for each in shown) == 100
        assert version(infer(server, "plain/versions/stable")) == "1"
        assert call(server, "GET", "/v2/models/plain/versions/canary/stats").json["model_stats"][0]["version"] == "2"
        assert call(server, "DELETE", "/v2/models/plain/routing").status == 200
        assert {version(infer(server, "plain")) for _ in range(10)} == {"2"}
        assert call(server, "GET", "/v2/models/plain/routing").status == 404
        rollback = {"version": "canary", "error_share": 0.2, "least_requests": 5}
        route(server, "failing", {**SPLIT, "split": {"stable": 1, "canary": 1}, "rollback": rollback})
        while "rolled_back" not in report(server, "failing")["routes"][1]:
            infer(server, "failing")
        eventually(lambda: server.log.count("rolled back, requests that name no version") == 2)
        assert {infer(server, "failing").status for _ in range(20)} == {200}
        route(server, "failing", {"split": {"canary": 1}, "labels": {"canary": 2}})
        assert infer(server, "failing").status == 500
        server.stop(errors=[r"model 'failing'", "Traceback"])


def test_restricted_with_the_repository(repository: Path) -> None:
    options = ["--http-restricted-api=model-repository:admin=secret", "--model-control-mode=explicit"]
    with serving_here(repository, options=[*options, "--load-model=plain"]) as server:
        for method in ("GET", "POST", "DELETE"):
            answer = call(server, method, "/v2/models/plain/routing", SPLIT if method == "POST" else None)
            assert answer.status == 403
            opened = call(
                server, method, "/v2/models/plain/routing", SPLIT if method == "POST" else None, admin="secret"
            )
            assert opened.status == (404 if method == "GET" else 200)
