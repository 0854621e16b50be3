"""Models are warm before they are ready: on every instance, whatever runs them, and again when they are made anew."""

import json
import os
import signal
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from python_models import MODES, tensors, write_python
from repositories import write_accumulator, write_onnx_identity
from server_here import serving_here
from server_process import Server, eventually
from wire import http, metric, statistics

COUNTER = """
    import os
    from pathlib import Path

    LOG = Path(__file__).parents[1] / "log"

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]

        def execute(self, requests):
            rows = [
                {tensor.name(): tensor.as_numpy().tolist() for tensor in each.inputs()} for each in requests
            ]
            def text(value):
                return value.decode() if isinstance(value, bytes) else repr(value)
            line = {
                "instance": self.name,
                "rows": json.loads(json.dumps(rows, default=text)),
                "sequences": [[each.correlation_id(), each.flags()] for each in requests],
                "pid": os.getpid(),
            }
            with LOG.open("a") as file:
                file.write(json.dumps(line) + "\\n")
            if any((pb_utils.get_input_tensor_by_name(each, "IN").as_numpy() == 13).any() for each in requests):
                raise ValueError("13 is too much for me")
            arrays = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy() for each in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
"""
SHAPES = "\n".join(
    ["max_batch_size: 4", tensors("input", IN="FP32 2", TEXT="BYTES 1 optional"), tensors("output", OUT="FP32 2"), ""]
)
TWO = "instance_group { count: 2 kind: KIND_CPU }\n"


def sample(name: str, inputs: Mapping[str, str], more: str = "batch_size: 1") -> str:
    values = " ".join(f'inputs {{ key: "{key}" value {{ {said} }} }}' for key, said in inputs.items())
    return f'model_warmup {{ name: "{name}" {more} {values} }}\n'


ZEROS = {"IN": "data_type: TYPE_FP32 dims: 2 zero_data: true"}
FILES = {
    "IN": 'data_type: TYPE_FP32 dims: 2 input_data_file: "floats"',
    "TEXT": 'data_type: TYPE_STRING dims: 1 input_data_file: "text"',
}


def write_files(directory: Path, *values: float) -> None:
    (directory / "warmup").mkdir(exist_ok=True)
    (directory / "warmup" / "floats").write_bytes(struct.pack("<2f", *values))
    (directory / "warmup" / "text").write_bytes(struct.pack("<I", 5) + b"hello")


def lines(directory: Path) -> list[dict[str, Any]]:
    """What the model has written, an execution a line."""
    log = directory / "log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def report(server: Server, model: str) -> Any:
    return http(server.http_port, "GET", f"/v2/models/{model}/engine").json.get("warm_up")


def infer(server: Server, model: str, *values: float) -> Any:
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": values}]}
    return http(server.http_port, "POST", f"/v2/models/{model}/infer", json.dumps(body).encode()).json


@pytest.mark.parametrize("mode", MODES)
def test_every_instance_runs_every_sample_before_the_model_is_ready(tmp_path: Path, mode: str) -> None:
    config = SHAPES + TWO + sample("zeros", ZEROS, "batch_size: 3 count: 2") + sample("files", FILES)
    write_python(tmp_path, "counts", COUNTER, config, modes=[mode])
    name = f"counts_{mode}"
    write_files(tmp_path / name, 1.5, 2.5)
    with serving_here(tmp_path) as server:
        executions = lines(tmp_path / name)
        assert len({each["instance"] for each in executions}) == 2
        for instance in {each["instance"] for each in executions}:
            rows = [each["rows"] for each in executions if each["instance"] == instance]
            assert rows == [[{"IN": [[0, 0]]}] * 3] * 2 + [[{"IN": [[1.5, 2.5]], "TEXT": [["hello"]]}]]
        ran = report(server, name)
        assert ran["ms"] > 0
        assert sorted(ran["instances"]) == [f"{name}_0_0", f"{name}_0_1"]
        for each in ran["instances"].values():
            assert [(one["sample"], one["count"]) for one in each] == [("zeros", 2), ("files", 1)]
        server.wait_for(rf"model '{name}', instance '{name}_0_1': warm-up sample 'zeros' ran 2 times in [0-9.]+ ms")
        assert (statistics(server, name)["inference_count"], statistics(server, name)["execution_count"]) == (0, 0)
        assert infer(server, name, 1, 2)["outputs"][0]["data"] == [1, 2]
        assert statistics(server, name)["inference_count"] == 1
        assert metric(server, "nv_inference_request_success", model=name, version="1") == 1


def test_a_sequence_model_sees_a_sequence_of_one_request_a_row(tmp_path: Path) -> None:
    controls = """
    sequence_batching { control_input [
      { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } },
      { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } },
      { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
    ] }
    """
    write_python(tmp_path, "seq", COUNTER, SHAPES + controls + sample("w", ZEROS, "batch_size: 2"), modes=["process"])
    with serving_here(tmp_path) as server:
        (execution,) = lines(tmp_path / "seq_process")
        row = {"IN": [[0, 0]], "START": [[1]], "END": [[1]]}
        assert execution["rows"] == [{**row, "ID": [[1]]}, {**row, "ID": [[2]]}]
        assert execution["sequences"] == [[1, 3], [2, 3]]
        assert statistics(server, "seq_process")["inference_count"] == 0


def test_states_begin_anew_for_each_row_and_execution(tmp_path: Path) -> None:
    write_accumulator(tmp_path, "sum", "direct { }")
    config = tmp_path / "sum" / "config.pbtxt"
    values = {"INPUT": "data_type: TYPE_INT32 dims: 1 random_data: true"}
    config.write_text(config.read_text() + "\n" + sample("w", values, "batch_size: 3 count: 2"))
    with serving_here(tmp_path) as server:
        assert [[each["count"] for each in ran] for ran in report(server, "sum")["instances"].values()] == [[2]]
        ask = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [5]}
        body = {"inputs": [ask], "parameters": {"sequence_id": 1, "sequence_start": True, "sequence_end": True}}
        response = http(server.http_port, "POST", "/v2/models/sum/infer", json.dumps(body).encode())
        assert response.json["outputs"][0]["data"] == [5]
        assert statistics(server, "sum")["inference_count"] == 1


def test_onnx(tmp_path: Path) -> None:
    write_onnx_identity(tmp_path, "onnx", "FP32")
    (tmp_path / "onnx" / "config.pbtxt").write_text(
        'backend: "onnxruntime"\n'
        + TWO
        + sample("w", {"INPUT0": "data_type: TYPE_FP32 dims: 5 random_data: true"}, "batch_size: 1 count: 3")
    )
    with serving_here(tmp_path) as server:
        assert [[each["count"] for each in ran] for ran in report(server, "onnx")["instances"].values()] == [[3], [3]]
        assert statistics(server, "onnx")["inference_count"] == 0


def test_a_failing_sample_is_a_failed_load_with_its_reason(tmp_path: Path) -> None:
    write_python(tmp_path, "bad", COUNTER, SHAPES + sample("zeros", ZEROS) + sample("thirteen", FILES), modes=MODES)
    for mode in MODES:
        write_files(tmp_path / f"bad_{mode}", 13, 1)
    write_python(tmp_path, "unread", COUNTER, SHAPES + sample("files", FILES), modes=["process"])
    with serving_here(tmp_path, errors=["failed", "Traceback", "problems in the configuration"]) as server:
        index = {row["name"]: row for row in http(server.http_port, "POST", "/v2/repository/index").json}
        for mode in MODES:
            reason = index[f"bad_{mode}"]["reason"]
            assert index[f"bad_{mode}"]["state"] == "UNAVAILABLE"
            assert "warm-up sample 'thirteen' failed: " in reason
            assert "13 is too much for me" in reason
            assert f"instance 'bad_{mode}_0'" in reason
        reason = index["unread_process"]["reason"]
        assert "warm-up sample 'files', input 'IN': there is no file '" in reason
        assert "config.pbtxt:" in reason


def test_the_old_version_serves_while_the_new_one_is_warmed(tmp_path: Path) -> None:
    write_python(tmp_path, "m", COUNTER, SHAPES + sample("files", FILES), modes=["process"])
    directory = tmp_path / "m_process"
    write_files(directory, 1, 2)
    options = ["--model-control-mode", "explicit", "--load-model", "m_process"]
    with serving_here(tmp_path, options=options, errors=["failed", "Traceback"]) as server:
        write_files(directory, 13, 2)
        (directory / "config.pbtxt").write_text((directory / "config.pbtxt").read_text() + "# another\n")
        loaded = http(server.http_port, "POST", "/v2/repository/models/m_process/load", b"{}")
        assert loaded.status == 400
        assert "warm-up sample 'files' failed: " in loaded.json["error"]
        assert infer(server, "m_process", 3, 4)["outputs"][0]["data"] == [3, 4]
        write_files(directory, 5, 6)
        assert http(server.http_port, "POST", "/v2/repository/models/m_process/load", b"{}").status == 200
        assert [each["rows"][0]["IN"] for each in lines(directory)] == [[[1, 2]], [[13, 2]], [[3, 4]], [[5, 6]]]


def test_an_instance_that_is_made_anew_is_warmed_again(tmp_path: Path) -> None:
    write_python(tmp_path, "m", COUNTER, SHAPES + sample("w", ZEROS), modes=["process"])
    with serving_here(tmp_path, errors=["was lost"]) as server:
        (first,) = lines(tmp_path / "m_process")
        os.kill(first["pid"], signal.SIGKILL)
        eventually(lambda: len(lines(tmp_path / "m_process")) == 2)
        server.wait_for("instance 'm_process_0' runs again")
        second = lines(tmp_path / "m_process")[1]
        assert second["rows"] == first["rows"]
        assert second["pid"] != first["pid"]
        assert infer(server, "m_process", 1, 2)["outputs"][0]["data"] == [1, 2]


def test_off_and_auto(tmp_path: Path) -> None:
    write_python(tmp_path, "m", COUNTER, SHAPES, modes=["process"])
    write_python(tmp_path, "says", COUNTER, SHAPES + sample("w", ZEROS), modes=["process"])
    with serving_here(tmp_path, options=["--warmup=off"]) as server:
        assert (lines(tmp_path / "m_process"), lines(tmp_path / "says_process")) == ([], [])
        assert report(server, "says_process") is None
    with serving_here(tmp_path, options=["--warmup=auto"]) as server:
        assert [len(each["rows"]) for each in lines(tmp_path / "m_process")] == [1, 4]
        assert [len(each["rows"]) for each in lines(tmp_path / "says_process")] == [1]
        server.wait_for(r"warm-up sample 'generated, 4 rows' ran once in ")
