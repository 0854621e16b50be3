"""The rules for ensembles, with Triton's texts, and the conditions of their steps."""

import pytest
from config_build import finish, problems

from modserve.config import validate_composition
from modserve.core.configuration.ensemble_config import Condition, EnsembleConfig, Step
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Tensor
from modserve.testing import config as plain
from modserve.testing import tensor

HEAD = """platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: 4 } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: 4 } ]
"""


def step(model: str, inputs: str, outputs: str, version: int = -1) -> str:
    """A step from `model input=tensor` pairs."""
    maps = [("input_map", inputs), ("output_map", outputs)]
    text = "".join(
        f' {name} {{ key: "{key}" value: "{tensor}" }}'
        for name, pairs in maps
        for key, tensor in (pair.split("=") for pair in pairs.split())
    )
    return f'step {{ model_name: "{model}" model_version: {version}{text} }}'


def scheduling(*steps: str) -> str:
    return "ensemble_scheduling {\n" + "\n".join(steps) + "\n}\n"


def when(key: str, value: str) -> str:
    quoted = value.replace('"', '\\"')
    return f'parameters {{ key: "ensemble.when.{key}" value {{ string_value: "{quoted}" }} }}\n'


ONE = scheduling(step("a", "x=IN", "y=OUT"))
SWITCH = scheduling(step("a", "x=IN", "y=OUT z=kind"), step("b", "x=IN", "y=TWO"), step("c", "x=IN", "y=TWO"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            HEAD, "ensemble scheduling must be set for ensemble foo whose platform is ensemble", id="no scheduling"
        ),
        pytest.param(
            HEAD.replace("ensemble", "onnxruntime_onnx") + ONE,
            "ensemble scheduling cannot be set for model 'foo' whose platform is not ensemble",
            id="platform",
        ),
        pytest.param(
            HEAD + 'backend: "identity"\n' + ONE,
            "Ensemble model 'foo' must have platform type 'ensemble' and empty backend type",
            id="backend",
        ),
        pytest.param(
            HEAD + "instance_group { count: 1 }\n" + ONE,
            "instance group should not be specified for ensemble 'foo'",
            id="instances",
        ),
        pytest.param(
            HEAD + "optimization { graph { level: 1 } }\n" + ONE,
            "optimization should not be specified for ensemble 'foo'",
            id="optimization",
        ),
        pytest.param(
            HEAD + "model_warmup { name: 'w' }\n" + ONE,
            "model_warmup can not be specified for ensemble 'foo'",
            id="warm-up",
        ),
        pytest.param(HEAD + "ensemble_scheduling { }", "must specify 'step' for ensemble 'foo'", id="empty"),
        pytest.param(
            HEAD + scheduling(step("", "x=IN", "y=OUT")),
            "must specify 'model_name' in step 0 of ensemble 'foo'",
            id="no name",
        ),
        pytest.param(
            HEAD + scheduling(step("a", "", "y=OUT")),
            "must specify 'input_map' in step 0 of ensemble 'foo'",
            id="no inputs",
        ),
        pytest.param(
            HEAD + scheduling(step("a", "x=IN", "")),
            "must specify 'output_map' in step 0 of ensemble 'foo'",
            id="no outputs",
        ),
        pytest.param(
            HEAD + scheduling(step("a", "x=IN", "y=OUT", version=-2)),
            "step 0 of ensemble 'foo' has model_version -2, expected -1, or none, for the latest, or a version > 0",
            id="version",
        ),
        pytest.param(
            HEAD + scheduling(step("a", "x=IN", "y=OUT"), step("b", "x=IN", "y=OUT")),
            "ensemble tensor 'OUT' can appear in an output map only once for ensemble 'foo' step 1",
            id="given twice",
        ),
        pytest.param(
            HEAD + scheduling(step("a", "x=IN", "y=OUT z=IN")),
            "ensemble tensor 'IN' is an input of ensemble 'foo' and cannot be produced by step 0",
            id="input given",
        ),
        pytest.param(
            HEAD + 'input { name: "MORE" data_type: TYPE_FP32 dims: 4 }\n' + ONE,
            "ensemble input 'MORE' for ensemble 'foo' is not used: it is the value of no input_map",
            id="input not used",
        ),
        pytest.param(
            HEAD + 'output { name: "MORE" data_type: TYPE_FP32 dims: 4 }\n' + ONE,
            "ensemble output 'MORE' for ensemble 'foo' is not used: it is the value of no output_map; "
            "the steps produce: 'OUT'",
            id="output not used",
        ),
        pytest.param(
            HEAD + scheduling(step("a", "x=IN", "y=OUT z=SPARE")),
            "ensemble tensor 'SPARE' is unused in ensemble 'foo': step 0 produces it, and nothing uses it",
            id="nobody reads it",
        ),
        pytest.param(
            HEAD + scheduling(step("a", "x=IN", "y=OUTT")),
            "ensemble output 'OUT' for ensemble 'foo' is not used: it is the value of no output_map; "
            "did you mean 'OUTT'?",
            id="output misspelt",
        ),
        pytest.param(
            HEAD
            + 'input { name: "mask" data_type: TYPE_FP32 dims: 4 }\n'
            + scheduling(step("a", "x=IN w=mas", "y=OUT")),
            "ensemble input 'mask' for ensemble 'foo' is not used: it is the value of no input_map; "
            "did you mean 'mas'?",
            id="input misspelt",
        ),
        pytest.param(
            HEAD + scheduling(step("a", "x=IN w=u", "y=OUT")),
            "ensemble tensor 'u' is unused in ensemble 'foo': no step produces it, and it is not an input of the "
            "ensemble; "
            "there are: 'IN'",
            id="nobody gives it",
        ),
        pytest.param(
            HEAD + scheduling(step("a", "x=IN w=u", "y=v"), step("b", "x=v", "y=OUT")),
            "ensemble tensor 'v' is unused in ensemble 'foo': step 0, which produces it, never gets all of its inputs",
            id="given by a step that cannot run",
        ),
    ],
)
def test_what_is_wrong(text: str, expected: str) -> None:
    found = problems(text, backend="")
    assert any(line.endswith(": " + expected) or line == expected for line in found), found


def test_a_loose_end_is_shown_where_it_is() -> None:
    text = """ensemble_scheduling {
  step {
    model_name: "a"
    model_version: -1
    input_map { key: "x" value: "IN" }
    input_map { key: "w" value: "u" }
    output_map { key: "y" value: "OUT" }
    output_map { key: "z" value: "SPARE" }
  }
}
"""
    assert [line.partition(":")[0] for line in problems(HEAD + text, backend="")] == ["3", "9", "11"]


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([step("a", "x=IN w=u", "y=OUT")], "u"),
        ([step("a", "x=IN w=u", "y=v"), step("b", "x=v", "y=u z=OUT")], "u"),
        ([step("a", "x=IN w=u", "y=OUT"), step("b", "x=t", "y=u")], "t"),
    ],
    ids=["from nowhere", "in a circle", "further back"],
)
def test_an_output_that_can_not_be_written(steps: list[str], missing: str) -> None:
    found = problems(HEAD + scheduling(*steps), backend="")
    text = f"output 'OUT' for ensemble 'foo' is not written: at least one of its depending tensors, '{missing}', is not"
    assert any(text in line for line in found), found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("k == 1", Condition("k", "==", 1)),
        ("k>=0.5", Condition("k", ">=", 0.5)),
        ("k != true", Condition("k", "!=", True)),
        ('k == "de"', Condition("k", "==", b"de")),
        ("k == de", Condition("k", "==", b"de")),
        ("k == '1'", Condition("k", "==", b"1")),
        ("k < -3", Condition("k", "<", -3)),
        ("k == 'nan'", Condition("k", "==", b"nan")),
        ("k == 1_0", Condition("k", "==", b"1_0")),
        ("k == \u0663", Condition("k", "==", "\u0663".encode())),
    ],
)
@pytest.mark.parametrize("key", ["1", "b"])
def test_conditions(key: str, value: str, expected: Condition) -> None:
    steps = scheduling(step("a", "x=IN", "y=k"), step("b", "x=IN", "y=OUT"))
    found = finish(HEAD + when(key, value) + steps, backend="").config.ensemble
    assert found is not None
    assert [each.when for each in found.steps] == [None, expected]
    assert found.steps[1].needs == {"IN", "k"}


@pytest.mark.parametrize(("written", "version"), [("", None), (" model_version: -1", None), (" model_version: 2", 2)])
def test_a_step_without_a_version_means_the_latest(written: str, version: int | None) -> None:
    one = step("a", "x=IN", "y=OUT").replace(" model_version: -1", written)
    found = finish(HEAD + scheduling(one), backend="").config.ensemble
    assert found is not None
    assert [each.version for each in found.steps] == [version]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("0", "k", "4:1: parameter 'ensemble.when.0' is 'k', expected '<tensor> <comparison> <value>'"),
        ("0", "IN < true", "only numbers can be compared by <"),
        (
            "0",
            "IN != nan",
            "'ensemble.when.0' is 'IN != nan': cannot compare with nan; quote it if it is a text",
        ),
        ("3", "k == 1", "parameter 'ensemble.when.3': there is no step '3'; steps are: 0 (a), 1 (a)"),
        ("a", "k == 1", "parameter 'ensemble.when.a': steps [0, 1] use model 'a'; name the step by its number"),
        ("1", "u == 1", "ensemble tensor 'u' is unused in ensemble 'foo': no step produces it"),
    ],
)
def test_conditions_that_are_wrong(key: str, value: str, expected: str) -> None:
    steps = scheduling(step("a", "x=IN", "y=k"), step("a", "x=k", "y=OUT"))
    found = problems(HEAD + when(key, value) + steps, backend="")
    assert any(expected in line for line in found), found


def test_parameters_that_are_no_conditions() -> None:
    other = HEAD + ONE + 'parameters { key: "ensemble.wen.0" value { string_value: "IN == 1" } }\n'
    assert problems(other, backend="") == [
        "7:1: unknown parameter 'ensemble.wen.0'; did you mean 'ensemble.when.<step>'?"
    ]
    [found] = problems(HEAD.replace('platform: "ensemble"', 'backend: "identity"') + when("0", "IN == 1"), backend="")
    assert found == "4:1: parameter 'ensemble.when.0' needs ensemble_scheduling"


def test_steps_with_conditions_may_give_the_same_tensor() -> None:
    head = HEAD + 'output [ { name: "TWO" data_type: TYPE_FP32 dims: 4 } ]\n'
    text = head + SWITCH.replace("z=kind", "")
    assert finish(text + when("1", "kind == 1") + when("2", "kind == 2"), backend="").config.ensemble is not None
    assert "only once" in problems(text + when("1", "kind == 1"), backend="")[0]


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        (Condition("t", "==", 3), tensor(dtypes.INT32, (1, 1), 3), True),
        (Condition("t", ">", 3), tensor(dtypes.FP16, (1,), 3.5), True),
        (Condition("t", "<=", 3), tensor(dtypes.FP64, (), 3.5), False),
        (Condition("t", "!=", True), tensor(dtypes.BOOL, (1,), False), True),
        (Condition("t", "==", 0.1), tensor(dtypes.FP32, (1,), 0.1), True),
        (Condition("t", ">", 0.1), tensor(dtypes.FP32, (1,), 0.1), False),
        (Condition("t", ">=", 0.1), tensor(dtypes.FP16, (1,), 0.1), True),
        (Condition("t", "!=", 0.1), tensor(dtypes.BF16, (1,), 0.1), False),
        (Condition("t", "==", 2**24 + 1), tensor(dtypes.FP32, (1,), 2**24), True),
        (Condition("t", "==", 3.4028235e38), tensor(dtypes.FP32, (1,), 3.4028234663852886e38), True),
        (Condition("t", "<", float("inf")), tensor(dtypes.FP16, (1,), 65504), True),
        (Condition("t", "==", 2**64 - 1), tensor(dtypes.UINT64, (1,), 2**64 - 1), True),
        (Condition("t", "==", 2.0**53), tensor(dtypes.INT64, (1,), 2**53 + 1), False),
        (Condition("t", ">", 0.5), tensor(dtypes.INT8, (1,), 1), True),
        (Condition("t", "==", b"de"), Tensor.from_raw(dtypes.BYTES, (1,), b"\2\0\0\0de"), True),
    ],
)
def test_whether_a_condition_holds(condition: Condition, value: Tensor, expected: bool) -> None:
    assert condition.holds(value) is expected


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        (Condition("t", "==", 3), tensor(dtypes.INT32, (2,)), "needs a tensor of one element, 't' has shape [2]"),
        (
            Condition("t", "==", b"3"),
            tensor(dtypes.INT32, (1,)),
            "cannot be applied to tensor 't' of type INT32, expected a number from -2147483648 to 2147483647",
        ),
        (Condition("t", "==", 1), tensor(dtypes.BOOL, (1,)), "of type BOOL, expected true or false"),
        (Condition("t", "==", -1), tensor(dtypes.UINT8, (1,)), "of type UINT8, expected a number from 0 to 255"),
        (Condition("t", "==", 128), tensor(dtypes.INT8, (1,)), "of type INT8, expected a number from -128 to 127"),
        (Condition("t", "==", float("inf")), tensor(dtypes.INT8, (1,)), "expected a number from -128 to 127"),
        (Condition("t", "==", 65520), tensor(dtypes.FP16, (1,)), "expected a number from -65504 to 65504"),
        (Condition("t", "==", -1e39), tensor(dtypes.BF16, (1,)), "expected a number from -3.38953e+38 to 3.38953e+38"),
        (Condition("t", "==", 10**400), tensor(dtypes.FP64, (1,)), "expected a number from -1.79769e+308"),
    ],
)
def test_conditions_that_can_not_be_decided(condition: Condition, value: Tensor, expected: str) -> None:
    with pytest.raises(ModserveError, match="condition 't == ") as caught:
        condition.holds(value)
    assert caught.value.code is Code.INVALID_ARG
    assert expected in caught.value.message


# Against the models


def spec(name: str, dims: tuple[int, ...] = (4,), datatype: Datatype = dtypes.FP32, **more: object) -> TensorSpec:
    return TensorSpec(name, datatype, dims, **more)  # type: ignore[arg-type]


def model(
    name: str = "a", inputs: tuple[TensorSpec, ...] = (), outputs: tuple[TensorSpec, ...] = (), **more: object
) -> ModelConfig:
    fields: dict[str, object] = {"max_batch_size": 0, **more}
    return plain(name, inputs=inputs or (spec("x"),), outputs=outputs or (spec("y"),), **fields)  # type: ignore[arg-type]


def ensemble(*steps: Step, **more: object) -> ModelConfig:
    return model("e", (spec("IN"),), (spec("OUT"),), ensemble=EnsembleConfig(steps), **more)


A = Step("a", None, {"x": "IN"}, {"y": "OUT"})
CHAIN = (Step("a", None, {"x": "IN"}, {"y": "mid"}), Step("b", None, {"x": "mid"}, {"y": "OUT"}))


@pytest.mark.parametrize(
    ("config", "models", "expected"),
    [
        pytest.param(
            ensemble(A, max_batch_size=8),
            [model(max_batch_size=4)],
            "ensemble e allows maximum batch size 8, but it contains model a which only allows maximum batch size to "
            "be 4",
            id="batch size",
        ),
        pytest.param(
            ensemble(A, max_batch_size=8),
            [model(max_batch_size=4, default_batch_size=True)],
            "ensemble e allows maximum batch size 8, but it contains model a which only allows maximum batch size to "
            "be 4\n4 is the default of backend 'identity': no configuration of model 'a' sets max_batch_size. Write "
            "max_batch_size: 8 into its config.pbtxt, or start the server with "
            "--backend-config=identity,default-max-batch-size=8",
            id="batch size by default",
        ),
        pytest.param(
            ensemble(Step("a", None, {"z": "IN"}, {"y": "OUT"})),
            [model()],
            "in ensemble e, ensemble tensor IN is mapping to non-existing input z in model a",
            id="no such input",
        ),
        pytest.param(
            ensemble(A),
            [model(inputs=(spec("x"), spec("w")))],
            "in ensemble e, input w in model a is not mapped to any ensemble tensors",
            id="input not mapped",
        ),
        pytest.param(
            ensemble(Step("a", None, {"x": "IN"}, {"z": "OUT"})),
            [model()],
            "in ensemble e, ensemble tensor OUT is mapped from non-existing output z in model a",
            id="no such output",
        ),
        pytest.param(
            ensemble(A),
            [model(inputs=(spec("x", datatype=dtypes.INT8),))],
            "in ensemble e, ensemble tensor IN: inconsistent data type: TYPE_FP32 is inferred from model e while "
            "TYPE_INT8 is inferred from model a",
            id="datatype",
        ),
        pytest.param(
            ensemble(*CHAIN),
            [model(), model("b", inputs=(spec("x", (2, 4)),))],
            "in ensemble e, ensemble tensor mid: inconsistent shape: [4] is inferred from model a while [2,4] is "
            "inferred from model b",
            id="shape",
        ),
        pytest.param(
            ensemble(CHAIN[0], Step("b", None, {"x": "mid", "w": "IN"}, {"y": "OUT"})),
            [model(decoupled=True), model("b", inputs=(spec("x"), spec("w")))],
            "in ensemble e, step of model 'b' receives inputs originated from different decoupled models",
            id="decoupled",
        ),
        pytest.param(
            ensemble(Step("a", None, {"x": "IN"}, {"y": "OUT"}, Condition("IN", "==", b"1"))),
            [model()],
            "in ensemble e, condition 'IN == '1'' of step 0 does not fit tensor IN of type TYPE_FP32, expected a "
            "number from -3.40282e+38 to 3.40282e+38",
            id="condition's type",
        ),
        pytest.param(
            ensemble(Step("a", None, {"x": "IN"}, {"y": "OUT"}, Condition("IN", "<", 1e39))),
            [model()],
            "in ensemble e, condition 'IN < 1e+39' of step 0 does not fit tensor IN of type TYPE_FP32, expected a "
            "number from -3.40282e+38 to 3.40282e+38",
            id="condition's range",
        ),
        pytest.param(
            ensemble(Step("a", None, {"x": "IN"}, {"y": "OUT"}, Condition("IN", "==", 1))),
            [model()],
            "in ensemble e, condition 'IN == 1' of step 0 needs a tensor of one element, IN has shape [4]",
            id="condition's shape",
        ),
        pytest.param(
            ensemble(*CHAIN, cached=True),
            [model(), model("b", decoupled=True)],
            "Response Cache does not currently support model e with 'decoupled' transaction policy. Please disable the "
            "response cache.",
            id="decoupled and cached",
        ),
    ],
)
def test_what_does_not_fit(config: ModelConfig, models: list[ModelConfig], expected: str) -> None:
    with pytest.raises(ModserveError) as caught:
        validate_composition(config, {each.name: each for each in models})
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, expected)


@pytest.mark.parametrize(
    ("config", "models", "decoupled"),
    [
        (ensemble(*CHAIN), [model(), model("b")], False),
        (ensemble(*CHAIN), [model(), model("b", decoupled=True)], True),
        (ensemble(*reversed(CHAIN)), [model(decoupled=True), model("b", decoupled=True)], True),
        (ensemble(*CHAIN), [model(outputs=(spec("y", (-1,)),)), model("b")], False),
        (ensemble(A, max_batch_size=8), [model(inputs=(spec("x", (-1, 4)),), outputs=(spec("y", (-1, 4)),))], False),
        (ensemble(A), [model(inputs=(spec("x"), spec("w", optional=True)))], False),
    ],
    ids=["plain", "decoupled", "decoupled twice", "variable", "batching around a model that does not", "optional"],
)
def test_what_fits(config: ModelConfig, models: list[ModelConfig], decoupled: bool) -> None:
    assert validate_composition(config, {each.name: each for each in models}) is decoupled
