"""What is printed at the start: the table of models, and a call that works when pasted."""

import json
import shlex
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from modserve.backends.catalogue import BY_BACKEND
from modserve.backends.inventory import BackendEntry
from modserve.core.configuration.ensemble_config import EnsembleConfig, Step
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import Control, ControlKind, DirectStrategy, SequenceBatching
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.pip_command import pip_install
from modserve.core.requests.normalize import Signature
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape
from modserve.process.console import HttpAddress, engines_table, example_call, models_table, waiting_line
from modserve.protocol import examples
from modserve.protocol.http import infer_request
from modserve.testing import RecordingSink, config

# The table


def test_a_table_of_models() -> None:
    entries = [
        IndexEntry("digits", 1, LifecycleState.READY, "", 1_234_567_890),
        IndexEntry("bad", None, LifecycleState.UNAVAILABLE, "Invalid argument: two\nlines"),
        IndexEntry("digits", 10, LifecycleState.LOADING, ""),
        IndexEntry("s", 1, LifecycleState.UNAVAILABLE, "unloaded", 5_000_000),
    ]
    assert models_table(entries) == (
        "model   version  state        load time\n"
        "------  -------  -----------  ---------\n"
        "bad     -        UNAVAILABLE  -\n"
        "    Invalid argument: two\n"
        "    lines\n"
        "digits  1        READY        1.235 s\n"
        "digits  10       LOADING      -\n"
        "s       1        UNAVAILABLE  0.005 s\n"
        "    unloaded\n"
        "\n"
        "1 of 4 versions failed: they are listed first, with the reasons."
    )


def test_reasons_that_the_log_has_already() -> None:
    entries = [
        IndexEntry("a", None, LifecycleState.UNAVAILABLE, f"{'x' * 120}\nadvice"),
        IndexEntry("b", None, LifecycleState.UNAVAILABLE, "short\nadvice"),
    ]
    lines = models_table(entries, logged=True).splitlines()
    assert lines[3] == f"    {'x' * 100} … (see above)"
    assert lines[5:7] == ["    short", "    advice"]


def test_a_table_of_none() -> None:
    assert models_table([]) == "model  version  state  load time\n-----  -------  -----  ---------"


def test_a_table_of_long_names() -> None:
    heading, rule, line = models_table(
        [IndexEntry("a" * 30, 123_456_789, LifecycleState.READY, "", 10**13)]
    ).splitlines()
    assert heading.index("version") == line.index("123456789") == rule.index("  -") + 2
    assert line.endswith("  10000.000 s")


# Engines

INSTALLED = [
    BackendEntry("onnxruntime", "ONNX Runtime", "1.31.1", "ONNX models", True),
    BackendEntry("python", "", "", "models in Python", True),
    BackendEntry("acme", "acme-engine", "1.0", "", True),
]


def test_a_table_of_engines() -> None:
    missing = [
        BackendEntry("openvino", "OpenVINO", "", "IR", False, "pip install 'modserve[openvino]'"),
        BackendEntry("tensorrt", "TensorRT", "", "plans", False),
    ]
    assert engines_table([*INSTALLED, *missing]) == (
        "backend      library              loads\n"
        "-----------  -------------------  ----------------\n"
        "onnxruntime  ONNX Runtime 1.31.1  ONNX models\n"
        "python       -                    models in Python\n"
        "acme         acme-engine 1.0      -\n"
        "\n"
        "Not installed:\n"
        "openvino     OpenVINO             IR\n"
        "    pip install 'modserve[openvino]'\n"
        "tensorrt     TensorRT             plans"
    )


def test_a_library_that_stands_in_for_another_one() -> None:
    entry = BackendEntry("tensorflow", "OpenVINO", "2026.4", "SavedModel", True, "pip install 'modserve[tensorflow]'")
    assert engines_table([entry]).splitlines()[2:] == [
        "tensorflow  OpenVINO 2026.4  SavedModel",
        "    or by its own library: pip install 'modserve[tensorflow]'",
    ]


def test_an_engine_with_builds_of_different_sizes() -> None:
    pytorch = BY_BACKEND["pytorch"]
    lines = engines_table([BackendEntry("pytorch", "PyTorch", "", "TorchScript", False, pytorch.install_lines)])
    assert lines.splitlines()[-2:] == [
        "    pip install uv && uv pip install torch --torch-backend=cpu    # the CPU build, 0.9 GB",
        f"    {pip_install('torch')}    # on Linux the CUDA build, 5.6 GB",
    ]


def test_engines_of_which_none_is_missing() -> None:
    assert "Not installed" not in engines_table(INSTALLED)


# The call


LOCAL = HttpAddress("127.0.0.1", 8000)


def single(name: str, **more: Any) -> ModelConfig:
    """A model of one value."""
    return config(name, inputs=(TensorSpec("A", dtypes.INT8, (1,)),), **more)


def with_input(datatype: Datatype, dims: Shape = (3,), max_batch_size: int = 0, name: str = "IN") -> ModelConfig:
    return config(inputs=(TensorSpec(name, datatype, dims),), max_batch_size=max_batch_size)


def pasted(line: str) -> tuple[str, str, bytes]:
    """What a shell makes of the line: host, path and body."""
    command, url, option, body = shlex.split(line)
    assert (command, option) == ("curl", "-d")
    parts = urlsplit("http://" + url)
    return parts.netloc, parts.path, body.encode()


def accepted(model: ModelConfig) -> Shape:
    """That the server takes the example; the shape of its first input."""
    body = json.dumps(examples.infer(model, {model.name: model})).encode()
    request, _ = infer_request.decode_request(model.name, None, body, None, 0)
    inflight = Signature(model).accept(request, RecordingSink(), 0)
    return next(iter(inflight.inputs.values())).shape


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("max_batch_size", [0, 8], ids=["no batches", "batches"])
def test_the_example_is_accepted_for_every_datatype(datatype: Datatype, max_batch_size: int) -> None:
    assert accepted(with_input(datatype, (200,), max_batch_size)) == ((1, 200) if max_batch_size else (200,))


@pytest.mark.parametrize(("dims", "shape"), [((), ()), ((-1,), (1,)), ((2, -1, 3), (2, 1, 3)), ((0,), (0,))], ids=str)
def test_the_example_s_shape(dims: Shape, shape: Shape) -> None:
    assert accepted(with_input(dtypes.FP32, dims)) == shape
    assert accepted(with_input(dtypes.FP32, dims, 4)) == (1, *shape)


@pytest.mark.parametrize("name", ["it's", 'say "hi"', "a b", "$HOME", "back\\slash", "é"])
def test_the_example_survives_the_shell(name: str) -> None:
    assert body_of(with_input(dtypes.INT8, (1,), name=name))[1] == {name: 0}


@pytest.mark.parametrize("name", ["it's", "a b", "a;b", "50%", "é", "a?b", "a&b"])
def test_a_model_s_name_survives_the_shell_and_the_url(name: str) -> None:
    assert unquote(body_of(single(name))[0]) == f"/v2/models/{name}/generate"
    assert shlex.split(example_call([config(name)], LOCAL))[:3] == ["modserve", "infer", name]


def test_optional_inputs_are_left_out() -> None:
    inputs = (TensorSpec("A", dtypes.INT8, (1,), optional=True), TensorSpec("B", dtypes.INT8, (1,)))
    assert body_of(config(inputs=inputs))[1] == {"B": 0}


def test_the_model_with_the_least_to_type_is_the_example() -> None:
    models = [
        config("none", inputs=()),
        config("large", inputs=(TensorSpec("A", dtypes.INT8, (100,)),)),
        config("b", inputs=(TensorSpec("A", dtypes.INT8, (2,)), TensorSpec("B", dtypes.INT8, (1,)))),
        config("a", inputs=(TensorSpec("A", dtypes.INT8, (3,)),)),
    ]
    assert example_call(models, LOCAL).startswith("modserve infer a --sample")


def test_no_example_without_models() -> None:
    assert example_call([], LOCAL) == ""


TEXT, PAIR = TensorSpec("text", dtypes.BYTES, (1,)), TensorSpec("pair", dtypes.FP32, (2,))
LLM = (TensorSpec("text_input", dtypes.BYTES, (1,)), TensorSpec("stream", dtypes.BOOL, (1,), optional=True))
IMAGE = "@picture.jpg    # yours; or --sample in place of it"


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (config("smol", inputs=LLM, decoupled=True), "modserve chat smol"),
        (config("f", inputs=(TEXT,)), """curl localhost:8000/v2/models/f/generate -d '{"text":"text 0"}'"""),
        (
            config("d", inputs=(TEXT,), decoupled=True),
            """curl localhost:8000/v2/models/d/generate_stream -d '{"text":"text 0"}'""",
        ),
        (config("rgb", inputs=(TensorSpec("A", dtypes.FP32, (3, 224, 224)),)), f"modserve infer rgb {IMAGE}"),
        (config("hwc", inputs=(TensorSpec("A", dtypes.UINT8, (-1, -1, 3)),)), f"modserve infer hwc {IMAGE}"),
        (config("cube", inputs=(TensorSpec("A", dtypes.FP32, (3, 4, 4)),)), "modserve infer cube --sample"),
        (config("matrix", inputs=(TensorSpec("A", dtypes.FP32, (-1, -1)),)), "modserve infer matrix --sample"),
        (config("rest", inputs=(PAIR,)), "modserve infer rest --sample"),
        (
            config("stream", inputs=(PAIR,), decoupled=True),
            "curl localhost:8000/v2/models/stream/infer_stream -d "
            """'{"inputs":[{"name":"pair","datatype":"FP32","shape":[1,2],"data":[0,1]}]}'""",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ModelConfig) else "",
)
def test_the_line_of_each_kind(model: ModelConfig, line: str) -> None:
    assert example_call([model], HttpAddress("0.0.0.0", 8000)) == line


@pytest.mark.parametrize(
    ("place", "options"),
    [
        (HttpAddress("0.0.0.0", 8000), ""),
        (HttpAddress("0.0.0.0", 81), " --url http://localhost:81"),
        (HttpAddress("::1", 81, tls=True), " --url 'https://[::1]:81' --insecure"),
    ],
    ids=["default", "port", "tls"],
)
def test_commands_have_the_address(place: HttpAddress, options: str) -> None:
    assert example_call([with_input(dtypes.FP32, (1000,))], place) == f"modserve infer model --sample{options}"
    assert example_call([config(inputs=LLM)], place) == f"modserve chat model{options}"


@pytest.mark.parametrize(
    ("address", "tls", "start"),
    [
        ("0.0.0.0", False, "curl localhost:81/v2/models/simple/generate -d "),
        ("", False, "curl localhost:81/v2/models/simple/generate -d "),
        ("::", False, "curl -g '[::1]:81/v2/models/simple/generate' -d "),
        ("127.0.0.2", False, "curl 127.0.0.2:81/v2/models/simple/generate -d "),
        ("gpu-7", False, "curl gpu-7:81/v2/models/simple/generate -d "),
        ("::1", False, "curl -g '[::1]:81/v2/models/simple/generate' -d "),
        ("0.0.0.0", True, "curl -k https://localhost:81/v2/models/simple/generate -d "),
        ("::1", True, "curl -g -k 'https://[::1]:81/v2/models/simple/generate' -d "),
    ],
)
def test_the_address_is_one_that_can_be_called(address: str, tls: bool, start: str) -> None:
    assert example_call([single("simple")], HttpAddress(address, 81, tls)).startswith(start + "'{")


def body_of(*models: ModelConfig) -> tuple[str, dict[str, Any]]:
    """The example's path and JSON."""
    _, path, body = pasted(example_call(models, LOCAL))
    return path, json.loads(body)


def sequential(name: str, controls: tuple[Control, ...] = ()) -> ModelConfig:
    return config(name, sequence_batching=SequenceBatching(DirectStrategy(), controls=controls))


def test_a_sequence_of_one_request() -> None:
    path, body = body_of(sequential("s"))
    assert path == "/v2/models/s/infer"
    assert body["parameters"] == {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    named = Control("ID", ControlKind.CORRID, dtypes.BYTES)
    assert body_of(sequential("s", (named,)))[1]["parameters"]["sequence_id"] == "1"


def test_an_iterative_model_makes_its_sequences_itself() -> None:
    iterative = config("i", sequence_batching=SequenceBatching(DirectStrategy(), iterative=True))
    assert "parameters" not in examples.infer(iterative, {"i": iterative})


def test_a_decoupled_model_is_streamed() -> None:
    assert body_of(config("d", decoupled=True))[0] == "/v2/models/d/infer_stream"
    assert body_of(single("d", decoupled=True))[0] == "/v2/models/d/generate_stream"


def ensemble(name: str, *models: str) -> ModelConfig:
    steps = tuple(Step(model, None, {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"}) for model in models)
    return config(name, ensemble=EnsembleConfig(steps))


def test_an_ensemble_is_called_as_its_models_need_it() -> None:
    """`unload` leaves ensembles whose models are not there any more: what they need is not known then."""
    big = (TensorSpec("INPUT0", dtypes.INT32, (1000,)),)
    stream = config("d", decoupled=True, inputs=big)
    sequence = sequential("s")
    path, body = body_of(ensemble("e", "d", "gone"), stream)
    assert path == "/v2/models/e/infer_stream"
    assert "parameters" not in body
    assert example_call([ensemble("e", "s")], LOCAL).startswith("modserve infer e --sample")
    path, body = body_of(ensemble("a", "s"), sequence)
    assert (path, body["parameters"]["sequence_id"]) == ("/v2/models/a/infer", 1)


PREFERENCES = [
    config("language model", inputs=LLM),
    ensemble("of others", "plain"),
    config("any size", inputs=(TensorSpec("A", dtypes.INT32, (-1,)),)),
    config("streamed", decoupled=True, inputs=(TensorSpec("A", dtypes.INT32, (1,)),)),
    sequential("sequence"),
    config("image", inputs=(TensorSpec("A", dtypes.INT32, (-1, -1, 3)),)),
    config("large", inputs=(TensorSpec("A", dtypes.INT32, (1000,)),)),
    config("plain", inputs=(TensorSpec("A", dtypes.INT32, (100,)),)),
    config("without inputs", inputs=()),
]
"""The first of some that are there is the example."""


def test_the_example_is_the_model_whose_answer_says_most() -> None:
    for place in range(len(PREFERENCES)):
        there = [model for model in PREFERENCES[place:] if place < 2 or model.name != "plain"]
        command, *words = shlex.split(example_call(there[::-1], LOCAL))
        chosen = words[1] if command == "modserve" else unquote(urlsplit("http://" + words[0]).path).split("/")[3]
        assert chosen == there[0].name


def test_the_answer_of_a_sum_can_be_checked_in_the_head() -> None:
    model = config(inputs=tuple(TensorSpec(name, dtypes.FP32, (3,)) for name in ("A", "B", "C")))
    body = examples.generate(model, {model.name: model})
    assert body == {"A": [0, 1, 2], "B": [1, 1, 1], "C": [1, 1, 1]}


def test_if_all_inputs_are_optional_one_is_sent() -> None:
    inputs = tuple(TensorSpec(name, dtypes.INT8, (1,), optional=True) for name in ("A", "B"))
    assert body_of(config(inputs=inputs))[1] == {"A": 0}


# Nothing is loaded


def test_models_that_wait() -> None:
    assert waiting_line(["a b"], LOCAL) == (
        "1 model waits for a load call: a b\n  curl 127.0.0.1:8000/v2/repository/models/a%20b/load -X POST"
    )
    names = list("abcdefg")
    assert waiting_line(names, None) == "7 models wait for a load call: a, b, c, d, e, …"


def test_a_call_with_a_key() -> None:
    place = HttpAddress("0.0.0.0", 8000, keyed=True)
    assert place.curl("/v2") == 'curl -H "x-api-key: $MODSERVE_API_KEY" localhost:8000/v2'
