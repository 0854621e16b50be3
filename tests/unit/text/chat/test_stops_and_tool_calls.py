"""Where texts end, and the calls of tools in them, however they are cut into pieces."""

import time
from typing import Any

import pytest

from modserve.text.chat.stops import TextEnd, overlap
from modserve.text.chat.tools import Split, ToolCall, ToolCalls

WEATHER = '{"name": "weather", "arguments": {"city": "Köln"}}'
CALL = ToolCall("weather", '{"city":"Köln"}')
CITY = '{"city": "Köln"}'
LONG = "<function=weather>\n<parameter=city>\nKöln\n</parameter>\n</function>"
DEEP = '{"name": "weather", "arguments": ' + '{"a":' * 300 + "1" + "}" * 301
TOO_DEEP = "<function=plot><parameter=points>" + "[" * 300 + "]" * 300 + "</parameter></function>"
"""Cannot be written as JSON."""
NOTE = '{"name": "note", "arguments": {"text": "ends </tool_call>"}}'


def pieces(text: Any, size: int) -> list[Any]:
    """A text, or its bytes, in pieces of a size, and an empty one, which is the last."""
    return [text[start : start + size] for start in range(0, len(text) + size, size)]


def ended(text: str, stops: tuple[str, ...], size: int) -> tuple[str, bool]:
    """Return what is left of a text in pieces of `size` bytes, and whether a stop was reached."""
    end, (*first, last) = TextEnd(stops), pieces(text.encode(), size)
    return "".join([*map(end.feed, first), end.feed(last, final=True)]), end.reached


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two", (), ("one two", False)),
        ("one two", ("three",), ("one two", False)),
        ("one two three", (" two",), ("one", True)),
        ("aab", ("ab",), ("a", True)),
        ("aaab", ("aab",), ("a", True)),
        ("a\n\nb", ("\n\n", "b"), ("a", True)),
        ("Grüße 🙂 da", ("🙂",), ("Grüße ", True)),
        ("ends with a beginning: sto", ("stop",), ("ends with a beginning: sto", False)),
        ("stop", ("stop",), ("", True)),
        ("the longer one first", ("longer one", "one"), ("the ", True)),
    ],
)
def test_a_text_ends_at_its_first_stop(
    text: str, stops: tuple[str, ...], expected: tuple[str, bool], size: int
) -> None:
    assert ended(text, stops, size) == expected


def test_a_stop_may_be_part_of_the_text() -> None:
    end = TextEnd(("stop", "top"), keep=True)
    assert [end.feed(b"a s"), end.feed(b"to"), end.feed(b"p b", final=True)] == ["a ", "", "stop"]


def test_bytes_that_are_no_text_become_replacements() -> None:
    end = TextEnd()
    assert end.feed(b"a\xff") + end.feed(b"\xc3") + end.feed(b"", final=True) == "a\ufffd\ufffd"


def test_nothing_is_added_after_a_stop() -> None:
    end = TextEnd(("x",))
    assert [end.feed(b"ax"), end.feed(b"b"), end.feed(b"c", final=True)] == ["a", "", ""]


@pytest.mark.parametrize(
    ("text", "mark", "size"), [("abc", "cde", 1), ("abcd", "cde", 2), ("cde", "cde", 0), ("", "a", 0)]
)
def test_overlap(text: str, mark: str, size: int) -> None:
    assert overlap(text, mark) == size


PARAMETERS: dict[str, dict[str, Any]] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}}},
    "plot": {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "size": {"type": "integer"},
            "points": {"$ref": "#/$defs/Points"},
            "grid": {"type": "boolean"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "$defs": {"Points": {"type": "array"}},
    },
}


def divided(text: str, size: int) -> tuple[str, list[ToolCall]]:
    parser, (*first, last) = ToolCalls(PARAMETERS), pieces(text, size)
    splits = [*map(parser.feed, first), parser.feed(last, final=True)]
    return "".join(split.text for split in splits), [call for split in splits for call in split.calls]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "kept", "calls"),
    [
        ("no call", "no call", 0),
        (f"<tool_call>{WEATHER}</tool_call>", "", 1),
        (f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{WEATHER}\n</tool_call>", "", 2),
        (f"<tool_call>[{WEATHER}, {WEATHER}]</tool_call>", "", 2),
        (f"Let me look. <tool_call>{WEATHER}</tool_call>", "Let me look. ", 1),
        (f"<tool_call>{WEATHER}", "", 1),
        (f"<tool_call>{NOTE}</tool_call>, <tool_call>{WEATHER}</tool_call>", f"<tool_call>{NOTE}</tool_call>, ", 1),
        (f"[TOOL_CALLS][{WEATHER}]", "", 1),
        (f"[{WEATHER}, {WEATHER}]", "", 2),
        (f"I look. [TOOL_CALLS][{WEATHER}, {WEATHER}]", "I look. ", 2),
        (f"[TOOL_CALLS]weather[ARGS]{CITY}", "", 1),
        (f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{CITY}[TOOL_CALLS]weather[ARGS]{CITY}", "", 2),
        (f"I look.[TOOL_CALLS]weather{CITY}[TOOL_CALLS]weather {CITY}", "I look.", 2),
        (f"weather{CITY}weather{CITY}", "", 2),
        (f"weather[ARGS]{CITY}", "", 1),
        ("weather is nice", "weather is nice", 0),
        ("[1] is a list", "[1] is a list", 0),
        (f"[TOOL_CALLS]news[ARGS]{CITY}", f"[TOOL_CALLS]news[ARGS]{CITY}", 0),
        (f"  [TOOL_CALLS]news[ARGS]{CITY}", f"  [TOOL_CALLS]news[ARGS]{CITY}", 0),
        (f"{WEATHER}; {WEATHER}", "", 2),
        (f"{WEATHER}\n{WEATHER}\n", "", 2),
        (f"<|python_tag|>{WEATHER};{WEATHER}<|eom_id|>", "", 2),
        (f'{WEATHER}; {{"name": "wea', '; {"name": "wea', 1),
        (f"<tool_call>\n{LONG}\n</tool_call>\n<tool_call>\n{LONG}\n</tool_call>", "", 2),
        (f"{LONG}\n</tool_call>\n", "", 1),
        (f"I look.\n{LONG} Done.", "I look.\nDone.", 1),
        (f"{LONG}{LONG}", "", 2),
        (LONG.replace("weather", "news"), LONG.replace("weather", "news"), 0),
        ("<function=weather> is how it begins", "<function=weather> is how it begins", 0),
        (f"<|python_tag|>{WEATHER}<|eom_id|>", "", 1),
        (WEATHER.replace("arguments", "parameters"), "", 1),
        (f"  {WEATHER}", "", 1),
        (WEATHER.replace("weather", "news"), WEATHER.replace("weather", "news"), 0),
        ("<tool_call>{</tool_call> and on", "<tool_call>{</tool_call> and on", 0),
        (f"\n\n<tool_call>{WEATHER}</tool_call>", "", 1),
        (f"\n\n{LONG}", "", 1),
        (f"\n[TOOL_CALLS]{WEATHER}]", "]", 1),
        (f"I look.\n\n<tool_call>{WEATHER}</tool_call>", "I look.\n\n", 1),
        (f"<tool_call>no</tool_call>\n<tool_call>{WEATHER}</tool_call>", "<tool_call>no</tool_call>\n", 1),
        (f"<tool_call>{WEATHER}</tool_call>[TOOL_CALLS][{WEATHER}]", "", 2),
        (f"{LONG} and <|python_tag|>no", "and <|python_tag|>no", 1),
        (DEEP, DEEP, 0),
        (f"<tool_call>{DEEP}</tool_call>", f"<tool_call>{DEEP}</tool_call>", 0),
        ("a < b", "a < b", 0),
        ("<tool_ca", "<tool_ca", 0),
        ('<tool_call>{"name": "wea', '<tool_call>{"name": "wea', 0),
        (TOO_DEEP, TOO_DEEP, 0),
        ('{"answer": 1}', '{"answer": 1}', 0),
    ],
)
def test_calls_in_a_text(text: str, kept: str, calls: int, size: int) -> None:
    assert divided(text, size) == (kept, [CALL] * calls)


def test_calls_are_searched_once_for_their_end() -> None:
    begin = time.process_time()
    for text in ('<tool_call>{"name": "' + "</tool_call>" * 5000, "<tool_call>" + "<function=plot></function>" * 5000):
        assert divided(text, 12) == (text, [])
    assert time.process_time() - begin < 5.0  # 0.3 s here; two minutes if each piece has all of it searched again


@pytest.mark.parametrize("size", [1, 1000])
def test_a_mark_in_a_string_of_a_call(size: int) -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "\\"</tool_call>"}}</tool_call>!'
    assert divided(text, size) == ("!", [ToolCall("weather", '{"city":"\\"</tool_call>"}')])


@pytest.mark.parametrize(
    ("written", "argument"),
    [
        ("<parameter=title>\n12\n</parameter>", '{"title":"12"}'),
        ("<parameter=title>a</parameter> b\n\nc</parameter>", '{"title":"a</parameter> b\\n\\nc"}'),
        ("<parameter=size>\n12\n</parameter>\n<parameter=grid>\nTrue\n</parameter>", '{"size":12,"grid":true}'),
        ("<parameter=grid>\nfalse\n</parameter>", '{"grid":false}'),
        ("<parameter=points>\n[[1, 2]]\n</parameter>", '{"points":[[1,2]]}'),
        ("<parameter=note>\nNone\n</parameter>", '{"note":null}'),
        ("<parameter=note>\nnothing\n</parameter>", '{"note":"nothing"}'),
        ("<parameter=size>\nlarge\n</parameter>", '{"size":"large"}'),
        ("<parameter=other>\n1\n</parameter>", '{"other":"1"}'),
        ("", "{}"),
    ],
)
def test_values_without_quotes_have_the_types_of_the_schema(written: str, argument: str) -> None:
    text = f"<tool_call>\n<function=plot>\n{written}\n</function>\n</tool_call>"
    assert divided(text, 1000) == ("", [ToolCall("plot", argument)])


def test_arguments_that_are_null_are_none() -> None:
    assert divided('{"name": "weather", "arguments": null}', 99)[1] == [ToolCall("weather", "{}")]


def test_a_call_is_given_as_soon_as_it_is_complete() -> None:
    parser = ToolCalls(PARAMETERS)
    assert parser.feed(f"<tool_call>{WEATHER}</tool_call").calls == []
    assert parser.feed(">").calls == [CALL]


def test_arguments_that_are_a_text_stay_it() -> None:
    assert divided('{"name": "weather", "arguments": "{}"}', 99)[1] == [ToolCall("weather", "{}")]


@pytest.mark.parametrize("name", ["{}", "[1]", "3", "null"])
def test_a_name_that_is_no_text_is_no_call(name: str) -> None:
    text = f'<tool_call>{{"name": {name}}}</tool_call>'
    assert ToolCalls({"f": {}}).feed(text, final=True) == Split(text, [])
