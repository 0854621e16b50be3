"""Messages as JSON, compared with what a real Triton printed of the same ones."""

import json

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message

from modserve.pb import inference as pb
from modserve.pb.json_message import to_json

SIMPLE = """
name: "simple" backend: "python" max_batch_size: 8
version_policy { latest { num_versions: 1 } }
input { name: "INPUT0" data_type: TYPE_INT32 dims: 16 }
input { name: "INPUT1" data_type: TYPE_INT32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 16 label_filename: "labels.txt" }
output { name: "OUTPUT1" data_type: TYPE_INT32 dims: 16 }
optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
dynamic_batching { preferred_batch_size: 8 }
instance_group { name: "simple_0" kind: KIND_CPU count: 1 }
default_model_filename: "model.py"
"""
TRITON_S_SIMPLE = (
    '{"name":"simple","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},'
    '"max_batch_size":8,"input":[{"name":"INPUT0","data_type":"TYPE_INT32","format":"FORMAT_NONE","dims":[16],'
    '"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false},'
    '{"name":"INPUT1","data_type":"TYPE_INT32","format":"FORMAT_NONE","dims":[16],"is_shape_tensor":false,'
    '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"OUTPUT0",'
    '"data_type":"TYPE_INT32","dims":[16],"label_filename":"labels.txt","is_shape_tensor":false,'
    '"is_non_linear_format_io":false},{"name":"OUTPUT1","data_type":"TYPE_INT32","dims":[16],"label_filename":"",'
    '"is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],'
    '"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},'
    '"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},'
    '"dynamic_batching":{"preferred_batch_size":[8],"max_queue_delay_microseconds":0,"preserve_ordering":false,'
    '"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},"instance_group":[{"name":"simple_0",'
    '"kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],'
    '"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}'
)


def test_a_configuration_is_printed_as_triton_prints_it() -> None:
    assert json.dumps(to_json(text_format.Parse(SIMPLE, pb.ModelConfig())), separators=(",", ":")) == TRITON_S_SIMPLE


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (pb.ModelVersionPolicy(all=pb.ModelVersionPolicy.All()), {"all": {}}),
        (
            pb.ModelVersionPolicy(specific=pb.ModelVersionPolicy.Specific(versions=[1, 2**40])),
            {"specific": {"versions": [1, 2**40]}},
        ),
        (pb.StatisticDuration(count=2**63, ns=1), {"count": 2**63, "ns": 1}),
        (pb.ModelParameter(string_value="x"), {"string_value": "x"}),
        (pb.ModelVersionPolicy(), {}),
        (pb.InferParameter(), {}),
        (pb.InferParameter(bool_param=False), {"bool_param": False}),
    ],
    ids=["empty message", "64 bits in a list", "64 bits", "text", "no choice", "nothing chosen", "a chosen default"],
)
def test_a_message(message: Message, expected: dict[str, object]) -> None:
    assert to_json(message) == expected


def test_map_keys_are_strings_in_order() -> None:
    batching = pb.ModelDynamicBatching()
    for level in (2, 1):
        batching.priority_queue_policy[level].max_queue_size = level
    policies = to_json(batching)["priority_queue_policy"]
    assert json.dumps(policies, separators=(",", ":")) == (
        '{"1":{"timeout_action":"REJECT","default_timeout_microseconds":0,"allow_timeout_override":false,"max_queue_size":1},'
        '"2":{"timeout_action":"REJECT","default_timeout_microseconds":0,"allow_timeout_override":false,"max_queue_size":2}}'
    )


def test_an_enum_value_without_a_name_is_its_number() -> None:
    assert to_json(pb.ModelInput(name="x", data_type=99))["data_type"] == 99


def test_no_64_bit_number_is_a_string() -> None:
    config = pb.ModelConfig(input=[pb.ModelInput(dims=[-1, 2**40], reshape=pb.ModelTensorReshape(shape=[2**40]))])
    (printed,) = json.loads(json.dumps(to_json(config)))["input"]
    assert printed["dims"] == [-1, 2**40]
    assert printed["reshape"] == {"shape": [2**40]}
