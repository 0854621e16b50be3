"""Prompts of a benchmark: made up, with a length in tokens as the server counts them, or the lines of a file."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from modserve.core.errors import invalid

_WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
"""
"""Nearly every tokenizer has each of them, with a space before it, as one token."""
COUNT = 256
"""Prompts, sent in turns."""
_TRIALS = (16, 64)


def made_up(tokens: int, counted: Callable[[str], int]) -> tuple[list[str], str]:
    """Prompts of random words, and a remark about their length.

    `counted` sends a text and returns its tokens, with all that the server puts around it, or 0 if the server does not
    count.
    """
    generator = random.Random(tokens)
    few, many = (counted(text(generator, words)) for words in _TRIALS)
    each = (many - few) / (_TRIALS[1] - _TRIALS[0])
    if each <= 0:
        return (
            [text(generator, tokens) for _ in range(COUNT)],
            f"the server does not count the tokens of a prompt: each has {tokens} words",
        )
    around = few - each * _TRIALS[0]
    words = max(1, round((tokens - around) / each))
    remark = ""
    if around + each > tokens:
        remark = f"the shortest prompt has about {around + each:.0f} tokens, with what the server puts around it"
    return [text(generator, words) for _ in range(COUNT)], remark


def text(generator: random.Random, words: int) -> str:
    return " ".join(generator.choices(_WORDS.split(), k=words))


def read(file: Path) -> list[str]:
    """The lines of a text file; of a .jsonl file, the `prompt` or `text` of each line. Raises INVALID_ARG."""
    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(
            f"option '--prompts': cannot read '{file}': {getattr(error, 'strerror', None) or error}"
        ) from None
    if not lines:
        raise invalid(f"option '--prompts': '{file}' is empty")
    if file.suffix != ".jsonl":
        return lines
    return [_prompt(f"{file}:{number}", line) for number, line in enumerate(lines, 1)]


def _prompt(place: str, line: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise invalid(f"{place} is not JSON: {error}") from None
    prompt = row.get("prompt", row.get("text")) if isinstance(row, dict) else row
    if not isinstance(prompt, str):
        raise invalid(f'{place}: expected a string or an object with "prompt"')
    return prompt
