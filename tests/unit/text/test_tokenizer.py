"""Texts to tokens, against the library with its own truncation."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.pip_command import pip_install
from modserve.text.tokenizer import PIECE_CHARACTERS, PIECE_TEXTS, Text, Tokenizer, load, pieces, shares
from text_folders import IDS, WORDS, tokenizer, write_folder

LONG = " ".join(WORDS)


@pytest.fixture
def tokens(tmp_path: Path) -> Tokenizer:
    return load(write_folder(tmp_path))


def ids(*words: str) -> list[int]:
    return [IDS[word] for word in words]


def test_truncation_and_padding_of_the_file_are_off(tokens: Tokenizer) -> None:
    (short, long) = tokens.encode(["Hello", LONG], 512)
    assert short.ids.tolist() == ids("[CLS]", "hello", "[SEP]")
    assert len(long.ids) == len(WORDS) + 2
    assert short.ids.dtype == np.int64
    assert (short.cut, long.cut, short.types) == (0, 0, None)


def test_a_pair_has_types(tokens: Tokenizer) -> None:
    (pair,) = tokens.encode([("the cat", "sat")], 512)
    assert pair.ids.tolist() == ids("[CLS]", "the", "cat", "[SEP]", "sat", "[SEP]")
    assert pair.types is not None
    assert pair.types.tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("most", [2, 3, 5, 8, 15])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_long_text_is_cut_as_the_library_cuts_it(tokens: Tokenizer, most: int, side: str) -> None:
    (ours,) = tokens.encode([LONG], most, keep_end=side == "left")
    library = tokenizer()
    library.no_padding()
    library.enable_truncation(most, direction=side)
    assert ours.ids.tolist() == library.encode(LONG).ids
    assert ours.cut == len(WORDS) + 2 - len(ours.ids)


@pytest.mark.parametrize("most", range(3, 20))
@pytest.mark.parametrize(("first", "second"), [(2, 9), (9, 2), (6, 6), (1, 1), (0, 9), (7, 6)])
def test_of_a_pair_the_longer_one_is_cut(tokens: Tokenizer, most: int, first: int, second: int) -> None:
    pair: Text = (" ".join(WORDS[:first]), " ".join(WORDS[-second:]))
    (ours,) = tokens.encode([pair], most)
    library = tokenizer()
    library.no_padding()
    library.enable_truncation(most, strategy="longest_first")
    theirs = library.encode(*pair)
    assert ours.ids.tolist() == theirs.ids
    types = np.zeros(len(ours.ids)) if ours.types is None else ours.types
    assert types.tolist() == theirs.type_ids


@pytest.mark.parametrize("most", range(2, 22))
@pytest.mark.parametrize("keep_end", [False, True])
@pytest.mark.parametrize("text", [LONG, "cat", "", ("the cat", LONG), (LONG, "the cat"), ("", LONG), (LONG, LONG)])
def test_places_are_those_of_the_encoding_that_was_cut(
    tokens: Tokenizer, most: int, keep_end: bool, text: Text
) -> None:
    """Words with their places, whatever was cut: each is where it says it is, in the text that it says."""
    (ours,) = tokens.encode([text], most, keep_end=keep_end, places=True)
    (plain,) = tokens.encode([text], most, keep_end=keep_end)
    assert (ours.ids.tolist(), ours.cut, plain.places) == (plain.ids.tolist(), plain.cut, None)
    assert ours.places is not None
    assert [IDS[each.token] for each in ours.places] == ours.ids.tolist()
    pair = text if isinstance(text, tuple) else (text,)
    for each in ours.places:
        added = each.token in ("[CLS]", "[SEP]")
        assert added if each.part is None else pair[each.part][slice(*each.offsets)] == each.token
    parts = [each.part for each in ours.places if each.part is not None]
    assert parts == sorted(parts)
    if ours.types is not None:  # the first [SEP] is of the first text
        assert all(
            part == kind
            for part, kind in zip((p.part for p in ours.places), ours.types, strict=True)
            if part is not None
        )


def test_the_shares_of_a_pair() -> None:
    assert shares([5], 3) == [3]
    assert shares([2, 2], 9) == [2, 2]
    assert shares([10, 2], 6) == [4, 2]
    assert shares([2, 10], 6) == [2, 4]
    assert shares([10, 10], 7) == [3, 4]
    assert shares([10, 10], 0) == [0, 0]


def test_less_room_than_the_tokenizer_itself_needs(tokens: Tokenizer) -> None:
    (ours,) = tokens.encode([LONG], 1)
    assert ours.ids.tolist() == ids("[CLS]", "[SEP]")


def test_tokens_of_a_client(tokens: Tokenizer) -> None:
    assert tokens.of_ids([3, 2, 1], 2).ids.tolist() == [3, 2]
    assert tokens.of_ids([3, 2, 1], 2).cut == 1
    for wrong in (-1, len(IDS), 2**70):
        with pytest.raises(ModserveError, match=f"token 1 is {wrong}, and the model's tokens are 0 to {len(IDS) - 1}"):
            tokens.of_ids([0, wrong], 9)


def test_the_length_of_a_prompt_includes_what_stands_before_it(tokens: Tokenizer) -> None:
    assert tokens.prompt_length("query : ") == 3


def test_a_lone_surrogate_is_refused_and_not_repeated(tokens: Tokenizer) -> None:
    for broken in ("secret \ud800", ("a", "secret \udfff")):
        with pytest.raises(ModserveError) as caught:
            tokens.encode([broken], 9)
        assert caught.value.code is Code.INVALID_ARG
        assert "secret" not in caught.value.message


def test_strange_texts(tokens: Tokenizer) -> None:
    (empty, zero, emoji) = tokens.encode(["", "\0", "👩‍👩‍👧"], 9)
    assert empty.ids.tolist() == ids("[CLS]", "[SEP]")
    assert zero.ids.tolist()[0] == emoji.ids.tolist()[0] == IDS["[CLS]"]


def test_several_threads_share_a_tokenizer(tokens: Tokenizer) -> None:
    texts = [" ".join(WORDS[: place % 9]) for place in range(200)]
    expected = [each.ids.tolist() for each in tokens.encode(texts, 6)]
    results: list[list[list[int]]] = []

    def work() -> None:
        results.append([each.ids.tolist() for each in tokens.encode(texts, 6)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


BROKEN = {
    "no JSON": (b"{", "it is no tokenizer of the library 'tokenizers'"),
    "of something else": (b"{}", "it is no tokenizer of the library 'tokenizers'"),
    "no text": (b"\xff\xff", "it is no tokenizer of the library 'tokenizers'"),
    "empty": (b"", "it is no tokenizer of the library 'tokenizers'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModserveError, match=r"'tokenizer\.json' of the model cannot be used") as caught:
        load(tmp_path)
    assert (caught.value.code, message in caught.value.message) == (Code.INTERNAL, True)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModserveError, match="there is no such file"):
        load(tmp_path)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ModserveError, match=re.escape(pip_install("text"))) as caught:
        load(write_folder(tmp_path, with_tokenizer=False))
    assert caught.value.code is Code.UNSUPPORTED


def test_pieces_cover_a_list_and_are_short() -> None:
    texts: list[Text] = ["x" * 100] * (2 * PIECE_TEXTS + 1) + ["y" * 3 * PIECE_CHARACTERS] + [("a", "b")] * 3
    parts = list(pieces(texts))
    assert [each for part in parts for each in texts[part]] == texts
    assert all(part.stop - part.start <= PIECE_TEXTS for part in parts)
    assert list(pieces([])) == []
