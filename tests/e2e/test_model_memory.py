"""A server whose models do not all fit into the memory that they may have."""

import json
import random
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from large_models import STEP, TENSORS, own_memory, write_table
from open_server import OpenServer
from python_models import write_python
from repositories import write_accumulator
from server_process import ServerProcess, eventually, serving
from wire import Ask, Input, binary_outputs, grpc_infer, http, http_infer, metric, raw_outputs, statistics

MB = 1_000_000
ALLOCATING = """
    class TritonPythonModel:
        def initialize(self, args):
            self.held = np.ones(20_000_000, dtype=np.uint8)

        def execute(self, requests):
            arrays = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy() for each in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", a.astype(np.float32) + 0.5)]) for a in arrays]
"""
CALLING = """
    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for each in requests:
                array = pb_utils.get_input_tensor_by_name(each, "IN")
                answer = pb_utils.InferenceRequest(
                    model_name="table1", requested_output_names=["OUT"], inputs=[array]
                ).exec()
                if answer.has_error():
                    responses.append(pb_utils.InferenceResponse(error=answer.error()))
                else:
                    out = pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy()
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
            return responses
"""
SUM = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "FIRST" data_type: TYPE_FP32 dims: 1 }
output { name: "SECOND" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step { model_name: "table2" model_version: -1
         input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "FIRST" } }
  step { model_name: "table3" model_version: -1
         input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "SECOND" } }
}
"""


LIMIT = 110 * MB


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenServer]:
    with OpenServer.opened(tmp_path_factory.mktemp("limited"), [f"--model-memory-limit={LIMIT}"]) as server:
        yield server


@pytest.fixture(scope="module")
def lazy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenServer]:
    options = ["--load-lazily", "--model-idle-unload-secs=2"]
    with OpenServer.opened(tmp_path_factory.mktemp("lazy"), options) as server:
        yield server


def ask(model: str, value: int) -> Ask:
    return Ask((Input("IN", "INT32", (1,), struct.pack("<i", value)),), model)


def number(outputs: dict[str, bytes], name: str = "OUT") -> float:
    return float(struct.unpack("<f", outputs[name])[0])


def infer(server: ServerProcess, model: str, value: int, wire: str) -> dict[str, bytes]:
    if wire == "grpc":
        return raw_outputs(grpc_infer(server.grpc_port, ask(model, value)))
    answer = http_infer(server.http_port, ask(model, value))
    assert answer.status == 200, answer.body
    return binary_outputs(answer)


def memory(server: ServerProcess) -> dict[str, Any]:
    answer = http(server.http_port, "GET", "/v2/memory")
    assert answer.status == 200
    found: dict[str, Any] = answer.json
    return found | {"by_name": {each["name"]: each for each in found["models"]}}


def index(server: ServerProcess) -> dict[str, Any]:
    return {each["name"]: each for each in http(server.http_port, "POST", "/v2/repository/index").json}


class Clients:
    """Threads that send requests to models at random, and look at every answer."""

    def __init__(self, server: ServerProcess, models: dict[str, float], requests: int) -> None:
        self._server, self._models, self._requests = server, models, requests
        self.answered = 0
        self.wrong: list[str] = []
        self.largest = 0

    def run(self, threads: int) -> None:
        workers = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(threads)]
        for each in workers:
            each.start()
        while any(each.is_alive() for each in workers):
            self.largest = max(self.largest, own_memory(self._server.pid))
            time.sleep(0.005)
        for each in workers:
            each.join()

    def _ask(self, seed: int) -> None:
        rng = random.Random(seed)
        while self.answered < self._requests:
            model, value = rng.choice(list(self._models)), rng.randrange(1000)
            try:
                outputs = infer(self._server, model, value, ("http", "grpc")[seed % 2])
                if number(outputs) != value + self._models[model]:
                    self.wrong.append(f"{model}: {value} → {number(outputs)}")
            except Exception as error:
                self.wrong.append(f"{model}: {error}")
            self.answered += 1


def crowd(server: ServerProcess) -> dict[str, Any]:
    """The models of the next test in the index."""
    return {name: each for name, each in index(server).items() if name.startswith("crowd")}


def test_more_models_than_fit_are_served_to_many_clients(tmp_path: Path, limited: OpenServer) -> None:
    for each in range(6):
        write_table(tmp_path, f"crowd{each}", each, config=TENSORS if each % 2 else "")
    with limited.host(tmp_path) as server:
        assert http(server.http_port, "GET", "/v2/health/ready").status == 200
        before = own_memory(server.pid)
        assert memory(server)["held"] == 0
        assert {each["reason"] for each in crowd(server).values()} == {"not resident"}
        clients = Clients(server, {f"crowd{each}": STEP * each for each in range(6)}, requests=150)
        clients.run(12)
        said = memory(server)
        after = own_memory(server.pid)
        evictions = sum(each["evictions"] for each in said["models"])
        print(
            f"{clients.answered} requests, {len(clients.wrong)} failed; {evictions} evictions; "
            f"the server had {before / MB:.0f} MB without models, then {clients.largest / MB:.0f} MB at most: "
            f"{(clients.largest - before - LIMIT) / MB:+.0f} MB beside the limit of {LIMIT / MB:.0f} MB for models; "
            f"at the end {after / MB:.0f} MB, with {said['held'] / MB:.0f} MB of models"
        )
        assert clients.wrong == []
        assert clients.answered > 50
        assert evictions >= 6
        assert said["held"] <= LIMIT
        for each in said["models"]:
            if each["size"]:
                assert 30 * MB <= each["size"] <= 50 * MB, each
        # One model is read while it is loaded, and a copy of its file is in memory then.
        assert clients.largest <= before + LIMIT + 100 * MB
        assert after <= before + LIMIT + 20 * MB
        resident = [name for name, each in said["by_name"].items() if each["resident"]]
        assert 2 <= len(resident) <= 3
        listed = crowd(server)
        assert [name for name, each in listed.items() if each["reason"].startswith("resident, ")] == resident
        assert {each["state"] for each in listed.values()} == {"READY"}
        name = resident[0]
        size = said["by_name"][name]["size"]
        assert metric(server, "modserve_model_resident_bytes", model=name) == size
        assert metric(server, "modserve_model_resident", model=name) == 1
        assert metric(server, "modserve_model_evictions_total", model=name) == said["by_name"][name]["evictions"]
        page = http(server.metrics_port, "GET", "/metrics").body.decode()
        assert "\nmodserve_model_memory_limit_bytes 1.1e+08\n" in page
        usage = statistics(server, name)["memory_usage"]
        assert [(each["type"], int(each["byte_size"])) for each in usage] == [("CPU", size)]
        counted = sum(int(statistics(server, f"crowd{each}")["inference_count"]) for each in range(6))
        assert counted == clients.answered  # across all loads
        server.wait_for(f"model '{name}', version 1: in memory after")
        server.wait_for("leaves memory")


def test_ensembles_python_models_and_sequences(tmp_path: Path, limited: OpenServer) -> None:
    for each in range(1, 4):
        write_table(tmp_path, f"table{each}", each, config=TENSORS if each != 3 else "")
    write_python(tmp_path, "allocating", ALLOCATING, TENSORS, modes=("process",))
    write_python(tmp_path, "calling", CALLING, TENSORS, modes=("process",))
    (tmp_path / "both" / "1").mkdir(parents=True)
    (tmp_path / "both" / "config.pbtxt").write_text(SUM)
    with limited.host(tmp_path) as server:
        # The configuration of one of the ensemble's models says nothing: it was loaded to be described.
        loads = {name: each["loads"] for name, each in memory(server)["by_name"].items()}
        assert loads == {"table1": 0, "table2": 0, "table3": 1, "allocating_process": 0, "calling_process": 0}
        for value in range(8):
            assert number(infer(server, "allocating_process", value, "http")) == value + 0.5
            assert number(infer(server, "calling_process", value, "grpc")) == value + STEP
            outputs = infer(server, "both", value, "http")
            assert (number(outputs, "FIRST"), number(outputs, "SECOND")) == (value + 2 * STEP, value + 3 * STEP)
        said = memory(server)
        assert said["held"] <= said["limit"] == LIMIT
        assert sum(each["evictions"] for each in said["models"]) >= 8
        python = said["by_name"]["allocating_process"]
        print("models in Python:", {name: each["size"] for name, each in said["by_name"].items()})
        assert 20 * MB <= python["size"] <= 80 * MB
        with ThreadPoolExecutor(8) as clients:
            several = list(clients.map(lambda value: infer(server, "both", value, "http"), range(16)))
        assert [number(each, "FIRST") for each in several] == [value + 2 * STEP for value in range(16)]


def test_metadata_and_other_calls_load_what_only_the_engine_knows(tmp_path: Path, lazy: OpenServer) -> None:
    for each in range(3):
        write_table(tmp_path, f"table{each}", each, megabytes=1)
    with lazy.host(tmp_path) as server:
        assert memory(server)["by_name"]["table0"]["loads"] == 0
        said = http(server.http_port, "GET", "/v2/models/table0").json
        assert (said["inputs"], said["platform"]) == (
            [{"name": "IN", "datatype": "INT32", "shape": [1]}],
            "onnxruntime_onnx",
        )
        config = http(server.http_port, "GET", "/v2/models/table1/config").json
        assert config["input"][0]["data_type"] == "TYPE_INT32"
        body = json.dumps({"instances": [7]}).encode()
        answer = http(server.http_port, "POST", "/v1/models/table2:predict", body)
        assert answer.json == {"predictions": [2007.0]}, answer.body
        assert http(server.http_port, "GET", "/v2/models/table0/ready").status == 200


def test_what_is_not_used_leaves_with_its_process(tmp_path: Path, lazy: OpenServer) -> None:
    write_python(tmp_path, "idle", ALLOCATING, TENSORS, modes=("process",))
    write_python(tmp_path, "eager", ALLOCATING, TENSORS + parameter("residency.load", "eager"), modes=("process",))
    write_python(
        tmp_path,
        "pinned",
        ALLOCATING,
        TENSORS + parameter("residency.pin", "true") + parameter("residency.load", "eager"),
        modes=("process",),
    )
    with lazy.host(tmp_path) as server:
        loads = {name: each["loads"] for name, each in memory(server)["by_name"].items()}
        assert loads == {"idle_process": 0, "eager_process": 1, "pinned_process": 1}
        for round in range(2):
            infer(server, "idle_process", 1, "http")
            assert memory(server)["by_name"]["idle_process"]["resident"]
            eventually(
                lambda: [n for n, each in memory(server)["by_name"].items() if each["resident"]] == ["pinned_process"]
            )
            assert memory(server)["by_name"]["idle_process"]["evictions"] == round + 1
        assert http(server.http_port, "GET", "/v2/health/ready").status == 200


def parameter(key: str, value: str) -> str:
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    broken = """
    class TritonPythonModel:
        def initialize(self, args):
            raise ValueError("no licence")

        def execute(self, requests):
            return []
    """
    write_python(tmp_path, "broken", broken, TENSORS, modes=("process",))
    write_table(tmp_path, "huge", 1, megabytes=60)
    write_python(tmp_path, "greedy", ALLOCATING, TENSORS, modes=("process",))
    write_table(tmp_path, "small", 2, megabytes=1)
    (tmp_path / "empty" / "1").mkdir(parents=True)
    (tmp_path / "empty" / "config.pbtxt").write_text(TENSORS + 'backend: "onnxruntime"')
    errors = [
        "instance 'broken_process_0': Traceback",
        "ValueError: no licence",
        "more than --model-memory-limit allows",
        "unable to find model file",
    ]
    with serving(tmp_path, options=["--model-memory-limit=20MB"], errors=errors) as server:
        listed = index(server)
        assert listed["huge"]["state"] == "UNAVAILABLE"
        assert "needs 60.0 MB of memory (its files alone), more than --model-memory-limit" in listed["huge"]["reason"]
        assert "unable to find model file" in listed["empty"]["reason"]
        answer = http_infer(server.http_port, ask("broken_process", 1))
        assert (answer.status, "no licence" in answer.json["error"]) == (503, True)
        assert "Retry-After" in {name.title() for name in answer.headers}
        answer = http(server.http_port, "GET", "/v2/models/broken_process/ready")
        assert answer.status == 400
        answer = http_infer(server.http_port, ask("greedy_process", 1))
        assert (answer.status, "as measured when it was loaded" in answer.json["error"]) == (503, True)
        assert number(infer(server, "small", 5, "grpc")) == 5 + 2 * STEP


def test_sequences_keep_their_model(tmp_path: Path, lazy: OpenServer) -> None:
    write_accumulator(tmp_path, "sums", "direct { }", "max_sequence_idle_microseconds: 60000000")
    with lazy.host(tmp_path) as server:
        sums = []
        for step in range(3):
            parameters = {"sequence_id": 5, "sequence_start": step == 0, "sequence_end": step == 2}
            tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}
            body = json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()
            answer = http(server.http_port, "POST", "/v2/models/sums/infer", body).json
            assert "outputs" in answer, answer
            sums += [each["data"][0] for each in answer["outputs"] if each["name"] == "OUTPUT"]
            time.sleep(2.5)  # longer than a model may be idle: an open sequence keeps it, and nothing tells of that
        assert sums == [1, 2, 3]
        assert memory(server)["by_name"]["sums"]["loads"] == 1
        eventually(lambda: not memory(server)["by_name"]["sums"]["resident"])


def test_workers_share_the_limit(tmp_path: Path) -> None:
    for each in range(3):
        write_table(tmp_path, f"table{each}", each, megabytes=20, config=TENSORS)
    with serving(tmp_path, options=["--model-memory-limit=100MB", "--workers=2"]) as server:
        for value in range(30):
            model = value % 3
            assert number(infer(server, f"table{model}", value, "http")) == value + STEP * model
        assert memory(server)["limit"] == 50 * MB


def test_models_that_are_always_busy_take_turns_and_are_loaded_anew_meanwhile(tmp_path: Path) -> None:
    """Each model has clients of its own, which never pause: none would ever be idle by itself."""
    for each in range(4):
        write_table(tmp_path, f"table{each}", each, megabytes=20, config=TENSORS)
    options = ["--model-memory-limit=55MB", "--model-control-mode=explicit", "--load-model=*"]
    with serving(tmp_path, options=options) as server:
        wrong: list[str] = []
        answered = [0] * 4
        loaded = threading.Event()

        def ask_one(number_of: int) -> None:
            value = number_of
            model = number_of % 4
            while not loaded.is_set() or min(answered) <= 20:
                try:
                    outputs = infer(server, f"table{model}", value % 1000, ("http", "grpc")[number_of // 4 % 2])
                    if number(outputs) != value % 1000 + STEP * model:
                        wrong.append(f"table{model}: {value % 1000} → {number(outputs)}")
                except Exception as error:
                    wrong.append(f"table{model}: {error}")
                answered[model] += 1
                value += 1

        def load_anew() -> None:
            for model in (0, 3, 1, 2, 3, 0):
                config = {"parameters": {"round": {"string_value": str(time.monotonic())}}}
                body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
                answer = http(server.http_port, "POST", f"/v2/repository/models/table{model}/load", body)
                if answer.status != 200:
                    wrong.append(f"load of table{model}: {answer.body!r}")
                time.sleep(0.3)
            loaded.set()

        with ThreadPoolExecutor(13) as clients:
            work = [clients.submit(ask_one, each) for each in range(12)]
            work.append(clients.submit(load_anew))
        for task in work:
            task.result()
        said = memory(server)
        print(f"always busy: {answered} responses by model, {said['by_name']['table0']['evictions']} evictions of one")
        assert wrong == []
        assert min(answered) > 20
        assert said["held"] <= 55 * MB


def test_models_that_stay_are_measured_when_they_are_loaded(tmp_path: Path) -> None:
    """One after the other, so that each is as large as it says; of an ensemble there is nothing to measure."""
    for place in (1, 2, 3):
        write_table(tmp_path, f"table{place}", place, 30 * place, TENSORS)
    write_python(tmp_path, "alone", ALLOCATING, TENSORS)
    (tmp_path / "sum" / "1").mkdir(parents=True)
    (tmp_path / "sum" / "config.pbtxt").write_text(SUM)
    with serving(tmp_path, options=["--model-load-thread-count=1"]) as server:
        sizes = {
            name: metric(server, "modserve_model_resident_bytes", model=name) for name in index(server) if name != "sum"
        }
        for place in (2, 3):
            assert 28 * place * MB < sizes[f"table{place}"] < (30 * place + 15) * MB
        assert 18 * MB < sizes["alone_thread"] < 35 * MB
        assert 20 * MB < sizes["alone_process"] < 150 * MB
        for name, size in sizes.items():
            assert [each["byte_size"] for each in statistics(server, name)["memory_usage"]] == [size]
        page = http(server.metrics_port, "GET", "/metrics").body.decode()
        assert 'modserve_model_resident_bytes{model="sum"' not in page
        assert "modserve_model_resident{" not in page
