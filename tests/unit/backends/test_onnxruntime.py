"""The ONNX Runtime backend, on models made on the spot."""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from modserve.backends.api import ModelSource, Placement
from modserve.backends.onnxruntime import options as onnxruntime_options
from modserve.backends.onnxruntime.backend import OnnxRuntimeBackend, OnnxRuntimeModel
from modserve.backends.onnxruntime.options import visible_gpus
from modserve.core.configuration.model_config import DescribedTensor, InstanceKind, ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array
from modserve.execution.placement import thread_share
from modserve.testing import config, instance_spec

CPU = Placement(InstanceKind.CPU)
ELEMENT = {
    dtypes.BOOL: TensorProto.BOOL,
    dtypes.UINT8: TensorProto.UINT8,
    dtypes.UINT16: TensorProto.UINT16,
    dtypes.UINT32: TensorProto.UINT32,
    dtypes.UINT64: TensorProto.UINT64,
    dtypes.INT8: TensorProto.INT8,
    dtypes.INT16: TensorProto.INT16,
    dtypes.INT32: TensorProto.INT32,
    dtypes.INT64: TensorProto.INT64,
    dtypes.FP16: TensorProto.FLOAT16,
    dtypes.BF16: TensorProto.BFLOAT16,
    dtypes.FP32: TensorProto.FLOAT,
    dtypes.FP64: TensorProto.DOUBLE,
    dtypes.BYTES: TensorProto.STRING,
}
Dimensions = Sequence[int | str | None]


def write(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Path:
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)
    return path


def copier(path: Path, *datatypes: Datatype, dims: Dimensions = ("batch", 3)) -> Path:
    """A model whose outputs OUT0, OUT1 … are its inputs IN0, IN1 …"""
    nodes, inputs, outputs = [], [], []
    for index, datatype in enumerate(datatypes):
        nodes.append(helper.make_node("Identity", [f"IN{index}"], [f"OUT{index}"]))
        inputs.append(helper.make_tensor_value_info(f"IN{index}", ELEMENT[datatype], dims))
        outputs.append(helper.make_tensor_value_info(f"OUT{index}", ELEMENT[datatype], dims))
    return write(path, nodes, inputs, outputs)


def configured(*datatypes: Datatype, **more: Any) -> ModelConfig:
    return config(
        inputs=tuple(TensorSpec(f"IN{index}", datatype, (3,)) for index, datatype in enumerate(datatypes)),
        outputs=tuple(TensorSpec(f"OUT{index}", datatype, (3,)) for index, datatype in enumerate(datatypes)),
        **more,
    )


def opened(path: Path, given: ModelConfig | None = None, **more: Any) -> OnnxRuntimeModel:
    source = ModelSource(given or configured(dtypes.FP32), 1, path, path.parent, **more)
    return OnnxRuntimeBackend().open(source)


def execute(path: Path, given: ModelConfig, inputs: dict[str, Array], *outputs: str) -> dict[str, Array]:
    model = opened(path, given)
    instance = model.instance(instance_spec(given))
    found = dict(instance.execute(inputs, outputs))
    instance.close()
    model.close()
    return found


def refusal(path: Path, given: ModelConfig | None = None) -> str:
    with pytest.raises(ModserveError) as caught:
        opened(path, given)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def values(datatype: Datatype, *shape: int) -> Array:
    """Arbitrary elements; for numbers of arbitrary bits."""
    count = int(np.prod(shape))
    if datatype is dtypes.BYTES:
        texts = np.empty(count, dtype=object)
        texts[:] = [f"tëxt {index}".encode() for index in range(count)]
        return texts.reshape(shape)
    if datatype is dtypes.BOOL:
        flags: Array = np.arange(count) % 2 == 0
        return flags.reshape(shape)
    raw = np.random.default_rng(1).bytes(count * datatype.size)
    array: Array = np.frombuffer(raw, dtype=datatype.numpy).reshape(shape)
    return array


def plain(array: Array) -> Any:
    """What may be compared: texts as bytes, numbers by their bits."""
    if array.dtype == object:
        return [element if isinstance(element, bytes) else element.encode() for element in array.reshape(-1)]
    return array.tobytes()


# Executions


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
@pytest.mark.parametrize("rows", [2, 0])
def test_every_datatype(tmp_path: Path, datatype: Datatype, rows: int) -> None:
    path = copier(tmp_path / "model.onnx", datatype)
    array = values(datatype, rows, 3)
    found = execute(path, configured(datatype), {"IN0": array}, "OUT0")["OUT0"]
    assert (found.shape, found.dtype) == (array.shape, datatype.numpy)
    assert plain(found) == plain(array)


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
def test_scalars(tmp_path: Path, datatype: Datatype) -> None:
    path = copier(tmp_path / "model.onnx", datatype, dims=())
    array = values(datatype, 1).reshape(())
    found = execute(path, configured(datatype, max_batch_size=0), {"IN0": array}, "OUT0")["OUT0"]
    assert found.shape == ()
    assert plain(np.asarray(found, dtype=datatype.numpy)) == plain(array)


def test_bfloat16_beside_others(tmp_path: Path) -> None:
    kinds = (dtypes.BF16, dtypes.FP32, dtypes.BOOL)
    path = copier(tmp_path / "model.onnx", *kinds)
    inputs = {f"IN{index}": values(datatype, 2, 3) for index, datatype in enumerate(kinds)}
    found = execute(path, configured(*kinds), inputs, "OUT2", "OUT0", "OUT1")
    assert list(found) == ["OUT2", "OUT0", "OUT1"]
    assert [plain(found[f"OUT{index}"]) for index in range(3)] == [plain(inputs[f"IN{index}"]) for index in range(3)]


def test_bfloat16_and_strings(tmp_path: Path) -> None:
    path = copier(tmp_path / "model.onnx", dtypes.BF16, dtypes.BYTES)
    given = configured(dtypes.BF16, dtypes.BYTES)
    with pytest.raises(ModserveError, match="cannot return BF16 outputs of a model with string inputs") as caught:
        execute(path, given, {}, "OUT1")
    assert caught.value.code is Code.UNSUPPORTED
    inputs = {"IN0": values(dtypes.BF16, 2, 3), "IN1": values(dtypes.BYTES, 2, 3)}
    found = execute(path, replace(given, outputs=given.outputs[1:]), inputs, "OUT1")
    assert plain(found["OUT1"]) == plain(inputs["IN1"])


def test_a_bfloat16_output_outlives_the_session(tmp_path: Path) -> None:
    path = copier(tmp_path / "model.onnx", dtypes.BF16)
    given = configured(dtypes.BF16)
    model = opened(path, given)
    instance = model.instance(instance_spec(given))
    array = values(dtypes.BF16, 2, 3)
    first = instance.execute({"IN0": array}, ("OUT0",))["OUT0"]
    instance.execute({"IN0": np.zeros_like(array)}, ("OUT0",))
    instance.close()
    model.close()
    assert plain(first) == plain(array)


def test_a_closed_instance_holds_no_session(tmp_path: Path) -> None:
    """Its memory is counted, and returned to the system, before the last reference to the instance has gone."""
    given = configured(dtypes.FP32)
    model = opened(copier(tmp_path / "model.onnx", dtypes.FP32), given)
    instance = model.instance(instance_spec(given))
    session = weakref.ref(instance._session)
    model.close()
    assert session() is not None
    instance.close()
    assert session() is None


def test_arrays_that_are_no_plain_buffers(tmp_path: Path) -> None:
    path = copier(tmp_path / "model.onnx", dtypes.BF16, dtypes.INT32)
    given = configured(dtypes.BF16, dtypes.INT32)
    inputs = {"IN0": values(dtypes.BF16, 3, 2).T, "IN1": values(dtypes.INT32, 3, 2).T}
    found = execute(path, given, inputs, "OUT0", "OUT1")
    assert [plain(found[name]) for name in ("OUT0", "OUT1")] == [plain(inputs[name]) for name in ("IN0", "IN1")]


def test_only_the_wanted_outputs_are_computed(tmp_path: Path) -> None:
    path = copier(tmp_path / "model.onnx", dtypes.INT32, dtypes.INT32)
    array = values(dtypes.INT32, 1, 3)
    found = execute(path, configured(dtypes.INT32, dtypes.INT32), {"IN0": array, "IN1": array}, "OUT1")
    assert list(found) == ["OUT1"]


def test_instances_share_the_model(tmp_path: Path) -> None:
    given = configured(dtypes.INT32)
    model = opened(copier(tmp_path / "model.onnx", dtypes.INT32), given)
    one, two = model.instance(instance_spec(given)), model.instance(instance_spec(given))
    one.close()
    array = values(dtypes.INT32, 1, 3)
    assert plain(two.execute({"IN0": array}, ("OUT0",))["OUT0"]) == plain(array)


@pytest.mark.parametrize(
    ("inputs", "code", "text"),
    [
        ({"IN0": np.zeros((1, 4), np.float32)}, Code.INTERNAL, "onnxruntime refused the request: .*Got: 4 Expected: 3"),
        ({"IN0": np.array([[b"\xff"] * 3], dtype=object)}, Code.INVALID_ARG, "'IN0' holds bytes that are not UTF-8"),
    ],
    ids=["shape", "text"],
)
def test_requests_that_do_not_fit_the_graph(tmp_path: Path, inputs: dict[str, Array], code: Code, text: str) -> None:
    datatype = dtypes.FP32 if inputs["IN0"].dtype == np.float32 else dtypes.BYTES
    path = copier(tmp_path / "model.onnx", datatype)
    with pytest.raises(ModserveError, match=text) as caught:
        execute(path, configured(datatype), inputs, "OUT0")
    assert caught.value.code is code
    assert "\n" not in caught.value.message


def test_failures_in_the_graph_are_the_models_fault(tmp_path: Path) -> None:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("IN0", "IN1")]
    outputs = [helper.make_tensor_value_info("OUT0", TensorProto.FLOAT, ["n"])]
    path = write(tmp_path / "model.onnx", [helper.make_node("Add", ["IN0", "IN1"], ["OUT0"])], inputs, outputs)
    arrays = {"IN0": np.zeros(2, np.float32), "IN1": np.zeros(3, np.float32)}
    with pytest.raises(Exception, match="Add") as caught:
        execute(path, configured(dtypes.FP32, dtypes.FP32, max_batch_size=0), arrays, "OUT0")
    assert not isinstance(caught.value, ModserveError)


# Descriptions


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
def test_description(tmp_path: Path, datatype: Datatype) -> None:
    described = opened(copier(tmp_path / "model.onnx", datatype, dims=("batch", 3, None))).describe()
    assert described is not None
    assert described.inputs == (DescribedTensor("IN0", datatype, (-1, 3, -1), symbols=("batch", "", "")),)
    assert described.outputs == (DescribedTensor("OUT0", datatype, (-1, 3, -1), symbols=("batch", "", "")),)


def test_description_of_scalars(tmp_path: Path) -> None:
    described = opened(copier(tmp_path / "model.onnx", dtypes.FP32, dims=())).describe()
    assert described is not None
    assert described.inputs[0].shape == ()


@pytest.mark.parametrize(
    ("options", "expected"), [({}, 4), ({"default-max-batch-size": "16"}, 16)], ids=["default", "set"]
)
def test_default_max_batch_size(tmp_path: Path, options: dict[str, str], expected: int) -> None:
    described = opened(copier(tmp_path / "model.onnx", dtypes.FP32), options=options).describe()
    assert described is not None
    assert described.default_max_batch_size == expected


def test_tensors_without_a_v2_datatype(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("OUT0", TensorProto.FLOAT, None)
    given = helper.make_tensor_value_info("IN0", TensorProto.FLOAT, [2])
    path = write(
        tmp_path / "model.onnx", [helper.make_node("SequenceConstruct", ["IN0"], ["OUT0"])], [given], [sequence]
    )
    with pytest.raises(ModserveError) as caught:
        opened(path).describe()
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        "tensor 'OUT0' of the ONNX graph is a seq(tensor(float)), which has no v2 datatype; ConcatFromSequence or "
        "SequenceAt, as the graph's last node, converts it to a tensor"
    )


# Files


def test_a_directory_holds_the_weights_too(tmp_path: Path) -> None:
    copier(tmp_path / "model.onnx" / "model.onnx", dtypes.INT32)
    array = values(dtypes.INT32, 1, 3)
    assert execute(tmp_path / "model.onnx", configured(dtypes.INT32), {"IN0": array}, "OUT0")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert refusal(path) == f"unable to find model file '{path}' for model 'model'"


@pytest.mark.parametrize("keep", [0.5, 0.0], ids=["half", "nothing"])
def test_a_file_that_is_cut(tmp_path: Path, keep: float) -> None:
    path = copier(tmp_path / "model.onnx", dtypes.FP32)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    message = refusal(path)
    assert message.startswith(f"failed to load model 'model' from '{path}': ")
    assert "\n" not in message


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "failed to load model 'model'" in refusal(path)


# Session options


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[ort.SessionOptions]:
    """The options of every session that is made."""
    made: list[ort.SessionOptions] = []
    make = ort.InferenceSession

    def spy(path: str, options: ort.SessionOptions, **more: Any) -> ort.InferenceSession:
        made.append(options)
        return make(path, options, **more)

    monkeypatch.setattr(ort, "InferenceSession", spy)
    return made


@pytest.mark.parametrize(
    ("parameters", "option", "expected"),
    [
        ({}, "execution_mode", ort.ExecutionMode.ORT_SEQUENTIAL),
        ({"execution_mode": "0"}, "execution_mode", ort.ExecutionMode.ORT_SEQUENTIAL),
        ({"execution_mode": "1"}, "execution_mode", ort.ExecutionMode.ORT_PARALLEL),
        ({}, "inter_op_num_threads", 1),
        ({"inter_op_thread_count": "3"}, "inter_op_num_threads", 3),
        ({"inter_op_thread_count": "0"}, "inter_op_num_threads", 1),
        ({"intra_op_thread_count": "5"}, "intra_op_num_threads", 5),
        ({"intra_op_thread_count": "0"}, "intra_op_num_threads", 1),
        ({"enable_mem_arena": "false"}, "enable_cpu_mem_arena", False),
        ({"enable_mem_arena": "TRUE"}, "enable_cpu_mem_arena", True),
        ({}, "enable_cpu_mem_arena", True),
        ({"enable_mem_arena": "0"}, "enable_cpu_mem_arena", False),
        ({}, "enable_mem_pattern", True),
        ({"enable_mem_pattern": "0"}, "enable_mem_pattern", False),
    ],
    ids=str,
)
def test_session_parameters(
    tmp_path: Path, sessions: list[ort.SessionOptions], parameters: dict[str, str], option: str, expected: object
) -> None:
    opened(copier(tmp_path / "model.onnx", dtypes.FP32), configured(dtypes.FP32, parameters=parameters))
    assert [getattr(options, option) for options in sessions] == [expected]


def test_session_entries_by_their_own_keys(tmp_path: Path, sessions: list[ort.SessionOptions]) -> None:
    given = configured(dtypes.FP32, parameters={"session.intra_op.allow_spinning": "0", "note": "not for the session"})
    opened(copier(tmp_path / "model.onnx", dtypes.FP32), given)
    assert sessions[0].get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    "name",
    ["intra_op_thread_count", "inter_op_thread_count", "execution_mode", "enable_mem_arena", "enable_mem_pattern"],
)
@pytest.mark.parametrize("value", ["many", "-1", "1.5", ""])
def test_session_parameters_that_are_no_numbers(tmp_path: Path, name: str, value: str) -> None:
    path = copier(tmp_path / "model.onnx", dtypes.FP32)
    message = refusal(path, configured(dtypes.FP32, parameters={name: value}))
    expected = "true or false" if name.startswith("enable") else "an integer of 0 or more"
    assert message == f"model 'model': parameter '{name}' is '{value}', expected {expected}"


def test_an_execution_mode_that_is_none(tmp_path: Path) -> None:
    path = copier(tmp_path / "model.onnx", dtypes.FP32)
    message = refusal(path, configured(dtypes.FP32, parameters={"execution_mode": "2"}))
    assert message == ("model 'model': parameter 'execution_mode' is 2, expected 0 or 1")


LEVELS = ort.GraphOptimizationLevel


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (None, LEVELS.ORT_ENABLE_ALL),
        (0, LEVELS.ORT_ENABLE_ALL),
        (7, LEVELS.ORT_ENABLE_ALL),
        (-1, LEVELS.ORT_ENABLE_BASIC),
        (1, LEVELS.ORT_ENABLE_EXTENDED),
        (2, LEVELS.ORT_DISABLE_ALL),
    ],
    ids=str,
)
def test_graph_level(tmp_path: Path, sessions: list[ort.SessionOptions], level: int | None, expected: object) -> None:
    given = configured(dtypes.FP32, graph_optimization_level=level)
    opened(copier(tmp_path / "model.onnx", dtypes.FP32), given)
    assert [options.graph_optimization_level for options in sessions] == [expected]


@pytest.mark.parametrize(("level", "count"), [(None, 0), (-1, 0), (0, 0), (1, 0), (2, 0), (7, 1), (-2, 1)])
def test_a_graph_level_that_stands_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int | None, count: int
) -> None:
    opened(copier(tmp_path / "model.onnx", dtypes.FP32), configured(dtypes.FP32, graph_optimization_level=level))
    assert len(caplog.messages) == count
    for message in caplog.messages:
        assert message.startswith(f"model 'model': optimization.graph.level is {level}, which means all optimi")


@pytest.mark.parametrize(
    ("cpu_threads", "cpu_instances", "expected"),
    [(1, 1, 1), (8, 1, 8), (1, 4, 1), (4, 2, 7), (3, 3, 7)],
    ids=str,
)
def test_intra_op_threads(
    tmp_path: Path, sessions: list[ort.SessionOptions], cpu_threads: int, cpu_instances: int, expected: int
) -> None:
    path = copier(tmp_path / "model.onnx", dtypes.FP32)
    opened(path, cpu_threads=cpu_threads, cpu_instances=cpu_instances)
    assert [options.intra_op_num_threads for options in sessions] == [expected]


def test_threads_are_never_more_than_cores(tmp_path: Path, sessions: list[ort.SessionOptions]) -> None:
    path = copier(tmp_path / "model.onnx", dtypes.FP32)
    for cores in (1, 2, 6, 16):
        for instances in (1, 2, 3, 8):
            opened(path, cpu_threads=thread_share(cores, instances), cpu_instances=instances)
            # A session's own threads, less the caller's that it counts as one, and the instances' threads.
            busy = sessions.pop().intra_op_num_threads - 1 + instances
            assert busy <= max(cores, instances)


@pytest.mark.parametrize(("instances", "expected"), [(1, 6), (2, 11), (3, 16)])
def test_intra_op_threads_are_for_each_instance(
    tmp_path: Path, sessions: list[ort.SessionOptions], instances: int, expected: int
) -> None:
    """As in Triton, where each has a session: six for each, of which one is its own."""
    given = configured(dtypes.FP32, parameters={"intra_op_thread_count": "6"})
    opened(copier(tmp_path / "model.onnx", dtypes.FP32), given, cpu_instances=instances)
    assert sessions[0].intra_op_num_threads == expected


# What has no effect


@pytest.mark.parametrize(
    ("key", "warning"),
    [
        ("enable_mem_areana", "backend 'onnxruntime' does not know it; did you mean 'enable_mem_arena'?"),
        ("intra_op_threads", "backend 'onnxruntime' does not know it; did you mean 'intra_op_thread_count'?"),
        ("note", "backend 'onnxruntime' does not know it"),
        ("gpu_mem_limit", "it is for GPUs, but ONNX Runtime has none here"),
        ("cudnn_conv_algo_search", "it is for GPUs, but ONNX Runtime has none here"),
        ("arena_extend_strategy", "it is for GPUs, but ONNX Runtime has none here"),
        ("do_copy_in_default_stream", "it is for GPUs, but ONNX Runtime has none here"),
        ("share_session_between_instances", ""),
        ("mlas.enable_gemm_fastmath_arm64_bfloat16", ""),
        ("log_severity_level", ""),
        ("session.intra_op.allow_spinning", ""),
        ("scheduling.look_ahead", ""),
        ("padding.buckets", ""),
        ("intra_op_thread_count", ""),
        ("memory.enable_memory_arena_shrinkage", ""),
    ],
)
def test_a_parameter_without_effect_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, warning: str
) -> None:
    value = "cpu:0" if key.startswith("memory.") else "1"
    opened(copier(tmp_path / "model.onnx", dtypes.FP32), configured(dtypes.FP32, parameters={key: value}))
    assert caplog.messages == ([f"model 'model': parameter '{key}' has no effect: {warning}"] if warning else [])


def test_options_of_the_backend() -> None:
    assert sorted(OnnxRuntimeBackend.known_options) == [
        "default-max-batch-size",
        "enable-global-threadpool",
        "inter_op_thread_count",
        "intra_op_thread_count",
        "quantized-dir",
    ]


def test_global_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gpu_sessions: list[Any]
) -> None:
    """ONNX Runtime has them once in a process, and for good: here nothing is made in earnest."""
    sizes: list[tuple[int, ...]] = []
    monkeypatch.setattr(ort, "set_global_thread_pool_sizes", lambda *counts: sizes.append(counts))
    monkeypatch.setattr(onnxruntime_options.global_threads, "enabled", False)
    (tmp_path / "model.onnx").touch()
    given = configured(parameters={"intra_op_thread_count": "9"})
    options = {"enable-global-threadpool": "1", "intra_op_thread_count": "5"}
    for _ in range(3):
        opened(tmp_path / "model.onnx", given, options=options)
    assert sizes == [(5, 0)]
    assert [session.options.use_per_session_threads for session in gpu_sessions] == [False] * 3
    assert caplog.messages[0].startswith("model 'model': parameter 'intra_op_thread_count' has no effect: --backend-co")


@pytest.mark.parametrize(
    ("key", "expected"),
    [("enable-global-threadpool", "true or false"), ("default-max-batch-size", "an integer of 0 or more")],
)
def test_options_that_are_no_numbers(tmp_path: Path, key: str, expected: str) -> None:
    with pytest.raises(ModserveError, match=f"backend option '{key}' is 'some', expected {expected}"):
        opened(copier(tmp_path / "model.onnx", dtypes.FP32), options={key: "some"}).describe()


# Memory that is given back


def test_memory_is_given_back_after_each_execution(tmp_path: Path) -> None:
    path = write(
        tmp_path / "model.onnx",
        [
            helper.make_node("ConstantOfShape", ["N"], ["ZEROS"]),
            helper.make_node("ReduceSum", ["ZEROS"], ["SUM"], keepdims=0),
        ],
        [helper.make_tensor_value_info("N", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("SUM", TensorProto.FLOAT, [])],
    )
    given = configured(parameters={"memory.enable_memory_arena_shrinkage": "cpu:0"})
    instance = opened(path, given).instance(instance_spec(given))
    instance.execute({"N": np.array([20])}, ("SUM",))
    before = resident_megabytes()
    instance.execute({"N": np.array([20_000_000])}, ("SUM",))
    assert resident_megabytes() - before < 40


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"memory.enable_memory_arena_shrinkage": "1"}, "is '1', expected devices such as 'cpu:0' or 'cpu:0;gpu:0'"),
        ({"memory.enable_memory_arena_shrinkage": "cpu:0;"}, "is 'cpu:0;', expected devices"),
        (
            {"memory.enable_memory_arena_shrinkage": "cpu:0", "enable_mem_arena": "0"},
            "is 'cpu:0', but 'enable_mem_arena' is 0: without the arena there is nothing to shrink",
        ),
    ],
    ids=["flag", "half", "no arena"],
)
def test_what_can_not_be_given_back(tmp_path: Path, parameters: dict[str, str], words: str) -> None:
    message = refusal(copier(tmp_path / "model.onnx", dtypes.FP32), configured(dtypes.FP32, parameters=parameters))
    assert message.startswith(f"model 'model': parameter 'memory.enable_memory_arena_shrinkage' {words}")


# The log


def test_nothing_of_it_reaches_standard_error_by_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path / "model.onnx",
        [helper.make_node("Gather", ["DATA", "IN0"], ["OUT0"])],
        [
            helper.make_tensor_value_info("DATA", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("IN0", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("OUT0", TensorProto.FLOAT, [1])],
    )
    inputs: dict[str, Array] = {"DATA": np.zeros(3, np.float32), "IN0": np.array([99])}
    with pytest.raises(ModserveError, match="indices element out of data bounds"):
        execute(path, configured(), inputs, "OUT0")
    (tmp_path / "cut.onnx").write_bytes(path.read_bytes()[:40])
    with pytest.raises(ModserveError, match=r"Protobuf parsing failed\. It is truncated or not an ONNX file"):
        opened(tmp_path / "cut.onnx")
    assert capfd.readouterr() == ("", "")


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    weights = helper.make_tensor("W", TensorProto.FLOAT, [1000], np.ones(1000, np.float32).tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("Add", ["IN0", "W"], ["OUT0"])],
        "graph",
        [helper.make_tensor_value_info("IN0", TensorProto.FLOAT, [1000])],
        [helper.make_tensor_value_info("OUT0", TensorProto.FLOAT, [1000])],
        [weights],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    (tmp_path / "model.onnx.data").unlink()
    message = refusal(tmp_path / "model.onnx")
    assert "model.onnx.data" in message
    assert message.endswith("The model's weights are in a separate file, which must be beside it.")


# GPUs


@pytest.mark.parametrize("providers", [["CPUExecutionProvider"], ["AzureExecutionProvider", "CPUExecutionProvider"]])
def test_no_gpus_without_the_cuda_provider(monkeypatch: pytest.MonkeyPatch, providers: list[str]) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    assert OnnxRuntimeBackend().gpu_count() == 0


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 3),
        ("0", 1),
        ("2,0", 2),
        ("0, 1, 2", 3),
        ("", 0),
        ("-1", 0),
        ("0,-1,1", 1),
        ("1,7,2", 1),
        ("NoDevFiles", 0),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,1", 2),
        ("MIG-1,MIG-2,MIG-3,MIG-4", 3),
    ],
)
def test_gpus_that_cuda_shows(visible: str | None, count: int) -> None:
    assert visible_gpus(["nvidia0", "nvidia1", "nvidia2"], visible) == count


class FakeSession:
    """A session that has the providers it was asked for, or those that there are."""

    def __init__(self, path: str, options: Any, *, providers: list[Any], enable_fallback: int) -> None:
        self.options = options
        self.asked = providers
        self.providers = [each if isinstance(each, str) else each[0] for each in providers]
        assert not enable_fallback

    def get_providers(self) -> list[str]:
        return self.providers

    def get_session_options(self) -> Any:
        return self.options

    def get_inputs(self) -> list[object]:
        return []

    get_outputs = get_overridable_initializers = get_inputs


@pytest.fixture
def gpu_sessions(monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
    """The sessions that are made on a machine with two GPUs."""
    made: list[FakeSession] = []

    def make(*arguments: Any, **more: Any) -> FakeSession:
        made.append(FakeSession(*arguments, **more))
        return made[-1]

    monkeypatch.setattr(ort, "InferenceSession", make)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr("modserve.backends.onnxruntime.backend._gpu_devices", lambda: ["nvidia0", "nvidia1"])
    return made


def gpu(device: int) -> Placement:
    return Placement(InstanceKind.GPU, device)


@pytest.mark.parametrize(
    ("placements", "devices"),
    [
        ((gpu(0), gpu(1), gpu(1)), ["0", "1", "1"]),
        ((gpu(1),), ["1"]),
        ((CPU, gpu(0)), [None, "0"]),
        ((CPU, CPU), [None]),
    ],
    ids=["gpus", "one gpu", "both", "cpu"],
)
def test_a_session_is_made_only_where_an_instance_is(
    tmp_path: Path,
    gpu_sessions: list[FakeSession],
    placements: tuple[Placement, ...],
    devices: list[str | None],
) -> None:
    given = configured(dtypes.FP32)
    (tmp_path / "model.onnx").touch()
    model = opened(tmp_path / "model.onnx", given, placements=placements)
    model.describe()
    instances = [model.instance(instance_spec(given, placement.kind, placement.device)) for placement in placements]
    assert len(instances) == len(placements)
    assert [session.asked[0][1]["device_id"] if len(session.asked) > 1 else None for session in gpu_sessions] == devices
    model.close()


def test_a_gpu_that_onnx_runtime_can_not_use(tmp_path: Path, gpu_sessions: list[FakeSession]) -> None:
    (tmp_path / "model.onnx").touch()
    FakeSession.get_providers, honest = lambda self: ["CPUExecutionProvider"], FakeSession.get_providers  # type: ignore[method-assign]
    try:
        with pytest.raises(ModserveError, match="an instance on GPU 1, but ONNX Runtime runs it on the CPU") as caught:
            opened(tmp_path / "model.onnx", placements=(gpu(1),))
    finally:
        FakeSession.get_providers = honest  # type: ignore[method-assign]
    assert caught.value.code is Code.INVALID_ARG


def test_parameters_for_gpus(tmp_path: Path, gpu_sessions: list[FakeSession], caplog: pytest.LogCaptureFixture) -> None:
    parameters = {
        "arena_extend_strategy": "1",
        "cudnn_conv_algo_search": "2",
        "do_copy_in_default_stream": "0",
        "gpu_mem_limit": "4294967296",
    }
    (tmp_path / "model.onnx").touch()
    opened(tmp_path / "model.onnx", configured(dtypes.FP32, parameters=parameters), placements=(gpu(0),))
    assert gpu_sessions[0].asked[0][1] == {
        "device_id": "0",
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "DEFAULT",
        "do_copy_in_default_stream": "0",
        "gpu_mem_limit": "4294967296",
    }
    assert caplog.messages == []
    with pytest.raises(ModserveError, match="parameter 'arena_extend_strategy' is '2', expected a number from 0 to 1"):
        opened(
            tmp_path / "model.onnx",
            configured(dtypes.FP32, parameters={"arena_extend_strategy": "2"}),
            placements=(gpu(0),),
        )


def test_defaults() -> None:
    backend = OnnxRuntimeBackend()
    assert (backend.default_model_filename, backend.default_cpu_instances) == ("model.onnx", 2)


@pytest.mark.parametrize(("operator", "dependent"), [("Relu", False), ("NonZero", True)])
def test_graphs_whose_work_depends_on_values_say_so(tmp_path: Path, operator: str, dependent: bool) -> None:
    """Their executions never run on the event loop's thread."""
    kind = TensorProto.INT64 if dependent else TensorProto.FLOAT
    path = write(
        tmp_path / "model.onnx",
        [helper.make_node(operator, ["IN0"], ["OUT0"])],
        [helper.make_tensor_value_info("IN0", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("OUT0", kind, [None, None] if dependent else [4])],
    )
    model = OnnxRuntimeBackend().open(ModelSource(config(), 1, path, tmp_path))
    assert model.instance(instance_spec(config())).data_dependent is dependent
