"""What is filled in from the engine's description and from Triton's defaults, and where description and text differ."""

from dataclasses import replace
from typing import Any

import pytest
from config_build import ONE_EACH, PATH, described, finish, problems, tensor
from google.protobuf import text_format

from modserve import config
from modserve.core.configuration.model_config import (
    DescribedTensor,
    DynamicBatching,
    InstanceGroup,
    InstanceKind,
    ModelDescription,
    QueuePolicy,
    TensorSpec,
)
from modserve.core.tensors import dtypes
from modserve.core.version import VersionPolicy
from modserve.pb import inference as pb

BATCHING = described(tensor("IN", -1, 4), tensor("OUT", -1, 4))
FIXED = described(tensor("IN", 4), tensor("OUT", 4))


def message(text: str) -> pb.ModelConfig:
    return text_format.Parse(text, pb.ModelConfig())


def test_an_empty_configuration() -> None:
    complete = finish("", BATCHING)

    assert complete.message == message("""
        name: "foo"  platform: "onnxruntime_onnx"  backend: "onnxruntime"
        version_policy { latest { num_versions: 1 } }
        max_batch_size: 4
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
        instance_group { name: "foo" count: 2 kind: KIND_CPU }
        default_model_filename: "model.onnx"
        optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
        dynamic_batching { preferred_batch_size: 4 }
    """)
    assert complete.defaults == [
        "max_batch_size of model 'foo' is set to 4: the model can batch, and its configuration does not set it"
    ]
    assert complete.warnings == []


@pytest.mark.parametrize(
    ("text", "description", "expected"),
    [
        ("", BATCHING, True),
        ("max_batch_size: 4", BATCHING, False),
        ("", replace(BATCHING, max_batch_size=4), False),
        ("", FIXED, False),
    ],
)
def test_whether_the_batch_size_is_a_default(text: str, description: ModelDescription, expected: bool) -> None:
    config = finish(text, description).config

    assert config.default_batch_size is expected
    assert bool(config.batch_size_remedy()) is expected


def test_the_values_of_a_full_configuration() -> None:
    found = finish("""
        max_batch_size: 8
        input { name: "IN" data_type: TYPE_STRING dims: [ -1, 2 ] optional: true }
        output { name: "OUT" data_type: TYPE_BF16 dims: 4 reshape { shape: [ 2, 2 ] } label_filename: "l.txt" }
        version_policy { specific { versions: [ 3, 5 ] } }
        instance_group [ { kind: KIND_MODEL }, { name: "two" count: 3 } ]
        dynamic_batching {
          preferred_batch_size: [ 8, 4 ]
          max_queue_delay_microseconds: 100
          default_queue_policy { max_queue_size: 16 default_timeout_microseconds: 2000 }
        }
        parameters { key: "k" value { string_value: "v" } }
        metric_tags { key: "t" value: "u" }
        optimization { graph { level: -1 } }
    """).config

    assert found.inputs == (TensorSpec("IN", dtypes.BYTES, (-1, 2), optional=True),)
    assert found.outputs == (TensorSpec("OUT", dtypes.BF16, (4,), reshape=(2, 2), label_filename="l.txt"),)
    assert found.version_policy == VersionPolicy(specific=(3, 5))
    assert found.instance_groups == (
        InstanceGroup("foo_0", InstanceKind.MODEL, 1),
        InstanceGroup("two", InstanceKind.CPU, 3),
    )
    assert found.dynamic_batching == DynamicBatching(
        (4, 8), 100_000, default_policy=QueuePolicy(16, 2_000_000), measured_sizes=False
    )
    assert (found.parameters, found.metric_tags, found.graph_optimization_level) == ({"k": "v"}, {"t": "u"}, -1)
    assert (found.name, found.backend, found.platform) == ("foo", "onnxruntime", "onnxruntime_onnx")
    assert (found.max_batch_size, found.default_model_filename) == (8, "model.onnx")


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "in order"])
def test_nothing_is_delayed_where_the_order_is_kept(ordered: bool) -> None:
    """A request's own time-out would otherwise put it behind the others, whose responses would wait for it."""
    policy = "timeout_action: DELAY max_queue_size: 3"
    found = finish(f"""
        dynamic_batching {{
          priority_levels: 1 default_priority_level: 1 default_queue_policy {{ {policy} }}
          priority_queue_policy {{ key: 1 value {{ {policy} }} }}
          {"preserve_ordering: true" if ordered else ""}
        }}
        {ONE_EACH}
    """).config.dynamic_batching
    assert found is not None
    assert found.default_policy == found.policy(1) == QueuePolicy(3, delay=not ordered)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", VersionPolicy(latest=1)),
        ("version_policy { }", VersionPolicy()),
        ("version_policy { all { } }", VersionPolicy()),
        ("version_policy { latest { num_versions: 2 } }", VersionPolicy(latest=2)),
    ],
)
def test_version_policy(text: str, expected: VersionPolicy) -> None:
    assert finish(text + ONE_EACH).config.version_policy == expected
    assert config.parse(text, PATH, "foo").provisional().version_policy == expected


# Batching


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (4, [4])),
        ("max_batch_size: 1", (1, None)),
        ("max_batch_size: 8", (8, [8])),
        ("dynamic_batching { }", (4, [4])),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: 2 }", (8, [2])),
        # Triton leaves all alone where both inputs and outputs are given.
        (ONE_EACH, (0, None)),
        ("max_batch_size: 8" + ONE_EACH, (8, None)),
    ],
)
def test_batching(text: str, expected: tuple[int, list[int] | None]) -> None:
    whole = "max_batch_size" not in text and "input" in text
    found = finish(text, FIXED if whole else BATCHING).message
    sizes = list(found.dynamic_batching.preferred_batch_size) if found.HasField("dynamic_batching") else None

    assert (found.max_batch_size, sizes) == expected


def test_batching_is_not_filled_in_unless_the_engine_wants_it() -> None:
    description = described(tensor("IN", -1, 4), tensor("OUT", -1, 4), default_max_batch_size=0)
    complete = finish("", description)

    assert (complete.config.max_batch_size, complete.config.dynamic_batching, complete.warnings) == (0, None, [])
    assert complete.config.inputs[0].dims == (-1, 4)


@pytest.mark.parametrize(
    ("shapes", "shown"), [([(3, 4), (-1,)], "IN [3, 4], OUT [-1]"), ([(-1,), ()], "IN [-1], OUT []")]
)
def test_a_model_that_can_not_batch(shapes: list[tuple[int, ...]], shown: str) -> None:
    description = described(tensor("IN", *shapes[0]), tensor("OUT", *shapes[1]))

    assert finish("", description).config.max_batch_size == 0
    assert problems("\nmax_batch_size: 8", description) == [
        "2:1: autofill failed for model 'foo': model does not support batching while non-zero max_batch_size is "
        "specified; the first dimension of every tensor would have to be variable, but the model has " + shown
    ]


# Tensors


def test_inputs_and_outputs_are_filled_in_apart() -> None:
    description = described(tensor("IN", -1, 3), tensor("OUT", -1, 2, datatype=dtypes.INT64))
    only_input = finish('input { name: "IN" data_type: TYPE_FP32 dims: 3 }', description)

    assert only_input.config.outputs == (TensorSpec("OUT", dtypes.INT64, (2,)),)
    assert finish('output { name: "OUT" }', description).config.inputs == (TensorSpec("IN", dtypes.FP32, (3,)),)


@pytest.mark.parametrize(
    ("text", "datatype", "dims"),
    [("", "TYPE_FP32", [3]), ("dims: 3", "TYPE_FP32", [3]), ("data_type: TYPE_FP32", "TYPE_FP32", [3])],
)
def test_partial_tensors_are_completed(text: str, datatype: str, dims: list[int]) -> None:
    description = described(tensor("IN", -1, 3), tensor("OUT", -1, 2))
    found = finish(f'max_batch_size: 2 input {{ name: "IN" {text} }} output {{ name: "OUT" }}', description).message

    assert (pb.DataType.Name(found.input[0].data_type), list(found.input[0].dims)) == (datatype, dims)


def test_optional_inputs_stay_optional() -> None:
    description = ModelDescription((DescribedTensor("IN", dtypes.FP32, (3,), optional=True),), (), 0)

    assert finish("", description).config.inputs == (TensorSpec("IN", dtypes.FP32, (3,), optional=True),)


def test_optional_inputs_of_the_model_may_be_left_out() -> None:
    maybe = DescribedTensor("MAYBE", dtypes.FP32, (4,), optional=True)
    description = ModelDescription((*described(tensor("IN", 4)).inputs, maybe), (tensor("OUT", 4),), 0)
    given = ONE_EACH + 'input { name: "MAYBE" data_type: TYPE_FP32 dims: 4 optional: true }'

    assert len(finish(ONE_EACH, description).config.inputs) == 1
    assert len(finish(given, description).config.inputs) == 2


def test_scalars_of_a_batching_model_are_reshaped() -> None:
    found = finish("", described(tensor("IN", -1), tensor("OUT", -1)))

    assert found.config.inputs == (TensorSpec("IN", dtypes.FP32, (1,), reshape=()),)
    assert found.message.input[0].HasField("reshape")


def test_scalars_without_batching_are_reshaped_unseen() -> None:
    found = finish("", described(tensor("IN"), tensor("OUT", 3)))

    assert found.config.inputs == (TensorSpec("IN", dtypes.FP32, (1,), reshape=()),)
    assert not found.message.input[0].HasField("reshape")


def test_a_tensor_of_unknown_rank_is_a_scalar_only_by_dims_of_1() -> None:
    unranked = described(replace(tensor("IN"), rank_known=False), tensor("OUT", 4))
    one, two = (finish(ONE_EACH.replace("dims: 4", f"dims: {size}", 1), unranked).config.inputs for size in (1, 2))

    assert one == (TensorSpec("IN", dtypes.FP32, (1,), reshape=()),)
    assert two == (TensorSpec("IN", dtypes.FP32, (2,)),)


def test_nothing_is_filled_in_without_auto_complete() -> None:
    assert problems('output { name: "OUT" data_type: TYPE_FP32 }', FIXED, auto_complete=False) == [
        "1:1: model output 'OUT' must specify 'dims' for foo",
        "unable to load model 'foo', configuration expects 0 inputs, model provides 1; missing in the configuration: "
        "IN",
    ]


# Differences between configuration and model

HEAD = "max_batch_size: 8\n"
DIFFERENCES = {
    # configuration, shape of IN, shape of OUT → problems
    ("input { name: 'INPUT' data_type: TYPE_FP32 dims: 4 }", (4,), (4,)): [
        "1:9: unexpected inference input 'INPUT', allowed inputs are: IN"
    ],
    ("input [ { name: 'IN' data_type: TYPE_FP32 dims: 4 }, { name: 'b' data_type: TYPE_FP32 dims: 4 } ]", (4,), (4,)): [
        "1:1: unable to load model 'foo', configuration expects 2 inputs, model provides 1",
        "1:56: unexpected inference input 'b', allowed inputs are: IN",
    ],
    ("input { name: 'IN' data_type: TYPE_FP32 dims: 4 optional: true }", (4,), (4,)): [
        "1:1: unable to load model 'foo', configuration expects 0 inputs, model provides 1; optional in the "
        "configuration only: IN"
    ],
    ("output { name: 'b' data_type: TYPE_FP32 dims: 4 }", (4,), (4,)): [
        "1:10: unexpected inference output 'b', allowed outputs are: OUT"
    ],
    ("input { name: 'IN' data_type: TYPE_INT32 dims: 4 }", (4,), (4,)): [
        "1:20: unable to load model 'foo', configuration expects datatype TYPE_INT32 for input 'IN', model provides "
        "TYPE_FP32"
    ],
    ("input { name: 'IN' data_type: TYPE_FP32 dims: [4, 5] }", (4,), (4,)): [
        "1:41: model 'foo', tensor 'IN': the model expects 1 dimensions (shape [4]) but the model configuration "
        "specifies 2 dimensions (shape [4,5]); write dims: [ 4 ]"
    ],
    ("input { name: 'IN' data_type: TYPE_FP32 dims: 5 }", (4,), (4,)): [
        "1:41: model 'foo', tensor 'IN': the model expects 1 dimensions (shape [4]) but the model configuration "
        "specifies 1 dimensions (shape [5]); write dims: [ 4 ]"
    ],
    ("output { name: 'OUT' data_type: TYPE_FP32 dims: 5 }", (4,), (4, -1)): [
        "1:43: model 'foo', tensor 'OUT': the model expects 2 dimensions (shape [4,-1]) but the model configuration "
        "specifies 1 dimensions (shape [5]); write dims: [ 4, -1 ]"
    ],
    ("input { name: 'IN' data_type: TYPE_FP32 dims: 6 reshape { shape: [2, 3] } }", (3, 2), (4,)): [
        "1:49: model 'foo', tensor 'IN': the model expects 2 dimensions (shape [3,2]) but the model configuration "
        "specifies 2 dimensions (shape [2,3]); write reshape { shape: [ 3, 2 ] }"
    ],
    ("input { name: 'IN' data_type: TYPE_FP32 dims: 2 }", (), (4,)): [
        "1:41: unable to load model 'foo', scalar tensor 'IN', should only provide 1 in the model configuration when "
        "the model doesn't support batching. Model configuration provided: [2]."
    ],
    # Both given, so that max_batch_size is no business of the completion.
    (HEAD + ONE_EACH.strip(), (3, 4), (-1, 5)): [
        "2:41: model 'foo', tensor 'IN': for the model to support batching the shape should have at least 1 dimension "
        "and the first dimension must be -1; but shape expected by the model is [3,4]",
        "3:43: model 'foo', tensor 'OUT': the model expects 2 dimensions (shape [-1,5]) but the model configuration "
        "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
        "shape, making complete shape [-1,4]); write dims: [ 5 ]",
    ],
    # The batch dimension once too often, or once too rarely, and nothing left beside it.
    ("max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: [ -1, 4 ] }", (-1, 4), (-1,)): [
        "1:59: model 'foo', tensor 'IN': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
        "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
        "shape, making complete shape [-1,-1,4]); max_batch_size adds the batch dimension, so leave it out: dims: [ 4 ]"
    ],
    ("input { name: 'IN' data_type: TYPE_FP32 dims: 4 } output { name: 'OUT' }", (-1, 4), (3,)): [
        "1:41: model 'foo', tensor 'IN': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
        "specifies 1 dimensions (shape [4]); write dims: [ -1, 4 ], or a max_batch_size above 0, which adds the batch "
        "dimension"
    ],
    ("max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 4 }", (-1,), (-1,)): [
        "1:59: model 'foo', tensor 'IN': the model expects 1 dimensions (shape [-1]) but the model configuration "
        "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
        "shape, making complete shape [-1,4]); max_batch_size adds the batch dimension, so leave it out: "
        "dims: [ 1 ] reshape { }"
    ],
}


@pytest.mark.parametrize(("case", "expected"), DIFFERENCES.items())
def test_differences(case: tuple[str, tuple[int, ...], tuple[int, ...]], expected: list[str]) -> None:
    text, into, out = case

    assert problems(text, described(tensor("IN", *into), tensor("OUT", *out))) == expected


def test_a_variable_dimension_may_be_fixed_for_inputs_only() -> None:
    assert finish(ONE_EACH, described(tensor("IN", -1), tensor("OUT", 4))).config.inputs[0].dims == (4,)
    assert problems(ONE_EACH, described(tensor("IN", 4), tensor("OUT", -1)))


def test_when_batching_does_not_fit_only_shapes_are_left_out() -> None:
    found = problems('max_batch_size: 8 input { name: "a" }', FIXED)

    assert "1:27: unexpected inference input 'a', allowed inputs are: IN" in found


# Instances


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("", 0, [InstanceGroup("foo", InstanceKind.CPU, 2)]),
        ("", 2, [InstanceGroup("foo", InstanceKind.GPU, 1, (0, 1))]),
        ("instance_group { count: 3 }", 0, [InstanceGroup("foo_0", InstanceKind.CPU, 3)]),
        ("instance_group { }", 0, [InstanceGroup("foo_0", InstanceKind.CPU, 2)]),
        ("instance_group { kind: KIND_CPU }", 2, [InstanceGroup("foo_0", InstanceKind.CPU, 2)]),
        ("instance_group { gpus: 1 }", 2, [InstanceGroup("foo_0", InstanceKind.GPU, 1, (1,))]),
        ("instance_group { kind: KIND_GPU }", 1, [InstanceGroup("foo_0", InstanceKind.GPU, 1, (0,))]),
        (
            "instance_group [ { kind: KIND_MODEL }, { name: 'x' } ]",
            0,
            [InstanceGroup("foo_0", InstanceKind.MODEL, 1), InstanceGroup("x", InstanceKind.CPU, 2)],
        ),
    ],
)
def test_instance_groups(text: str, gpus: int, expected: list[InstanceGroup]) -> None:
    assert list(finish(text + ONE_EACH, gpu_count=gpus).config.instance_groups) == expected


def test_auto_falls_back_to_the_cpu() -> None:
    found = finish("instance_group { count: 1 gpus: [ 0, 7 ] }" + ONE_EACH, gpu_count=2)

    assert found.config.instance_groups == (InstanceGroup("foo_0", InstanceKind.CPU, 1),)
    assert found.warnings == [
        f"{PATH}:1:27: instance group foo_0 runs on the CPU: some of the GPUs it lists are missing"
    ]


def test_provisional() -> None:
    draft = config.parse(
        'backend: "onnxruntime" instance_group [ { }, { kind: KIND_GPU } ] input [ { name: "a" } ]', PATH, "foo"
    )
    found = draft.provisional(default_cpu_instances=2)

    assert (found.name, found.backend, found.inputs, found.dynamic_batching) == ("foo", "onnxruntime", (), None)
    assert found.default_model_filename == "model.onnx"
    assert found.instance_groups == (
        InstanceGroup("foo_0", InstanceKind.AUTO, 2),
        InstanceGroup("foo_1", InstanceKind.GPU, 1),
    )


def test_finishing_twice_gives_the_same() -> None:
    draft = config.parse('backend: "onnxruntime"', PATH, "foo")
    results = [
        config.finish(
            draft,
            BATCHING,
            default_cpu_instances=1,
            default_model_filename="m",
            gpu_count=0,
            auto_complete=True,
        )
        for _ in range(2)
    ]

    assert results[0] == results[1]


def traits(**more: Any) -> ModelDescription:
    return replace(FIXED, default_max_batch_size=0, **more)


def test_what_the_engine_says_of_the_model_as_a_whole() -> None:
    found = finish("", traits(max_batch_size=8, batch_dimension=False, decoupled=True)).config
    assert (found.max_batch_size, found.decoupled) == (8, True)
    assert [spec.dims for spec in (*found.inputs, *found.outputs)] == [(4,), (4,)]
    assert found.dynamic_batching is not None


@pytest.mark.parametrize(("says", "batches"), [(None, True), (True, True), (False, False)])
def test_whether_requests_are_merged(says: bool | None, batches: bool) -> None:
    described = traits(max_batch_size=8, batch_dimension=False, dynamic_batching=says)
    assert (finish("", described).config.dynamic_batching is not None) is batches


def test_a_model_that_keeps_state() -> None:
    batching = {
        "control_input": [{"name": "IN2", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]}]
    }
    described = replace(
        traits(sequence_batching=batching), inputs=(tensor("IN", 4), tensor("IN2", 1, datatype=dtypes.INT32))
    )
    found = finish("", described).config
    assert found.sequence_batching is not None
    assert [control.name for control in found.sequence_batching.controls] == ["IN2"]
    assert [spec.name for spec in found.inputs] == ["IN"]


def test_a_scheduler_that_the_configuration_chooses_stays() -> None:
    found = finish("sequence_batching { }", traits(dynamic_batching=True)).config
    assert (found.dynamic_batching, found.sequence_batching is None) == (None, False)


def test_shapes_without_batch_dimension_of_a_model_that_does_not_batch() -> None:
    assert finish("", traits(batch_dimension=False)).config.inputs[0].dims == (4,)


@pytest.mark.parametrize(
    ("text", "described", "problem"),
    [
        ("max_batch_size: 16", {"max_batch_size": 8, "batch_dimension": False}, "is 16, but the model takes 8"),
        (
            "model_transaction_policy { decoupled: false }",
            {"decoupled": True},
            "the model is decoupled, but the configuration of model 'foo' says the opposite",
        ),
        ("", {"sequence_batching": {"oldes": {}}}, "the engine of model 'foo' describes an invalid sequence_batching"),
    ],
)
def test_an_engine_that_contradicts_the_configuration(text: str, described: dict[str, Any], problem: str) -> None:
    assert any(problem in each for each in problems(text, traits(**described)))


def test_nothing_of_it_is_filled_in_without_automatic_completion() -> None:
    found = finish(ONE_EACH, traits(decoupled=True), auto_complete=False).config
    assert not found.decoupled


def test_an_engine_may_add_tensors_to_those_that_are_configured() -> None:
    """Where it says them itself. What is read from a file has to be all there, or not at all."""
    text = 'input { name: "IN1" } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'
    description = described(tensor("IN0", 4), tensor("IN1", 2), tensor("OUT", 4), tensor("OTHER", 1))
    message = finish(text, replace(description, adds_tensors=True)).message
    assert [(one.name, one.data_type) for one in message.input] == [("IN1", pb.TYPE_FP32), ("IN0", pb.TYPE_FP32)]
    assert [one.name for one in message.output] == ["OUT", "OTHER"]
    assert any("configuration expects 1 inputs, model provides 2" in each for each in problems(text, description))


@pytest.mark.parametrize(
    ("batching", "parameter", "measured"),
    [
        ("", "", False),
        ("", "measured", True),
        ("preferred_batch_size: [ 4 ]", "", False),
        ("preferred_batch_size: [ 8 ]", "", False),
        ("preferred_batch_size: [ 8 ]", "measured", True),
        ("", "always", False),
    ],
    ids=["nothing", "trials", "a size", "the largest", "a size, and trials", "no trials"],
)
def test_batch_sizes_are_tried_out_only_where_that_is_asked_for(batching: str, parameter: str, measured: bool) -> None:
    key = (
        f'parameters {{ key: "scheduling.grow_batches" value {{ string_value: "{parameter}" }} }}' if parameter else ""
    )
    found = finish(f"max_batch_size: 8 dynamic_batching {{ {batching} }} {key} {ONE_EACH}").config.dynamic_batching
    assert found is not None
    assert found.preferred_batch_sizes == ((4,) if "4" in batching else (8,))
    assert found.measured_sizes is measured
