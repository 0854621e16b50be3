"""An output of vLLM: the generated part, and the part still to be sent."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..contract import UNFINISHED, OutputOptions, OutputPiece


class VllmOutput:
    """An output, of the `n` outputs of a request. vLLM returns only the new part of it, and makes the text itself."""

    def __init__(self) -> None:
        self.reason = UNFINISHED
        self.last_at = 0.0
        """Time of its last token."""
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[Mapping[str, Any]] | None = None
        self._cumulative = math.nan
        self._end_taken = False

    @property
    def finished(self) -> bool:
        return self.reason != UNFINISHED

    @property
    def has_news(self) -> bool:
        return bool(self._text) or (self.finished and not self._end_taken)

    def add(self, news: Any) -> int:
        """Add a CompletionOutput of vLLM; returns its number of tokens."""
        if news.text:
            self._text.append(news.text)
        self._ids.extend(news.token_ids)
        if news.logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *_objects(news.logprobs)]
        if news.cumulative_logprob is not None:
            self._cumulative = news.cumulative_logprob
        if news.finish_reason is not None:
            self.reason = news.finish_reason
        return len(news.token_ids)

    def take(self, options: OutputOptions) -> OutputPiece:
        text, ids, logprobs = "".join(self._text), self._ids, self._logprobs
        self._text, self._ids = [], []
        if logprobs is not None:
            self._logprobs = []
        self._end_taken = self.finished
        words = json.dumps(logprobs) if options.logprobs else ""
        return OutputPiece(text, self.reason, self._cumulative, words, ids)


def _objects(logprobs: Iterable[Mapping[int, Any]]) -> list[Mapping[str, Any]]:
    """Return for each token an object with the chosen one and the most probable ones, as in Triton's backend."""
    return [
        {
            str(token): {"logprob": each.logprob, "rank": each.rank, "decoded_token": each.decoded_token}
            for token, each in of_token.items()
        }
        for of_token in logprobs
    ]
