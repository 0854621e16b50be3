"""Reading config.pbtxt: what is right is read as text_format reads it; all that is wrong is reported, at its place."""

import random
import re
from pathlib import Path

import pytest
from config_strategies import configs, damage, random_config, randoms, write
from google.protobuf import text_format
from hypothesis import given, settings

from modserve import config
from modserve.config.text import walker
from modserve.config.text.problems import FieldPath
from modserve.core.errors import Code, ModserveError
from modserve.pb import inference as pb

PATH = Path("model_repository/foo/config.pbtxt")
MODEL_CONFIG = pb.ModelConfig.DESCRIPTOR


def report(text: str) -> str:
    with pytest.raises(ModserveError) as caught:
        config.parse(text, PATH, "foo")
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def headlines(text: str) -> list[str]:
    """What a report says, without the path and the excerpts."""
    return re.findall(rf"^{re.escape(str(PATH))}:(.*)$", report(text), re.MULTILINE)


FIVE_MISTAKES = """\
backend = "onnxruntime"
    max_batchsize: 8
input [
  {
    name: "INPUT0"
    data_type: FP32
    dims: [ 16 4 ]
  }
]
instance_group [ { count: "two" } ]
"""
FIVE_MISTAKES_REPORT = """\
5 problems in the configuration of model 'foo'
model_repository/foo/config.pbtxt:1:9: expected ':' after 'backend', found '='
    backend = "onnxruntime"
            ^
model_repository/foo/config.pbtxt:2:5: unknown field 'max_batchsize'; did you mean 'max_batch_size'?
    max_batchsize: 8
    ^
model_repository/foo/config.pbtxt:6:16: unknown value 'FP32' for 'data_type'; did you mean 'TYPE_FP32'?
    data_type: FP32
               ^
model_repository/foo/config.pbtxt:7:16: expected ',' or ']' in the list of 'dims', found the number 4
    dims: [ 16 4 ]
               ^
model_repository/foo/config.pbtxt:10:27: 'count' takes an integer, found the string "two"
    instance_group [ { count: "two" } ]
                              ^"""


def test_five_mistakes_are_five_problems() -> None:
    assert report(FIVE_MISTAKES) == FIVE_MISTAKES_REPORT


def test_mistakes_of_syntax_and_of_meaning_are_reported_at_once() -> None:
    text = (
        "zzz: true\nmax_batch_size: -3\ninput [ { name: 'a' data_type: TYPE_FP3 dims: [ 0 ] } ]\n"
        "version_policy { latest { num_versions: 0 } }"
    )
    assert headlines(text) == [
        "1:1: unknown field 'zzz'",
        "2:1: 'max_batch_size' must be non-negative value for foo",
        "3:32: unknown value 'TYPE_FP3' for 'data_type'; did you mean 'TYPE_FP32'?",
    ]
    text = text.replace("TYPE_FP3 ", "TYPE_FP32 ")
    assert headlines(text)[2].startswith("3:50: model input 'a' dimension must be integer >= 1, or -1")


MISTAKES = {
    # Names
    "maxBatchSize: 1": ["1:1: unknown field 'maxBatchSize'; did you mean 'max_batch_size'?"],
    "inputs [ { name: 'a' dtype: TYPE_FP3 } ]": [
        "1:1: unknown field 'inputs'; did you mean 'input'?",
        "1:22: unknown field 'dtype'; did you mean 'data_type'?",
        "1:29: unknown value 'TYPE_FP3' for 'data_type'; did you mean 'TYPE_FP32'?",
    ],
    "max_queue_delay_microseconds: 5": [
        "1:1: unknown field 'max_queue_delay_microseconds'; it belongs inside 'dynamic_batching'"
    ],
    "dynamic_batching { instance_group [ { count: 1 } ] }": [
        "1:20: unknown field 'instance_group'; it belongs at the top level, outside all blocks"
    ],
    "version_policy { newest { num_versions: 1 } }": [
        "1:18: unknown field 'newest'; allowed here: latest, all, specific"
    ],
    "qqqq { a: 1 b [ { c: 'x' } ] } name: 'foo'": ["1:1: unknown field 'qqqq'"],
    "[a.b]: 1": ["1:1: expected a field name, found '['"],
    "- : 1": [
        "1:1: expected a field name, found the number -",
        "1:3: expected a field name, found ':'",
        "1:5: unknown field '1'",
    ],
    # JSON
    "{ name: 'foo' }": ["1:1: expected a field name, found '{'; the fields of a model are not inside braces"],
    '"name": "foo"': ["1:1: field names are written without quotes: name"],
    # Colons and values
    "name 'foo'": ["1:6: expected ':' after 'name', found the string 'foo'"],
    "name = 'foo'": ["1:6: expected ':' after 'name', found '='"],
    "input { dims [ 1 ] }": ["1:14: expected ':' after 'dims', found '['"],
    "name:\nbackend: 'b'": ["1:1: 'name' has no value"],
    "name\nbackend: 'b'": ["1:1: 'name' has no value"],
    "max_batch_size:": ["1:1: 'max_batch_size' has no value"],
    "name: foo": ["1:7: 'name' takes a string in quotes, found 'foo'"],
    "name: ['foo']": ["1:7: 'name' takes one value, not a list"],
    "name { }": ["1:6: 'name' takes a single value, not a block or list"],
    "max_batch_size: 8.0": ["1:17: 'max_batch_size' takes an integer, found the number 8.0"],
    "max_batch_size: 2147483648": [
        "1:17: 'max_batch_size' takes int32, from -2147483648 to 2147483647; 2147483648 is out of range"
    ],
    "input { optional: yes }": ["1:19: 'optional' takes true or false, found 'yes'"],
    "sequence_batching { direct { minimum_slot_utilization: half } }": [
        "1:56: 'minimum_slot_utilization' takes a number, found 'half'"
    ],
    "input { data_type: 'TYPE_FP32' }": ["1:20: 'data_type' takes a value without quotes: TYPE_FP32"],
    "input { data_type: FLOAT }": ["1:20: unknown value 'FLOAT' for 'data_type'; did you mean 'TYPE_FP32'?"],
    "instance_group { kind: CPU }": ["1:24: unknown value 'CPU' for 'kind'; did you mean 'KIND_CPU'?"],
    # Templates that were not filled in
    "max_batch_size: ${size}\nname: '${name}'": [
        "1:17: 'max_batch_size' takes an integer, found the placeholder ${size} of a template; fill it in"
    ],
    "instance_group [ { count: ${n} kind: ${kind} } ]\n${more}": [
        "1:27: 'count' takes an integer, found the placeholder ${n} of a template; fill it in",
        "1:38: 'kind' takes KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL, found the placeholder ${kind} of a template; "
        "fill it in",
        "2:1: expected a field name, found the placeholder ${more} of a template; fill it in",
    ],
    "input { dims: [ ${a}, 3 ] }\ndynamic_batching ${b}": [
        "1:17: 'dims' takes an integer, found the placeholder ${a} of a template; fill it in",
        "2:18: 'dynamic_batching' takes a block { … }, found the placeholder ${b} of a template; fill it in",
    ],
    "max_batch_size: ${": [
        "1:17: 'max_batch_size' takes an integer, found '$'",
        "1:18: expected a field name, found '{'; the fields of a model are not inside braces",
        "1:18: '{' is never closed with '}'",
    ],
    "instance_group { kind: 99999999999 }": ["1:24: 'kind' has no value with number 99999999999"],
    "input { format: zzz }": ["1:17: unknown value 'zzz' for 'format'; it takes FORMAT_NONE, FORMAT_NHWC, FORMAT_NCHW"],
    "version_policy: latest": ["1:17: 'version_policy' takes a block { … }, found 'latest'"],
    'parameters { key: "a" value: "b" }': ['1:30: \'value\' takes a block { string_value: "b" }, found the string "b"'],
    # Repetitions
    "name: 'foo'\nname: 'foo'": ["2:1: 'name' is given twice, first on line 1"],
    "optimization { }\noptimization { }": ["2:1: 'optimization' is given twice, first on line 1"],
    "version_policy { all { } latest { } }": [
        "1:26: 'latest' and 'all' are mutually exclusive: use only one of latest, all, specific"
    ],
    # Strings
    "name: 'foo": ["1:7: a string that starts with ' must end with it on the same line"],
    'input { name: "a }\nmax_batch_size: x': [
        '1:15: a string that starts with " must end with it on the same line',
        "2:17: 'max_batch_size' takes an integer, found 'x'",
    ],
    r'name: "a\qb"': [r"1:9: unknown escape \q in a string; a backslash itself is written \\"],
    r'name: "\xe6"': ["1:7: a string whose escapes are not valid UTF-8"],
    # Brackets
    "input {\n  name: 'a'\n": ["1:7: '{' is never closed with '}'"],
    "input {\n  name: 'a'\noutput {\n  name: 'b'\n}\n": ["1:7: '{' is never closed with '}'"],
    "input [\n  {\n    name: 'a'\n]\noutput { nam: 'b' }": [
        "2:3: '{' is never closed with '}'",
        "5:10: unknown field 'nam'; did you mean 'name'?",
    ],
    "input {\n  dims: [ 1, 2\n}\nmax_batch_size: x": [
        "2:9: '[' is never closed with ']'",
        "4:17: 'max_batch_size' takes an integer, found 'x'",
    ],
    "input { dims: [ 1, 2\n  name: 'a' }": ["1:15: '[' is never closed with ']'"],
    "name: 'foo' }": ["1:13: unexpected '}': there is no open block or list"],
    "input [\n  name: 'a'\n]": ["2:3: expected '{' in the list of 'input', each element is a block { … }"],
    # Lists
    "input { dims: [1, 2,] }": ["1:20: a list must not end with ','"],
    "input { dims: [1,, 2] }": ["1:18: expected a value in the list of 'dims', found ','"],
    "input { dims: [1; 2] }": ["1:17: expected ',' or ']' in the list of 'dims', found ';'"],
    "input [ { } { } ]": ["1:13: expected ',' or ']' in the list of 'input', found '{'"],
    "input { qqqq: } name: 'a'": ["1:9: unknown field 'qqqq'"],
    "[ } ]": [
        "1:1: expected a field name, found '['",
        "1:5: unexpected ']': there is no open block or list",
    ],
    "name: 'foo',;": ["1:13: expected a field name, found ';'"],
}


@pytest.mark.parametrize(("text", "expected"), MISTAKES.items())
def test_mistakes(text: str, expected: list[str]) -> None:
    assert headlines(text) == expected


def test_caret_stands_below_tabs_and_in_a_cut_line() -> None:
    assert report("\t\tname:\tfoo").splitlines()[-2:] == ["    name:\tfoo", "         \t^"]
    long = "input { } " * 40
    shown, caret = report(f"{long} nam: 'x' {long}").splitlines()[-2:]
    assert len(shown) < 140
    assert shown[caret.index("^") :].startswith("nam:")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"name": "foo", "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32"}]}', "1:1"),
        ('\n  {\n  "name": "foo",\n  "max_batch_size": 8\n}\n', "2:3"),
        ("{}", "1:1"),
    ],
)
def test_json_is_one_mistake(text: str, position: str) -> None:
    (problem,) = headlines(text)
    assert problem.startswith(f"{position}: the file is JSON, but a config.pbtxt is protobuf text: without the braces")


def test_a_report_has_an_end() -> None:
    lines = report("qqqq: 1\n" * 1000).splitlines()

    assert lines[0] == "1000 problems in the configuration of model 'foo'"
    assert lines[-1] == "and 950 more"


@pytest.mark.parametrize("text", ["{" * 3000, "input {" * 3000, "qqqq { " * 3000, "[" * 3000, 'x: "' * 3000])
def test_deep_nonsense_is_just_wrong(text: str) -> None:
    assert "problems in the configuration" in report(text)


def test_what_only_text_format_refuses_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walker, "walk", lambda text, message: walker.Walk())

    assert headlines("name: 'foo'\nmax_batch_size: 'x'") == ["2:17: Couldn't parse integer: 'x'"]


def test_what_only_the_walker_refuses_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = walker.walk("qqqq: 1", MODEL_CONFIG)
    monkeypatch.setattr(walker, "walk", lambda text, message: walk)

    assert config.parse("name: 'foo'", PATH, "foo").message == pb.ModelConfig(name="foo")


@pytest.mark.parametrize(
    "text", ["", "# nothing", "input { dims: [] }", "input [ ]", "max_batch_size: 0 max_batch_size: 1"]
)
def test_odd_but_right(text: str) -> None:
    assert walker.walk(text, MODEL_CONFIG).problems == []
    config.parse(text, PATH, "foo")


@pytest.mark.parametrize(
    "number", ["nan", "-nan", "nanf", "inf", "-inf", "INFINITY", "-infinityf", ".5", "1e3", "1.5F"]
)
def test_odd_numbers(number: str) -> None:
    text = f"sequence_batching {{ direct {{ minimum_slot_utilization: {number} }} }}"

    assert walker.walk(text, MODEL_CONFIG).problems == []
    config.parse(text, PATH, "foo")


# Files


def test_missing_file_is_an_empty_draft(tmp_path: Path) -> None:
    draft = config.read(tmp_path / "foo" / "config.pbtxt", "foo")

    assert (draft.message, draft.exists, draft.source.text) == (pb.ModelConfig(), False, "")
    assert draft.source.path == tmp_path / "foo" / "config.pbtxt"


def test_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModserveError, match=r"^reading the configuration of model 'foo': .*Is a directory") as caught:
        config.read(tmp_path, "foo")

    assert caught.value.code is Code.INTERNAL


def test_byte_order_mark_and_foreign_comments(tmp_path: Path) -> None:
    file = tmp_path / "config.pbtxt"
    file.write_bytes(b"\xef\xbb\xbf# caf\xe9\r\nname: 'foo' # \xff\r\n")

    assert config.read(file, "foo").message == pb.ModelConfig(name="foo")


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        (b"name: 'caf\xe9'", ["1:11: byte 0xe9 is not UTF-8; save the file as UTF-8\n    name: 'caf\ufffd'"]),
        (b"# \xe9\nmax_batch_siz\xe9: 8", ["2:14: byte 0xe9 is not UTF-8; save the file as UTF-8"]),
        (
            b"name: '\xe9' # \xff\nbackend: '\xe4\xf6'",
            ["1:8: byte 0xe9 is not UTF-8; save the file as UTF-8", "2:11: byte 0xe4 is not UTF-8"],
        ),
        ("name: 'foo'".encode("utf-16"), ["1:1: the file is UTF-16; save it as UTF-8"]),
        (b"\xfe\xff" + "name: 'foo'".encode("utf-16-be"), ["1:1: the file is UTF-16; save it as UTF-8"]),
    ],
    ids=["string", "field", "two", "UTF-16", "big-endian UTF-16"],
)
def test_a_file_must_be_utf8(tmp_path: Path, content: bytes, problems: list[str]) -> None:
    """Of one that is not, the report has the bytes that are to blame, and nothing that follows from them."""
    file = tmp_path / "config.pbtxt"
    file.write_bytes(content)
    with pytest.raises(config.ConfigurationError) as caught:
        config.read(file, "foo")
    assert len(caught.value.problems) == len(problems)
    for problem in problems:
        assert f"config.pbtxt:{problem}" in caught.value.message


# Positions

POSITIONS: dict[FieldPath, tuple[int, int]] = {
    ("name",): (1, 1),
    ("input",): (2, 1),
    ("input", 0): (3, 3),
    ("input", 0, "dims"): (3, 19),
    ("input", 0, "dims", 1): (3, 30),
    ("input", 1, "name"): (4, 5),
    ("input", 2): (6, 1),
    ("input", 2, "reshape", "shape"): (6, 19),
    ("parameters", "a.b"): (7, 1),
    ("parameters", "a.b", "string_value"): (7, 35),
    ("dynamic_batching", "priority_queue_policy", 3, "max_queue_size"): (8, 63),
}
POSITIONS_TEXT = """\
name: "foo"
input: [
  { name: "a"     dims: [ 1, -1 ] },
  < name: "b" >
]
input { reshape { shape: 4 } }
parameters { key: "a.b"   value { string_value: "x" } }
dynamic_batching { priority_queue_policy { key: 3     value { max_queue_size: 1 } } }
"""


@pytest.mark.parametrize(("path", "position"), POSITIONS.items())
def test_positions(path: FieldPath, position: tuple[int, int]) -> None:
    assert config.parse(POSITIONS_TEXT, PATH, "foo").source.positions[path] == position


def test_a_field_that_is_not_there_is_where_its_block_is() -> None:
    source = config.parse(POSITIONS_TEXT, PATH, "foo").source

    assert source.locate(("input", 1, "dims")) == (4, 3)
    assert source.locate(("parameters", "a.b", "x", 1, "y")) == (7, 1)
    assert source.locate(("backend",)) is None


# Properties


@settings(max_examples=60, deadline=None)
@given(configs, randoms)
def test_every_way_to_write_a_config_is_read(message: pb.ModelConfig, rng: random.Random) -> None:
    text = write(message, rng)

    assert walker.walk(text, MODEL_CONFIG).problems == []
    assert config.parse(text, PATH, "foo").message == message


@settings(max_examples=150, deadline=None)
@given(randoms)
def test_walker_refuses_just_what_text_format_refuses(rng: random.Random) -> None:
    text = damage(write(random_config(rng), rng), rng)
    walk = walker.walk(text, MODEL_CONFIG)
    if walk.unreadable:
        return
    try:
        text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError:
        assert walk.problems
    else:
        assert walk.problems == []
