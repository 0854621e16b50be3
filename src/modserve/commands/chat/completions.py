"""Streamed chat completion: ``chat/completions`` of OpenAI's API."""

import contextlib
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import RefusedError
from ..remote_server import RemoteServer
from ..terminal import plural

_PATH = "/v1/chat/completions"
_MODELS = "/v1/models"
Message = dict[str, str]
"""A message of the conversation: `role` and `content`."""
_EVENT = b"data:"
_END = "[DONE]"


@dataclass(slots=True)
class ChatResponse:
    """The response so far. Times are seconds since the call."""

    text: str = ""
    pieces: int = 0
    finish_reason: str = ""
    """Finish reason; empty if the stream was not read to its end."""
    first: float = 0.0
    last: float = 0.0
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Token usage; empty if the server does not report it."""

    @property
    def seconds_per_token(self) -> float:
        """Mean time per token after the first; 0 if there is only one."""
        tokens = self.usage.get("completion_tokens") or self.pieces
        return (self.last - self.first) / (tokens - 1) if tokens > 1 else 0.0


def complete(
    server: RemoteServer,
    model: str,
    messages: Sequence[Message],
    sampling: Mapping[str, float],
    response: ChatResponse,
    show: Callable[[str], None],
    show_thought: Callable[[str], None],
) -> None:
    """Fill `response` from the stream, passing text to `show` and reasoning to `show_thought`.

    Ctrl-C or an exception of these functions cancels the request. Raises UnreachableError, RefusedError.
    """
    body = {"model": model, "messages": list(messages), **sampling, "stream": True}
    body["stream_options"] = {"include_usage": True}
    begin = time.perf_counter()
    with contextlib.closing(server.lines(_PATH, json.dumps(body).encode())) as lines:
        for event in _events(lines):
            if (error := event.get("error")) is not None:
                raise RefusedError(str(error.get("message", error) if isinstance(error, dict) else error))
            response.usage = event.get("usage") or response.usage
            for choice in event.get("choices") or ():
                response.finish_reason = choice.get("finish_reason") or response.finish_reason
                delta = choice.get("delta") or {}
                thought, piece = delta.get("reasoning_content") or "", delta.get("content") or ""
                if thought or piece:
                    response.last = time.perf_counter() - begin
                    response.first = response.first or response.last
                    response.pieces += 1
                    response.text += piece
                if thought:
                    show_thought(thought)
                if piece:
                    show(piece)


def check(server: RemoteServer, prefix: str, model: str) -> None:
    """Check that the model is ready. Raises RefusedError with the server's reason."""
    rows = json.loads(server.page(f"{prefix}{_MODELS}")).get("data") or ()
    if model not in {row.get("id") for row in rows}:  # the server may know the model by another name
        server.page(_model_page(prefix, model))


def fetch_suggested_sampling(server: RemoteServer, prefix: str, model: str) -> dict[str, float]:
    """Return the server's suggested sampling parameters for a model; empty if there are none."""
    with contextlib.suppress(RefusedError, ValueError, AttributeError):
        document = json.loads(server.page(_model_page(prefix, model)))
        return dict(document.get("suggested_sampling") or {})
    return {}


def _model_page(prefix: str, model: str) -> str:
    return f"{prefix}{_MODELS}/{urllib.parse.quote(model, safe='')}"


def _events(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of server-sent events."""
    for line in lines:
        if not line.startswith(_EVENT):
            continue
        text = line.removeprefix(_EVENT).decode(errors="replace").strip()
        if text == _END:
            return
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise RefusedError(f"the server's stream has an event that is no JSON object: {text[:200]}")
        yield event


def figures(response: ChatResponse) -> str:
    """Return the speed of a response as one line of text."""
    tokens = response.usage.get("completion_tokens")  # 0 or missing if the server does not count tokens
    unit = "token" if tokens else "piece"
    parts = [plural(tokens or response.pieces, unit)]
    if per_token := response.seconds_per_token:
        parts.append(f"{1 / per_token:,.1f} {unit}s/s")
    parts.append(f"the first after {response.first * 1e3:,.0f} ms")
    if prompt := response.usage.get("prompt_tokens"):
        parts.append(f"prompt of {prompt:,} tokens")
    return ", ".join(parts)
