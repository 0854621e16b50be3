"""Configurations as people write them for Triton, and those of this repository."""

from pathlib import Path

import pytest
from config_build import described, finish, tensor

from modserve import config
from modserve.config.features.unsupported import SETTINGS
from modserve.core.configuration.ensemble_config import EnsembleConfig, Step
from modserve.core.configuration.model_config import ModelDescription, TensorSpec
from modserve.core.configuration.sequence_config import DirectStrategy
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes

REPOSITORY = Path(__file__).parents[3] / "model_repository"

DENSENET = """
name: "foo"
platform: "onnxruntime_onnx"
max_batch_size : 0
input [
  {
    name: "data_0"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 224, 224 ]
    reshape { shape: [ 1, 3, 224, 224 ] }
  }
]
output [
  {
    name: "fc6_1"
    data_type: TYPE_FP32
    dims: [ 1000 ]
    reshape { shape: [ 1, 1000, 1, 1 ] }
    label_filename: "densenet_labels.txt"
  }
]
"""
TEXT_CLASSIFIER = """
backend: "onnxruntime"; max_batch_size: 64;
input: < name: "input_ids", data_type: TYPE_INT64, dims: [-1] >
input: < name: "attention_mask", data_type: TYPE_INT64, dims: [-1] >
output: < name: "logits", data_type: TYPE_FP32, dims: [2] >
dynamic_batching: {
  preferred_batch_size: [8, 16, 32, 64]  # powers of two
  max_queue_delay_microseconds: 500
  default_queue_policy: { max_queue_size: 128, default_timeout_microseconds: 1000000, allow_timeout_override: true }
}
instance_group: [{count: 2, kind: KIND_CPU}]
parameters: { key: "intra_op_thread_count" value: { string_value: "2" } }
parameters: { key: "execution_mode" value: { string_value: "0" } }
optimization: { graph: { level: 1 } }
"""
PYTHON_PREPROCESSING = """
name: "foo"
backend: "python"
max_batch_size: 16
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ 3, 299, 299 ] } ]
instance_group [{ kind: KIND_CPU }]
parameters: {
  key: "EXECUTION_ENV_PATH",
  value: {string_value: "$$TRITON_MODEL_DIRECTORY/env" ".tar.gz"}
}
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 1
input [ { name: "IN" data_type: TYPE_FP32 dims: 1 } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: 1 } ]
ensemble_scheduling {
  step [ { model_name: "a" model_version: -1 input_map { key: "x" value: "IN" } output_map { key: "y" value: "OUT" } } ]
}
"""
SEQUENCE = """
backend: "onnxruntime"
max_batch_size: 4
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] }
  ]
  direct { }
}
input [ { name: "IN" data_type: TYPE_FP32 dims: 1 } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: 1 } ]
"""
MISTAKEN = """\
backend: "onnxruntime"
max_batchsize: 8
input [
  { name: "IMAGE"  data_type: FP32  dims: [ 3, 224 224 ] }
]
instance_group [ { count: "two" } ]
"""
REPORT = """\
4 problems in the configuration of model 'resnet'
model_repository/resnet/config.pbtxt:2:1: unknown field 'max_batchsize'; did you mean 'max_batch_size'?
    max_batchsize: 8
    ^
model_repository/resnet/config.pbtxt:4:31: unknown value 'FP32' for 'data_type'; did you mean 'TYPE_FP32'?
    { name: "IMAGE"  data_type: FP32  dims: [ 3, 224 224 ] }
                                ^
model_repository/resnet/config.pbtxt:4:52: expected ',' or ']' in the list of 'dims', found the number 224
    { name: "IMAGE"  data_type: FP32  dims: [ 3, 224 224 ] }
                                                     ^
model_repository/resnet/config.pbtxt:6:27: 'count' takes an integer, found the string "two"
    instance_group [ { count: "two" } ]
                              ^
"""
DIFFERENCE = (
    "model_repository/resnet/config.pbtxt:3:44: model 'resnet', tensor 'IMAGE': the model expects 4 dimensions (shape "
    "[-1,3,224,224]) but the model configuration specifies 3 dimensions (an initial batch dimension because "
    "max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,3,224]); write dims: "
    "[ 3, 224, 224 ]\n"
    '    input { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 224 ] }\n'
    "                                               ^"
)


def test_densenet() -> None:
    image = tensor("data_0", 1, 3, 224, 224)
    description = ModelDescription((image,), (tensor("fc6_1", 1, 1000, 1, 1),), 4)
    complete = finish(DENSENET, description)

    assert complete.config.inputs == (TensorSpec("data_0", dtypes.FP32, (3, 224, 224), reshape=(1, 3, 224, 224)),)
    assert complete.config.outputs[0].label_filename == "densenet_labels.txt"
    assert complete.warnings == []


def test_text_classifier() -> None:
    description = ModelDescription(
        tuple(tensor(name, -1, -1, datatype=dtypes.INT64) for name in ("input_ids", "attention_mask")),
        (tensor("logits", -1, 2),),
        4,
    )
    found = finish(TEXT_CLASSIFIER, description).config

    assert found.dynamic_batching is not None
    assert found.dynamic_batching.preferred_batch_sizes == (8, 16, 32, 64)
    assert found.dynamic_batching.default_policy.default_timeout_ns == 10**9
    assert found.parameters == {"intra_op_thread_count": "2", "execution_mode": "0"}


def test_python_preprocessing() -> None:
    found = finish(PYTHON_PREPROCESSING).config

    assert (found.backend, found.platform, found.default_model_filename) == ("python", "", "model.py")
    assert found.parameters["EXECUTION_ENV_PATH"] == "$$TRITON_MODEL_DIRECTORY/env.tar.gz"


def test_sequence() -> None:
    found = finish(SEQUENCE).config.sequence_batching

    assert found is not None
    assert found.strategy == DirectStrategy()
    assert found.max_idle_ns == 5 * 10**9
    assert found.inputs == (("START", dtypes.FP32), ("READY", dtypes.INT32))


def test_ensemble() -> None:
    complete = finish(ENSEMBLE, backend="")

    assert complete.config.ensemble == EnsembleConfig((Step("a", None, {"x": "IN"}, {"y": "OUT"}),))
    assert complete.warnings == []
    assert not complete.message.instance_group
    assert not complete.message.HasField("optimization")


@pytest.mark.parametrize("name", ["simple", "digits"])
def test_models_of_this_repository(name: str) -> None:
    draft = config.read(REPOSITORY / name / "config.pbtxt", name)
    config.check(draft, auto_complete=False)
    complete = config.finish(
        draft,
        None,
        default_cpu_instances=2,
        default_model_filename="model.onnx",
        gpu_count=0,
        auto_complete=False,
    )

    assert complete.warnings == []
    assert (complete.config.name, complete.config.backend) == (name, "onnxruntime")
    assert complete.config.platform == "onnxruntime_onnx"


def test_the_same_from_the_model_alone() -> None:
    """What `simple` says of itself is what its engine would say, but for max_batch_size."""
    written = config.read(REPOSITORY / "simple" / "config.pbtxt", "simple").provisional()
    inputs = [tensor(f"IN{spec.name[2:]}", -1, 16, datatype=dtypes.INT32) for spec in written.inputs]
    outputs = [tensor(spec.name, -1, 16, datatype=dtypes.INT32) for spec in written.outputs]
    filled = finish("max_batch_size: 8", described(*inputs, *outputs)).config

    assert (filled.inputs, filled.outputs) == (written.inputs, written.outputs)


def section_examples(title: str) -> list[str]:
    """What stands in the fences of one section of the documentation."""
    documentation = (REPOSITORY.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    section = documentation.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return section.split("```\n")[1::2]


def test_the_examples_of_different_lengths_are_real() -> None:
    padded, ragged = (finish(text).config for text in section_examples("Requests of different lengths"))
    assert padded.padding is not None
    assert (padded.padding.axes, padded.padding.unpad) == (
        {"input_ids": 0, "attention_mask": 0},
        {"token_embeddings": 0},
    )
    assert [spec.ragged for spec in ragged.inputs] == [True]
    assert ragged.batch_outputs == {"OUTPUT": "INPUT"}


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ModserveError) as caught:
        config.parse(MISTAKEN, Path("model_repository/resnet/config.pbtxt"), "resnet")
    assert caught.value.message == REPORT.rstrip()


def test_a_difference_from_the_model_has_its_place_and_remedy() -> None:
    text = 'backend: "onnxruntime"\nmax_batch_size: 8\ninput { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 224 ] }'
    with pytest.raises(ModserveError) as caught:
        config.finish(
            config.parse(text, Path("model_repository/resnet/config.pbtxt"), "resnet"),
            ModelDescription((tensor("IMAGE", -1, 3, 224, 224),), (tensor("OUT", -1, 10),), 4),
            default_cpu_instances=2,
            default_model_filename="model.onnx",
            gpu_count=0,
            auto_complete=True,
        )
    assert caught.value.message.split("\n", 1)[1] == DIFFERENCE.rstrip()


def test_the_documentation_names_all_that_is_not_supported() -> None:
    documentation = (REPOSITORY.parent / "docs" / "configuration.md").read_text(encoding="utf-8")

    missing = [setting.path for setting in SETTINGS if f"`{setting.path}`" not in documentation]
    assert missing == []
