"""Tokens become text as they come, whatever the pieces are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modserve.backends.generation.program.contract import UNFINISHED
from modserve.backends.generation.program.on_genai.generation import GenaiOutput
from modserve.backends.generation.program.on_genai.sampling import read
from modserve.backends.generation.program.on_genai.texts import StopTexts, TokenText, Vocabulary


def decode(pieces: list[bytes], tokens: list[int]) -> str:
    """As a tokenizer of bytes does that drops what is no character."""
    return b"".join(pieces[token] for token in tokens).decode("utf-8", "ignore")


def stream(pieces: list[bytes], tokens: list[int], prompt: list[int], step: int = 1) -> list[str]:
    text = TokenText(prompt)
    said = []
    for begin in range(0, len(tokens), step):
        text.add(tokens[begin : begin + step])
        final = begin + step >= len(tokens)
        said.append(text.advance([decode(pieces, row) for row in text.rows()], final=final))
    return said


@given(st.text(max_size=30), st.lists(st.integers(1, 4), max_size=60), st.integers(1, 3))
def test_characters_of_several_tokens(text: str, sizes: list[int], step: int) -> None:
    data = text.encode("utf-8", "ignore")
    pieces = []
    for size in (*sizes, *[1] * len(data)):
        if data:
            pieces.append(data[:size])
            data = data[size:]
    tokens = list(range(len(pieces)))
    assert "".join(stream([*pieces, b"the prompt"], tokens, [len(pieces)], step)) == decode(pieces, tokens)


def test_a_character_appears_with_its_last_token() -> None:
    pieces = [b"a", *(bytes([each]) for each in "😀".encode()), b"b"]
    assert stream(pieces, [0, 1, 2, 3, 4, 5], []) == ["a", "", "", "", "😀", "b"]


def test_half_a_character_waits_where_a_tokenizer_shows_it() -> None:
    text = TokenText([])
    text.add([1])
    assert text.advance(["", "a\ufffd"]) == ""
    text.add([2])
    assert text.advance(["a☀"]) == "a☀"
    text.add([3])
    assert text.rows() == [[1, 2], [1, 2, 3]]
    assert text.advance(["a☀", "a☀\ufffd"], final=True) == "\ufffd"


def test_spaces_that_a_tokenizer_drops_in_front() -> None:
    words = ["Hello", "world", "again"]

    def decode_words(tokens: list[int]) -> str:
        return " ".join(words[token] for token in tokens)

    text, said = TokenText([0]), []
    for token in (1, 2):
        text.add([token])
        said.append(text.advance([decode_words(row) for row in text.rows()]))
    assert said == [" world", " again"]


class FakeTokenizer:
    """Drops what is no character, special tokens, and the space in front, as tokenizers do."""

    def __init__(self, pieces: list[bytes], space: str = "") -> None:
        self._pieces = pieces
        self._space = space

    def get_vocab(self) -> dict[bytes, int]:
        return {piece: token for token, piece in enumerate(self._pieces)}

    def decode(self, rows: list[list[int]]) -> list[str]:
        texts = [decode(self._pieces, row) for row in rows]
        return ["" if text.startswith("<") else text.removeprefix(self._space) for text in texts]


@pytest.mark.parametrize(
    ("pieces", "space", "words"),
    [
        (
            [b" a", "é".encode(), b" \xe2", b"\x98", b" ", b"<s>"],
            "",
            [b" a", "é".encode(), b" \xe2", b"\x98", b" ", b""],
        ),
        (
            ["▁a".encode(), b"b", b"<0xE2>", b"<s>", "▁".encode(), b"<0x00>", b"<0xFF>"],
            "▁",
            [b" a", b"b", b"\xe2", b"", b" ", b"", b"\xff"],
        ),
    ],
    ids=["bytes", "sentencepiece"],
)
def test_bytes_of_tokens(pieces: list[bytes], space: str, words: list[bytes]) -> None:
    assert Vocabulary(FakeTokenizer(pieces, space)).words(range(len(pieces))) == words


def test_a_tokenizer_that_does_not_tell_its_vocabulary() -> None:
    class Silent(FakeTokenizer):
        def get_vocab(self) -> dict[bytes, int]:
            raise RuntimeError("there is none")

    assert Vocabulary(Silent([b" a", b"\xe2"])).words([0, 1]) == [b" a", b""]


def test_tokens_without_text_do_not_pile_up() -> None:
    text = TokenText([1] * 100)
    for token in range(1000):
        text.add([token])
        assert all(len(row) < 70 for row in text.rows())
        assert text.advance(["" for _ in text.rows()]) == ""


@pytest.mark.parametrize(
    ("stops", "include", "said", "expected", "ended"),
    [
        (["END"], False, ["one ", "E", "N", "D two"], "one ", True),
        (["END"], True, ["one ", "E", "N", "D two"], "one END", True),
        (["END"], False, ["one E", "N", "d two"], "one ENd two", False),
        (["b", "abc"], False, ["xab", "c"], "xa", True),
        (["bc", "abc"], False, ["xab", "c"], "x", True),
        (["END"], False, ["EN"], "EN", False),
        (["aab"], False, ["aaab"], "a", True),
        ([], False, ["a", "b"], "ab", False),
    ],
)
def test_texts_to_stop_at(stops: list[str], include: bool, said: list[str], expected: str, ended: bool) -> None:
    stop, result = StopTexts(stops, include), ""
    for index, part in enumerate(said):
        text, over = stop.feed(part, final=index == len(said) - 1)
        result += text
        if over:
            break
    assert (result, over) == (expected, ended)


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.booleans())
def test_it_does_not_matter_how_a_text_is_cut(text: str, stops: list[str], include: bool) -> None:
    whole = StopTexts(stops, include).feed(text, final=True)
    piecewise, result = StopTexts(stops, include), ""
    over = False
    for index, character in enumerate(text):
        part, over = piecewise.feed(character, final=index == len(text) - 1)
        result += part
        if over:
            break
    if not over and not any(stop in text for stop in stops):
        assert (result, over) == whole
    else:
        assert over
        assert text.startswith(result)


JSON = {"structured_outputs": {"json_object": True}}


@pytest.mark.parametrize(
    ("sampling", "pieces", "reason"),
    [
        (JSON, ['{"a":', *["\n"] * 17], "length"),
        (JSON, ['{"a":' + " \n" * 17], "length"),
        (JSON, ["{", *[" " * 64] * 4, " "], "length"),
        (JSON, ["{", *["\n" * 16, '"a": 1', "\n" * 16, "}"]], UNFINISHED),
        (JSON, ["{", "\n" + " " * 255, '"a": 1'], UNFINISHED),
        ({"structured_outputs": {"regex": r"\s*"}}, ["\n"] * 300, UNFINISHED),
        ({}, ["\n"] * 300, UNFINISHED),
    ],
)
def test_json_ends_in_endless_white_space(sampling: dict[str, object], pieces: list[str], reason: str) -> None:
    output = GenaiOutput([], read(sampling), Vocabulary(None))
    for number, piece in enumerate(pieces):
        assert output.reason == UNFINISHED
        output.add([number], [0.0])
        output.say(["", piece], UNFINISHED)
    assert output.reason == reason
