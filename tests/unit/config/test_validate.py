"""Rules that a configuration must keep by itself."""

import re

import pytest
from config_build import ONE_EACH, PATH, finish, problems

from modserve import config
from modserve.core.errors import ModserveError

NO_GPU = (
    "instance group foo_0 of model foo has kind KIND_GPU but no GPUs are available; KIND_AUTO uses the CPU if "
    "there is none"
)

# What is put before two good tensors → what is wrong.
RULES = {
    'name: "bar"': [
        "1:1: unexpected directory name 'foo' for model 'bar', directory name must equal model name; "
        'write name: "foo", or leave the name out'
    ],
    'platform: "caffe"': [
        "1:1: unexpected platform type 'caffe' for foo; known platforms are: tensorflow_savedmodel, "
        "tensorflow_graphdef, tensorrt_plan, onnxruntime_onnx, pytorch_libtorch, torch_aoti, libtorch"
    ],
    'backend: "tensorrt" platform: "onnxruntime_onnx"': [
        "1:21: unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, tensorrt"
    ],
    'platform: "mine" backend: "pytorch"': ["1:1: unexpected 'platform' and 'backend' pair, got:mine, pytorch"],
    "max_batch_size: -1": ["1:1: 'max_batch_size' must be non-negative value for foo"],
    'default_model_filename: "../../secret"': [
        "1:1: model file path '../../secret' in model 'foo' is outside version directory"
    ],
    'default_model_filename: "/etc/passwd"': [
        "1:1: model file path '/etc/passwd' in model 'foo' is outside version directory"
    ],
    "version_policy { latest { } }": ["1:18: version policy 'latest' must have 'num_versions' > 0"],
    "version_policy { specific { } }": ["1:18: version policy 'specific' must list one or more 'versions'"],
    "version_policy { specific { versions: [1, 0] } }": [
        "1:43: version policy 'specific' lists 0, versions are integers > 0"
    ],
    # Enums written as numbers
    "instance_group { kind: 9 }": [
        "1:18: unknown value 9 for 'kind'; it takes KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL"
    ],
    'model_warmup { batch_size: 1 inputs { key: "IN" value { data_type: 99 dims: 4 zero_data: true } } }': [
        "1:57: unknown value 99 for 'data_type'; it takes TYPE_INVALID, TYPE_BOOL, TYPE_UINT8, TYPE_UINT16, "
        "TYPE_UINT32, TYPE_UINT64, TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, TYPE_FP32, TYPE_FP64, "
        "TYPE_STRING, TYPE_BF16"
    ],
    # Instance groups
    "instance_group { count: 1025 }": [
        "1:18: model foo has 1025 instances or more, at most 1024 are allowed",
    ],
    "instance_group [ { count: 1000 kind: KIND_CPU }, { count: 20000 kind: KIND_CPU } ]": [
        "1:52: model foo has 21000 instances or more, at most 1024 are allowed",
    ],
    "instance_group { count: -1 }": ["1:18: instance group foo_0 of model foo has count -1, a count must be > 0"],
    "instance_group { kind: KIND_CPU gpus: 0 }": [
        "1:33: instance group foo_0 of model foo has kind KIND_CPU but specifies one or more GPUs"
    ],
    "instance_group { name: 'g' kind: KIND_MODEL gpus: 0 }": [
        "1:45: instance group g of model foo has kind KIND_MODEL but specifies one or more GPUs"
    ],
    "instance_group { kind: KIND_GPU }": [f"1:18: {NO_GPU}"],
    "instance_group { profile: '1' }": [
        "1:18: instance group foo_0 of model foo and platform onnxruntime_onnx specifies profile field which is only "
        "supported for TensorRT models"
    ],
    # The dynamic batcher
    "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 0, 16 ] }": [
        "1:65: dynamic batching preferred size must be positive for foo",
        "1:68: dynamic batching preferred size must be <= max batch size for foo: 16 > 8",
    ],
}


@pytest.mark.parametrize(("text", "expected"), RULES.items())
def test_rules(text: str, expected: list[str]) -> None:
    assert problems(text + ONE_EACH) == expected


GPU_RULES = {
    "instance_group { count: 600 kind: KIND_GPU }": [
        "1:18: model foo has 1200 instances or more, at most 1024 are allowed",
    ],
    "instance_group { kind: KIND_GPU gpus: [0, 2] }": [
        "1:43: instance group foo_0 of model foo specifies invalid or unsupported gpu id 2; GPUs are: 0, 1"
    ],
    "instance_group { kind: KIND_GPU gpus: [0, 1, 0] }": [
        "1:46: instance group foo_0 of model foo specifies gpu id 0 more than once"
    ],
    "instance_group { kind: KIND_GPU gpus: -1 }": [
        "1:33: instance group foo_0 of model foo specifies invalid or unsupported gpu id -1; GPUs are: 0, 1"
    ],
}


@pytest.mark.parametrize(("text", "expected"), GPU_RULES.items())
def test_gpu_rules(text: str, expected: list[str]) -> None:
    assert problems(text + ONE_EACH, gpu_count=2) == expected


# Priorities are not supported yet, so these come with that problem too.
PRIORITY_RULES = {
    "dynamic_batching { priority_levels: 2 }": "1:1: default priority level must be in range [1, 2] for foo",
    "dynamic_batching { priority_levels: 2 default_priority_level: 3 }": (
        "1:39: default priority level must be in range [1, 2] for foo"
    ),
    "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }": (
        "1:65: priority queue policy must have priority level in range [1, 2] for foo"
    ),
    "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }": (
        "1:20: Only one priority level is allowed when 'preserve_ordering' is true for foo"
    ),
    "dynamic_batching { preserve_ordering: true default_queue_policy { default_timeout_microseconds: 1 "
    "timeout_action: DELAY } }": (
        "1:99: Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for foo"
    ),
    "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 priority_queue_policy { "
    "key: 1 value { default_timeout_microseconds: 1 timeout_action: DELAY } } }": (
        "1:160: Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for foo"
    ),
}


@pytest.mark.parametrize(("text", "expected"), PRIORITY_RULES.items())
def test_priority_rules(text: str, expected: str) -> None:
    assert expected in problems(f"{text} max_batch_size: 8 {ONE_EACH}")


INTEGER_RULE = "integer >= 1, or -1 to indicate a variable-size dimension for foo"

# The body of an input → what is wrong.
TENSOR_RULES = {
    "data_type: TYPE_FP32 dims: 1": ["1:1: model input must specify 'name' for foo"],
    "name: 'a' dims: 1": ["1:1: model input 'a' must specify 'data_type' for foo"],
    "name: 'a' data_type: TYPE_FP32": ["1:1: model input 'a' must specify 'dims' for foo"],
    "name: 'a' data_type: TYPE_FP32 dims: [3, 0, -2]": [
        f"1:50: model input 'a' dimension must be {INTEGER_RULE}",
        f"1:53: model input 'a' dimension must be {INTEGER_RULE}",
    ],
    "name: 'a' data_type: TYPE_FP32 dims: 1 reshape { shape: 0 }": [
        f"1:58: model input 'a' reshape dimensions must be {INTEGER_RULE}"
    ],
    "name: 'a' data_type: TYPE_FP32 dims: 1 reshape { }": [
        "1:48: model input 'a' cannot have empty reshape for non-batching model as scalar tensors are not supported "
        "for foo"
    ],
    "name: 'a' data_type: TYPE_FP32 dims: [2, 3] reshape { shape: [3, 3] }": [
        "1:53: model input 'a' has different size for dims and reshape for foo: [2, 3] and [3, 3]"
    ],
    "name: 'a' data_type: TYPE_FP32 dims: [4, -1] reshape { shape: 4 }": [
        "1:54: model input 'a' has different size for dims and reshape for foo: [4, -1] and [4]"
    ],
    "name: 'a' data_type: TYPE_FP32 dims: [-1, -1] reshape { shape: -1 }": [
        "1:55: model input 'a' has different number of variable-size dimensions for dims and reshape for foo: [-1, "
        "-1] and [-1]"
    ],
    "name: 'a' data_type: TYPE_FP32 dims: [2, -1, 6] reshape { shape: [-1, 12] }": [
        "1:57: model input 'a' has different size for dims and reshape for foo: [2, -1, 6] and [-1, 12]"
    ],
    "name: 'a' data_type: TYPE_FP32 dims: [3, 4] format: FORMAT_NHWC": [
        "1:53: model input NHWC/NCHW require 3 dims for foo"
    ],
}


@pytest.mark.parametrize(("text", "expected"), TENSOR_RULES.items())
def test_tensor_rules(text: str, expected: list[str]) -> None:
    assert problems(f"input {{ {text} }}") == expected


def test_output_rules() -> None:
    text = "output { name: 'b' data_type: TYPE_FP32 dims: 1 label_filename: '../labels' }\noutput { name: 'b' dims: 1 }"

    assert problems(text) == [
        "1:49: label file path '../labels' for output 'b' in model 'foo' is outside model directory",
        "2:1: model output 'b' must specify 'data_type' for foo",
        "2:10: model output 'b' is specified more than once for foo",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "name: 'a' data_type: TYPE_FP32 dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 6] }",
        "name: 'a' data_type: TYPE_FP32 dims: 1 reshape { }",
        "name: 'a' data_type: TYPE_FP32 dims: [3, 4, 5] format: FORMAT_NHWC",
    ],
)
def test_good_tensors(text: str) -> None:
    finish(f"max_batch_size: 1 input {{ {text} }}")


@pytest.mark.parametrize("auto_complete", [True, False])
@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (
            "",
            "foo",
            "Invalid model name: Could not determine backend for model 'foo' with no backend in model configuration. "
            "Expected model name of the form 'model.<backend_name>'.",
        ),
        ("default_model_filename: 'mine'", "foo", "unexpected platform type '' for foo; known platforms are: "),
        ("", "foo.", "unexpected platform type '' for foo.; known platforms are: "),
    ],
)
def test_backend_must_be_told(text: str, name: str, expected: str, auto_complete: bool) -> None:
    with pytest.raises(ModserveError, match=rf"config\.pbtxt: {re.escape(expected)}"):
        config.check(config.parse(text + ONE_EACH, PATH, name), auto_complete=auto_complete)


@pytest.mark.parametrize("backend", ["identity", "onnxruntime"])
def test_an_ensemble_has_no_backend(backend: str) -> None:
    with pytest.raises(ModserveError) as caught:
        config.check(config.parse(f'platform: "ensemble" backend: "{backend}"', PATH, "foo"))

    assert "Ensemble model 'foo' must have platform type 'ensemble' and empty backend type" in caught.value.message
    assert "pair" not in caught.value.message


def test_a_python_model_without_tensors_is_told_what_to_write() -> None:
    with pytest.raises(ModserveError) as caught:
        finish("", backend="python", auto_complete=False)
    first, *lines = caught.value.message.partition("must specify ")[2].splitlines()
    assert "; without --disable-auto-complete-config, the class in its model.py may add them in auto_complete" in first
    assert "; or write foo/config.pbtxt, " in first
    config = finish("\n".join(lines), backend="").config
    assert (config.backend, len(config.inputs), len(config.outputs)) == ("python", 1, 1)


def test_tensors_must_be_told_if_the_engine_can_not() -> None:
    assert problems("") == ["must specify 'input' and 'output' for 'foo': its backend cannot determine them"]
    assert finish("output { name: 'a' data_type: TYPE_FP32 dims: 1 }").config.inputs == ()


def test_all_problems_come_together() -> None:
    text = 'name: "bar"\nmax_batch_size: -1\ninput { name: "a" }\nmodel_repository_agents { agents { name: "b" } }'

    assert [problem.split(":")[0] for problem in problems(text)] == ["1", "2", "3", "3", "4"]


# Before the engine has seen the model


def test_check_finds_what_the_engine_can_not_change() -> None:
    text = 'name: "bar" backend: "python"\ninput { dims: 0 }\nmodel_operations { }\ninstance_group { kind: KIND_GPU }'
    with pytest.raises(ModserveError) as caught:
        config.check(config.parse(text, PATH, "foo"))

    assert caught.value.message.splitlines()[0] == "4 problems in the configuration of model 'foo'"


@pytest.mark.parametrize("text", ["", "input { name: 'a' }", "input { name: 'a' format: FORMAT_NHWC }"])
def test_check_leaves_to_the_engine_what_it_may_fill_in(text: str) -> None:
    draft = config.parse(f"{text} backend: 'onnxruntime'", PATH, "foo")
    config.check(draft)

    if text:
        with pytest.raises(ModserveError, match="must specify 'dims'"):
            config.check(draft, auto_complete=False)


def test_a_file_is_needed_without_auto_complete() -> None:
    draft = config.read(PATH, "foo.onnxruntime")

    config.check(draft)
    with pytest.raises(
        ModserveError,
        match=r"config\.pbtxt \(no such file\): there is no configuration, and automatic completion is off$",
    ):
        config.check(draft, auto_complete=False)


def test_as_many_instances_as_are_allowed() -> None:
    text = "instance_group [ { count: 24 kind: KIND_CPU }, { count: 500 kind: KIND_GPU } ]"
    assert len(finish(text + ONE_EACH, gpu_count=2).config.instance_groups) == 2
