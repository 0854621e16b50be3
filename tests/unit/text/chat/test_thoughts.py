"""What a model thinks, apart from its answer, however its text is cut into pieces."""

import pytest

from modserve.text.chat.choice import Delta, TextChoice, Thoughts, open_thought
from modserve.text.chat.contract import Piece
from modserve.text.chat.requests import read_chat

TOOL = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def divided(text: str, opened: bool, size: int) -> tuple[str, str]:
    thoughts, thought, answer = Thoughts("</think>" if opened else ""), "", ""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    for index, piece in enumerate([*pieces, ""]):
        thinks, says = thoughts.feed(piece, index == len(pieces))
        thought += thinks
        answer += says
    return thought, answer


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>\nOne\n\ntwo.\n</think>\n\nThree.\n", "One\n\ntwo.", "Three.\n"),
        ("\n<think>a < b</think>c", "a < b", "c"),
        ("<think>\n\n</think>\n\nc", "", "c"),
        ("<think>a</think>", "a", ""),
        ("<think>is cut", "is cut", ""),
        ("<think>is cut</thi", "is cut</thi", ""),
        ("<think>", "", ""),
        ("<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
    ],
)
def test_thought_and_answer(text: str, opened: bool, thought: str, answer: str, size: int) -> None:
    assert divided(text, opened, size) == (thought, answer)
    mistral = [each.replace("<think>", "[THINK]").replace("</think>", "[/THINK]") for each in (text, thought, answer)]
    if "</thi" not in thought:
        assert divided(mistral[0], opened, size) == tuple(mistral[1:])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "answer", "opened"),
    [
        (" An answer", " An answer", ("An answer", "")),
        ("a</think>\n\nb", "a</think>\n\nb", ("a", "b")),
        ("<thinking>", "<thinking>", ("<thinking>", "")),
        ("<th", "<th", ("<th", "")),
        ("<b>x</b> <think>y</think>", "<b>x</b> <think>y</think>", ("<b>x</b> <think>y", "")),
        (" \n", " \n", ("", "")),
        ("", "", ("", "")),
    ],
)
def test_without_a_mark_at_the_beginning_it_depends_on_the_prompt(
    text: str, answer: str, opened: tuple[str, str], size: int
) -> None:
    assert divided(text, False, size) == ("", answer)
    assert divided(text, True, size) == opened


@pytest.mark.parametrize(
    ("prompt", "continued", "close"),
    [
        ("<|im_start|>assistant\n<think>\n", "", "</think>"),
        ("<think>", "", "</think>"),
        ("[THINK]", "", "[/THINK]"),
        ("<think>\n\n</think>\n\n", "", ""),
        ("<assistant><think>One", "<think>One", "</think>"),
        ("<assistant><think>One</think>Two", "<think>One</think>Two", ""),
        ("<user>What does <think>do?<assistant>", "", ""),
        ("", "", ""),
    ],
)
def test_a_prompt_that_opens_a_thought(prompt: str, continued: str, close: str) -> None:
    assert open_thought(prompt, continued) == close


def choice(*, opened: bool = False, **fields: object) -> TextChoice:
    request = read_chat({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields})
    return TextChoice(0, request.text, request.tools, close="</think>" if opened else "")


def test_a_call_of_a_tool_behind_a_thought() -> None:
    made = choice(tools=[TOOL], opened=True)
    delta = made.add(Piece(b"It takes add.\n</think>\n\n" + CALL.encode()), True)
    assert (delta.thought, delta.text, [call.name for call in delta.calls]) == ("It takes add.", "", ["add"])
    assert made.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "fields", [{"tools": [TOOL], "tool_choice": "required"}, {"response_format": {"type": "json_object"}}]
)
def test_a_text_that_has_to_have_a_form_is_no_thought(fields: dict[str, object]) -> None:
    delta = choice(opened=True, **fields).add(Piece(b'{"a": 1}'), True)
    assert (delta.thought, delta.text) == ("", '{"a": 1}')


def test_what_is_no_chat_has_no_thoughts() -> None:
    request = read_chat({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    assert TextChoice(0, request.text).add(Piece(b"<think>a</think>b"), True) == Delta("<think>a</think>b")


def test_log_probabilities_are_of_the_answer() -> None:
    made = choice(logprobs=True)
    pieces = [b"<think>", b"a", b"</think>", b"\n\n", b"b", b"c"]
    said = [made.add(Piece(piece, logprobs=[{str(number): {}}]), False) for number, piece in enumerate(pieces)]
    assert [delta.logprobs for delta in said] == [None, None, None, None, [{"4": {}}], [{"5": {}}]]
    assert [delta.thought + delta.text for delta in said] == ["", "a", "", "", "b", "c"]


def test_tokens_of_thoughts() -> None:
    made = choice()
    for piece in (b"<think>", b"a", b" b", b"</think>", b"\n\n", b"c", b"d"):
        made.add(Piece(piece, output_tokens=2), False)
    assert (made.thought_tokens, made.written) == (10, 14)
    whole = choice()
    whole.add(Piece(b"<think>a</think>b", output_tokens=9), True)
    assert (whole.thought_tokens, whole.written) == (0, 9)  # the model says no more of them
    cut = choice()
    cut.add(Piece(b"<think>a", output_tokens=2), True)
    assert cut.thought_tokens == 2
    answer = choice()
    answer.add(Piece(b"a", output_tokens=1), True)
    assert answer.thought_tokens == 0
