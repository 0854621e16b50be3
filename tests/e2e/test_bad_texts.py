"""Wrong calls of texts to a server process, some: `tests/unit/frontends/test_bad_text_calls.py` has them all."""

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest
from server_process import serving
from wire import connect

from bad_texts import CHECKS, write_models

SAMPLE = (
    "embeddings: nothing to embed",
    "embeddings: a token beyond the vocabulary",
    "embeddings: 100,000 texts",
    "embeddings: a model for another task",
    "rerank: a document without a text",
    "chat: a model without a template",
    "chat: a call without a name",
    "chat: a seed of 70 bits",
    "completions: too many prompts",
    "completions: a model of messages",
    "responses: several texts",
    "embed: too long",
    "embed: an unknown model",
    "predict: three texts",
    "similarity: a text",
    "decode: a token beyond the vocabulary",
    "/v1/responses: half of a surrogate pair in UTF-8",
    "/v1/embeddings: brackets without end",
    "/tokenize: bytes that are no UTF-8",
    "texts that look wrong are fine",
)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HTTPConnection]:
    with (
        serving(options=write_models(tmp_path_factory.mktemp("bad"))) as server,
        closing(connect(server.http_port)) as connection,
    ):
        yield connection
        assert server.running


@pytest.mark.parametrize("name", SAMPLE)
def test_row(connection: HTTPConnection, name: str) -> None:
    CHECKS[name](connection)
