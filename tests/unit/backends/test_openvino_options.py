"""What a model's parameters say to the OpenVINO backend. Without OpenVINO."""

import pytest

from modserve.backends.openvino.options import OpenVinoOptions, compile_properties, read, warnings
from modserve.backends.openvino.shapes import partial_shape, partial_shapes
from modserve.core.errors import Code, ModserveError
from modserve.testing import config


def options(**parameters: str) -> OpenVinoOptions:
    return read(config(parameters=parameters))


@pytest.mark.parametrize(
    ("parameters", "properties"),
    [
        ({}, {}),
        ({"PERFORMANCE_HINT": "latency"}, {"PERFORMANCE_HINT": "LATENCY"}),
        ({"INFERENCE_NUM_THREADS": "5"}, {"INFERENCE_NUM_THREADS": 5}),
        ({"CPU_THREADS_NUM": "5"}, {"INFERENCE_NUM_THREADS": 5}),
        ({"NUM_STREAMS": "auto"}, {"NUM_STREAMS": "AUTO"}),
        ({"num_streams": "4"}, {"NUM_STREAMS": 4}),
        ({"CPU_THROUGHPUT_STREAMS": "CPU_THROUGHPUT_NUMA"}, {"NUM_STREAMS": "NUMA"}),
        ({"HINT_BF16": "YES"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"ENFORCE_BF16": "no"}, {"INFERENCE_PRECISION_HINT": "f32"}),
        ({"INFERENCE_PRECISION_HINT": "FP16"}, {"INFERENCE_PRECISION_HINT": "f16"}),
        ({"CPU_BIND_THREAD": "NUMA"}, {"ENABLE_CPU_PINNING": True}),
        ({"ENABLE_CPU_PINNING": "false"}, {"ENABLE_CPU_PINNING": False}),
        ({"CACHE_DIR": "/cache"}, {"CACHE_DIR": "/cache"}),
        ({"plugin_config": '{"CPU_THREADS_NUM": "3", "ANY": true}'}, {"INFERENCE_NUM_THREADS": 3, "ANY": True}),
        ({"plugin_config": '{"NUM_STREAMS": 3}', "NUM_STREAMS": "2"}, {"NUM_STREAMS": 2}),
    ],
)
def test_properties(parameters: dict[str, str], properties: dict[str, object]) -> None:
    assert options(**parameters).properties == properties


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("NUM_STREAMS", "many", "'NUM_STREAMS' is 'many', expected an integer of 0 or more, AUTO or NUMA"),
        ("INFERENCE_NUM_THREADS", "-1", "'INFERENCE_NUM_THREADS' is '-1', expected an integer of 0 or more"),
        ("hint_bf16", "perhaps", "'HINT_BF16' is 'perhaps', expected YES or NO"),
        ("RESHAPE_IO_LAYERS", "perhaps", "'RESHAPE_IO_LAYERS' is 'perhaps', expected true or false"),
        ("nireq", "-1", "'NIREQ' is '-1', expected an integer of 0 or more"),
        ("plugin_config", "{", "expected a JSON object of properties"),
        ("plugin_config", "[1]", "expected a JSON object of properties"),
        ("plugin_config", '{"A": {}}', "expected a JSON object of properties"),
        ("plugin_config", '{"NUM_STREAMS": "x"}', "expected an integer of 0 or more, AUTO or NUMA under 'NUM_STREAMS'"),
        ("shape", "1,3", r"expected such as \(1,3,224,224\)"),
        ("shape", '{"A": "(1,x)"}', r"expected such as \(1,3,224,224\)"),
        ("layout", "NHWC", "expected such as NHWC:NCHW, or a JSON object with one for each tensor"),
        ("layout", "NHWC:NCH", "expected such as NHWC:NCHW"),
        ("weight_compression", "int4", "'WEIGHT_COMPRESSION' is 'int4', expected one of: int8"),
        ("TF_SIGNATURE_DEF", "train", "expected 'serving_default', the only signature that OpenVINO can serve"),
    ],
)
def test_what_is_no_good(key: str, value: str, expected: str) -> None:
    with pytest.raises(ModserveError, match=expected) as caught:
        options(**{key: value})
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.startswith("model 'model': parameter")


def test_the_other_parameters() -> None:
    read_options = options(
        TARGET_DEVICE="gpu.1",
        CPU_EXTENSION_PATH="/lib.so",
        RESHAPE_IO_LAYERS="yes",
        SKIP_DYNAMIC_BATCHSIZE="YES",
        ENABLE_BATCH_PADDING="yes",
        nireq="3",
        shape='{"A": "(1,-1)", "B": "auto"}',
        layout="nhwc:nchw",
        TF_GRAPH_TAG="serve",
    )
    assert read_options == OpenVinoOptions(
        device="GPU.1",
        extension="/lib.so",
        reshape=True,
        fixed_batch=True,
        padding=True,
        requests=3,
        shapes={"A": "[1,?]", "B": "auto"},
        layouts={"": ("NHWC", "NCHW")},
        tag="serve",
    )


@pytest.mark.parametrize(
    ("parameters", "device", "expected"),
    [
        (
            {},
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "EXECUTION_MODE_HINT": "ACCURACY",
                "INFERENCE_NUM_THREADS": 6,
                "ENABLE_CPU_PINNING": False,
                "NUM_STREAMS": 2,
            },
        ),
        (
            {"HINT_BF16": "YES", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": "0"},
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "bf16",
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": 6,
                "ENABLE_CPU_PINNING": False,
            },
        ),
        (
            {"weight_compression": "INT8", "NUM_STREAMS": "1"},
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "EXECUTION_MODE_HINT": "ACCURACY",
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32,
                "INFERENCE_NUM_THREADS": 6,
                "ENABLE_CPU_PINNING": False,
                "NUM_STREAMS": 1,
            },
        ),
        (
            {"WEIGHT_COMPRESSION": "int8", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "HINT_BF16": "YES"},
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "bf16",
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
                "INFERENCE_NUM_THREADS": 6,
                "ENABLE_CPU_PINNING": False,
                "NUM_STREAMS": 2,
            },
        ),
        ({}, "GPU.0", {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}),
        ({}, "AUTO", {}),
        ({"NUM_STREAMS": "2"}, "NPU", {"NUM_STREAMS": 2}),
    ],
)
def test_what_a_model_is_compiled_with(parameters: dict[str, str], device: str, expected: dict[str, object]) -> None:
    actual = compile_properties(options(**parameters), device, threads=6, streams=2, cache_directory="")
    assert actual == expected


def test_the_cache_directory_of_the_model_counts() -> None:
    for parameters, directory in ({}, "/all"), ({"CACHE_DIR": "/own"}, "/own"):
        properties = compile_properties(options(**parameters), "NPU", threads=1, streams=1, cache_directory="/all")
        assert properties == {"CACHE_DIR": directory}


@pytest.mark.parametrize(
    ("parameters", "warning"),
    [
        ({"NUM_STREAM": "1"}, "backend 'openvino' does not know it; did you mean 'NUM_STREAMS'?"),
        ({"nirec": "1"}, "did you mean 'nireq'?"),
        ({"batch_size": "4"}, "'batch_size' has no effect: any batch up to max_batch_size runs unpadded"),
        ({"stateful": "true"}, "no state is kept between requests"),
        ({"ENABLE_BATCH_PADDING": "YES"}, "has no effect: without SKIP_OV_DYNAMIC_BATCHSIZE, any batch up to"),
    ],
)
def test_what_has_no_effect_is_told(parameters: dict[str, str], warning: str) -> None:
    (note,) = warnings(config(parameters=parameters))
    assert warning in note


def test_what_has_an_effect_is_not() -> None:
    parameters = {"NUM_STREAMS": "1", "nireq": "2", "padding.value": "0", "SKIP_OV_DYNAMIC_BATCHSIZE": "YES"}
    assert warnings(config(parameters={**parameters, "ENABLE_BATCH_PADDING": "YES"})) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("(1,3,224,224)", "[1,3,224,224]"), ("[ -1, 200:500 ]", "[?,200..500]"), ("AUTO", "auto"), ("(7)", "[7]")],
)
def test_shapes(text: str, expected: str) -> None:
    assert partial_shapes(text) == expected


@pytest.mark.parametrize("text", ["", "1,2", "(1,2", "(1,,2)", "(-2)", "(a)", "()"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ValueError, match="is not a shape"):
        partial_shapes(text)


def test_dims() -> None:
    assert partial_shape((-1, 3)) == "[?,3]"
    assert partial_shape(()) == "[]"
