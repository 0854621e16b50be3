"""Texts to a real model: folders as they lie, by the clients of other projects, against the model called bare."""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from foreign_clients import PYTHON, run_client
from minilm_folder import classifier, minilm, ranker, tagger
from numpy.typing import NDArray
from server_here import serving_here
from server_process import Server, serving
from tokenizers import Tokenizer
from wire import HOST, http

WORDS = (
    "A man is playing a guitar while the crowd listens",
    "Someone strums an instrument",
    "The stock market fell sharply today",
    "Share prices dropped this afternoon and nobody knows why",
    "A cat sleeps on the warm windowsill",
    "Two dogs chase a ball across the park",
    "The chef slices onions for the soup",
    "Rain is expected in the north tomorrow",
    "She reads a long novel about the sea",
    "The train to the city is late again",
    "Scientists measure the light of distant galaxies",
    "Children build a castle of sand",
    "He repairs an old bicycle in the garage",
    "The committee postponed its decision",
    "Fresh bread smells wonderful",
)
LONGEST = 256


class Bare:
    """The network and its tokenizer without a server, one text at a time and without any padding."""

    def __init__(self, folder: Path, model: str) -> None:
        self._session = onnxruntime.InferenceSession(folder / model)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(LONGEST)

    def run(self, *text: str) -> NDArray[np.float32]:
        pair: Any = self._tokenizer.encode(*text)  # type: ignore[arg-type]  # of one text or two
        ids = np.array([pair.ids])
        output: NDArray[np.float32] = self._session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[
            0
        ][0]
        return output

    def embed_end(self, text: str) -> NDArray[np.float32]:
        """Of the end of a text that is too long."""
        self._tokenizer.enable_truncation(LONGEST, direction="left")
        embedding = self.embed(text)
        self._tokenizer.enable_truncation(LONGEST)
        return embedding

    def embed(self, text: str) -> NDArray[np.float32]:
        mean = self.run(text).mean(axis=0)
        embedding: NDArray[np.float32] = mean / np.linalg.norm(mean)
        return embedding


@pytest.fixture(scope="module")
def bare() -> Bare:
    return Bare(minilm(), "onnx/model.onnx")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = [f"minilm={minilm()}", f"ranker={ranker()}", f"classifier={classifier()}", f"tagger={tagger()}"]
    with serving_here(options=models) as running:
        yield running


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(logits - logits.max())
    chances: NDArray[np.float32] = powers / powers.sum()
    return chances


def post(server: Server, path: str, **body: Any) -> Any:
    response = http(server.http_port, "POST", path, json.dumps(body).encode())
    assert response.status == 200, response.body
    return json.loads(response.body)


def embed(server: Server, texts: Sequence[str]) -> NDArray[np.float64]:
    data = post(server, "/v1/embeddings", model="minilm", input=list(texts))["data"]
    return np.array([each["embedding"] for each in data])


def test_embeddings_are_those_of_the_model_called_bare(server: Server, bare: Bare) -> None:
    """Texts of all lengths from many clients at once, so that they share batches, and one that is cut."""
    texts = [" ".join(WORDS[:count]) for count in range(1, len(WORDS) + 1)] * 3
    texts += ["word " * 1000, "naïve café ☕ 東京", "x"]
    with ThreadPoolExecutor(16) as pool:
        embeddings = [*pool.map(lambda text: embed(server, [text])[0], texts)]
    for text, embedding in zip(texts, embeddings, strict=True):
        np.testing.assert_allclose(embedding, bare.embed(text), atol=1e-5)
    np.testing.assert_allclose(embed(server, texts), embeddings, atol=1e-5)


def test_texts_share_batches_without_a_configuration(server: Server) -> None:
    def counts() -> tuple[int, int]:
        (row,) = json.loads(http(server.http_port, "GET", "/v2/models/minilm/stats").body)["model_stats"]
        return int(row["inference_count"]), int(row["execution_count"])

    before = counts()
    embed(server, [f"{text} {place}" for place, text in enumerate(WORDS * 20)])
    inferences, executions = (after - earlier for after, earlier in zip(counts(), before, strict=True))
    assert inferences == 20 * len(WORDS)
    assert executions < inferences  # how much fewer depends on how quick this machine is
    config = json.loads(http(server.http_port, "GET", "/v2/models/minilm/config").body)
    assert config["parameters"]["padding.mask"]["string_value"] == "attention_mask"


def test_the_ranking_of_200_pairs_is_that_of_the_model_called_bare(server: Server, bare: Bare) -> None:
    places = np.random.default_rng(1).choice(len(WORDS) ** 3, 200, replace=False)
    triples = np.stack(np.unravel_index(places, (len(WORDS),) * 3), axis=1)
    pairs = [(WORDS[a], f"{WORDS[b]} {WORDS[c].lower()}") for a, b, c in triples]
    left, right = embed(server, [pair[0] for pair in pairs]), embed(server, [pair[1] for pair in pairs])
    ours = (left * right).sum(axis=1)
    theirs = np.array([float(bare.embed(first) @ bare.embed(second)) for first, second in pairs])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert np.argsort(ours).tolist() == np.argsort(theirs).tolist()


def test_a_ranker_and_a_classifier(server: Server) -> None:
    network = Bare(ranker(), "model.onnx")
    query, documents = WORDS[0], list(WORDS[1:])
    logits = [float(network.run(query, document)[0]) for document in documents]
    ranks = post(server, "/rerank", query=query, texts=documents, raw_scores=True)
    assert [each["index"] for each in ranks] == np.argsort([-each for each in logits], kind="stable").tolist()
    np.testing.assert_allclose([each["score"] for each in ranks], sorted(logits, reverse=True), atol=1e-4)
    results = post(server, "/v1/rerank", model="ranker", query=query, documents=documents, top_n=3)["results"]
    assert [each["index"] for each in results] == [each["index"] for each in ranks][:3]
    expected = Bare(classifier(), "model.onnx").run(WORDS[1])
    predictions = post(server, "/predict", model="classifier", inputs=WORDS[1])
    probabilities = softmax(expected)
    assert [each["label"] for each in predictions] == [f"label {place}" for place in np.argsort(-probabilities)]
    np.testing.assert_allclose([each["score"] for each in predictions], sorted(probabilities)[::-1], atol=1e-5)


def test_the_model_still_takes_tensors(server: Server, bare: Bare) -> None:
    tensor = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [101, 7592, 102]}
    body = post(server, "/v2/models/minilm/infer", inputs=[tensor])
    (output,) = body["outputs"]
    assert (output["name"], output["shape"]) == ("token_embeddings", [1, 3, 384])
    np.testing.assert_allclose(np.array(output["data"]).reshape(3, 384), bare.run("hello"), atol=1e-4)


def test_the_clients_of_other_projects(server: Server, bare: Bare) -> None:
    texts = list(WORDS[:4])
    run = run_client([PYTHON, Path(__file__).parent / "text_client.py", f"http://{HOST}:{server.http_port}", *texts])
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    expected = [bare.embed(text) for text in texts]
    for name in ("openai", "openai of its own"):
        calls = found[name]
        for kind in ("base64", "float", "async"):
            np.testing.assert_allclose(calls[kind], expected, atol=1e-5)
        assert (calls["short"], calls["tokens"]) == (64, [2, 5])
        assert calls["usage"][0] == calls["usage"][1] > 20
        assert calls["usage"][2] == "minilm"
        assert calls["unknown"] == ["NotFoundError", 404, "model_not_found", "model", "invalid_request_error"]
        assert calls["empty"] == ["BadRequestError", 400, "empty_input", "input", "invalid_request_error"]
    np.testing.assert_allclose(np.ravel(found["hub"]["feature_extraction"]), expected[0], atol=1e-5)
    np.testing.assert_allclose(np.ravel(found["hub"]["longer"]), bare.embed_end(" ".join([*texts] * 100)), atol=1e-5)
    similarities = [float(expected[0] @ each) for each in expected[1:]]
    np.testing.assert_allclose(found["hub"]["sentence_similarity"], similarities, atol=1e-5)
    label, score = found["hub"]["text_classification"]
    probabilities = softmax(Bare(classifier(), "model.onnx").run(texts[0]))
    assert label == f"label {probabilities.argmax()}"
    assert score == pytest.approx(float(probabilities.max()), abs=1e-5)
    assert found["hub"]["token_classification"] == [["PERSON", "anna", 0, 4], ["PLACE", "paris", 11, 16]]
    network = Bare(ranker(), "model.onnx")
    scores = [1 / (1 + np.exp(-float(network.run(texts[0], each)[0]))) for each in texts[1:]]
    best = np.argsort([-score for score in scores], kind="stable")[:2].tolist()
    for version in ("v1", "v2"):
        assert [index for index, _ in found["cohere"][version]] == best
        np.testing.assert_allclose(
            [score for _, score in found["cohere"][version]], [scores[at] for at in best], atol=1e-4
        )


def test_nothing_of_a_text_is_in_the_log(server: Server) -> None:
    http(server.http_port, "POST", "/embed", b'{"model": "minilm", "inputs": ["xylophone", ""]}')
    http(server.http_port, "POST", "/v1/embeddings", b'{"model": "ranker", "input": "xylophone"}')
    assert "xylophone" not in server.log


def test_a_repository_several_workers_and_a_cache_of_the_hub(tmp_path: Path, bare: Bare) -> None:
    """The version's folder is that of each worker; a snapshot of links is named after its model."""
    snapshot = tmp_path / "hub" / "models--sentence-transformers--all-MiniLM-L6-v2" / "snapshots" / "c9745ed1"
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(each for each in minilm().rglob("*") if each.is_file())):
        os.link(path, blobs / str(number))
        link = snapshot / path.relative_to(minilm())
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    version = tmp_path / "repository" / "own" / "1"
    version.parent.mkdir(parents=True)
    version.symlink_to(ranker())
    options = [str(snapshot), "--workers=2", "--allow-outside-symlinks=true"]
    with serving(tmp_path / "repository", options=options) as server:
        for _ in range(8):  # connections go to either worker
            data = post(server, "/v1/embeddings", model="all-MiniLM-L6-v2", input=WORDS[0])["data"]
            np.testing.assert_allclose(data[0]["embedding"], bare.embed(WORDS[0]), atol=1e-5)
            assert len(post(server, "/rerank", model="own", query="a", texts=["b", "c"])) == 2
