"""One request on its way through the engine, and its outputs: what has been generated, and what is still to be sent."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .sampling import SamplingParameters
from .texts import StopTexts, TokenText

UNFINISHED = "None"
"""The reason of an output that goes on, as Triton's backend for vLLM writes it."""


class Wishes(NamedTuple):
    """What a request asks for beside the text."""

    stream: bool
    prepend_input: bool
    finish_reason: bool
    cumulative_logprob: bool
    logprobs: bool
    num_input_tokens: bool
    num_output_tokens: bool
    token_ids: bool


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
    """A request with its outputs. `text` is the prompt, `prompt` its tokens."""

    def __init__(
        self,
        request: Any,
        sender: Any,
        text: str,
        prompt: Sequence[int],
        sampling: SamplingParameters,
        wishes: Wishes,
        at: float,
    ) -> None:
        self.request = request
        self.sender = sender
        self.prompt_length = len(prompt)
        self.wishes = wishes
        self.begun_at = at
        self.outputs = [Output(prompt, sampling) for _ in range(sampling.n)]
        self._before = text if wishes.prepend_input else ""

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs)

    @property
    def is_due(self) -> bool:
        """Whether a response is to be sent."""
        return self.finished or (self.wishes.stream and any(output.has_news for output in self.outputs))

    def tensors(self, decode: Any) -> dict[str, Any]:
        """What has not been sent yet, by the names of the model's outputs. ``decode(rows)`` turns tokens into texts."""
        wishes, outputs = self.wishes, self.outputs
        before, self._before = self._before, ""
        ids = [output.take_ids() for output in outputs]
        arrays: dict[str, Any] = {"text_output": _texts([before + output.take_text() for output in outputs])}
        if wishes.finish_reason:
            arrays["finish_reason"] = _texts([output.reason for output in outputs])
        if wishes.cumulative_logprob:
            arrays["cumulative_logprob"] = np.array([output.cumulative_logprob for output in outputs], np.float32)
        if wishes.logprobs:
            arrays["logprobs"] = _texts([_as_json(output.take_logprobs(), decode) for output in outputs])
        if wishes.num_input_tokens:
            arrays["num_input_tokens"] = np.array([self.prompt_length], np.uint32)
        if wishes.num_output_tokens:
            arrays["num_output_tokens"] = np.array([len(each) for each in ids], np.uint32)
        if wishes.token_ids:
            arrays["token_ids"] = _texts([json.dumps(each) for each in ids])
        return arrays


def _texts(texts: Sequence[str]) -> Any:
    return np.array([text.encode("utf-8", "replace") for text in texts], np.object_)


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
