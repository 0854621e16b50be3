"""Clients of calls of texts: what they send, and what they may get."""

import json
from collections.abc import Sequence

from text_folders import IDS, WORDS

from .posts import Post


class TextClient:
    """One request with several texts for a model whose scores are its tokens. Each has a first word of its own."""

    def __init__(self, model: str, counts: Sequence[int], timeout_s: float, **way: bool) -> None:
        self.model = model
        self.texts = [" ".join((WORDS[place], *WORDS[:count])) for place, count in enumerate(counts)]
        document = {"model": model, "inputs": [[text] for text in self.texts]}
        self.post = Post("/predict", document, timeout_s, **way)

    def __repr__(self) -> str:
        return f"{len(self.texts)} texts: {self.post!r}"

    def check(self) -> None:
        """When all is over. Raises AssertionError."""
        post = self.post
        post.check()
        if post.gone:
            return
        document = json.loads(post.body)
        if post.status != 200:
            post.check_error(document["error"])
            return
        for text, scores in zip(self.texts, document, strict=True):
            ids = [IDS["[CLS]"], *(IDS[word] for word in text.split()), IDS["[SEP]"]]
            assert sorted(each["score"] for each in scores) == sorted(ids), f"{self!r} has those of another text"
