"""Configurations that come as JSON with a load request."""

from pathlib import Path

import pytest

from modserve.config import check, from_json, parse, read_override
from modserve.core.errors import Code, ModserveError
from modserve.pb import inference as pb

PATH = Path("/repository/model/config.pbtxt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", pb.ModelConfig()),
        ('{"max_batch_size": 8}', pb.ModelConfig(max_batch_size=8)),
        ('{"maxBatchSize": "8"}', pb.ModelConfig(max_batch_size=8)),
        (
            '{"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1, "2"]}]}',
            pb.ModelConfig(input=[pb.ModelInput(name="x", data_type=pb.TYPE_FP32, dims=[1, 2])]),
        ),
        (
            '{"input": [{"dataType": "type_fp32", "format": 1}]}',
            pb.ModelConfig(input=[pb.ModelInput(data_type=pb.TYPE_FP32, format=pb.ModelInput.FORMAT_NHWC)]),
        ),
        (
            '{"instanceGroup": [{"kind": "Kind_Cpu", "count": 2}]}',
            pb.ModelConfig(instance_group=[pb.ModelInstanceGroup(kind=pb.ModelInstanceGroup.KIND_CPU, count=2)]),
        ),
        (
            '{"parameters": {"a": {"string_value": "x"}}, "metricTags": {"b": "y"}}',
            pb.ModelConfig(parameters={"a": pb.ModelParameter(string_value="x")}, metric_tags={"b": "y"}),
        ),
        ('{"optimization": null}', pb.ModelConfig()),
    ],
)
def test_what_is_understood(text: str, message: pb.ModelConfig) -> None:
    draft = read_override(text, PATH, "model")
    assert (draft.name, draft.message, draft.source.path) == ("model", message, PATH)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("[]", "expected an object with the fields of a model configuration, got '[]'"),
        ('{"foo": 1}', 'Message type "inference.ModelConfig" has no field named "foo" at "ModelConfig".'),
        ('{"max_batch_size": "x"}', "Failed to parse max_batch_size field: "),
        ('{"max_batch_size": 1.5}', "Failed to parse max_batch_size field: "),
        ('{"max_batch_size": 99999999999}', "Failed to parse max_batch_size field: "),
        ('{"max_batch_size": Infinity}', "Failed to parse max_batch_size field: "),
        ('{"input": [{"format": Infinity}]}', "cannot convert float infinity to integer"),
        ('{"max_batch_size": 1, "max_batch_size": 2}', "'max_batch_size' is given twice in one object"),
        ('{"input": {}}', "Failed to parse input field: "),
        ('{"input": [1]}', "Failed to parse input field: "),
        ('{"parameters": []}', "Failed to parse parameters field: "),
        ('{"instance_group": [{"kind": "KIND_TPU"}]}', "Failed to parse instance_group field: "),
        ('{"name": "\\ud800"}', "'utf-8' codec can't encode character '\\ud800'"),
        ('{"\\ud800": 1}', "'utf-8' codec can't encode character '\\ud800'"),
        ('{"input":' * 9999, "nested too deeply"),
    ],
)
def test_what_is_not(text: str, problem: str) -> None:
    with pytest.raises(ModserveError) as caught:
        read_override(text, PATH, "model")
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.startswith(f"Invalid config override: {problem}")
    assert "\n" not in caught.value.message


def test_reports_name_the_override() -> None:
    with pytest.raises(ModserveError, match=r"^1 problem in .*\nconfig override: ") as caught:
        check(read_override('{"name": "other", "backend": "identity"}', PATH, "model"))
    assert "unexpected directory name 'model' for model 'other'" in caught.value.message


def test_json_becomes_the_text_of_a_file() -> None:
    text = from_json('{"max_batch_size": 4, "input": [{"name": "ä", "dataType": "TYPE_FP32", "dims": [-1]}]}')
    draft = parse(text, PATH, "model")
    assert (draft.message.max_batch_size, draft.message.input[0].name) == (4, "ä")
    assert list(draft.message.input[0].dims) == [-1]
