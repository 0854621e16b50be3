"""What is printed at the start: the table of models, and a call that works when pasted."""

import json
import shlex
from urllib.parse import unquote, urlsplit

import pytest

from modserve.console import example_call, models_table
from modserve.core import dtypes
from modserve.core.dtypes import Datatype
from modserve.core.lifecycle import IndexEntry, State
from modserve.core.model_config import ModelConfig, TensorSpec
from modserve.core.normalize import Signature
from modserve.core.tensor import Shape
from modserve.protocol import http_infer
from modserve.testing import RecordingSink, config

# The table


def test_a_table_of_models() -> None:
    entries = [
        IndexEntry("bad", None, State.UNAVAILABLE, "Invalid argument: two\nlines"),
        IndexEntry("digits", 1, State.READY, "", 1_234_567_890),
        IndexEntry("digits", 10, State.LOADING, ""),
        IndexEntry("s", 1, State.UNAVAILABLE, "unloaded", 5_000_000),
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
        "    unloaded"
    )


def test_a_table_of_none() -> None:
    assert models_table([]) == "model  version  state  load time\n-----  -------  -----  ---------"


def test_a_table_of_long_names() -> None:
    heading, rule, line = models_table([IndexEntry("a" * 30, 123_456_789, State.READY, "", 10**13)]).splitlines()
    assert heading.index("version") == line.index("123456789") == rule.index("  -") + 2
    assert line.endswith("  10000.000 s")


# The call


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
    host, path, body = pasted(example_call([model], 8000))
    assert host == "localhost:8000"
    assert unquote(path) == f"/v2/models/{model.name}/infer"
    request, _ = http_infer.decode_request(model.name, None, body, None, 0)
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
    assert accepted(with_input(dtypes.INT8, name=name)) == (3,)


@pytest.mark.parametrize("name", ["it's", "a b", "a;b", "50%", "é", "a?b", "a&b"])
def test_a_model_s_name_survives_the_shell_and_the_url(name: str) -> None:
    model = config(name)
    assert accepted(model) == (1, 4)


def test_optional_inputs_are_left_out() -> None:
    inputs = (TensorSpec("A", dtypes.INT8, (1,), optional=True), TensorSpec("B", dtypes.INT8, (1,)))
    _, _, body = pasted(example_call([config(inputs=inputs)], 1))
    assert [given["name"] for given in json.loads(body)["inputs"]] == ["B"]


def test_the_model_with_the_least_to_type_is_the_example() -> None:
    models = [
        config("large", inputs=(TensorSpec("A", dtypes.INT8, (100,)),)),
        config("b", inputs=(TensorSpec("A", dtypes.INT8, (2,)), TensorSpec("B", dtypes.INT8, (1,)))),
        config("a", inputs=(TensorSpec("A", dtypes.INT8, (3,)),)),
    ]
    assert pasted(example_call(models, 80))[1] == "/v2/models/a/infer"


def test_no_example_without_models() -> None:
    assert example_call([], 8000) == ""


def test_the_line_exactly() -> None:
    assert example_call([config("simple")], 8000) == (
        "curl localhost:8000/v2/models/simple/infer -d "
        '\'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,4],"data":[0,1,2,3]}]}\''
    )


def test_a_large_model_is_asked_for_its_metadata() -> None:
    model = with_input(dtypes.FP32, dims=(3, 224, 224), name="image")
    assert example_call([model], 80) == f"curl localhost:80/v2/models/{model.name}"


def test_the_call_of_a_server_with_tls() -> None:
    line = example_call([config()], 8443, "https")
    assert line.startswith("curl https://localhost:8443/v2/models/")
    assert line.replace("https://", "") == example_call([config()], 8443)
