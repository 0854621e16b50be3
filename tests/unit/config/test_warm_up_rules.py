"""``model_warmup``: its rules, with their places, and its values."""

from dataclasses import replace
from pathlib import Path

import pytest
from config_build import ONE_EACH, PATH
from config_build import finish as built

from modserve import config
from modserve.core.configuration.warm_up_config import DataKind, WarmUp, WarmUpInput
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes

BATCHING = "max_batch_size: 4 "
SEQUENCES = """
sequence_batching {
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  state { input_name: "S" output_name: "T" data_type: TYPE_FP16 dims: 2 }
}
"""


def sample(inputs: str, more: str = "batch_size: 1", name: str = "w") -> str:
    return f"model_warmup {{ name: '{name}' {more} {inputs} }}"


def value(said: str, name: str = "IN") -> str:
    return f"inputs {{ key: '{name}' value {{ {said} }} }}"


IN = value("data_type: TYPE_FP32 dims: 4 zero_data: true")

RIGHT = {
    "zero": sample(IN),
    "random": sample(value("data_type: TYPE_FP32 dims: 4 random_data: true")),
    "any value says it": sample(value("data_type: TYPE_FP32 dims: 4 random_data: false")),
    "several": sample(IN) + sample(IN, "batch_size: 1 count: 3"),
    "the same name twice": sample(IN) + sample(IN),
    "largest batch": BATCHING + sample(IN, "batch_size: 4"),
    "controls and states": SEQUENCES
    + sample(
        IN
        + value("data_type: TYPE_INT32 dims: 1 zero_data: true", "START")
        + value("data_type: TYPE_FP16 dims: 2 random_data: true", "S")
    ),
    "controls and states left out": SEQUENCES + sample(IN),
}
WRONG = {
    BATCHING + sample(IN, "batch_size: 5"): [
        "1:44: warm-up sample 'w' has batch_size 5, beyond the model's max_batch_size; expected 1 to 4"
    ],
    sample(IN, "batch_size: 2"): [
        "1:26: warm-up sample 'w' has batch_size 2, but the model does not batch (max_batch_size: 0); "
        "expected batch_size: 1"
    ],
    "max_batch_size: 100000 " + sample(IN, "batch_size: 70000"): [
        "1:49: warm-up sample 'w' has batch_size 70000, expected at most 65536"
    ],
    sample(IN + value("data_type: TYPE_FP32 dims: 4 zero_data: true", "INN")): [
        "1:115: warm-up sample 'w' has an input 'INN', but the inputs of the model are 'IN'"
    ],
    SEQUENCES + sample(IN + value("data_type: TYPE_FP32 dims: 1 zero_data: true", "NO")): [
        "6:115: warm-up sample 'w' has an input 'NO', but the inputs of the model are 'IN', 'START', 'S'"
    ],
    sample(""): ["1:1: warm-up sample 'w' lacks input 'IN'; only optional inputs may be absent"],
    sample("", name=""): ["1:1: warm-up sample 'number 1' lacks input 'IN'; only optional inputs may be absent"],
    sample(value("data_type: TYPE_INT32 dims: 4 zero_data: true")): [
        "1:67: warm-up sample 'w', input 'IN': its data_type is TYPE_INT32, but the model's input has TYPE_FP32"
    ],
    sample(value("dims: 4 zero_data: true")): [
        "1:40: warm-up sample 'w', input 'IN': it needs the data_type TYPE_FP32 of the model's input"
    ],
    sample(value("data_type: TYPE_FP32 dims: 4")): [
        "1:40: warm-up sample 'w', input 'IN': it has no data; expected one of zero_data, random_data, input_data_file"
    ],
    sample(value("data_type: TYPE_FP32 dims: 4 zero_data: true random_data: true")): [
        "1:112: 'random_data' and 'zero_data' are mutually exclusive: use only one of zero_data, random_data, "
        "input_data_file"
    ],
    sample(value("data_type: TYPE_FP32 dims: 5 zero_data: true")): [
        "1:88: warm-up sample 'w', input 'IN': its dims are [5], but those of the model's input are [4]"
    ],
    BATCHING + sample(value("data_type: TYPE_FP32 dims: [ 1, 4 ] zero_data: true")): [
        "1:106: warm-up sample 'w', input 'IN': its dims are [1, 4], but those of the model's input are [4]; the batch "
        "dimension is left out"
    ],
    sample(value("data_type: TYPE_FP32 dims: -1 zero_data: true")): [
        "1:88: warm-up sample 'w', input 'IN': its dims are [-1]; expected a size of 0 or more in place of -1"
    ],
    sample(value("data_type: TYPE_FP32 dims: 4 input_data_file: '../x'")): [
        "1:96: warm-up sample 'w', input 'IN': input_data_file is '../x'; expected a file below the folder 'warmup' of "
        "the model"
    ],
    sample(value("data_type: TYPE_FP32 dims: 4 input_data_file: '/etc/passwd'")): [
        "1:96: warm-up sample 'w', input 'IN': input_data_file is '/etc/passwd'; expected a file below the folder "
        "'warmup' of the model"
    ],
    sample(value("data_type: TYPE_FP32 dims: 4 input_data_file: 'x'")): [
        "1:96: warm-up sample 'w', input 'IN': there is no file '{}/warmup/x'"
    ],
}


def finish(text: str, directory: Path) -> config.Complete:
    (directory / "config.pbtxt").write_text(text)
    draft = config.parse(text + 'backend: "identity"', directory / "config.pbtxt", "foo")
    return config.finish(
        draft,
        None,
        default_cpu_instances=1,
        default_model_filename="",
        gpu_count=0,
        auto_complete=False,
        files=directory,
    )


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_right(text: str, tmp_path: Path) -> None:
    assert finish(text + ONE_EACH, tmp_path).warnings == []


@pytest.mark.parametrize(("text", "expected"), WRONG.items())
def test_wrong(text: str, expected: list[str], tmp_path: Path) -> None:
    with pytest.raises(ModserveError) as refused:
        finish(text + ONE_EACH, tmp_path)
    lines = refused.value.message.splitlines()
    path = f"{tmp_path / 'config.pbtxt'}:"
    assert [line.removeprefix(path) for line in lines if line.startswith(path)] == [
        each.format(tmp_path) for each in expected
    ]


def test_variable_dims_take_a_size(tmp_path: Path) -> None:
    variable = ONE_EACH.replace("dims: 4", "dims: [ -1, 2 ]")
    two = value("data_type: TYPE_FP32 dims: [ 7, 2 ] zero_data: true")
    (warm_up,) = finish(sample(two) + variable, tmp_path).config.warm_ups
    assert warm_up.inputs["IN"].dims == (7, 2)
    huge = two.replace("7", "70000000000")
    with pytest.raises(ModserveError, match="560000000000 bytes; expected at most 2147483648"):
        finish(sample(huge) + variable, tmp_path)


def test_files(tmp_path: Path) -> None:
    text = sample(value("data_type: TYPE_FP32 dims: 4 input_data_file: 'deep/x'")) + ONE_EACH
    (tmp_path / "warmup" / "deep").mkdir(parents=True)
    file = tmp_path / "warmup" / "deep" / "x"
    file.write_bytes(bytes(16))
    (warm_up,) = finish(text, tmp_path).config.warm_ups
    assert warm_up.inputs == {"IN": WarmUpInput(dtypes.FP32, (4,), DataKind.FILE, "deep/x")}
    file.write_bytes(bytes(15))
    with pytest.raises(ModserveError, match=r"has 15 bytes, but dims \[4\] of TYPE_FP32 take 16"):
        finish(text, tmp_path)
    file.write_bytes(bytes(12))
    with pytest.raises(ModserveError, match=r"has 3 strings, but dims \[4\] take 4"):
        finish(text.replace("TYPE_FP32", "TYPE_STRING"), tmp_path)


def test_the_values(tmp_path: Path) -> None:
    text = sample(IN, "batch_size: 2 count: 3") + sample(IN, "batch_size: 1", name="") + BATCHING + ONE_EACH
    said = WarmUpInput(dtypes.FP32, (4,), DataKind.ZERO)
    first = WarmUp("w", 2, 3, {"IN": said})
    assert finish(text, tmp_path).config.warm_ups == (first, replace(first, name="number 2", batch_size=1, count=1))


def test_the_example_in_the_documentation(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    [example] = [block for block in page.read_text("utf-8").split("```") if "model_warmup [" in block]
    complete = config.finish(
        config.parse(example, tmp_path / "config.pbtxt", "foo"),
        None,
        default_cpu_instances=1,
        default_model_filename="model.onnx",
        gpu_count=0,
        auto_complete=False,
        files=tmp_path,
    )
    names = [(each.name, each.batch_size, each.count) for each in complete.config.warm_ups]
    assert names == [("a full batch", 8, 3)]
    assert complete.warnings == []


def test_without_a_batch_size_it_does_not_run(tmp_path: Path) -> None:
    complete = finish(sample(IN, "") + ONE_EACH, tmp_path)
    assert complete.config.warm_ups == ()
    (warning,) = complete.warnings
    assert warning.endswith(
        "config.pbtxt:1:1: warm-up sample 'w' has no batch_size and is not run, as in Triton; expected batch_size: 1 "
        "or more"
    )


def test_before_the_engine_has_seen_the_model_what_it_may_fill_in_is_not_missed() -> None:
    for text in (sample(IN), sample(IN, "batch_size: 3"), sample(value("data_type: TYPE_INT8 zero_data: true"))):
        config.check(config.parse(text + "backend: 'onnxruntime'", PATH, "foo"))


def test_backend_auto_makes_up_what_a_sample_leaves_out() -> None:
    assert built(sample("") + ONE_EACH, backend="auto").config.warm_ups == (WarmUp("w", 1, 1, {}),)
