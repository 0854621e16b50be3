"""LlamaIndex and LiteLLM, in the virtual environments that ``scripts/frameworks`` makes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from minilm_folder import minilm, ranker
from server_process import ServerProcess, serving
from text_models import write_speaker
from wire import HOST, http

TEXTS = ("A man is playing a guitar", "The stock market fell sharply today", "Someone strums an instrument")
BRIEF = "<system> brief <user> hello big world <bos>"
PIECES = ["<system> ", "brief ", "<user> ", "hello ", "big ", "world ", "<bos>"]
ENVIRONMENTS = Path(__file__).parents[2] / ".venv-frameworks"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("frameworks")
    write_speaker(repository)
    with serving(repository, options=[f"minilm={minilm()}", f"ranker={ranker()}"]) as process:
        yield process


def answers(server: ServerProcess, framework: str) -> Any:
    program = Path(__file__).with_name(f"{framework.replace('-', '_')}_client.py")
    python = ENVIRONMENTS / framework / "bin" / "python"
    command: list[str | Path] = [python, program, f"http://{HOST}:{server.http_port}", *TEXTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"HOME": "/nonexistent"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def post(server: ServerProcess, path: str, **body: Any) -> Any:
    return http(server.http_port, "POST", path, json.dumps(body).encode()).json


def embeddings(server: ServerProcess) -> Any:
    return [each["embedding"] for each in post(server, "/v1/embeddings", model="minilm", input=TEXTS)["data"]]


def test_llama_index(server: ServerProcess) -> None:
    found = answers(server, "llama-index")
    for name in ("openai", "tei"):
        np.testing.assert_allclose(found.pop(name), embeddings(server), atol=1e-6)
    assert found == {
        "whole": BRIEF,
        "stream": PIECES,
        "tool": [["weather", {"city": "Köln"}]],
        "completion": "hello big world",
        "completion stream": ["hello ", "big ", "world"],
        "async": "<user> hello <bos>",
    }


def test_litellm(server: ServerProcess) -> None:
    found = answers(server, "litellm")
    for name in ("embeddings", "infinity"):
        np.testing.assert_allclose(found.pop(name), embeddings(server), atol=1e-6)
    ranks = post(server, "/rerank", model="ranker", query=TEXTS[0], texts=TEXTS[1:])
    expected = [[each["index"], pytest.approx(each["score"], abs=1e-6)] for each in ranks]
    assert found.pop("reranks") == dict.fromkeys(
        ("jina_ai", "cohere", "huggingface", "hosted_vllm", "infinity"), expected
    )
    assert found == {
        "whole": [BRIEF, 14],
        "stream": PIECES,
        "tool": [["weather", '{"city":"Köln"}']],
        "completion": "hello big world",
        "async": BRIEF,
        "vllm": BRIEF,
        "response": "<system> brief <user> hello <bos>",
        "unknown": ["NotFoundError", 404],
    }
