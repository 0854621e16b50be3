"""Tokens that are counted here, since the model does not say how many there were."""

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, trainers

from modserve.core.errors import ModserveError
from modserve.text.chat.counting import PART_CHARACTERS, TokenCount, count_prompts, read_tokenizer
from modserve.text.tokenizer import Tokenizer
from text_folders import WORDS, tokenizer, write_folder


@pytest.fixture(scope="module")
def byte_pairs() -> LibraryTokenizer:
    """As language models have them: bytes, whose words begin with a space."""
    made = LibraryTokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator([" ".join(WORDS)] * 10 + ["größer, naïve 日本語 …"] * 5, trainer)
    return made


@pytest.mark.parametrize("seed", range(20))
def test_pieces_have_the_tokens_of_the_whole(byte_pairs: LibraryTokenizer, seed: int) -> None:
    dice = random.Random(seed)
    text = " ".join(dice.choices((*WORDS, "größer", "日本語", "\n\n", "x" * 50), k=dice.choice((0, 1, 300, 3000))))
    count = TokenCount(Tokenizer(byte_pairs))
    rest = text
    while rest:
        size = dice.choice((1, 7, 100, 5000))
        count.add(rest[:size])
        count.advance()
        assert count.uncounted < PART_CHARACTERS
        rest = rest[size:]
    assert count.total() == len(byte_pairs.encode(text).ids)


def test_a_text_without_spaces_is_counted_in_parts(byte_pairs: LibraryTokenizer) -> None:
    count = TokenCount(Tokenizer(byte_pairs))
    count.add("z" * 10 * PART_CHARACTERS)
    count.advance()
    assert count.uncounted == 0
    assert count.total() == 10 * PART_CHARACTERS


def test_the_total_may_be_asked_for_again() -> None:
    count = TokenCount(Tokenizer(tokenizer()))
    count.add("the cat")
    assert (count.total(), count.total()) == (2, 2)
    count.add(" sat")
    assert count.total() == 3


@pytest.mark.parametrize(("special", "expected"), [(False, [2, 0]), (True, [4, 2])])
def test_prompts(special: bool, expected: list[int]) -> None:
    """The tokenizer has a token before each text, and one behind it, which a chat template writes itself."""
    assert count_prompts(Tokenizer(tokenizer()), ["the cat", ""], special) == expected


def test_the_file_is_that_of_the_version_or_of_the_model(tmp_path: Path) -> None:
    version = tmp_path / "model" / "1"
    version.mkdir(parents=True)
    assert read_tokenizer(None) is None
    assert read_tokenizer(version) is None
    write_folder(tmp_path / "model")
    read = read_tokenizer(version)
    assert read is not None
    assert read.count("the cat") == 2
    (version / "tokenizer.json").write_text("{")
    with pytest.raises(ModserveError, match=r"'tokenizer\.json' of the model cannot be used"):
        read_tokenizer(version)
