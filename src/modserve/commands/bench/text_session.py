"""A benchmark session with a server of OpenAI's API: its model, and the prepared requests.

Prompts of a benchmark: made up, with a length in tokens as the server counts them, or the lines of a file.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modserve.commands.destination import Destination
from modserve.commands.errors import RefusedError
from modserve.commands.remote_server import RemoteServer, connect
from modserve.core.errors import invalid

from .openai import PATHS, OpenAiCalls, slots
from .session import BenchSession
from .slots import Endpoint, spread
from .target import ServerStatistics, TargetModel
from .text_measures import TextCounter

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


def make_prompts(tokens: int, counted: Callable[[str], int]) -> tuple[list[str], str]:
    """Return prompts of random words, and a remark about their length.

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
    """Read the lines of a text file; of a .jsonl file, the `prompt` or `text` of each line. Raises INVALID_ARG."""
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


@dataclass(frozen=True, slots=True)
class TextLoad:
    """Load of texts. `kind` is a key of `openai.PATHS`, `limits` define the goodput in ms, `extra` are body fields."""

    kind: str
    input_tokens: int
    output_tokens: int
    prompts: Path | None
    limits: Mapping[str, float]
    extra: Mapping[str, Any]
    batch_size: int = 1


@contextlib.contextmanager
def text_session(servers: Sequence[Destination], model: str, options: TextLoad) -> Iterator[BenchSession]:
    """Open a session. For made-up prompts, count the tokens of two first. Raises UnreachableError, INVALID_ARG."""
    calls = OpenAiCalls(options.kind, model, options.output_tokens, options.extra, options.batch_size)
    remotes = [connect(server) for server in servers]
    try:
        counter = TextCounter(options.limits, streams=calls.streams, numbered=options.prompts is None)
        if options.prompts is None:
            texts, remark = make_prompts(
                options.input_tokens, lambda text: _count_tokens(remotes[0], calls, counter, text)
            )
            words = f"{len(texts)} prompts of {options.input_tokens} tokens"
        else:
            texts, remark = read(options.prompts), ""
            words = f"{len(texts)} prompts of {options.prompts}"
        numbered, count = options.prompts is None, 0
        factories = {}
        for server in servers:
            endpoint = _endpoint(server)
            requests = calls.requests(endpoint, server, texts, numbered=numbered)
            factories[str(server.address)] = slots(endpoint, requests, counter)
            count = len(requests)
        yield BenchSession(
            TargetModel(model, None, (), False, False),
            [words, *([f"at most {options.output_tokens} tokens of output"] if calls.streams else [])],
            [remark] if remark else [],
            ServerStatistics(remotes, model, None),
            spread(factories),
            count,
            servers[0].seconds,
            texts=counter,
            servers=len(servers),
        )
    finally:
        for remote in remotes:
            remote.close()


def _endpoint(server: Destination) -> Endpoint:
    context = server.access.context() if server.address.secure else None
    if context is not None:
        context.set_alpn_protocols(["http/1.1"])
    return Endpoint(server.address, context)


def _count_tokens(remote: RemoteServer, calls: OpenAiCalls, counter: TextCounter, text: str) -> int:
    """Return the tokens of a prompt, as counted by the server; 0 if it does not count."""
    fields: dict[str, Any] = {"max_tokens": 1, "stream": None, "stream_options": None} if calls.streams else {}
    body = OpenAiCalls(calls.kind, calls.model, 1, calls.extra).body([counter.tag().decode() + text], **fields)
    try:
        response = b"\n".join(remote.lines(PATHS[calls.kind], json.dumps(body).encode()))
    except RefusedError as error:
        raise RefusedError(f"the first request failed: {error.message}", error.advice) from error
    return calls.prompt_tokens(response)
