"""What models ask of the server: the log, metrics, loading; and the helpers of the module that they import."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modserve.backends.python.worker import host
from modserve.backends.python.worker import triton_python_backend_utils as pb
from modserve.backends.python.worker.errors import TritonModelException


class Server:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def log(self, level: str, message: str) -> None:
        self.heard.append((level, message))

    def control(self, operation: str, arguments: "Mapping[str, Any]") -> Any:
        self.heard.append((operation, dict(arguments)))
        return {"metric": 7, "metric_value": 2.5, "ready": True}.get(operation)

    def metric(self, metric: int, operation: str, value: float, times: int) -> None:
        self.heard.append((metric, operation, value, times))

    def drop_metric(self, metric: int) -> None:
        self.heard.append(("dropped", metric))


@pytest.fixture
def server() -> "Iterator[Server]":
    server = Server()
    host.set_of_thread(server)  # type: ignore[arg-type]
    yield server
    host.set_of_thread(None)


def test_log(server: Server) -> None:
    pb.Logger.log("a")
    pb.Logger.log("b", pb.Logger.WARNING)
    pb.Logger.log("c", level=pb.Logger.LogLevel.ERROR)  # type: ignore[attr-defined]
    pb.Logger.log_info("d")
    pb.Logger.log_warn("e")
    pb.Logger.log_error("f")
    pb.Logger.log_verbose(message="g")
    assert server.heard == [
        ("INFO", "a"),
        ("WARNING", "b"),
        ("ERROR", "c"),
        ("INFO", "d"),
        ("WARNING", "e"),
        ("ERROR", "f"),
        ("VERBOSE", "g"),
    ]
    for arguments in ((3,), ("a", 0)):
        with pytest.raises(TypeError, match="must be"):
            pb.Logger.log(*arguments)


def test_log_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    pb.Logger.log_warn("hello")
    assert capsys.readouterr().err == "WARNING hello\n"


def test_metrics(server: Server) -> None:
    family = pb.MetricFamily(name="n", description="d", kind=pb.MetricFamily.GAUGE)
    metric = family.Metric(labels={"a": "b"})
    metric.increment(2)
    metric.set(np.float32(3))  # type: ignore[arg-type]
    assert metric.value() == 2.5
    del metric
    assert server.heard == [
        ("metric_family", {"name": "n", "description": "d", "kind": "GAUGE"}),
        ("metric", {"family": "n", "labels": {"a": "b"}, "buckets": None}),
        (7, "increment", 2.0, 1),
        (7, "set", 3.0, 1),
        ("metric_value", {"metric": 7}),
        ("dropped", 7),
    ]


def test_histograms(server: Server) -> None:
    family = pb.MetricFamily("n", "d", pb.MetricFamily.HISTOGRAM)
    family.Metric(buckets=[1, 2.5]).observe(2, 3)
    assert (7, "observe", 2.0, 3) in server.heard
    assert ("metric", {"family": "n", "labels": {}, "buckets": [1.0, 2.5]}) in server.heard
    with pytest.raises(TritonModelException, match="Missing required buckets"):
        family.Metric()
    with pytest.raises(TritonModelException, match="Buckets must be a list"):
        family.Metric(buckets=(1,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a bucket needs a number, not str"):
        family.Metric(buckets=["1"])  # type: ignore[list-item]


def test_metrics_that_cannot_be(server: Server) -> None:
    family = pb.MetricFamily("n", "d", pb.MetricFamily.GAUGE)
    with pytest.raises(TritonModelException, match="Unexpected buckets found"):
        family.Metric(buckets=[1.0])
    with pytest.raises(TritonModelException, match="Labels must be a dictionary"):
        family.Metric(labels=[1])  # type: ignore[arg-type]
    with pytest.raises(TritonModelException, match="Labels must be texts: 'a' is 1"):
        family.Metric(labels={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="needs a number, not str"):
        family.Metric().set("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"kind must be MetricFamily.COUNTER"):
        pb.MetricFamily("n", "d", 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name must be a str"):
        pb.MetricFamily(1, "d", pb.MetricFamily.GAUGE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "operation", "value", "text"),
    [
        ("COUNTER", "set", 1, "a metric of kind COUNTER has no set()"),
        ("COUNTER", "observe", 1, "a metric of kind COUNTER has no observe()"),
        ("COUNTER", "increment", -1, "a counter cannot be incremented by -1, which is less than 0"),
        ("GAUGE", "observe", 1, "a metric of kind GAUGE has no observe()"),
        ("HISTOGRAM", "increment", 1, "a metric of kind HISTOGRAM has no increment()"),
    ],
)
def test_what_a_metric_cannot_do(server: Server, kind: str, operation: str, value: float, text: str) -> None:
    buckets = [1.0] if kind == "HISTOGRAM" else None
    metric = pb.MetricFamily("n", "d", pb.MetricKind[kind]).Metric(buckets=buckets)
    with pytest.raises(TritonModelException, match=re.escape(text)):
        getattr(metric, operation)(value)


def test_loading(server: Server) -> None:
    pb.load_model("m")
    pb.load_model(model_name="m", config="{}", files={"file:1/model.py": bytearray(b"x")})  # type: ignore[dict-item]
    pb.unload_model("m")
    pb.unload_model("m", unload_dependents=True)
    assert pb.is_model_ready("m")
    assert pb.is_model_ready(model_name="m", model_version="2")
    assert server.heard == [
        ("load", {"name": "m", "config": None, "files": None}),
        ("load", {"name": "m", "config": "{}", "files": {"file:1/model.py": b"x"}}),
        ("unload", {"name": "m", "unload_dependents": False}),
        ("unload", {"name": "m", "unload_dependents": True}),
        ("ready", {"name": "m", "version": None}),
        ("ready", {"name": "m", "version": "2"}),
    ]


@pytest.mark.usefixtures("server")
def test_what_cannot_be_loaded() -> None:
    with pytest.raises(TritonModelException, match="failed to load model 'm', files should be a dictionary"):
        pb.load_model("m", files=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="file 'f' must be bytes, not str"):
        pb.load_model("m", files={"f": "x"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="model_name must be a str"):
        pb.unload_model(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model_version must be a str, not int"):
        pb.is_model_ready("m", 1)  # type: ignore[arg-type]


NUMBERS = [
    (1, "BOOL", np.bool_),
    (2, "UINT8", np.uint8),
    (3, "UINT16", np.uint16),
    (4, "UINT32", np.uint32),
    (5, "UINT64", np.uint64),
    (6, "INT8", np.int8),
    (7, "INT16", np.int16),
    (8, "INT32", np.int32),
    (9, "INT64", np.int64),
    (10, "FP16", np.float16),
    (11, "FP32", np.float32),
    (12, "FP64", np.float64),
    (13, "STRING", np.object_),
    (14, "BF16", ml_dtypes.bfloat16),
]


@pytest.mark.parametrize(("number", "name", "numpy_type"), NUMBERS)
def test_types(number: int, name: str, numpy_type: Any) -> None:
    assert pb.triton_to_numpy_type(number) is numpy_type
    assert pb.numpy_to_triton_type(numpy_type) == number
    assert pb.numpy_to_triton_type(np.dtype(numpy_type)) == number
    assert pb.triton_string_to_numpy(f"TYPE_{name}") == (bool if name == "BOOL" else numpy_type)


def test_types_that_are_not() -> None:
    assert pb.triton_to_numpy_type(0) is None
    assert pb.triton_to_numpy_type(15) is None
    assert pb.numpy_to_triton_type(np.bytes_) == 13
    assert pb.numpy_to_triton_type(np.complex64) is None
    assert pb.numpy_to_triton_type("nonsense") is None
    with pytest.raises(KeyError):
        pb.triton_string_to_numpy("TYPE_NONE")


def test_configurations() -> None:
    config = {"input": [{"name": "A"}, {"name": "B", "dims": [1]}], "output": [{"name": "C"}]}
    assert pb.get_input_config_by_name(config, "B") == {"name": "B", "dims": [1]}
    assert pb.get_input_config_by_name(config, "C") is None
    assert pb.get_output_config_by_name(config, "C") == {"name": "C"}
    assert pb.get_output_config_by_name({}, "C") is None
    assert not pb.using_decoupled_model_transaction_policy(config)
    assert pb.using_decoupled_model_transaction_policy({"model_transaction_policy": {"decoupled": True}})
    assert not pb.using_decoupled_model_transaction_policy({"model_transaction_policy": {"decoupled": False}})


def test_tensors_by_name() -> None:
    a, b = pb.Tensor("A", np.zeros(1)), pb.Tensor("B", np.zeros(1))
    request = pb.InferenceRequest(model_name="m", inputs=[a, b], requested_output_names=[])
    assert pb.get_input_tensor_by_name(request, "B") is b
    assert pb.get_input_tensor_by_name(request, "C") is None
    assert pb.get_output_tensor_by_name(pb.InferenceResponse([a, b]), "A") is a
    assert pb.get_output_tensor_by_name(pb.InferenceResponse([]), "A") is None


def test_the_directory_of_a_model_outside_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from modserve.backends.python.worker import modules

    monkeypatch.setattr(modules, "_directory_of_process", None)
    with pytest.raises(RuntimeError, match="only in a model"):
        pb.get_model_dir()


def test_every_name_of_triton_is_there() -> None:
    names = (
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START TRITONSERVER_REQUEST_FLAG_SEQUENCE_END "
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE "
        "TRITONSERVER_MEMORY_GPU TRITONSERVER_MEMORY_CPU TRITON_STRING_TO_NUMPY InferenceRequest InferenceResponse "
        "InferenceResponseSender InferenceTrace Logger MemoryType Metric MetricFamily MetricKind ModelConfig "
        "PreferredMemory ResponseIterator Tensor TritonError TritonModelException deserialize_bytes_tensor "
        "get_input_config_by_name get_input_tensor_by_name get_model_dir get_output_config_by_name "
        "get_output_tensor_by_name is_model_ready load_model numpy_to_triton_type serialize_byte_tensor "
        "triton_string_to_numpy triton_to_numpy_type unload_model using_decoupled_model_transaction_policy "
        "COUNTER GAUGE HISTOGRAM"
    )
    assert [name for name in names.split() if not hasattr(pb, name)] == []
    assert sorted(set(pb.__all__)) == sorted(pb.__all__)
    assert all(hasattr(pb, name) for name in pb.__all__)
