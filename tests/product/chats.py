"""Clients of chats: what they send, and what they may get."""

import json
from collections.abc import Callable
from typing import Any

from .posts import Post

FORMS = ("<{}>", "<think>a{} </think>b{}.", "<think>c{}</thi")
"""Prompts by the number of the client. What the model says begins with a thought, and one of them never ends."""


def divided(text: str) -> tuple[str, str]:
    """The thought and the answer of a whole text."""
    if not text.startswith("<think>"):
        return "", text
    thought, _, answer = text.removeprefix("<think>").partition("</think>")
    return thought.strip(), answer.lstrip()


class ChatClient:
    """One conversation with a model that repeats its prompt for as long as the engine says something.

    It is sent to ``responses``, which has one choice, if it `has_items`. `way`: that of its `Post`.
    """

    def __init__(
        self,
        model: str,
        prompt: str,
        *,
        stream: bool,
        choices: int,
        timeout_s: float,
        has_items: bool = False,
        **way: bool,
    ) -> None:
        self.model = model
        self.prompt = prompt
        self.choices = 1 if has_items else choices
        document: dict[str, Any] = {"model": model, "stream": stream}
        path = "/v1/responses" if has_items else "/v1/chat/completions"
        if has_items:
            document["input"] = prompt
        else:
            document |= {"messages": [{"role": "user", "content": prompt}], "n": choices}
        self.post = Post(path, document, timeout_s, **way)
        checks: dict[tuple[bool, bool], Callable[[], None]] = {
            (False, False): self._check_choices,
            (False, True): self._check_events,
            (True, False): lambda: self._check_response(json.loads(self.post.body)),
            (True, True): self._check_item_events,
        }
        self._check = checks[has_items, stream]

    def __repr__(self) -> str:
        return f"a chat about {self.prompt}: {self.post!r}"

    def check(self) -> None:
        """When all is over. Raises AssertionError."""
        post = self.post
        post.check()
        if post.gone:
            return
        if post.status == 200:
            self._check()
        else:
            self._check_error(json.loads(post.body))

    def _check_choices(self) -> None:
        choices = json.loads(self.post.body)["choices"]
        assert [choice["index"] for choice in choices] == list(range(self.choices)), f"{self!r}"
        for choice in choices:
            message = choice["message"]
            self._check_text(message.get("reasoning_content", ""), message["content"])

    def _check_events(self) -> None:
        """Every choice ends exactly once, and then the stream; or it ends with an error."""
        events = [line.removeprefix("data: ") for line in self.post.body.decode().split("\n\n")[:-1]]
        last = events.pop()
        chunks = [json.loads(event)["choices"][0] for event in events]
        ended = [chunk["index"] for chunk in chunks if chunk["finish_reason"]]
        for index in range(self.choices):
            deltas = [chunk["delta"] for chunk in chunks if chunk["index"] == index]
            texts = ["".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content")]
            self._check_text(*texts, is_cut=index not in ended)
        if last == "[DONE]":
            assert sorted(ended) == list(range(self.choices)), f"{self!r}"
        else:
            self._check_error(json.loads(last))

    def _check_response(self, response: Any) -> None:
        assert {each["status"] for each in (response, *response["output"])} == {"completed"}, f"{self!r}"
        texts = {each["type"]: each["content"][0]["text"] for each in response["output"]}
        assert 0 < len(response["output"]) == len(texts), f"{self!r}"
        self._check_text(texts.pop("reasoning", ""), texts.pop("message", ""))
        assert not texts, f"{self!r}"

    def _check_item_events(self) -> None:
        """They are numbered, and the last one has all of the text, or says why there is no more."""
        events = [json.loads(event.partition("\ndata: ")[2]) for event in self.post.body.decode().split("\n\n")[:-1]]
        assert [event["sequence_number"] for event in events] == list(range(len(events))), f"{self!r}"
        kinds = ("reasoning_text", "output_text")
        pieces = [
            "".join(event["delta"] for event in events if event["type"] == f"response.{each}.delta") for each in kinds
        ]
        last = events[-1]
        self._check_text(*pieces, is_cut=last["type"] != "response.completed")
        if last["type"] == "response.completed":
            self._check_response(last["response"])
            said = "".join(each["content"][0]["text"] for each in last["response"]["output"])
            assert said == "".join(pieces), f"{self!r}"
        else:
            assert last["type"] == "response.failed", f"{self!r}"
            self._check_error(last["response"])

    def _check_text(self, thought: str, answer: str, *, is_cut: bool = False) -> None:
        """They are those of the prompt, so and so many times, or the beginning of that: nothing is lost or doubled."""
        texts = (divided(self.prompt * count) for count in range(100))
        fits = any(
            thought == all_thought and answer == all_answer
            if not is_cut
            else all_thought.startswith(thought)
            and all_answer.startswith(answer)
            and (not answer or thought == all_thought)
            for all_thought, all_answer in texts
        )
        assert fits, f"{self!r} has another's text: {thought!r}, {answer!r}"

    def _check_error(self, document: Any) -> None:
        self.post.check_error(document["error"]["message"])
