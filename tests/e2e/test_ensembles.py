"""Ensembles on a real server: what they answer, how they fail, and how they are loaded."""

import functools
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper
from open_server import OpenServer
from repositories import copy_example, write_identity
from server_process import ServerProcess, eventually
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException
from wire import Answer, channel, http, metric, stub

Array: TypeAlias = "np.ndarray[Any, Any]"
PROTOCOLS = ("http", "grpc")
ERRORS = [r"cannot be loaded", r"model 'picky': execution failed: onnxruntime refused the request"]


def ensemble(repository: Path, name: str, head: str, *steps: tuple[str, Mapping[str, str], Mapping[str, str]]) -> None:
    """An ensemble of steps: a model, its inputs and its outputs by the names in the ensemble."""
    lines = ['platform: "ensemble"', head, "ensemble_scheduling {"]
    for model, inputs, outputs in steps:
        lines.append(f'step {{ model_name: "{model}" model_version: -1')
        for kind, pairs in (("input_map", inputs), ("output_map", outputs)):
            lines.extend(f'{kind} {{ key: "{key}" value: "{tensor}" }}' for key, tensor in pairs.items())
        lines.append("}")
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text("\n".join([*lines, "}"]))


def tensors(side: str, kind: str, dims: str, *names: str) -> str:
    return "\n".join(f'{side} {{ name: "{name}" data_type: {kind} dims: {dims} }}' for name in names)


def write_picky(repository: Path) -> None:
    """Doubles numbers from 0 to 3, and fails at all others."""
    table = helper.make_tensor("table", TensorProto.INT32, [4], [0, 2, 4, 6])
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "INPUT0"], ["OUTPUT0"])],
        "picky",
        [helper.make_tensor_value_info("INPUT0", TensorProto.INT32, ["batch", "width"])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.INT32, ["batch", "width"])],
        [table],
    )
    (repository / "picky" / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, repository / "picky" / "1" / "model.onnx")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ensembles")
    for example in ("digits", "digits_resize", "digits_pipeline", "simple", "repeat"):
        copy_example(root, example, example)
    write_identity(root, "slow", parameters={"execute_delay_ms": 200})
    write_identity(root, "sleepy", parameters={"execute_delay_ms": 200})
    write_identity(root, "glacial", parameters={"execute_delay_ms": 500})
    write_identity(root, "plain")
    full = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 600000000 }"
    write_identity(root, "gathering", extra=full)
    write_picky(root)
    numbers = tensors("input", "TYPE_INT32", "[ -1 ]", "in")
    one = numbers + tensors("output", "TYPE_INT32", "[ -1 ]", "out")
    two = numbers + tensors("output", "TYPE_INT32", "[ -1 ]", "left", "right")
    batch = "max_batch_size: 4\n"
    ensemble(
        root,
        "branches",
        batch + two,
        ("slow", {"INPUT0": "in"}, {"OUTPUT0": "left"}),
        ("sleepy", {"INPUT0": "in"}, {"OUTPUT0": "right"}),
    )
    ensemble(
        root,
        "abreast",
        batch + two,
        ("gathering", {"INPUT0": "in"}, {"OUTPUT0": "left"}),
        ("gathering", {"INPUT0": "in"}, {"OUTPUT0": "right"}),
    )
    ensemble(
        root,
        "fragile",
        batch + one,
        ("plain", {"INPUT0": "in"}, {"OUTPUT0": "a"}),
        ("picky", {"INPUT0": "a"}, {"OUTPUT0": "b"}),
        ("plain", {"INPUT0": "b"}, {"OUTPUT0": "out"}),
    )
    ensemble(
        root,
        "patient",
        batch + one,
        ("plain", {"INPUT0": "in"}, {"OUTPUT0": "mid"}),
        ("glacial", {"INPUT0": "mid"}, {"OUTPUT0": "out"}),
    )
    ensemble(
        root,
        "held",
        batch + one,
        ("plain", {"INPUT0": "in"}, {"OUTPUT0": "mid"}),
        ("gathering", {"INPUT0": "mid"}, {"OUTPUT0": "out"}),
    )
    ensemble(
        root,
        "doubled",
        tensors("input", "TYPE_INT32", "[ -1 ]", "values")
        + tensors("input", "TYPE_UINT32", "[ -1 ]", "delays")
        + tensors("input", "TYPE_UINT32", "[ 1 ]", "wait")
        + tensors("output", "TYPE_INT32", "[ 1 ]", "out"),
        ("repeat", {"IN": "values", "DELAY": "delays", "WAIT": "wait"}, {"OUT": "mid"}),
        ("picky", {"INPUT0": "mid"}, {"OUTPUT0": "out"}),
    )
    condition = 'parameters {{ key: "ensemble.when.{}" value {{ string_value: "{}" }} }}\n'
    ensemble(
        root,
        "switch",
        numbers
        + tensors("input", "TYPE_INT32", "[ 1 ]", "kind")
        + tensors("output", "TYPE_INT32", "[ -1 ]", "out")
        + condition.format("plain", "kind == 1")
        + condition.format("picky", "kind == 2"),
        ("plain", {"INPUT0": "in"}, {"OUTPUT0": "out"}),
        ("picky", {"INPUT0": "in"}, {"OUTPUT0": "out"}),
    )
    ensemble(
        root,
        "nested",
        numbers + tensors("input", "TYPE_INT32", "[ 1 ]", "kind") + tensors("output", "TYPE_INT32", "[ -1 ]", "out"),
        ("switch", {"in": "in", "kind": "kind"}, {"out": "mid"}),
        ("picky", {"INPUT0": "mid"}, {"OUTPUT0": "out"}),
    )
    ensemble(
        root,
        "narrow",
        batch + one,
        ("gathering", {"INPUT0": "in"}, {"OUTPUT0": "mid"}),
        ("plain", {"INPUT0": "mid"}, {"OUTPUT0": "out"}),
    )
    config = root / "narrow" / "config.pbtxt"
    config.write_text(
        config.read_text().replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 1")
    )
    return root


@pytest.fixture(scope="module")
def served(repository: Path, open_server: OpenServer) -> Iterator[ServerProcess]:
    names = [path.name for path in sorted(repository.iterdir()) if path.name not in ("simple", "digits_pipeline")]
    with open_server.host(repository, load=names, errors=ERRORS) as running:
        yield running


class Client:
    """The same calls over either protocol, with the real client."""

    def __init__(self, protocol: str, server: ServerProcess) -> None:
        self.flavour: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
        port = server.http_port if protocol == "http" else server.grpc_port
        self.client = self.flavour.InferenceServerClient(f"localhost:{port}")

    def infer(self, model: str, arrays: Mapping[str, Array], outputs: tuple[str, ...] = ()) -> dict[str, Array]:
        kinds = {"int32": "INT32", "uint32": "UINT32", "uint8": "UINT8", "float32": "FP32"}
        inputs = []
        for name, array in arrays.items():
            tensor = self.flavour.InferInput(name, list(array.shape), kinds[array.dtype.name])
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        asked = [self.flavour.InferRequestedOutput(name) for name in outputs] or None
        result = self.client.infer(model, inputs, outputs=asked)
        found = result.get_response()
        names = (
            [each["name"] for each in found.get("outputs", ())]
            if isinstance(found, dict)
            else [each.name for each in found.outputs]
        )
        return {name: result.as_numpy(name) for name in names}

    def ready(self) -> set[str]:
        index = self.client.get_model_repository_index()
        if self.flavour is tritonclient.http:
            return {entry["name"] for entry in index if entry.get("state") == "READY"}
        return {entry.name for entry in index.models if entry.state == "READY"}

    def close(self) -> None:
        self.client.close()


@pytest.fixture(params=PROTOCOLS)
def client(request: pytest.FixtureRequest, served: ServerProcess) -> Iterator[Client]:
    with closing(Client(request.param, served)) as made:
        yield made


def numbers(*values: int, rows: int = 1) -> Array:
    return np.tile(np.array(values, np.int32), (rows, 1))


def test_it_answers_as_its_steps_do_by_hand(client: Client) -> None:
    client.client.load_model("digits_pipeline")
    photo = np.random.default_rng(3).integers(0, 256, (3, 40, 24), dtype=np.uint8)
    found = client.infer("digits_pipeline", {"photo": photo})
    image = client.infer("digits_resize", {"photo": photo})["image"]
    expected = client.infer("digits", {"image": image})
    assert list(found) == ["label", "probabilities"]
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_labels_come_from_the_step(served: ServerProcess) -> None:
    http(served.http_port, "POST", "/v2/repository/models/digits_pipeline/load")
    image = {"name": "photo", "shape": [1, 8, 8], "datatype": "UINT8", "data": [255] * 64}
    wanted = {"name": "probabilities", "parameters": {"classification": 1}}
    body = json.dumps({"inputs": [image], "outputs": [wanted]}).encode()
    answer = http(served.http_port, "POST", "/v2/models/digits_pipeline/infer", body)
    [best] = json.loads(answer.body)["outputs"][0]["data"]
    assert best.split(":")[2] == "eight"


def test_branches_run_at_the_same_time(client: Client) -> None:
    """The model waits for eight rows: two branches of four, neither of which would be answered before the other."""
    found = client.infer("abreast", {"in": numbers(1, 2, rows=4)})
    for name in ("left", "right"):
        np.testing.assert_array_equal(found[name], numbers(1, 2, rows=4))


def test_only_what_is_needed_runs(client: Client) -> None:
    before = counts(client)
    assert list(client.infer("branches", {"in": numbers(5)}, ("left",))) == ["left"]
    assert {name: count - before[name] for name, count in counts(client).items()} == {
        "branches": 1,
        "slow": 1,
        "sleepy": 0,
    }


def counts(client: Client, *names: str) -> dict[str, int]:
    """How many requests the models have answered."""
    found = {}
    for name in names or ("branches", "slow", "sleepy"):
        if client.flavour is tritonclient.http:
            [model] = client.client.get_inference_statistics(name)["model_stats"]
            found[name] = int(model["inference_stats"]["success"]["count"])
        else:
            [model] = client.client.get_inference_statistics(name).model_stats
            found[name] = model.inference_stats.success.count
    return found


def test_an_error_in_the_middle(client: Client) -> None:
    np.testing.assert_array_equal(client.infer("fragile", {"in": numbers(1, 3)})["out"], numbers(2, 6))
    before = counts(client, "plain", "picky", "fragile")
    with pytest.raises(InferenceServerException, match="in ensemble 'fragile', ") as caught:
        client.infer("fragile", {"in": numbers(1, 9)})
    after = counts(client, "plain", "picky", "fragile")
    assert {name: after[name] - before[name] for name in after} == {"plain": 1, "picky": 0, "fragile": 0}
    with pytest.raises(InferenceServerException) as by_hand:
        client.infer("picky", {"INPUT0": numbers(1, 9)})
    assert caught.value.status() == by_hand.value.status()
    assert caught.value.message() == f"in ensemble 'fragile', {by_hand.value.message()}"


def test_a_switch(client: Client) -> None:
    for kind, expected in ((1, {"out": [3]}), (2, {"out": [6]}), (3, {})):
        found = client.infer("switch", {"in": np.array([3], np.int32), "kind": np.array([kind], np.int32)})
        assert {name: array.reshape(-1).tolist() for name, array in found.items()} == expected


def test_what_an_ensemble_inside_skips_is_skipped(client: Client) -> None:
    for kind, expected in ((1, {"out": [2]}), (2, {"out": [4]}), (3, {})):
        found = client.infer("nested", {"in": np.array([1], np.int32), "kind": np.array([kind], np.int32)})
        assert {name: array.reshape(-1).tolist() for name, array in found.items()} == expected


def pending(served: ServerProcess, model: str) -> float:
    return metric(served, "nv_inference_pending_request_count", model=model, version="1")


def test_the_timeout_is_for_waiting(served: ServerProcess) -> None:
    """One request has the only place, until there are seven more rows for its step; another waits for the place."""

    def ask(model: str, name: str, rows: int, **parameters: int) -> Answer:
        given = {"name": name, "shape": [rows, 1], "datatype": "INT32", "data": [1] * rows}
        body = {"inputs": [given], "parameters": parameters}
        return http(served.http_port, "POST", f"/v2/models/{model}/infer", json.dumps(body).encode())

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, "narrow", "in", 1)
        eventually(lambda: pending(served, "gathering") == 1)
        begun = time.monotonic()
        refused = ask("narrow", "in", 1, timeout=50_000)
        assert time.monotonic() - begun >= 0.05
        assert refused.status == 503
        assert "in ensemble 'narrow', Request timeout expired" in refused.json["error"]
        assert not first.done()
        assert ask("gathering", "INPUT0", 7).status == 200
        assert first.result().status == 200


def test_a_step_with_many_responses(served: ServerProcess) -> None:
    body = json.dumps({"values": [1, 3, 2], "delays": [0, 20, 0], "wait": 0}).encode()
    answer = http(served.http_port, "POST", "/v2/models/doubled/generate_stream", body)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().splitlines() if line]
    assert [event["out"] for event in events] == [2, 6, 4]
    config = json.loads(http(served.http_port, "GET", "/v2/models/doubled/config").body)
    assert config["model_transaction_policy"] == {"decoupled": True}


def test_a_failure_among_many_responses(served: ServerProcess) -> None:
    body = json.dumps({"values": [1, 9, 2], "delays": [0, 0, 500], "wait": 0}).encode()
    answer = http(served.http_port, "POST", "/v2/models/doubled/generate_stream", body)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().splitlines() if line]
    assert events[-1]["error"].startswith("in ensemble 'doubled', ")
    assert len(events) <= 2


def test_a_client_that_leaves_takes_the_steps_with_it(served: ServerProcess) -> None:
    def cancelled(model: str) -> float:
        return metric(served, "nv_inference_request_failure", model=model, version="1", reason="CANCELED")

    def is_more(model: str, count: float) -> bool:
        return cancelled(model) == count + 1

    asked = Client("http", served)
    plain = counts(asked, "plain")["plain"]
    before = {model: cancelled(model) for model in ("held", "gathering")}
    with channel(served.grpc_port) as opened:
        request = service_pb2.ModelInferRequest(model_name="held")
        request.inputs.add(name="in", shape=[1, 1], datatype="INT32").contents.int_contents.append(1)
        call = stub(opened).ModelInfer.future(request)
        eventually(lambda: pending(served, "gathering") == 1)
        assert counts(asked, "plain")["plain"] == plain + 1
        call.cancel()
        for model, count in before.items():
            eventually(functools.partial(is_more, model, count))
    assert pending(served, "gathering") == 0
    asked.client.close()


def test_what_is_under_way_ends_well_when_a_model_goes(served: ServerProcess) -> None:
    asked = Client("grpc", served)
    plain = counts(asked, "plain")["plain"]
    with channel(served.grpc_port) as opened:
        request = service_pb2.ModelInferRequest(model_name="patient")
        request.inputs.add(name="in", shape=[1, 1], datatype="INT32").contents.int_contents.append(5)
        call = stub(opened).ModelInfer.future(request)
        eventually(lambda: counts(asked, "plain")["plain"] == plain + 1)
        asked.client.unload_model("glacial")
        assert not asked.ready() & {"patient", "glacial"}
        assert call.result().model_name == "patient"
    asked.client.load_model("glacial")
    assert asked.ready() >= {"patient", "glacial"}
    asked.client.close()


def test_what_it_is_made_of_comes_and_goes_with_it(client: Client) -> None:
    for name in ("digits_pipeline", "digits_resize", "digits"):
        client.client.unload_model(name)
    eventually(lambda: not client.ready() & {"digits_pipeline", "digits_resize", "digits"})
    client.client.load_model("digits")
    client.client.load_model("digits_pipeline")
    assert client.ready() >= {"digits_pipeline", "digits_resize", "digits"}
    client.client.unload_model("digits_pipeline", unload_dependents=True)
    gone = {"digits_pipeline", "digits_resize"}
    eventually(lambda: not client.ready() & gone)
    assert "digits" in client.ready()
    client.client.unload_model("digits")
    client.client.load_model("digits_pipeline")
    client.client.unload_model("digits_pipeline")
    assert client.ready() >= {"digits_resize", "digits"}


def test_it_goes_when_a_model_goes_and_comes_back(client: Client) -> None:
    client.client.load_model("digits_pipeline")
    client.client.unload_model("digits_resize")
    assert "digits_pipeline" not in client.ready()
    assert client.client.is_server_ready()
    with pytest.raises(InferenceServerException, match="has no available versions"):
        client.infer("digits_pipeline", {"photo": np.zeros((1, 8, 8), np.uint8)})
    client.client.load_model("digits_resize")
    assert "digits_pipeline" in client.ready()


def test_a_model_that_is_missing_is_named(client: Client, repository: Path) -> None:
    ensemble(
        repository,
        f"orphan_{client.flavour.__name__[13:]}",
        tensors("input", "TYPE_INT32", "[ -1 ]", "in") + tensors("output", "TYPE_INT32", "[ -1 ]", "out"),
        ("nosuch", {"INPUT0": "in"}, {"OUTPUT0": "out"}),
    )
    with pytest.raises(InferenceServerException, match="contains models that are not available or ambiguous: nosuch"):
        client.client.load_model(f"orphan_{client.flavour.__name__[13:]}")


def test_one_whose_new_configuration_names_a_missing_model_serves_on(client: Client, repository: Path) -> None:
    config = repository / "switch" / "config.pbtxt"
    good = config.read_text()
    config.write_text(good.replace("picky", "nosuch"))
    with pytest.raises(InferenceServerException, match="not available or ambiguous: nosuch"):
        client.client.load_model("switch")
    assert client.ready() >= {"switch", "nested"}
    given = {"in": np.array([3], np.int32), "kind": np.array([1], np.int32)}
    assert [client.infer(model, given)["out"].tolist() for model in ("switch", "nested")] == [[3], [6]]
    config.write_text(good)
    client.client.load_model("switch")
