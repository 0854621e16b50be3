"""An output of OpenVINO GenAI: the generated part, and the part still to be sent."""

import json
from collections.abc import Sequence
from typing import Any

from ..contract import UNFINISHED, OutputOptions, OutputPiece
from .sampling import SamplingParameters
from .texts import StopTexts, TokenText, Vocabulary

_MOST_WHITE_SPACE = 256
_MOST_LINE_BREAKS = 16
"""Limits of consecutive white space in JSON: the engine's grammars set none, and a model may write nothing else."""


class GenaiOutput:
    """An output, of the `n` outputs of a request: `handle` is the engine's, None until the engine has the output."""

    def __init__(self, prompt: Sequence[int], sampling: SamplingParameters, vocabulary: Vocabulary) -> None:
        self.handle: Any = None
        self.reason = UNFINISHED
        self.last_at = 0.0
        """Time of its last token."""
        self.count = 0
        """Tokens in all."""
        self.tokens = TokenText(prompt)
        self._min_tokens = sampling.min_tokens
        self._stops = StopTexts(sampling.stop, sampling.include_stop_str_in_output)
        self._is_json = sampling.grammar is not None and sampling.grammar.kind == "json_schema"
        self._white_space = ""
        """White space at the end of the text."""
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[tuple[int, float]] = []
        self._cumulative = 0.0
        self._end_taken = False
        self._vocabulary = vocabulary

    @property
    def finished(self) -> bool:
        return self.reason != UNFINISHED

    def add(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add new tokens; their text comes with `said`."""
        self.count += len(ids)
        self._ids.extend(ids)
        self._logprobs.extend(zip(ids, logprobs, strict=False))
        self._cumulative += sum(logprobs)
        self.tokens.add(ids)

    def say(self, texts: Sequence[str], reason: str) -> None:
        """Take the texts of `tokens.rows`, and why the engine stopped: `UNFINISHED` if it did not."""
        final = reason != UNFINISHED
        text, ended = self.tokens.advance(texts, final=final), False
        if self.count >= self._min_tokens:
            text, ended = self._stops.feed(text, final=final)
        if text:
            self._text.append(text)
        self.reason = "stop" if ended else reason
        if self._is_json and not self.finished and self._is_lost(text):
            self.reason = "length"

    def _is_lost(self, text: str) -> bool:
        """Return True if the output, with this new text, has become nothing but white space."""
        shown = text.rstrip()
        self._white_space = text[len(shown) :] if shown else self._white_space + text
        return len(self._white_space) > _MOST_WHITE_SPACE or self._white_space.count("\n") > _MOST_LINE_BREAKS

    @property
    def has_news(self) -> bool:
        return bool(self._text) or (self.finished and not self._end_taken)

    def take(self, options: OutputOptions) -> OutputPiece:
        text, ids, logprobs = "".join(self._text), self._ids, self._logprobs
        self._text, self._ids, self._logprobs = [], [], []
        self._end_taken = self.finished
        words = _as_json(logprobs, self._vocabulary) if options.logprobs else ""
        return OutputPiece(text, self.reason, self._cumulative, words, ids)


def _as_json(logprobs: Sequence[tuple[int, float]], vocabulary: Vocabulary) -> str:
    """Encode in the form of Triton's backend for vLLM: for each token an object with the chosen one alone.

    A token that is no text has `bytes`, too.
    """
    if not logprobs:
        return "[]"
    words = vocabulary.words([token for token, _ in logprobs])
    return json.dumps(
        [
            {str(token): {"logprob": logprob, "rank": None, **_describe_token(word)}}
            for (token, logprob), word in zip(logprobs, words, strict=True)
        ]
    )


def _describe_token(word: bytes) -> dict[str, Any]:
    text = word.decode(errors="replace")
    said: dict[str, Any] = {"decoded_token": text}
    return said if text.encode() == word else {**said, "bytes": list(word)}
