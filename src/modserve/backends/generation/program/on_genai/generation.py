"""One request on its way through the engine, and its outputs: what has been generated, and what is still to be sent."""

import json
from collections.abc import Sequence
from typing import Any

from ..contract import UNFINISHED, Call, Piece, arrays
from .sampling import SamplingParameters
from .texts import StopTexts, TokenText


class Output:
    """One of the `n` outputs of a request: `handle` is the engine's, None before it has it."""

    def __init__(self, prompt: Sequence[int], sampling: SamplingParameters) -> None:
        self.handle: Any = None
        self.reason = UNFINISHED
        self.last_at = 0.0
        """When its last token came."""
        self.count = 0
        """Tokens in all."""
        self.tokens = TokenText(prompt)
        self._stops = StopTexts(sampling.stop, sampling.include_stop_str_in_output)
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[tuple[int, float]] = []
        self._cumulative = 0.0
        self._end_taken = False

    @property
    def finished(self) -> bool:
        return self.reason != UNFINISHED

    def add(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """New tokens, whose text comes with `said`."""
        self.count += len(ids)
        self._ids.extend(ids)
        self._logprobs.extend(zip(ids, logprobs, strict=False))
        self._cumulative += sum(logprobs)
        self.tokens.add(ids)

    def say(self, texts: Sequence[str], reason: str) -> None:
        """Take what `tokens.rows` have become, and why the engine stopped, if it did: `UNFINISHED` if not."""
        final = reason != UNFINISHED
        text, ended = self._stops.feed(self.tokens.advance(texts, final=final), final=final)
        if text:
            self._text.append(text)
        self.reason = "stop" if ended else reason

    @property
    def has_news(self) -> bool:
        """Whether there is text that was not taken, or an end that was not."""
        return bool(self._text) or (self.finished and not self._end_taken)

    def take_text(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        self._end_taken = self.finished
        return text

    def take_ids(self) -> list[int]:
        ids = self._ids
        self._ids = []
        return ids

    def take_logprobs(self) -> list[tuple[int, float]]:
        logprobs = self._logprobs
        self._logprobs = []
        return logprobs

    @property
    def cumulative_logprob(self) -> float:
        return self._cumulative


class Generation:
    """A request with its outputs. `prompt` has the tokens of its text."""

    def __init__(self, call: Call, prompt: Sequence[int], sampling: SamplingParameters) -> None:
        self.call = call
        self.prompt_length = len(prompt)
        self.outputs = [Output(prompt, sampling) for _ in range(sampling.n)]
        self._before = call.text if call.wishes.prepend_input else ""

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs)

    @property
    def is_due(self) -> bool:
        """Whether a response is to be sent. A client that is slow gets what has come meanwhile with a later one."""
        if self.finished:
            return True
        news = self.call.wishes.stream and any(output.has_news for output in self.outputs)
        return news and not self.call.sender.is_paused()

    def tensors(self, decode: Any) -> dict[str, Any]:
        """What has not been sent yet, by the names of the model's outputs. ``decode(rows)`` turns tokens into texts."""
        wishes = self.call.wishes
        before, self._before = self._before, ""
        pieces = [
            Piece(
                output.take_text(),
                output.reason,
                output.cumulative_logprob,
                _as_json(output.take_logprobs(), decode) if wishes.logprobs else "",
                output.take_ids(),
            )
            for output in self.outputs
        ]
        return arrays(wishes, pieces, self.prompt_length, before)


def _as_json(logprobs: Sequence[tuple[int, float]], decode: Any) -> str:
    """In the form of Triton's backend for vLLM: for each token an object with the chosen one alone."""
    if not logprobs:
        return "[]"
    words: list[str] | None = decode([[token] for token, _ in logprobs])
    return json.dumps(
        [
            {str(token): {"logprob": logprob, "rank": None, "decoded_token": word}}
            for (token, logprob), word in zip(logprobs, words or (), strict=False)
        ]
    )
