"""JSON requests that differ in ids, parameters and numbers are read by what is remembered, and come to the same."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.errors import ModserveError
from modserve.core.requests.request import InferenceRequest
from modserve.core.tensors import dtypes
from modserve.protocol import response_form
from modserve.protocol.http import infer_request, json_heads
from modserve.protocol.http.json_heads import JsonHeads, RequestDescription, read_numbers

FIRST = '{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[1,2]}]}'


def decode(text: str, heads: JsonHeads | None = None, most: int = 10**6) -> InferenceRequest:
    return infer_request.decode_request("m", None, text.encode(), None, max_json_tensor=most, heads=heads)[0]


def outcome(text: str, heads: JsonHeads | None = None) -> object:
    """All that can be seen of a decoded request, or the message of its refusal."""
    try:
        request, look = infer_request.decode_request("m", None, text.encode(), None, max_json_tensor=64, heads=heads)
    except ModserveError as error:
        return error.code, error.message
    inputs = [(name, each.datatype, each.shape, bytes(each.raw)) for name, each in request.inputs.items()]
    return inputs, request.outputs, request.parameters, request.id, look


def warmed(*texts: str) -> JsonHeads:
    """A memory that has seen each of these requests as often as it needs to."""
    heads = JsonHeads()
    for text in texts:
        for _ in range(2):
            decode(text, heads)
    return heads


def recalled(text: str, heads: JsonHeads) -> RequestDescription | None:
    """What the memory has of a request like this."""
    request = json_heads.cut(text.encode())
    return None if request is None else heads.look_up(request, 10**6)


def test_from_the_third_request_on_only_the_numbers_are_read() -> None:
    heads = JsonHeads()
    assert [decode(FIRST, heads).form is None for _ in range(4)] == [True, True, False, False]
    other = decode(FIRST.replace("[1,2]}", "[-5, 6]}"), heads)
    assert other.form is not None
    assert other.inputs["A"].array.tolist() == [[-5, 6]]


def test_requests_that_differ_in_numbers_alone_have_one_form() -> None:
    heads = warmed(FIRST)
    first, second = (decode(FIRST.replace("[1,2]}", f"[{number},2]}}"), heads).form for number in (3, 4))
    assert first is not None
    assert first is second


def test_a_request_that_is_read_as_a_whole_has_no_form() -> None:
    assert decode(FIRST, JsonHeads()).form is None


@pytest.mark.parametrize(
    "text",
    [
        FIRST,
        FIRST.replace(":", ": ").replace(",", ", "),
        FIRST.replace("[1,2]}", "[[1,2]]}"),
        '{"inputs":[{"data":[1.5,2],"name":"A","datatype":"FP32","shape":[2]}],"outputs":[{"name":"B"}]}',
        '{"parameters":{"priority":1},"inputs":[{"name":"data","shape":[1],"data":[1],"datatype":"FP16"},'
        '{"name":"B","shape":[0],"data":[],"datatype":"UINT64"}]}',
    ],
    ids=["compact", "spaced", "nested", "data first", "two inputs"],
)
def test_slots_take_the_request_that_they_were_made_of(text: str) -> None:
    known, request = recalled(text, warmed(text)), json_heads.cut(text.encode())
    assert known is not None
    assert request is not None
    inputs = read_numbers(request, known)
    assert inputs is not None
    expected = decode(text).inputs
    assert list(inputs) == list(expected)
    for name, tensor in inputs.items():
        assert (tensor.datatype, tensor.shape) == (expected[name].datatype, expected[name].shape)
        assert tensor.raw == expected[name].raw


@pytest.mark.parametrize(
    "text",
    [
        '{"inputs":[{"name":"A","datatype":"BYTES","shape":[1],"data":["x"]}]}',
        '{"inputs":[{"name":"A","datatype":"BOOL","shape":[1],"data":[true]}]}',
        '{"inputs":[{"name":"A","datatype":"BF16","shape":[1],"data":[1]}]}',
        '{"inputs":[]}',
        # Other places that look like an input's data.
        '{"more":{"data":[7]},"inputs":[{"name":"A","datatype":"INT32","shape":[1],"data":[1]}]}',
        '{"inputs":[{"name":"A","datatype":"INT32","shape":[1],"data":[7],"data":[1]}]}',
        '{"inputs":[{"name":"A","datatype":"INT8","shape":[0]},{"name":"B","datatype":"INT8","shape":[0],'
        '"data":[],"more":{"data":[1]}}]}',
        '{"inputs":[{"name":"A","datatype":"INT8","shape":[1],"more":{"data":[1]},"d\\u0061ta":[1]}]}',
    ],
    ids=["texts", "booleans", "BF16", "none", "elsewhere", "twice", "without data", "in another spelling"],
)
def test_requests_without_slots(text: str) -> None:
    heads = JsonHeads()
    assert len({str(outcome(text, heads)) for _ in range(4)}) == 1
    known = recalled(text, heads)
    assert known is None or not known.spans


NUMBERS = [
    "[1,2]", "[ 1 , 2 ]", "[[1],[2]]", "[[1,2]]", "[[[1,2]]]", "[]", "[1]", "[1,2,3]", "[true,2]", "[1,false]",
    "[null,1]", "[1.0,2]", "[1e3,2]", "[1.5,-2.25]", "[1e39,1]", "[1e999,1]", "[NaN,1]", "[Infinity,-Infinity]",
    "[-0,0]", "[-0.0,1]", "[0.1,3.4028235e38]", "[2147483647,-2147483648]", "[2147483648,0]", "[300,-1]",
    "[9007199254740993,1]", "[18446744073709551615,0]", "[18446744073709551616,0]",
    "[-9223372036854775809,0]", "[65504,65520]", '["1",2]',
    '["]}",2]', "[1,[2]]", "[[1],2]", "[{},1]", "{}", "1", "[1,2", "[1,2]]", "[1,2],[3]", "[01,2]", "[1,2,]", "[+1,2]",
    '[1,2],"data":[3,4]', '[1,2],"shape":[1]', '[1,2],"more":[3]', "[1,2] ", "\t[1,2]", "null", "[1,2]}",
    "[1,2]}]}", "[" * 99 + "1,2" + "]" * 99, "[" * 101 + "1,2" + "]" * 101, "[1_0,2]", "[0x1,2]", "[1.,2]", "[--1,2]",
]  # fmt: skip
"""What may stand where two numbers are expected."""
DATATYPES = [each.name for each in dtypes.ALL]
TEMPLATES = [
    '{"inputs":[{"name":"A","datatype":"DT","shape":[1,2],"data":D}]}',
    '{"inputs": [{"name": "A", "shape": [2], "datatype": "DT", "data": D}], "outputs": [{"name": "B"}]}',
    '{"inputs":[{"data":D,"name":"A","datatype":"DT","shape":[2]},{"name":"B","shape":[2,1],"datatype":"DT","data":D}],'
    '"parameters":{"binary_data_output":true,"x":1}}',
]


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("template", TEMPLATES, ids=["one", "spaced", "two"])
def test_whatever_stands_for_the_numbers_comes_to_the_same(template: str, datatype: str) -> None:
    template = template.replace("DT", datatype)
    for usual in ("[1,2]", "[[1],[2]]", "[true,false]", '["a","b"]'):
        heads = JsonHeads()
        first = template.replace("D}", usual + "}").replace('"data":D', f'"data":{usual}')
        for _ in range(2):
            outcome(first, heads)
        for text in NUMBERS:
            other = template.replace("D}", text + "}").replace('"data":D', f'"data":{text}')
            assert outcome(other, heads) == outcome(other), other


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("template", TEMPLATES, ids=["one", "spaced", "two"])
def test_whatever_slots_are_made_of_comes_to_the_same(template: str, datatype: str) -> None:
    template = template.replace("DT", datatype)
    for text in (*NUMBERS, "[[1,2],[NaN]]", "[[1], [NaN]]", "[[NaN], [1]]", "[[1.5],[true]]", '[[1],["]"]]'):
        heads = JsonHeads()
        whole = template.replace("D}", text + "}").replace('"data":D', f'"data":{text}')
        outcomes = [outcome(whole, heads) for _ in range(4)]
        assert outcomes == [outcome(whole)] * 4, whole


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_request_with_anything_changed_comes_to_the_same(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([TEMPLATES[0], TEMPLATES[2]]))
    text = text.replace("DT", data.draw(st.sampled_from(["INT32", "FP32"])))
    text = text.replace("D}", "[1,2]}").replace('"data":D', '"data":[1,2]')
    heads = warmed(text)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    put = data.draw(st.text(st.sampled_from('[]{},:"0123456789.eE+-truefalsn \\da'), max_size=6))
    other = text[:start] + put + text[end:]
    assert outcome(other, heads) == outcome(other)


@pytest.mark.parametrize("text", TEMPLATES, ids=["one", "spaced", "two"])
def test_a_request_cut_anywhere_comes_to_the_same(text: str) -> None:
    """Compiled, a slice of bytes that begins behind its end is a SystemError."""
    text = text.replace("DT", "INT32").replace("D}", "[1,2]}").replace('"data":D', '"data":[1,2]')
    heads = warmed(text)
    for end in range(len(text)):
        assert outcome(text[:end], heads) == outcome(text[:end]), text[:end]


MARKS = ("[0]", "0", '"0"', "[[0]]")
"""What stood in an input's place, or might: a client can write it as well."""


@pytest.mark.parametrize("mark", MARKS)
def test_marks_that_a_client_writes_are_none(mark: str) -> None:
    """The only key in its plain spelling is not the input's, whose own is spelled otherwise and has a mark's value."""
    text = '{"inputs":[{"name":"A","datatype":"INT32","shape":[1],"d\\u0061ta":%s,"more":{"data":[5]}}]}'
    first, other = (text % mark for mark in (mark, mark.replace("0", "7")))
    heads = JsonHeads()
    assert [outcome(first, heads) for _ in range(4)] == [outcome(first)] * 4
    assert outcome(other, heads) == outcome(other)


def test_the_marks_of_several_inputs_are_none() -> None:
    one = '{"name":"NAME","datatype":"INT32","shape":[1],"d\\u0061ta":[0],"more":{"data":[5]}}'
    inputs = one.replace("NAME", "A") + "," + one.replace("NAME", "B").replace("[0]", "[1]").replace("[5]", "[6]")
    text = f'{{"inputs":[{inputs}]}}'
    heads = JsonHeads()
    assert [outcome(text, heads) for _ in range(4)] == [outcome(text)] * 4


@given(st.lists(st.floats(width=32) | st.integers(-(2**63), 2**64 - 1), min_size=2, max_size=2))
@settings(max_examples=100, deadline=None)
def test_numbers_become_the_same_elements(values: list[Any]) -> None:
    texts = [json.dumps(value) for value in values if not (isinstance(value, float) and not math.isfinite(value))]
    for datatype in ("FP16", "FP32", "FP64", "INT64", "UINT64"):
        text = TEMPLATES[1].replace("DT", datatype)
        heads = warmed(text.replace("D}", "[1,2]}"))
        other = text.replace("D}", f"[{','.join(texts)}]}}")
        assert outcome(other, heads) == outcome(other)


def test_other_outputs_are_another_description() -> None:
    binary = FIRST[:-1] + ',"outputs":[{"name":"B","parameters":{"binary_data":true}}]}'
    heads = warmed(FIRST, binary)
    for text in (FIRST, binary):
        assert recalled(text, heads) is not None
        _, look = infer_request.decode_request("m", None, text.encode(), None, heads=heads)
        assert (look is response_form.JSON) == (text is FIRST)


def test_a_beginning_that_two_kinds_of_requests_share_serves_the_first() -> None:
    other = FIRST.replace("}]", ',"more":1}]')
    heads = warmed(FIRST, other)
    assert [decode(text, heads).form is None for text in (FIRST, other)] == [False, True]


BINARY = (
    '{"inputs":[{"name":"A","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}}],'
    '"outputs":[{"name":"B"}]}'
)
IDS = ['"7"', '"a-b_c"', r'"\u00e9"', '"}"', r'"\"data\":["']
PARAMETERS = [
    '{"sequence_id":7,"sequence_start":true,"sequence_end":false,"priority":2,"timeout":9}',
    '{"binary_data_output":true}',
    "{}",
    '{"x":1.5,"y":"z"}',
]


def whole_outcome(text: str, heads: JsonHeads | None) -> object:
    """Like `outcome`, of a request with eight bytes of binary data behind it, and of one without."""
    outcomes = [outcome(text, heads)]
    body = text.encode() + bytes(range(8))
    try:
        request, look = infer_request.decode_request("m", None, body, len(body) - 8, heads=heads)
    except ModserveError as error:
        return outcomes, error.code, error.message
    inputs = [(name, each.datatype, each.shape, bytes(each.raw)) for name, each in request.inputs.items()]
    return outcomes, inputs, request.outputs, request.parameters, request.id, request.timeout_ns, look


def variants(text: str, space: str = "") -> list[str]:
    """A request with ids and parameters where clients write them."""
    ids = ["", *(f'"id":{space}{each},{space}' for each in IDS)]
    front = ["", *(f'"parameters":{space}{each},{space}' for each in PARAMETERS)]
    texts = ["{" + before + first + text[1:] for before in ids for first in front]
    tails = [f',{space}"parameters":{space}{each}}}' for each in PARAMETERS]
    return texts + ["{" + before + text[1:-1] + tail for before in ids for tail in tails]


@pytest.mark.parametrize("space", ["", " "], ids=["compact", "spaced"])
@pytest.mark.parametrize("text", [FIRST, BINARY], ids=["json", "binary"])
def test_requests_with_any_id_and_parameters_are_recalled(text: str, space: str) -> None:
    spaced = json.dumps(json.loads(text), separators=("," + space, ":" + space))
    heads = JsonHeads()
    texts = variants(spaced, space)
    for each in texts[:8]:
        whole_outcome(each, heads)
    for each in texts:
        assert whole_outcome(each, heads) == whole_outcome(each, None), each
    unusual = [each for each in texts if recalled(each, heads) is None]
    assert unusual == [each for each in texts if '\\"' in each]  # ids with quotes


ODD = [
    "%s", " %s", "%s\n", "[%s", "x%s", '{"id":"7",}', '{"id":"7"}', '{"id":"7', '{"id":7,%r', '{"id":null,%r',
    '{"id":"",%r', '{"id":"7" ,%r', '{"id":"7";%r', '{"id":"7"%r', '{"id":"\\ud800",%r', '{"id":"a\tb",%r',
    '{"id":"a\\",%r', '{"id":"7","id":"8",%r', '{"parameters":{"a":1}%r', '{"parameters":{"a":{}},%r',
    '{"parameters":null,%r', '{"parameters":[],%r', '{"parameters":{"a":1,%r', '{"parameters":{"triton_x":1},%r',
    '{"parameters":{"priority":-1},%r', '{"parameters":{"a":1},"parameters":{"b":2},%r', '{%m"parameters":{"a":1}}',
    '{%m;"parameters":{"a":1}}', '{%m,x"parameters":{"a":1}}', '{%m,["parameters":{"a":1}}',
    '{%m,,"parameters":{"a":1}}', '{%m,  "parameters":{"a":1}}', '{%m,"parameters":{"a":{}}}',
    '{%m,"parameters":{"a":1}', '{%m,"parameters":{"a":1},"parameters":{"b":2}}',
    '{"parameters":{"b":2},%m,"parameters":{"a":1}}', '{%m,"id":"9"}', '{%m,"parameters":{"x":"}"}}',
    '{%m,"x":{"parameters":{}}}', '{%m,"x":"\\"parameters\\":{}"}', "{%m,", "{%m", "%m}", "{%m}}",
    '{%m,"outputs":[]}', '{%m,"parameters":{"a":true,"binary_data_output":7}}',
    '{"id":"7",%m,"parameters":{"timeout":5}}',
]  # fmt: skip
"""Around a request: %s is all of it, %r all behind the first brace, %m its members."""


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("text", [FIRST, BINARY], ids=["json", "binary"])
def test_what_is_cut_from_odd_requests_changes_nothing(text: str, odd: str) -> None:
    heads = JsonHeads()
    for each in (text, '{"id":"1",' + text[1:], text[:-1] + ',"parameters":{"a":1}}'):
        for _ in range(2):
            whole_outcome(each, heads)
    assert recalled(text, heads) is not None
    other = odd.replace("%s", text).replace("%r", text[1:]).replace("%m", text[1:-1])
    for _ in range(3):
        assert whole_outcome(other, heads) == whole_outcome(other, None)


def test_the_limit_of_a_tensor_holds_for_what_is_remembered() -> None:
    heads = warmed(FIRST)
    assert decode(FIRST, heads, most=8).inputs["A"].array.tolist() == [[1, 2]]
    with pytest.raises(ModserveError, match="exceeds the maximum allowed value of 7"):
        decode(FIRST, heads, most=7)


@pytest.mark.parametrize(
    "text",
    [
        FIRST[:-1] + ',"id":"7"}',
        "{" + " " * 4096 + FIRST[1:],
        FIRST[:-1] + " " * 4096 + "}",
        FIRST[:-1] + " " * 32 * 1024 + "}",
    ],
    ids=["with an id in an unusual place", "a long beginning", "a long end", "long"],
)
def test_requests_that_are_not_worth_remembering(text: str) -> None:
    heads = warmed(text)
    assert decode(text, heads).form is None


def test_what_is_remembered_is_bounded() -> None:
    heads = JsonHeads()
    for number in range(1025):
        decode(FIRST.replace('"A"', f'"{number}"'), heads)
    assert len(heads.known) == 1
