"""Clients of calls of texts, over HTTP without a port: what they send, and what they may get."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from modserve import InferenceServer
from modserve.frontends.http.rest.app import create_app
from modserve.settings import HttpSettings
from text_folders import IDS, WORDS

from .ledger import NEVER


def text_app(server: InferenceServer) -> Any:
    """The application, which takes a scope, and what receives and sends messages."""
    return create_app(server, HttpSettings())


class TextClient:
    """One request with several texts for a model whose scores are its tokens. Each has a first word of its own."""

    def __init__(self, model: str, counts: Sequence[int], timeout_s: float) -> None:
        self.model = model
        self.texts = [" ".join((WORDS[place], *WORDS[:count])) for place, count in enumerate(counts)]
        self.status = 0
        self.body = b""
        self.gone = False
        self.task: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._sent = False
        self._headers = [(b"x-request-timeout-ms", str(round(timeout_s * 1000)).encode())] if timeout_s else []

    def __repr__(self) -> str:
        return f"{len(self.texts)} texts for '{self.model}' ({self.status}, {self.body!r}, gone: {self.gone})"

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()

    def leave(self) -> None:
        """It does not want the response any more."""
        self.gone = True
        self._left.set()

    async def run(self, app: Any) -> None:
        path = "/predict"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        await app({**scope, "headers": self._headers, "root_path": ""}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            body = {"model": self.model, "inputs": [[text] for text in self.texts]}
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")

    def check(self) -> None:
        """When all is over. Raises AssertionError."""
        assert self.over, f"{self!r} is not over"
        assert self.task is not None
        assert self.task.exception() is None, f"{self!r} failed with {self.task.exception()!r}"
        if self.status == 200:
            for text, scores in zip(self.texts, json.loads(self.body), strict=True):
                ids = [IDS["[CLS]"], *(IDS[word] for word in text.split()), IDS["[SEP]"]]
                assert sorted(each["score"] for each in scores) == sorted(ids), f"{self!r} has those of another text"
        elif not self.gone:
            error = json.loads(self.body)["error"]
            assert not any(part in error for part in NEVER if part != "Server not ready"), f"{self!r}: {error}"
