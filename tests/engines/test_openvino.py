"""The OpenVINO backend on models made on the spot: what goes in and comes out, and what the instance does with it."""

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openvino")

from openvino_models import (
    TYPES,
    configured,
    instance,
    named,
    ones,
    op,
    opened,
    parameter,
    run,
    save,
    save_one,
    save_sum,
    streams,
)

from modserve.backends.api import Placement
from modserve.backends.openvino.backend import OpenVinoBackend
from modserve.backends.openvino.instance import OpenVinoInstance
from modserve.backends.openvino.library import core, ov
from modserve.core.configuration.model_config import DescribedTensor, InstanceKind
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.testing import instance_spec

HAS_BF16 = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


# Datatypes


@pytest.mark.parametrize("kind", TYPES)
def test_every_datatype(tmp_path: Path, kind: str) -> None:
    datatype = TYPES[kind]
    two = op.constant(np.array(2), getattr(ov.Type, kind))
    path = save_one(
        tmp_path / "model.xml", op.logical_not if kind == "boolean" else lambda x: op.add(x, two), [-1, 3], kind
    )
    model = opened(path)
    description = model.describe()
    assert description.inputs == (DescribedTensor("X", datatype, (-1, 3)),)
    assert description.outputs == (DescribedTensor("Y", datatype, (-1, 3)),)
    array = np.array([[0, 1, 5], [1, 0, 7]]).astype(datatype.numpy)
    result = run(path, {"X": array})["Y"]
    assert result.dtype == datatype.numpy
    expected = ~array if kind == "boolean" else array + np.array(2).astype(datatype.numpy)
    np.testing.assert_array_equal(result, expected)


def test_strings_are_refused_with_advice(tmp_path: Path) -> None:
    path = save_one(tmp_path / "model.xml", lambda x: op.convert(op.shape_of(x), "f32"), [-1], "string")
    with pytest.raises(
        ModserveError, match=r"tensor 'X' has OpenVINO's type 'string': .*Python.*onnxruntime"
    ) as caught:
        opened(path).describe()
    assert caught.value.code is Code.UNSUPPORTED


@pytest.mark.parametrize(("kind", "value"), [("i64", 2**31), ("i64", -(2**40)), ("u64", 2**63)])
def test_integers_that_the_cpu_would_cut_off_are_refused(tmp_path: Path, kind: str, value: int) -> None:
    path = save_sum(tmp_path / "model.xml", [-1], kind)
    numbers = np.array([1, value], TYPES[kind].numpy)
    with pytest.raises(ModserveError, match="input 'A' has a number outside of -2147483648 to 2147483647") as caught:
        run(path, {"A": numbers, "B": numbers}, "SUM")
    assert caught.value.code is Code.INVALID_ARG
    small = np.array([2**31 - 2], TYPES[kind].numpy)
    assert run(path, {"A": small, "B": small // small}, "SUM")["SUM"] == [2**31 - 1]


def test_large_integers_pass_where_nothing_is_computed_with_them(tmp_path: Path) -> None:
    x = parameter("X", [-1], "i64")
    path = save(tmp_path / "model.xml", [named(op.convert(x, "f32"), "Y")], [x])
    assert run(path, {"X": np.array([2**40])})["Y"].tolist() == [2.0**40]


# Names and shapes


def test_a_description_of_a_model_that_can_batch(tmp_path: Path) -> None:
    path = save_sum(tmp_path / "model.xml", [-1, -1, 2])
    description = opened(path, options={"default-max-batch-size": "7"}).describe()
    assert [tensor.name for tensor in description.inputs] == ["A", "B"]
    assert {tensor.shape for tensor in (*description.inputs, *description.outputs)} == {(-1, -1, 2)}
    assert description.default_max_batch_size == 7
    assert opened(path).describe().default_max_batch_size == 4


@pytest.mark.parametrize(
    ("configured_name", "described_name"), [("", "x"), ("x:0", "x:0"), ("alias", "alias"), ("x_operator", "x_operator")]
)
def test_a_tensor_is_known_by_any_of_its_names(tmp_path: Path, configured_name: str, described_name: str) -> None:
    x = op.parameter([-1, 3], np.float32, name="x_operator")
    x.output(0).set_names({"x", "alias"})
    path = save(tmp_path / "model.xml", [named(op.relu(x), "Y")], [x])
    like = configured({configured_name: (-1, 3)} if configured_name else {})
    model = opened(path, like)
    name = model.describe().inputs[0].name
    assert name == (described_name if configured_name else "x")
    made = model.instance(instance_spec(like))
    assert isinstance(made, OpenVinoInstance)
    assert made.execute({name: ones(1, 3)}, ("Y",))["Y"].tolist() == [[1, 1, 1]]


def test_tensors_without_names_are_called_like_their_operators(tmp_path: Path) -> None:
    x = op.parameter([-1], np.float32, name="x")
    path = save(tmp_path / "model.xml", [op.relu(x, name="positive"), op.negative(x, name="minus")], [x])
    description = opened(path).describe()
    names = [tensor.name for tensor in description.outputs]
    assert len(set(names)) == 2
    assert all(names)
    result = run(path, {description.inputs[0].name: ones(2)}, *names)
    assert result[names[1]].tolist() == [-1, -1]


def test_scalars_and_empty_batches(tmp_path: Path) -> None:
    scalar = save_one(tmp_path / "scalar.xml", op.negative, [])
    assert opened(scalar).describe().inputs[0].shape == ()
    result = run(scalar, {"X": np.array(2, np.float32)})["Y"]
    assert (result.shape, float(result)) == ((), -2.0)
    path = save_sum(tmp_path / "model.xml")
    assert run(path, {"A": ones(0, 4), "B": ones(0, 4)}, "SUM")["SUM"].shape == (0, 4)


def test_an_output_whose_shape_depends_on_values(tmp_path: Path) -> None:
    path = save_one(tmp_path / "model.xml", op.non_zero, [-1])
    made = instance(path)
    assert made.data_dependent
    results = [made.execute({"X": np.array(values, np.float32)}, ("Y",))["Y"] for values in ([0, 2, 3], [1], [0, 0])]
    assert [result.tolist() for result in results] == [[[1, 2]], [[0]], [[]]]
    assert not instance(save_sum(tmp_path / "sum.xml")).data_dependent


def test_a_fixed_batch_dimension_becomes_variable_for_a_model_that_batches(tmp_path: Path) -> None:
    path = save_sum(tmp_path / "model.xml", [1, 4])
    assert opened(path).describe().inputs[0].shape == (1, 4)
    like = configured({"A": (4,), "B": (4,)}, {"SUM": (4,)}, max_batch_size=8)
    assert opened(path, like).describe().inputs[0].shape == (-1, 4)
    assert run(path, {"A": ones(5, 4), "B": ones(5, 4)}, "SUM", like=like)["SUM"].shape == (5, 4)


def save_stubborn(path: Path) -> Path:
    """A graph that has two rows whatever its input has."""
    shape = op.constant(np.array([2, 3]))
    return save_one(path, lambda x: op.reshape(x, shape, False), [2, 3])


def test_a_batch_dimension_that_stays_fixed(tmp_path: Path) -> None:
    path = save_stubborn(tmp_path / "model.xml")
    like = configured({"X": (3,)}, {"Y": (3,)}, max_batch_size=2)
    with pytest.raises(ModserveError, match="has 2 rows for every batch size; with the parameter SKIP_OV") as caught:
        opened(path, like)
    assert caught.value.code is Code.INVALID_ARG


def test_a_fixed_batch_and_its_padding(tmp_path: Path) -> None:
    path = save_stubborn(tmp_path / "model.xml")
    fixed = {"SKIP_OV_DYNAMIC_BATCHSIZE": "YES"}
    like = configured({"X": (3,)}, {"Y": (3,)}, max_batch_size=2, parameters=fixed)
    model = opened(path, like)
    assert model.describe().inputs[0].shape == (-1, 3)
    assert run(path, {"X": ones(2, 3)}, like=like)["Y"].shape == (2, 3)
    with pytest.raises(ModserveError, match=r"expected a batch of 2, .* got 1; .*ENABLE_BATCH_PADDING=YES"):
        run(path, {"X": ones(1, 3)}, like=like)
    padded = configured({"X": (3,)}, {"Y": (3,)}, max_batch_size=2, parameters={**fixed, "enable_batch_padding": "yes"})
    assert run(path, {"X": ones(1, 3)}, like=padded)["Y"].tolist() == [[1, 1, 1]]
    assert run(path, {"X": ones(2, 3)}, like=padded)["Y"].shape == (2, 3)


def test_a_graph_gets_the_dims_of_the_configuration(tmp_path: Path) -> None:
    path = save_one(tmp_path / "model.xml", op.relu, [1, 3, 4, 4])
    like = configured({"X": (3, -1, -1)}, max_batch_size=4, parameters={"RESHAPE_IO_LAYERS": "yes"})
    description = opened(path, like).describe()
    assert description.inputs[0].shape == description.outputs[0].shape == (-1, 3, -1, -1)
    assert run(path, {"X": ones(2, 3, 5, 6)}, like=like)["Y"].shape == (2, 3, 5, 6)


@pytest.mark.parametrize(
    ("text", "shape", "fits"),
    [
        ("auto", (-1, -1, -1), (2, 4, 5)),
        ("(2,-1,4)", (2, -1, 4), (2, 7, 4)),
        ('{"X": "(1,3:5,4)"}', (1, -1, 4), (1, 5, 4)),
    ],
)
def test_the_shape_of_model_server(tmp_path: Path, text: str, shape: tuple[int, ...], fits: tuple[int, ...]) -> None:
    path = save_one(tmp_path / "model.xml", op.relu, [1, 3, 4])
    like = configured(parameters={"shape": text})
    assert opened(path, like).describe().inputs[0].shape == shape
    assert run(path, {"X": ones(*fits)}, like=like)["Y"].shape == fits


def test_a_shape_that_the_graph_does_not_take(tmp_path: Path) -> None:
    weights = op.constant(ones(3, 2))
    path = save_one(tmp_path / "model.xml", lambda x: op.matmul(x, weights, False, False), [1, 3])
    with pytest.raises(ModserveError, match=r"its graph does not take 'X' \[1,4\]: .*[Ii]ncompatible"):
        opened(path, configured(parameters={"shape": "(1,4)"}))
    with pytest.raises(ModserveError, match="parameter 'SHAPE': there is no tensor 'Z'; the graph has X"):
        opened(path, configured(parameters={"shape": '{"Z": "(1,4)"}'}))


def test_a_layout_in_front_of_the_graph(tmp_path: Path) -> None:
    path = save_one(tmp_path / "model.xml", op.relu, [1, 3, 4, 5])
    like = configured(parameters={"layout": '{"X": "NHWC:NCHW"}'})
    description = opened(path, like).describe()
    assert description.inputs == (DescribedTensor("X", dtypes.FP32, (1, 4, 5, 3)),)
    picture = np.arange(60, dtype=np.float32).reshape(1, 4, 5, 3)
    np.testing.assert_array_equal(run(path, {"X": picture}, like=like)["Y"], picture.transpose(0, 3, 1, 2))


# Memory


def test_outputs_outlive_the_next_execution(tmp_path: Path) -> None:
    made = instance(save_sum(tmp_path / "model.xml", [-1, 40_000]))
    for rows in (1, 2):
        results = []
        for value in range(3):
            array = np.full((rows, 40_000), value, np.float32)
            results.append(made.execute({"A": array, "B": array}, ("SUM",))["SUM"])
        assert [np.unique(result).tolist() for result in results] == [[0.0], [2.0], [4.0]]


@pytest.mark.parametrize("columns", [4, 40_000], ids=["copied", "lent"])
def test_inputs_are_neither_changed_nor_kept(tmp_path: Path, columns: int) -> None:
    made = instance(save_one(tmp_path / "model.xml", op.relu, [-1, columns]))
    array = np.full((2, columns), -1, np.float32)
    array.setflags(write=False)
    assert not made.execute({"X": array}, ("Y",))["Y"].any()
    assert (array == -1).all()
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is None


def test_inputs_may_lie_anywhere(tmp_path: Path) -> None:
    made = instance(save_one(tmp_path / "model.xml", op.negative, [-1, -1]))
    for columns in (4, 40_000):
        wide = np.arange(4 * columns, dtype=np.float32).reshape(2, 2 * columns)
        for array in (wide[:, ::2], wide.T, wide[1:]):
            np.testing.assert_array_equal(made.execute({"X": array}, ("Y",))["Y"], -array)


def test_outputs_that_are_not_requested_are_left_out(tmp_path: Path) -> None:
    x = parameter("X", [-1])
    path = save(tmp_path / "model.xml", [named(op.relu(x), "P"), named(op.negative(x), "N")], [x])
    assert list(run(path, {"X": ones(2)}, "N")) == ["N"]


# Precision


def save_product(path: Path) -> tuple[Path, Array, Array]:
    source = np.random.default_rng(0)
    weights = source.standard_normal((256, 256)).astype(np.float32)
    constant = op.constant(weights)
    made = save_one(path, lambda x: op.matmul(x, constant, False, False), [-1, 256])
    return made, source.standard_normal((8, 256)).astype(np.float32), weights


def test_results_are_those_of_fp32_by_default(tmp_path: Path) -> None:
    path, array, weights = save_product(tmp_path / "model.xml")
    model = opened(path)
    made = model.instance(instance_spec(configured()))
    assert isinstance(made, OpenVinoInstance)
    np.testing.assert_allclose(made.execute({"X": array}, ("Y",))["Y"], array @ weights, rtol=1e-4, atol=1e-4)
    assert model.report()["precision"] == "fp32"


@pytest.mark.skipif(not HAS_BF16, reason="this CPU has no bfloat16")
@pytest.mark.parametrize(
    "parameters", [{"INFERENCE_PRECISION_HINT": "bf16"}, {"HINT_BF16": "YES"}, {"ENFORCE_BF16": "YES"}]
)
def test_bfloat16_where_it_is_requested(tmp_path: Path, parameters: dict[str, str]) -> None:
    path, array, weights = save_product(tmp_path / "model.xml")
    like = configured(parameters=parameters)
    model = opened(path, like)
    made = model.instance(instance_spec(like))
    assert isinstance(made, OpenVinoInstance)
    error = np.abs(made.execute({"X": array}, ("Y",))["Y"] - array @ weights).max()
    assert 1e-3 < error < 0.5
    assert model.report()["precision"] == "bf16"


@pytest.mark.skipif(not HAS_BF16, reason="this CPU has no bfloat16")
def test_a_precision_that_the_device_has_not_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if "FP16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU has FP16")
    instance(save_sum(tmp_path / "model.xml"), configured(parameters={"INFERENCE_PRECISION_HINT": "f16"}))
    assert "INFERENCE_PRECISION_HINT is f16, but CPU computes in bf16" in caplog.text


def test_fp64_is_told_to_be_fp32(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(save_sum(tmp_path / "model.xml", kind="f64"))
    assert "A, B, SUM: OpenVINO computes in FP32 instead of FP64 on the CPU" in caplog.text


# State


def test_no_request_sees_the_state_that_another_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = parameter("X", [1])
    before = op.read_value(op.constant(np.zeros(1, np.float32)), "total")
    total = named(op.add(x, before), "Y")
    path = save(tmp_path / "model.xml", [total], [x], [op.assign(total, "total")])
    made = instance(path)
    assert [made.execute({"X": ones(1)}, ("Y",))["Y"].tolist() for _ in range(3)] == [[1.0]] * 3
    assert "has a state, which is reset for each execution" in caplog.text


def test_a_language_model_without_its_tokenizer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = parameter("beam_idx", [1])
    opened(save(tmp_path / "openvino_model.xml", [named(op.add(x, x), "logits")], [x], []))
    assert "it writes texts, and takes tensors only here; backend 'openvino_genai' serves texts" in caplog.text


# Streams, threads, instances, devices


def test_instances_share_one_compiled_model_with_a_stream_for_each(tmp_path: Path) -> None:
    like = configured()
    model = opened(save_sum(tmp_path / "model.xml"), like, cpu_threads=1, cpu_instances=2)
    made = [model.instance(instance_spec(like, index=index)) for index in (0, 1)]
    assert all(isinstance(each, OpenVinoInstance) for each in made)
    report = model.report()
    assert report["engine"] == "OpenVINO"
    assert report["device"] == "CPU"
    assert report["file"] == "model.xml"
    assert report["threads"] == report["streams"] == min(2, ov.Core().get_property("CPU", "RANGE_FOR_STREAMS")[1])


def test_threads_are_the_share_of_the_instances(tmp_path: Path) -> None:
    path = save_sum(tmp_path / "model.xml")
    for parameters, threads in ({}, 1), ({"CPU_THREADS_NUM": "0"}, 1), ({"INFERENCE_NUM_THREADS": "1"}, 1):
        model = opened(path, configured(parameters=parameters), cpu_threads=1)
        model.instance(instance_spec(configured()))
        assert (model.report()["threads"], model.report()["streams"]) == (threads, 1)


@pytest.mark.parametrize("parameters", [{"nireq": "3"}, {"nireq": "3", "PERFORMANCE_HINT": "THROUGHPUT"}])
def test_several_executions_at_a_time(tmp_path: Path, parameters: dict[str, str]) -> None:
    made = streams(save_sum(tmp_path / "model.xml"), configured(parameters=parameters))
    assert made.max_in_flight == 3
    results: dict[int, object] = {}
    over = threading.Semaphore(0)

    def done(number: int) -> Callable[[object], None]:
        def keep(outcome: object) -> None:
            results[number] = outcome
            over.release()

        return keep

    for number in range(30):
        array = np.full((1 + number % 3, 4), number, np.float32)
        second = array[:, :2] if number == 7 else array
        made.start({"A": array, "B": second}, ("SUM",), done(number))
    for _ in range(30):
        assert over.acquire(timeout=20)
    failure = results.pop(7)
    assert isinstance(failure, ModserveError)
    assert failure.code is Code.INTERNAL
    for number, outcome in results.items():
        assert isinstance(outcome, dict)
        assert (outcome["SUM"] == 2 * number).all()
    made.close()


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    if OpenVinoBackend().gpu_count():
        pytest.skip("there is a GPU")
    path = save_sum(tmp_path / "model.xml")
    for like, spec_kind, device in (
        (configured(parameters={"TARGET_DEVICE": "gpu"}), InstanceKind.CPU, "GPU"),
        (configured(), InstanceKind.GPU, "GPU.0"),
    ):
        model = opened(path, like, placements=(Placement(spec_kind),))
        with pytest.raises(ModserveError, match=rf"is for device {device}, but here OpenVINO has: CPU") as caught:
            model.instance(instance_spec(like, spec_kind))
        assert caught.value.code is Code.INVALID_ARG


def test_a_device_that_is_others_put_together(tmp_path: Path) -> None:
    like = configured(parameters={"TARGET_DEVICE": "AUTO:CPU"})
    made = instance(save_sum(tmp_path / "model.xml"), like)
    assert made.execute({"A": ones(1, 4), "B": ones(1, 4)}, ("SUM",))["SUM"].tolist() == [[2, 2, 2, 2]]


def test_the_properties_of_plugin_config(tmp_path: Path) -> None:
    like = configured(parameters={"plugin_config": '{"NUM_STREAMS": 1, "CPU_THREADS_NUM": "1"}'})
    model = opened(save_sum(tmp_path / "model.xml"), like, cpu_threads=2, cpu_instances=2)
    model.instance(instance_spec(like))
    assert (model.report()["threads"], model.report()["streams"]) == (1, 1)
    bad = configured(parameters={"plugin_config": '{"NO_SUCH_THING": "1"}'})
    with pytest.raises(ModserveError, match=r"cannot compile it for CPU with NO_SUCH_THING=1.*NO_SUCH_THING by CPU"):
        instance(save_sum(tmp_path / "model.xml"), bad)


# What the graph refuses


def test_inputs_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    made = instance(save_sum(tmp_path / "model.xml", [-1]))
    for inputs in (
        {"A": ones(2), "B": ones(3)},
        {"A": ones(2, 2), "B": ones(2, 2)},
        {"A": ones(2, kind=np.int32), "B": ones(2)},
    ):
        with pytest.raises(ModserveError, match="openvino refused the request") as caught:
            made.execute(inputs, ("SUM",))
        assert caught.value.code is Code.INTERNAL
        assert "Exception from" not in caught.value.message
    assert made.execute({"A": ones(2), "B": ones(2)}, ("SUM",))["SUM"].tolist() == [2, 2]


def test_an_input_that_is_left_out_is_not_that_of_the_request_before(tmp_path: Path) -> None:
    made = instance(save_sum(tmp_path / "model.xml", [-1]))
    made.execute({"A": ones(2), "B": ones(2)}, ("SUM",))
    with pytest.raises(ModserveError, match=r"needs all inputs of the model, but the request lacks \['B'\]"):
        made.execute({"A": ones(2)}, ("SUM",))


def test_no_memory_for_an_execution(tmp_path: Path) -> None:
    zero = op.constant(np.float32(0))
    made = instance(save_one(tmp_path / "model.xml", lambda x: op.relu(op.broadcast(zero, x)), [2], "i64"))
    with pytest.raises(ModserveError, match="openvino has not enough memory for this execution") as caught:
        made.execute({"X": np.array([2**20, 2**19])}, ("Y",))
    assert caught.value.code is Code.INTERNAL
    assert made.execute({"X": np.array([2, 1])}, ("Y",))["Y"].shape == (2, 1)
