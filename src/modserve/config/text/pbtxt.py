"""Parser from the text of a config.pbtxt to a message, or to a report of everything in it that cannot be read."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from google.protobuf import text_format

from modserve.pb import inference as pb

from . import walker
from .problems import Position, Problem, Problems, SourceText
from .walker import tokenize

_FOREIGN = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as Python's error handler `surrogateescape` decodes it."""
_JSON_NAME = re.compile(r"""\s*(?:"[^"\n]*"\s*:|\}\s*$)""")
"""Pattern of the text after the first brace of an object in JSON."""
_UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")
"""The byte order marks that a file in UTF-16 begins with."""


def parse(text: str, path: Path, name: str) -> tuple[pb.ModelConfig, SourceText, list[Problem]]:
    """The message in the file at `path`, of the model `name`. Bytes that are not UTF-8 are lone surrogates in `text`.

    Returns all problems of syntax, unknown fields and unknown values, too; the message then holds what could be
    read. Raises INVALID_ARG for a text that is not UTF-8, with the offending bytes, and with one problem for JSON.
    """
    Problems(name, SourceText(path, text), [*_foreign_bytes(text), *_json(text)]).raise_if_any()
    walk = walker.walk(text, pb.ModelConfig.DESCRIPTOR)
    source = SourceText(path, text, walk.positions)
    message = pb.ModelConfig()
    problems = walk.problems
    if not walk.unreadable:
        refusal, stopped = _parse(text, message)
        if not refusal:
            problems = []  # text_format has the last word: what it accepts is right.
        elif not any(stopped is None or problem.position <= stopped for problem in problems if problem.position):
            # None of the problems up to there explains the refusal: the walker does not know this mistake.
            problems = [*problems, Problem(refusal, stopped)]
    if problems and not walk.unreadable:
        message.Clear()
        with suppress(text_format.ParseError, ValueError, TypeError, OverflowError, RecursionError):
            text_format.Parse(text, message, allow_unknown_field=True)
    return message, source, problems


def _foreign_bytes(text: str) -> Iterator[Problem]:
    """Yield the first byte that is not UTF-8 of each token; comments may have any encoding."""
    if text.startswith(_UTF_16):
        yield Problem("the file is UTF-16; save it as UTF-8", Position(1, 1))
    elif _FOREIGN.search(text):
        for token in tokenize(text):
            if (byte := _FOREIGN.search(token.text)) is not None:
                problem = f"byte 0x{ord(byte[0]) - 0xDC00:02x} is not UTF-8; save the file as UTF-8"
                yield Problem(problem, Position(token.line, token.column + byte.start()))


def _json(text: str) -> Iterator[Problem]:
    """Yield one problem for a file that is JSON; the walker would yield one for each of its names."""
    begin = len(text) - len(text.lstrip())
    if text[begin : begin + 1] == "{" and _JSON_NAME.match(text, begin + 1):
        before = text[:begin]
        position = Position(before.count("\n") + 1, begin - before.rfind("\n"))
        yield Problem(
            "the file is JSON, but a config.pbtxt is protobuf text: without the braces around it, and with names "
            'without quotes. {"max_batch_size": 8} is written as max_batch_size: 8, and {"input": [{"name": "x"}]} '
            'as input [ { name: "x" } ]',
            position,
        )


def _parse(text: str, message: pb.ModelConfig) -> tuple[str, Position | None]:
    """Parses the text into the message. Returns the refusal, empty if there is none, and its position if known."""
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        line = error.GetLine() or 1
        # The error begins with the position and often repeats the line; the report shows both anyway.
        cause = re.sub(r"^\d+:\d+ : ", "", str(error)).removeprefix(f"'{text.split(chr(10))[line - 1]}': ")
        return cause, Position(line, error.GetColumn() or 1)
    except (ValueError, TypeError, OverflowError) as error:  # from a value that the parser does not check
        return str(error), None
    return "", None
