"""Requests of different lengths: padded, or joined without padding, each gets what it gets alone."""

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper, numpy_helper
from open_server import OpenServer
from server_process import ServerProcess
from wire import HOST

from encoder import EncoderSize, write_model

SIZE = EncoderSize(layers=2, width=32, heads=4, feed_forward=64, sequence=64, vocabulary=100)
WAITS = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 600000000 }"
"""For all the requests of a test, however long they take to come."""
ENCODER = f"""
max_batch_size: 8
input [
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }}
]
output {{ name: "embedding" data_type: TYPE_FP32 dims: [ 32 ] }}
instance_group {{ count: 1 }}
{WAITS}
parameters {{ key: "padding.axis.input_ids" value {{ string_value: "0" }} }}
parameters {{ key: "padding.value.input_ids" value {{ string_value: "99" }} }}
parameters {{ key: "padding.mask" value {{ string_value: "attention_mask" }} }}
parameters {{ key: "padding.multiple_of" value {{ string_value: "4" }} }}
parameters {{ key: "scheduling.batch_sizes" value {{ string_value: "1,4,8" }} }}
"""
TAGGER = f"""
max_batch_size: 8
input {{ name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }}
output {{ name: "tags" data_type: TYPE_FP32 dims: [ -1, 3 ] }}
instance_group {{ count: 1 }}
{WAITS}
parameters {{ key: "padding.axis.ids" value {{ string_value: "0" }} }}
parameters {{ key: "padding.unpad.tags" value {{ string_value: "0" }} }}
"""
RAGGED = f"""
max_batch_size: 8
input {{ name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }}
batch_input {{
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "BOUNDS" data_type: TYPE_INT32 source_input: "INPUT"
}}
batch_input {{ kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_FP32 source_input: "INPUT" }}
output {{ name: "DOUBLED" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "LENGTH" data_type: TYPE_FP32 dims: [ 1 ] }}
output {{ name: "BEGIN" data_type: TYPE_INT32 dims: [ ] reshape {{ shape: [ ] }} }}
batch_output {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "DOUBLED" source_input: "INPUT" }}
instance_group {{ count: 1 }}
{WAITS}
""".replace("dims: [ ] reshape", "dims: [ 1 ] reshape")
LENGTHS = (3, 9, 1, 16, 5, 9, 30, 2)


def info(name: str, kind: int, *shape: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], **values: Any) -> None:
    weights = [numpy_helper.from_array(array, name) for name, array in values.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_tagger(path: Path) -> None:
    """Three numbers for each token."""
    table = np.random.default_rng(2).standard_normal((100, 3)).astype(np.float32)
    save(
        path,
        [helper.make_node("Gather", ["table", "ids"], ["tags"])],
        [info("ids", TensorProto.INT64, "batch", "length")],
        [info("tags", TensorProto.FLOAT, "batch", "length", 3)],
        table=table,
    )


def write_ragged(path: Path) -> None:
    """Every element doubled; the length of every item; where every request's elements begin, in the batch."""
    save(
        path,
        [
            helper.make_node("Add", ["INPUT", "INPUT"], ["DOUBLED"]),
            helper.make_node("Identity", ["SHAPES"], ["LENGTH"]),
            helper.make_node("Slice", ["BOUNDS", "zero", "last"], ["BEGIN"]),
        ],
        [
            info("INPUT", TensorProto.FLOAT, "elements"),
            info("BOUNDS", TensorProto.INT32, "bounds"),
            info("SHAPES", TensorProto.FLOAT, "items", "dimensions"),
        ],
        [
            info("DOUBLED", TensorProto.FLOAT, "elements"),
            info("LENGTH", TensorProto.FLOAT, "items", 1),
            info("BEGIN", TensorProto.INT32, "requests"),
        ],
        zero=np.array([0]),
        last=np.array([-1]),
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("lengths")
    at_once = ENCODER.replace(WAITS, "dynamic_batching { }")
    configs = {"encoder": ENCODER, "encoder_at_once": at_once, "tagger": TAGGER, "ragged": RAGGED}
    for name, config in configs.items():
        (found / name / "1").mkdir(parents=True)
        (found / name / "config.pbtxt").write_text(config)
    for name in ("encoder", "encoder_at_once"):
        write_model(found / name / "1" / "model.onnx", SIZE, seed=3)
    write_tagger(found / "tagger" / "1" / "model.onnx")
    write_ragged(found / "ragged" / "1" / "model.onnx")
    return found


@pytest.fixture(scope="module")
def lengths_server(repository: Path, open_server: OpenServer) -> Iterator[ServerProcess]:
    with open_server.host(repository) as running:
        yield running


def address(port: int) -> str:
    return f"{HOST}:{port}"


def ask(url: str, model: str, name: str, arrays: list[Any], datatype: str) -> list[Any]:
    """One request each, all at the same time."""

    def one(array: Any) -> Any:
        with grpcclient.InferenceServerClient(url) as client:
            tensor = grpcclient.InferInput(name, array.shape, datatype)
            tensor.set_data_from_numpy(array)
            return client.infer(model, [tensor])

    with ThreadPoolExecutor(len(arrays)) as threads:
        return list(threads.map(one, arrays))


def recent(server: ServerProcess, model: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address(server.http_port)}/v2/models/{model}/batches") as answer:
        found: dict[str, Any] = json.load(answer)["recent"][0]
    return found


def tokens() -> list[Any]:
    generator = np.random.default_rng(4)
    return [generator.integers(0, 99, (1, length)) for length in LENGTHS]


def test_an_attention_encoder(lengths_server: ServerProcess, repository: Path) -> None:
    """Clients give no mask, and get what they get from the engine alone, with no padding at all."""
    alone = onnxruntime.InferenceSession(str(repository / "encoder" / "1" / "model.onnx"))
    answers = ask(address(lengths_server.grpc_port), "encoder", "input_ids", tokens(), "INT64")
    for ids, answer in zip(tokens(), answers, strict=True):
        [expected] = alone.run(["embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        np.testing.assert_allclose(answer.as_numpy("embedding"), expected, atol=1e-5)
    batch = recent(lengths_server, "encoder")
    assert (batch["requests"], batch["elements"], batch["padding"]) == (8, sum(LENGTHS), 8 * 32 - sum(LENGTHS))


def test_a_mask_of_the_client(lengths_server: ServerProcess, repository: Path) -> None:
    """Over HTTP, and with rows added up to four."""
    alone = onnxruntime.InferenceSession(str(repository / "encoder" / "1" / "model.onnx"))
    ids = np.array([[5, 6, 7, 8, 9], [5, 6, 7, 1, 1]])
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    inputs = []
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        inputs.append(httpclient.InferInput(name, array.shape, "INT64"))
        inputs[-1].set_data_from_numpy(array)
    with httpclient.InferenceServerClient(address(lengths_server.http_port)) as client:
        found = client.infer("encoder_at_once", inputs).as_numpy("embedding")
        shown = client.get_model_config("encoder_at_once")["input"]
    [expected] = alone.run(["embedding"], {"input_ids": ids, "attention_mask": mask})
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert [each["optional"] for each in shown] == [False, True]
    batch = recent(lengths_server, "encoder_at_once")
    assert (batch["batch_size"], batch["elements"], batch["padding"]) == (2, 10, 4 * 8 - 10)


def test_outputs_of_the_length_of_the_request(lengths_server: ServerProcess, repository: Path) -> None:
    alone = onnxruntime.InferenceSession(str(repository / "tagger" / "1" / "model.onnx"))
    answers = ask(address(lengths_server.grpc_port), "tagger", "ids", tokens(), "INT64")
    for ids, answer in zip(tokens(), answers, strict=True):
        [expected] = alone.run(["tags"], {"ids": ids})
        np.testing.assert_array_equal(answer.as_numpy("tags"), expected)
    assert recent(lengths_server, "tagger")["requests"] == 8


def test_ragged_batches(lengths_server: ServerProcess) -> None:
    arrays = [np.arange(length, dtype=np.float32).reshape(1, length) for length in LENGTHS]
    answers = ask(address(lengths_server.grpc_port), "ragged", "INPUT", arrays, "FP32")
    begins = {}
    for array, answer in zip(arrays, answers, strict=True):
        np.testing.assert_array_equal(answer.as_numpy("DOUBLED"), 2 * array)
        np.testing.assert_array_equal(answer.as_numpy("LENGTH"), [[array.shape[1]]])
        begins[int(answer.as_numpy("BEGIN").reshape(-1)[0])] = array.shape[1]
    # One batch: the requests follow each other without a gap, whichever came first.
    assert sorted(begins) == [
        sum(length for begin, length in begins.items() if begin < mine) for mine in sorted(begins)
    ]
    assert recent(lengths_server, "ragged")["requests"] == 8


def test_counted_in_the_metrics(lengths_server: ServerProcess) -> None:
    with urllib.request.urlopen(f"http://{address(lengths_server.metrics_port)}/metrics") as answer:
        page = answer.read().decode()
    assert 'modserve_batch_elements{kind="padding",model="encoder",version="1"}' in page
    assert 'modserve_batch_elements{model="ragged"' not in page
