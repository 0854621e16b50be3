"""What people build with: LangChain, OpenAI's agents SDK, and OpenAI's client for node."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_clients import PYTHON, run_client
from minilm_folder import minilm
from node_packages import node_modules
from server_here import serving_here
from server_process import Server
from text_models import FUNCTIONS, write_speaker
from wire import HOST, http

TEXTS = ("A man is playing a guitar", "The stock market fell sharply today")
HELLO = "<user> hello big world <bos>"
BRIEF = "<system> brief <user> hello big world <bos>"
AGAIN = f"<system> brief <user> hello big world <assistant> {BRIEF} <user> again <bos>"
PIECES = ["<user> ", "hello ", "big ", "world ", "<bos>"]

CHAT = {
    "whole": [BRIEF, 14],
    "stream": PIECES,
    "tool": ["weather", {"city": "Köln"}],
    "after": True,
    "structured": "Held",
    "batch": [f"<user> text {number} <bos>" for number in range(5)],
}
AGENT = {
    "first": [BRIEF, 14],
    "second": AGAIN,
    "stream": [["<system> ", "brief ", *PIECES], BRIEF],
    "tools": ["rain in Köln", "rain in Köln"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("frameworks")
    write_speaker(folder / "models")
    functions = folder / "functions.py"
    functions.write_text(FUNCTIONS)
    with serving_here(folder / "models", options=[f"{functions}:endless", f"minilm={minilm()}"]) as process:
        yield process


def answers(server: Server, *command: str | Path) -> Any:
    done = run_client([*command, f"http://{HOST}:{server.http_port}", *TEXTS])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def embeddings(server: Server) -> Any:
    """Which are those of the model called bare: `test_text.py`."""
    body = {"model": "minilm", "input": TEXTS}
    data = http(server.http_port, "POST", "/v1/embeddings", json.dumps(body).encode()).json["data"]
    return [each["embedding"] for each in data]


def test_langchain(server: Server) -> None:
    found = answers(server, PYTHON, Path(__file__).with_name("langchain_client.py"))
    vectors = found.pop("embeddings")
    np.testing.assert_allclose(vectors["documents"], embeddings(server), atol=1e-6)
    np.testing.assert_allclose(vectors["query"], embeddings(server)[0], atol=1e-6)
    assert found == {
        "chat": CHAT,
        "responses": CHAT,
        "async": ["<user> hello <bos>", "<user> hello <bos>"],
        "completion": "hello big world",
    }


def test_agents(server: Server) -> None:
    assert answers(server, PYTHON, Path(__file__).with_name("agents_client.py")) == {"responses": AGENT, "chat": AGENT}


def test_node(server: Server) -> None:
    module = node_modules("openai") / "openai" / "index.mjs"
    found = answers(server, "node", Path(__file__).with_name("openai_client.mjs"), module)
    np.testing.assert_allclose(found.pop("embeddings"), embeddings(server), atol=1e-6)
    events = found.pop("events")
    assert (events[0][0], events[0][-1], events[1]) == ("response.created", "response.completed", HELLO)
    assert found == {
        "whole": [HELLO, 10],
        "stream": [PIECES, 10],
        "abandoned": 4,
        "tool": [["weather", '{"city":"Köln"}']],
        "response": ["<system> brief <user> hello <bos>", 10],
        "models": ["endless", "minilm", "speaker"],
        "unknown": ["NotFoundError", 404, "model_not_found", "model"],
    }


def test_nobody_is_left(server: Server) -> None:
    """Node's client has abandoned a stream: the next one of the only instance is served."""
    body = {"model": "endless", "messages": [{"role": "user", "content": "a"}], "stop": "a a"}
    assert http(server.http_port, "POST", "/v1/chat/completions", json.dumps(body).encode()).status == 200
