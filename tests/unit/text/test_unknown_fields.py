"""Fields that mean nothing here: the log says it once for each call."""

import logging

import pytest

from modserve.text import unknown_fields
from modserve.text.chat.items import read_response_request
from modserve.text.chat.requests import read_chat, read_completion

HI = [{"role": "user", "content": "hi"}]
MESSAGE = "the field '{}' of a request to {} is unknown, and ignored in this one and all others"


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_fields, "_names", set())


def test_once_for_each_call_and_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            read_chat({"model": "m", "messages": HI, "verbosity": "low", "user": "me", "best_of": None})
            read_chat({"model": "m", "messages": HI, "bad\nname": 1, "x" * 65: 1})
            read_completion({"model": "m", "prompt": "a", "messages": []})
            read_response_request({"model": "m", "input": "a", "messages": [], "store": True})
    assert [record.getMessage() for record in caplog.records] == [
        MESSAGE.format("verbosity", "chat/completions"),
        MESSAGE.format("messages", "completions"),
        MESSAGE.format("messages", "responses"),
    ]


def test_a_client_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    document = {f"field{number}": 1 for number in range(1000)}
    with caplog.at_level(logging.WARNING):
        unknown_fields.tell("/embed", document, unknown_fields.TEXT_CALLS["/embed"])
    assert len(caplog.records) == 200
