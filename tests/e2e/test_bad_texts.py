"""Wrong calls of texts get a status, and an error in the form of their API; the server goes on serving.

One server gets all of `bad_texts_table`.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import NamedTuple

import pytest
from bad_texts_table import BODIES, EMBEDDINGS, OPENAI_CALLS, ROWS, TEI_CALLS, Row, embed, say
from minilm_folder import classifier, minilm, ranker
from server_here import ServerHere, serving_here
from text_models import FUNCTIONS, write_speaker
from wire import Answer, connect, send


class Wire(NamedTuple):
    """The one server, and a connection to it that all rows share."""

    server: ServerHere
    connection: HTTPConnection

    def post(self, path: str, content: bytes) -> Answer:
        return send(self.connection, "POST", path, content)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    folder = tmp_path_factory.mktemp("bad")
    write_speaker(folder / "models")
    write_speaker(folder / "models", "raw", None)
    functions = folder / "functions.py"
    functions.write_text(FUNCTIONS)
    options = [f"minilm={minilm()}", f"ranker={ranker()}", f"classifier={classifier()}"]
    options += [f"{functions}:{name}" for name in ("shout", "recite", "add")]
    with (
        serving_here(folder / "models", options=options) as server,
        closing(connect(server.http_port)) as connection,
    ):
        yield Wire(server, connection)


def check_good(wire: Wire) -> None:
    """The mistake was none of framing, and has broken nothing."""
    good = wire.post("/v1/chat/completions", json.dumps(say("fine")).encode())
    assert good.json["choices"][0]["message"]["content"] == "<user> fine <bos>"


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_row(wire: Wire, row: Row) -> None:
    answer = wire.post(row.path, row.content)
    assert answer.status == row.status, answer.body
    if row.path in OPENAI_CALLS:
        kind = {"message": row.message, "type": "invalid_request_error", "param": row.param, "code": row.code}
        assert answer.json == {"error": kind}
    else:
        assert answer.json == {"error": row.message, "error_type": row.code}
    check_good(wire)


@pytest.mark.parametrize("path", [*OPENAI_CALLS, *TEI_CALLS])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_no_object(wire: Wire, path: str, body: bytes) -> None:
    answer = wire.post(path, body)
    assert answer.status == 400, answer.body
    error = answer.json["error"] if path in TEI_CALLS else answer.json["error"]["message"]
    assert error
    check_good(wire)


def test_texts_that_look_wrong_are_fine(wire: Wire) -> None:
    """Characters of all kinds, none of which a tokenizer or a template stumbles over."""
    texts = [
        "\x00",
        "\ufeff",
        " ",
        "\n" * 5000,
        "\u202e\u200d",
        "😀" * 3000,
        "\U0010ffff",
        "a\u0301" * 999,
        "<|im_end|>",
    ]
    answer = wire.post(EMBEDDINGS, json.dumps(embed(texts)).encode())
    assert len(answer.json["data"]) == len(texts)
    for text in texts:
        chat = wire.post("/v1/chat/completions", json.dumps(say(text + "x")).encode())
        assert chat.status == 200, chat.body
        assert chat.json["choices"][0]["message"]["content"].strip().endswith("<bos>")
