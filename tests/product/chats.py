"""Clients of chats, over HTTP without a port: what they send, and what they may get."""

import asyncio
import json
from typing import Any

from .ledger import NEVER


class ChatClient:
    """One conversation with a model that repeats its prompt for as long as the engine says something."""

    def __init__(self, model: str, prompt: str, *, stream: bool, choices: int, timeout_s: float) -> None:
        self.model = model
        self.prompt = prompt
        self.stream = stream
        self.choices = choices
        self.status = 0
        self.body = b""
        self.gone = False
        self.task: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._sent = False
        self._headers = [(b"x-request-timeout-ms", str(round(timeout_s * 1000)).encode())] if timeout_s else []

    def __repr__(self) -> str:
        return f"a chat with '{self.model}' ({self.status}, {self.body!r}, gone: {self.gone})"

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()

    def leave(self) -> None:
        """It does not want the response any more."""
        self.gone = True
        self._left.set()

    async def run(self, app: Any) -> None:
        path = "/v1/chat/completions"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        await app({**scope, "headers": self._headers, "root_path": ""}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            messages = [{"role": "user", "content": self.prompt}]
            body = {"model": self.model, "messages": messages, "stream": self.stream, "n": self.choices}
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
        if self.gone:
            return
        if self.status != 200:
            self._check_error(json.loads(self.body))
        elif self.stream:
            self._check_events()
        else:
            choices = json.loads(self.body)["choices"]
            assert [choice["index"] for choice in choices] == list(range(self.choices)), f"{self!r}"
            for choice in choices:
                self._check_text(choice["message"]["content"])

    def _check_events(self) -> None:
        """Every choice ends exactly once, and then the stream; or it ends with an error."""
        events = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n")[:-1]]
        last = events.pop()
        chunks = [json.loads(event)["choices"][0] for event in events]
        ended = [chunk["index"] for chunk in chunks if chunk["finish_reason"]]
        for chunk in chunks:
            self._check_text(chunk["delta"].get("content") or "")
        if last == "[DONE]":
            assert sorted(ended) == list(range(self.choices)), f"{self!r}"
        else:
            self._check_error(json.loads(last))

    def _check_text(self, text: str) -> None:
        assert text.replace(self.prompt, "") == "", f"{self!r} has another's text"

    def _check_error(self, document: Any) -> None:
        message = document["error"]["message"]
        assert not any(part in message for part in NEVER if part != "Server not ready"), f"{self!r}: {message}"
