"""A benchmark session with a server of OpenAI's API: its model, and the prepared requests."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..destination import Destination
from ..errors import RefusedError
from ..remote_server import RemoteServer, connect
from . import prompts
from .openai import PATHS, OpenAiCalls, slots
from .session import BenchSession
from .slots import Endpoint
from .target import ServerStatistics, TargetModel
from .text_measures import TextCounter


@dataclass(frozen=True, slots=True)
class TextLoad:
    """`kind` is a key of `openai.PATHS`, `limits` are those of the goodput in ms, `extra` has fields of the bodies."""

    kind: str
    input_tokens: int
    output_tokens: int
    prompts: Path | None
    limits: Mapping[str, float]
    extra: Mapping[str, Any]
    batch_size: int = 1


@contextlib.contextmanager
def text_session(server: Destination, model: str, options: TextLoad) -> Iterator[BenchSession]:
    """Counts the tokens of two prompts first, if prompts are made up. Raises UnreachableError, INVALID_ARG."""
    calls = OpenAiCalls(options.kind, model, options.output_tokens, options.extra, options.batch_size)
    place = server.address
    context = server.access.context() if place.secure else None
    if context is not None:
        context.set_alpn_protocols(["http/1.1"])
    endpoint = Endpoint.of(place, context)
    remote = connect(server)
    try:
        counter = TextCounter(options.limits, streams=calls.streams, numbered=options.prompts is None)
        if options.prompts is None:
            texts, remark = prompts.made_up(options.input_tokens, lambda text: _counted(remote, calls, counter, text))
            words = f"{len(texts)} prompts of {options.input_tokens} tokens"
        else:
            texts, remark = prompts.read(options.prompts), ""
            words = f"{len(texts)} prompts of {options.prompts}"
        requests = calls.requests(endpoint, server, texts, numbered=options.prompts is None)
        yield BenchSession(
            TargetModel(model, None, (), False, False),
            [words, *([f"at most {options.output_tokens} tokens of output"] if calls.streams else [])],
            [remark] if remark else [],
            ServerStatistics(remote, model, None),
            slots(endpoint, requests, counter),
            len(requests),
            server.seconds,
            texts=counter,
        )
    finally:
        remote.close()


def _counted(remote: RemoteServer, calls: OpenAiCalls, counter: TextCounter, text: str) -> int:
    """The tokens of a prompt, by the server's count; 0 if it does not count."""
    fields: dict[str, Any] = {"max_tokens": 1, "stream": None, "stream_options": None} if calls.streams else {}
    body = OpenAiCalls(calls.kind, calls.model, 1, calls.extra).body([counter.tag().decode() + text], **fields)
    try:
        response = b"\n".join(remote.lines(PATHS[calls.kind], json.dumps(body).encode()))
    except RefusedError as error:
        raise RefusedError(f"the first request failed: {error.message}", error.advice) from error
    return calls.prompt_tokens(response)
