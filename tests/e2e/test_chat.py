"""Chats, completions and responses by OpenAI's own client and huggingface_hub's, over models that are programs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_clients import PYTHON, run_client
from open_server import OpenServer
from server_process import ServerProcess
from text_models import FUNCTIONS, write_functions, write_speaker
from wire import HOST, http

NAMES = ("shout", "words", "recite", "endless", "add")
SAID = "<user> hello big world <bos>"

EXPECTED: dict[str, Any] = {
    "whole": ["chat.completion", SAID, "stop", 10],
    "stream": {"texts": ["<user> ", "hello ", "big ", "world ", "<bos>"], "tokens": 10, "reason": "stop", "calls": []},
    "length": {"texts": ["<user> ", "hello "], "tokens": None, "reason": "length", "calls": []},
    "stop": {"texts": ["hello "], "tokens": None, "reason": "stop", "calls": []},
    "choices": ["HELLO BIG WORLD"] * 3,
    "parameters": {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "seed": 7,
        "presence_penalty": 1,
        "ignore_eos": True,
    },
    "logprobs": [["<user> ", -0.5, 2], ["hello ", -0.5, 2]],
    "structured": "Structured",
    "tools": ["tool_calls", "Well <bos>", [["weather", '{"city":"Köln"}']]],
    "tool stream": {
        "texts": ["Well ", "<bos>"],
        "tokens": None,
        "reason": "tool_calls",
        "calls": [["weather", '{"city":"Köln"}']],
    },
    "completions": [
        [0, "a b", ["a ", "b"]],
        [1, "a b", ["a ", "b"]],
        [2, "c", ["c"]],
        [3, "c", ["c"]],
    ],
    "models": ["endless", "raw", "recite", "shout", "speaker", "words"],
    "model": "speaker",
    "broken": ["<user> ", "FAIL:2 ", "APIError: the speaker has lost its voice"],
    "unknown": ["NotFoundError", 404, "model_not_found", "model", "invalid_request_error"],
    "no text": ["BadRequestError", 400, None, None, "invalid_request_error"],
    "no template": ["BadRequestError", 400, None, None, "invalid_request_error"],
    "temperature": ["BadRequestError", 400, None, "temperature", "invalid_request_error"],
    "failed": ["InternalServerError", 500, None, None, "server_error"],
    "async": {
        "whole": SAID,
        "abandoned": ["", "hello big world ", "hello big world ", "hello big world "],
        "many": [f"text {number}" for number in range(20)],
    },
    "responses": {
        "whole": ["completed", "<system> brief <user> hello big world <bos>", 14, False],
        "stream": ["response.created", 5, "response.completed", SAID],
        "events": ["<user> ", "a ", "b ", "<bos>"],
        "parsed": "Structured",
        "tools": [["message", None, None], ["function_call", "weather", '{"city":"Köln"}']],
        "after a tool": True,
        "short": ["incomplete", "max_output_tokens", "<user> hello "],
        "stored": ["BadRequestError", 400, None, "previous_response_id", "invalid_request_error"],
        "failed": ["InternalServerError", 500, None, None, "server_error"],
        "failed stream": ["error", "response.failed"],
    },
    "hub": {
        "whole": ["<user> hello big ", "length", 3],
        "stream": [SAID, 10],
        "tools": ["weather", '{"city":"Köln"}'],
    },
}
CALLS = [(path, call) for path in ("/v1", "/openai/v1") for call in EXPECTED]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("chat")
    write_speaker(folder / "models")
    write_speaker(folder / "models", "raw", None)
    write_functions(folder / "models", FUNCTIONS, *NAMES)
    with open_server.host(folder / "models") as running:
        yield running


@pytest.fixture(scope="module")
def answers(server: ServerProcess) -> Any:
    """Of all calls, by path and name."""
    script = Path(__file__).with_name("chat_client.py")
    done = run_client([PYTHON, script, f"http://{HOST}:{server.http_port}"])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("path", "call"), CALLS, ids=map("-".join, CALLS))
def test_call(answers: Any, path: str, call: str) -> None:
    assert answers[path][call] == EXPECTED[call]


def test_a_conversation_with_a_call_of_a_tool(answers: Any) -> None:
    text = answers["/v1"]["after a tool"]
    assert "<tool> rain" in text
    assert '{"city": "Köln"}' in text


def test_an_abandoned_generation_ends(server: ServerProcess, answers: Any) -> None:
    """The endless model has one instance, in a thread: it answers again only when the generation before has ended."""
    body = {"model": "endless", "messages": [{"role": "user", "content": "a"}], "stop": "a a"}
    answer = http(server.http_port, "POST", "/v1/chat/completions", json.dumps(body).encode())
    assert answer.status == 200


def test_the_metrics_and_the_statistics_count_chats(server: ServerProcess, answers: Any) -> None:
    statistics = http(server.http_port, "GET", "/v2/models/speaker/stats").json["model_stats"][0]
    assert statistics["inference_count"] != "0"


def test_no_text_is_in_the_log(server: ServerProcess, answers: Any) -> None:
    assert "hello big" not in server.log
    server.wait_for("status 404: Request for unknown model: 'nosuch'")
