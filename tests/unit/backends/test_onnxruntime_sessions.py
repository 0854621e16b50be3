"""Sessions of ONNX Runtime: who shares them, what they are made of, and what a model reports of itself."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from modserve.backends.api import ModelSource, Placement
from modserve.backends.onnxruntime.backend import OnnxRuntimeBackend, OnnxRuntimeModel
from modserve.backends.onnxruntime.graph import precision
from modserve.backends.options import library_path
from modserve.core.configuration.model_config import Accelerator, DescribedTensor, InstanceKind, ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.runtime import long_buffers
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Buffer
from modserve.testing import config, instance_spec

CPU = Placement(InstanceKind.CPU)
IN = helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", 3])
OUT = helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", 3])
WEIGHT = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "W")
ROW = np.ones((1, 3), np.float32)


def write(path: Path, node: Any, inputs: Any = (IN,), weights: Any = (), outputs: Any = (OUT,), **more: Any) -> Path:
    graph = helper.make_graph([node], "graph", list(inputs), list(outputs), list(weights))
    settings = {"ir_version": 8, "opset_imports": [helper.make_opsetid("", 17)], **more}
    onnx.save(helper.make_model(graph, **settings), path)
    return path


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    return write(tmp_path / "model.onnx", helper.make_node("Relu", ["IN"], ["OUT"]))


def opened(path: Path, given: ModelConfig | None = None, **more: Any) -> OnnxRuntimeModel:
    return OnnxRuntimeBackend().open(ModelSource(given or config(), 1, path, path.parent, **more))


def refusal(path: Path, given: ModelConfig | None = None) -> str:
    with pytest.raises(ModserveError) as caught:
        opened(path, given)
    assert caught.value.code is Code.INVALID_ARG
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[ort.SessionOptions]:
    """The options of every session that is made."""
    made: list[ort.SessionOptions] = []
    make = ort.InferenceSession

    def spy(content: Any, options: ort.SessionOptions, **more: Any) -> ort.InferenceSession:
        made.append(options)
        return make(content, options, **more)

    monkeypatch.setattr(ort, "InferenceSession", spy)
    return made


# Who shares them


@pytest.mark.parametrize(
    ("share", "expected"), [("true", [7]), ("1", [7]), (None, [7]), ("false", [4, 4]), ("0", [4, 4])], ids=str
)
def test_sessions_and_their_threads(
    relu: Path, sessions: list[ort.SessionOptions], share: str | None, expected: list[int]
) -> None:
    """In Triton each instance has a session with threads of its own."""
    parameters = {} if share is None else {"share_session_between_instances": share}
    given = config(parameters=parameters)
    model = opened(relu, given, cpu_threads=4, cpu_instances=2)
    model.describe()
    instances = [model.instance(instance_spec(given, index=index)) for index in range(2)]
    assert [options.intra_op_num_threads for options in sessions] == expected
    report = model.report()
    assert (report["threads"], report["session_threads"]) == (4, expected[0])
    assert report["shared_session"] is (len(expected) == 1)
    for instance in instances:
        assert instance.execute({"IN": ROW}, ("OUT",))["OUT"].tolist() == ROW.tolist()
        instance.close()
    model.close()


def test_an_instance_that_is_made_again_gets_a_session_of_its_own(
    relu: Path, sessions: list[ort.SessionOptions]
) -> None:
    given = config(parameters={"share_session_between_instances": "false"})
    model = opened(relu, given)
    for _ in range(3):
        model.instance(instance_spec(given)).close()
    assert len(sessions) == 3


# What a model reports


def test_report(relu: Path) -> None:
    model = opened(relu, config(graph_optimization_level=1), cpu_threads=3)
    model.instance(instance_spec(config()))
    assert model.report() == {
        "engine": "ONNX Runtime",
        "version": ort.__version__,
        "precision": "fp32",
        "device": "CPU",
        "threads": 3,
        "session_threads": 3,
        "shared_session": False,
        "providers": ["CPUExecutionProvider"],
        "graph_optimization": "extended",
        "file": "model.onnx",
    }


def weights(kind: int, count: int, name: str = "W") -> Any:
    size = helper.tensor_dtype_to_np_dtype(kind).itemsize
    return helper.make_tensor(name, kind, [count], bytes(count * size), raw=True)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([], "fp32"),
        ([weights(TensorProto.FLOAT16, 9), weights(TensorProto.FLOAT, 4, "B")], "fp16"),
        ([weights(TensorProto.INT8, 9), weights(TensorProto.FLOAT, 4, "SCALE")], "int8"),
        ([weights(TensorProto.INT64, 90), weights(TensorProto.BFLOAT16, 4, "B")], "bf16"),
        ([weights(TensorProto.INT64, 90)], "fp32"),
    ],
    ids=["none", "half", "quantised", "shapes", "only shapes"],
)
def test_precision(tensors: list[Any], expected: str) -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["IN"], ["OUT"])], "graph", [IN], [OUT], tensors)
    content = helper.make_model(graph).SerializeToString()
    assert precision(content) == expected
    for end in range(len(content)):
        precision(content[:end])  # nothing is raised


def test_providers_that_run_nothing_are_told(relu: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The Azure provider is in every build, and takes no nodes of such a graph."""
    if "AzureExecutionProvider" not in ort.get_available_providers():
        pytest.skip("this build has the CPU's provider alone")
    model = opened(relu, config(cpu_accelerators=(Accelerator("azure"),)))
    assert model.report()["providers"] == ["AzureExecutionProvider", "CPUExecutionProvider"]
    assert model.report()["nodes"] == {"CPUExecutionProvider": 1}
    assert caplog.messages == [
        "model 'model': AzureExecutionProvider runs none of the graph's nodes; they run on: CPUExecutionProvider 1"
    ]


def test_accelerators_for_gpus_that_are_not_there(relu: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(relu, config(gpu_accelerators=(Accelerator("tensorrt"),)))
    assert caplog.messages == [
        "model 'model': gpu_execution_accelerator 'tensorrt' has no effect: it is for instances on GPUs, "
        "but ONNX Runtime has none here"
    ]


def test_a_provider_that_is_not_in_the_build(relu: Path) -> None:
    message = refusal(relu, config(parameters={"execution_providers": "xnnpack"}))
    assert message.startswith("model 'model' asks for 'xnnpack', but this build of ONNX Runtime (onnxruntime ")
    assert message.endswith("has no XnnpackExecutionProvider")


def test_a_provider_that_onnx_runtime_leaves_out(relu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so, with a warning in Python's way, for one that it does not have; here the build claims it."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["XnnpackExecutionProvider", "CPUExecutionProvider"])
    with pytest.warns(UserWarning, match="Xnnpack"):
        message = refusal(relu, config(parameters={"execution_providers": "xnnpack"}))
    assert message.startswith("model 'model' asks for 'xnnpack', but ONNX Runtime could not use its XnnpackExecution")


# Operators of a model's own


def test_a_library_that_is_not_there(relu: Path) -> None:
    message = refusal(relu, config(operation_libraries=("libmissing.so",)))
    assert message.startswith(
        "model 'model': the operator library 'libmissing.so' (model_operations.op_library_filename) cannot be used: "
    )
    assert "cannot open shared object file" in message


def test_a_library_of_something_else(relu: Path) -> None:
    (relu.parent / "libother.so").write_bytes(b"no library" * 100)
    assert "invalid ELF header" in refusal(relu, config(operation_libraries=("libother.so",)))
    assert "RegisterCustomOps" in refusal(relu, config(operation_libraries=("libm.so.6",)))


def test_where_a_library_is_sought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, working = tmp_path / "model" / "1", tmp_path / "working"
    (version / "ops").mkdir(parents=True)
    working.mkdir()
    monkeypatch.chdir(working)
    for file in (version / "both.so", version.parent / "both.so", version.parent / "model.so", working / "model.so"):
        file.touch()
    (version / "ops" / "deep.so").touch()
    source = ModelSource(config(), 1, version / "model.onnx", version.parent)
    places = {
        "both.so": version / "both.so",
        "model.so": version.parent / "model.so",
        "ops/deep.so": version / "ops" / "deep.so",
        "./model.so": Path("./model.so"),
        "absent.so": Path("absent.so"),
        str(version / "both.so"): version / "both.so",
        "/absent.so": Path("/absent.so"),
    }
    assert {name: Path(library_path(name, source)) for name in places} == places
    (working / "ops").mkdir()
    (working / "ops" / "deep.so").touch()
    assert library_path("ops/deep.so", source) == "ops/deep.so"


# Files


@pytest.mark.parametrize(
    ("node", "more", "words"),
    [
        (helper.make_node("Nothing", ["IN"], ["OUT"]), {}, "No Op registered for Nothing .* op_library_filename"),
        (
            helper.make_node("Nothing", ["IN"], ["OUT"], domain="com.example"),
            {"opset_imports": [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]},
            "com.example:Nothing.* is not a registered function/op .*op_library_filename",
        ),
        (
            helper.make_node("Relu", ["IN"], ["OUT"]),
            {"opset_imports": [helper.make_opsetid("", 999)]},
            f"needs a newer version than ONNX Runtime {ort.__version__}: pip install --upgrade onnxruntime",
        ),
        (helper.make_node("Relu", ["IN"], ["OUT"]), {"ir_version": 99}, "needs a newer version than ONNX Runtime"),
    ],
    ids=["operator", "domain", "opset", "format"],
)
def test_what_this_version_cannot_run(tmp_path: Path, node: Any, more: dict[str, Any], words: str) -> None:
    path = write(tmp_path / "model.onnx", node, **more)
    with pytest.raises(ModserveError, match=words) as caught:
        opened(path)
    assert caught.value.code is Code.INVALID_ARG


def codes(path: Path, contents: Iterable[Buffer]) -> Counter[Code | None]:
    """How often each is what becomes of opening a file with these contents; None is a model."""
    codes: Counter[Code | None] = Counter()
    for content in contents:
        path.write_bytes(content)
        try:
            opened(path).describe()
        except ModserveError as error:
            codes[error.code] += 1
        else:
            codes[None] += 1
    return codes


def test_files_that_are_cut_anywhere(tmp_path: Path) -> None:
    """Where the cut is between two parts, the rest is a whole model."""
    path = write(tmp_path / "model.onnx", helper.make_node("Add", ["IN", "W"], ["OUT"]), weights=[WEIGHT])
    content = path.read_bytes()
    outcomes = codes(path, [content[:end] for end in range(0, len(content), 3)])
    assert outcomes.keys() <= {Code.INVALID_ARG, None}
    assert outcomes[Code.INVALID_ARG] > 9 * outcomes[None]


def test_files_with_bytes_of_something_else(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", helper.make_node("Add", ["IN", "W"], ["OUT"]), weights=[WEIGHT])
    content = path.read_bytes()
    random = np.random.default_rng(7)
    spoilt = [bytearray(content) for _ in range(150)]
    for each in spoilt:
        each[random.integers(len(content))] = random.integers(256)
    assert codes(path, spoilt).keys() == {Code.INVALID_ARG, None}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("gone", "model.onnx.data.* must be beside it"),
        ("cut", "size to read: 12 given file_length: 3 .* weights is truncated or belongs to another model"),
        ("outside", "outside"),
    ],
)
def test_weights_in_a_file_of_their_own(tmp_path: Path, damage: str, words: str) -> None:
    graph = helper.make_graph([helper.make_node("Add", ["IN", "W"], ["OUT"])], "graph", [IN], [OUT], [WEIGHT])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    folder = tmp_path / "version"
    folder.mkdir()
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    data = folder / "model.onnx.data"
    if damage == "gone":
        data.unlink()
    elif damage == "cut":
        data.write_bytes(b"123")
    else:
        data.rename(tmp_path / "outside.data")
        spoilt = (folder / "model.onnx").read_bytes().replace(b"model.onnx.data", b"../outside.data")
        (folder / "model.onnx").write_bytes(spoilt)
    with pytest.raises(ModserveError, match=words) as caught:
        opened(folder / "model.onnx")
    assert caught.value.code is Code.INVALID_ARG


# Inputs with defaults


def test_a_weight_that_requests_may_replace(tmp_path: Path) -> None:
    """As in Triton: an input that the file has a value for is one that requests may leave out, if it is configured."""
    weight_input = helper.make_tensor_value_info("W", TensorProto.FLOAT, [3])
    add = helper.make_node("Add", ["IN", "W"], ["OUT"])
    path = write(tmp_path / "model.onnx", add, inputs=(IN, weight_input), weights=[WEIGHT])
    assert [tensor.name for tensor in opened(path).describe().inputs] == ["IN"]
    given = config(
        max_batch_size=0,
        inputs=(TensorSpec("IN", dtypes.FP32, (-1, 3)), TensorSpec("W", dtypes.FP32, (3,), optional=True)),
        outputs=(TensorSpec("OUT", dtypes.FP32, (-1, 3)),),
    )
    model = opened(path, given)
    assert model.describe().inputs[1] == DescribedTensor("W", dtypes.FP32, (3,), optional=True, symbols=("",))
    instance = model.instance(instance_spec(given))
    assert instance.execute({"IN": ROW}, ("OUT",))["OUT"].tolist() == [[2, 3, 4]]
    replaced = {"IN": ROW, "W": np.zeros(3, np.float32)}
    assert instance.execute(replaced, ("OUT",))["OUT"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_datatypes_of_eight_bits(tmp_path: Path, kind: str) -> None:
    value = getattr(TensorProto, kind)
    ends = [helper.make_tensor_value_info(name, value, ["batch", 3]) for name in ("IN", "OUT")]
    identity = helper.make_node("Identity", ["IN"], ["OUT"])
    path = write(
        tmp_path / "model.onnx",
        identity,
        inputs=ends[:1],
        outputs=ends[1:],
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 21)],
    )
    with pytest.raises(ModserveError, match="has no v2 datatype; a Cast node at the end or beginning of the graph"):
        opened(path).describe()


# ONNX Runtime's log


@pytest.mark.parametrize(("severity", "words"), [(None, []), ("4", []), ("1", ["onnxruntime:speaks"])], ids=str)
def test_its_lines_have_the_name_of_the_model(
    relu: Path, capfd: pytest.CaptureFixture[str], severity: str | None, words: list[str]
) -> None:
    parameters = {} if severity is None else {"log_severity_level": severity}
    opened(relu, replace(config(parameters=parameters), name="speaks"))
    log = capfd.readouterr().err
    assert [word for word in words if word not in log] == []
    assert bool(log) is bool(words)


def test_a_severity_that_there_is_not(relu: Path) -> None:
    assert "parameter 'log_severity_level' is 5, expected 0 (everything)" in refusal(
        relu, config(parameters={"log_severity_level": "5"})
    )


def test_any_session_entry(relu: Path, sessions: list[ort.SessionOptions]) -> None:
    entries = {"session.intra_op.allow_spinning": "0", "optimization.enable_gelu_approximation": "1"}
    opened(relu, config(parameters=entries))
    assert {key: sessions[0].get_session_config_entry(key) for key in entries} == entries


# What outputs keep of its memory


@pytest.mark.parametrize(("rows", "counted"), [(16_383, 0), (16_384, 2 * 256 * 1024)])
def test_outputs_from_256_kib_on_are_counted(tmp_path: Path, rows: int, counted: int) -> None:
    four = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("IN", "OUT")]
    path = write(tmp_path / "model.onnx", helper.make_node("Relu", ["IN"], ["OUT"]), four[:1], outputs=four[1:])
    before = set(long_buffers.keepers())
    model = opened(path)
    instance = model.instance(instance_spec(config()))
    (keeper,) = set(long_buffers.keepers()) - before
    held = [instance.execute({"IN": np.ones((rows, 4), np.float32)}, ("OUT",)) for _ in range(2)]
    assert keeper.spare() == 0
    held.clear()
    keeper.spare()  # they were in use since the last look
    assert keeper.spare() == counted
    instance.close()
    model.close()
