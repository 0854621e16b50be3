"""The examples of Python models do what their pages say, as they are: prepared, served and called."""

import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import minilm
import numpy as np
import pytest
import sklearn.datasets
import tritonclient.grpc
import tritonclient.http
from open_server import OpenServer
from served_examples import EXAMPLES, Example, load, run
from server_process import serving
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, http

PICTURES = Path(sklearn.datasets.__file__).parent / "images"


@pytest.fixture(scope="module")
def embeddings(open_server: OpenServer) -> Iterator[Example]:
    yield from run("text_embeddings", open_server.host)


@pytest.fixture(scope="module")
def images(open_server: OpenServer) -> Iterator[Example]:
    yield from run("image_pipeline", open_server.host)


@pytest.fixture(scope="module")
def pages(open_server: OpenServer) -> Iterator[Example]:
    yield from run("bls_pipeline", open_server.host)


@pytest.fixture(scope="module")
def stories(open_server: OpenServer) -> Iterator[Example]:
    yield from run("token_stream", open_server.host)


@pytest.fixture(scope="module")
def series(open_server: OpenServer) -> Iterator[Example]:
    yield from run("stateful", open_server.host)


@pytest.fixture(scope="module")
def speech(open_server: OpenServer) -> Iterator[Example]:
    yield from run("speech_detection", open_server.host)


@pytest.fixture(scope="module")
def functions() -> Iterator[Example]:
    folder = EXAMPLES / "function"
    models = [f"{folder}/places.py:distance", f"nearest={folder}/places.py:Nearest", f"{folder}/places.py:route"]
    with serving(options=models) as server, ExitStack() as clients:
        yield Example(folder, server, load(folder / "client.py"), clients)


_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["embeddings", "images", "pages", "stories", "series", "speech", "functions"])
def test_the_page_of_the_example(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its commands work as printed, and print what is printed below them, but for how sure a network is of it."""
    example: Example = request.getfixturevalue(name)
    shutil.copy(example.folder / "client.py", tmp_path)
    shutil.copy(PICTURES / "flower.jpg", tmp_path)
    ports = {"8000": example.server.http_port, "8001": example.server.grpc_port}
    default = re.search(r'"localhost:(800[01])"', (example.folder / "client.py").read_text())
    assert default is not None
    commands = printed = ""
    for kind, block in _BLOCK.findall((example.folder / "README.md").read_text()):
        if kind == "text":
            assert re.sub(r"\d+%|\s", "", printed) == re.sub(r"\d+%|\s", "", block)
        elif "modserve serve" not in block:
            commands = re.sub(r"\blocalhost:(800[01])\b", lambda match: f"{HOST}:{ports[match[1]]}", block)
            commands = re.sub(r"^curl", "curl --fail --silent --show-error", commands, flags=re.MULTILINE)
            call = f"{sys.executable} client.py --url {HOST}:{ports[default[1]]}"
            commands = commands.replace("python client.py", call)
            done = subprocess.run(["sh", "-e"], input=commands.encode(), cwd=tmp_path, capture_output=True, timeout=60)
            assert done.returncode == 0, done.stderr
            printed = done.stdout.decode(errors="replace")
            assert printed
    assert commands


def test_embeddings_are_those_of_the_published_weights(embeddings: Example) -> None:
    """Alone, and in a batch with longer ones, whose padding must not count."""
    prepare = load(embeddings.folder / "prepare.py")
    files = [f"{prepare.FOLDER}/model.safetensors", f"{prepare.FOLDER}/vocab.txt"]
    network = minilm.read(*prepare.package_files(prepare.PACKAGE, *files))
    texts = [
        "A man is playing a guitar.",
        "Café déjà-vu: naïve (but $5.00) façades!",
        "東京 is the capital of Japan",
        "antidisestablishmentarianism",
        "",
        "The keeper climbed the stairs and lit the lamp. " * 40,
    ]
    expected = np.array([network.embed(text) for text in texts])
    alone = np.concatenate([embeddings.client.embed(embeddings.http(), [text]) for text in texts])
    together = embeddings.client.embed(embeddings.http(), texts)
    np.testing.assert_allclose(alone @ expected.T, expected @ expected.T, atol=1e-5)
    np.testing.assert_allclose(alone, expected, atol=1e-5)
    np.testing.assert_allclose(together, expected, atol=1e-5)


def test_sentences_of_the_same_meaning_are_closest(embeddings: Example) -> None:
    pairs = [
        ("A man is playing a guitar.", "Someone strums an instrument."),
        ("How do I reset my password?", "I cannot log in to my account any more."),
        ("The stock market fell sharply today.", "Share prices dropped this afternoon."),
        ("The recipe needs two eggs.", "Add flour and butter to the dough."),
    ]
    firsts, seconds = (embeddings.client.embed(embeddings.http(), list(side)) for side in zip(*pairs, strict=True))
    similarities = firsts @ seconds.T
    assert similarities.argmax(axis=1).tolist() == [0, 1, 2, 3]
    assert similarities.argmax(axis=0).tolist() == [0, 1, 2, 3]


def test_a_text_that_is_none(embeddings: Example) -> None:
    text = tritonclient.http.InferInput("text", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"\xff"]], np.object_))
    with pytest.raises(InferenceServerException, match="'text' is not UTF-8"):
        embeddings.http().infer("text_embeddings", [text])


def test_photographs_are_recognised(images: Example) -> None:
    pictures = [(PICTURES / name).read_bytes() for name in ("china.jpg", "flower.jpg")]
    palace, flower = images.client.classify(images.http(), pictures)
    assert palace[0][0] == "palace"
    assert flower[0][0] == "daisy"
    for labels in (palace, flower):
        probabilities = [probability for _, probability in labels]
        assert probabilities == sorted(probabilities, reverse=True)
        assert 0.3 < sum(probabilities) < 1
    alone = [images.client.classify(images.http(), [picture])[0] for picture in pictures]
    for one, batched in zip(alone, (palace, flower), strict=True):
        assert [label for label, _ in one] == [label for label, _ in batched]
        assert [probability for _, probability in one] == pytest.approx([p for _, p in batched], abs=1e-5)


def test_a_file_that_is_no_picture(images: Example) -> None:
    with pytest.raises(InferenceServerException, match="'file' is no picture"):
        images.client.classify(images.http(), [b"GIF87a"])


def without_spaces(text: str) -> str:
    """The network is not sure of spaces."""
    return text.replace(" ", "")


@pytest.mark.parametrize("upside_down", [None, 0, 2])
def test_a_page_is_read_whichever_way_its_lines_are(pages: Example, upside_down: int | None) -> None:
    lines = ["The first line is short", "but the second one goes on for longer", "and the third ends"]
    read = pages.client.read(pages.http(), pages.client.draw(lines, upside_down))
    assert [without_spaces(text) for text, _ in read] == [without_spaces(line) for line in lines]
    assert all(confidence > 0.9 for _, confidence in read)


def test_networks_that_a_page_does_not_need_are_not_called(pages: Example) -> None:
    before = [pages.executions(model) for model in ("detector", "orientation", "recogniser")]
    assert pages.client.read(pages.http(), pages.client.draw([""])) == []
    after = [pages.executions(model) for model in ("detector", "orientation", "recogniser")]
    assert after == [before[0] + 1, *before[1:]]


def test_pages_at_the_same_time(pages: Example) -> None:
    texts = [[f"the page of {name}", "is one of several"] for name in ("Anna", "Bruno", "Carla", "Dora", "Emil")]

    def read(lines: list[str]) -> list[str]:
        return [without_spaces(text) for text, _ in pages.client.read(pages.http(), pages.client.draw(lines))]

    with ThreadPoolExecutor(len(texts)) as pool:
        assert list(pool.map(read, texts)) == [[without_spaces(line) for line in text] for text in texts]


def test_a_page_that_is_no_picture(pages: Example) -> None:
    with pytest.raises(InferenceServerException, match="'file' is no picture"):
        pages.client.read(pages.http(), b"no picture")


def tell(example: Example, prompt: str, **options: int) -> list[str]:
    """Over a stream of its own: a client has one at a time."""
    return list(example.client.stream(example.grpc(), prompt, **options))


def test_a_story_follows_its_text(stories: Example) -> None:
    """Whichever three words follow each other in it do so in the text."""
    tokenize = re.compile(r"\w+|[.,;]").findall
    (path,) = stories.folder.glob("model_repository/*/1/text.txt")
    text = tokenize(path.read_text())
    text += text[:2]
    threes = set(zip(text, text[1:], text[2:], strict=False))
    tokens = tell(stories, "In the boat", max_tokens=300, seed=7)
    assert len(tokens) == 300
    words = ["the", "boat", *(token.strip() for token in tokens)]
    assert set(zip(words, words[1:], words[2:], strict=False)) <= threes
    assert "".join(tokens) not in " ".join(text)


def test_a_seed_tells_the_same_story_over_http(stories: Example) -> None:
    tokens = tell(stories, "The dog", max_tokens=20, seed=3)
    assert tell(stories, "The dog", max_tokens=20, seed=3) == tokens
    assert tell(stories, "The dog", max_tokens=20, seed=4) != tokens
    body = json.dumps({"prompt": "The dog", "max_tokens": 20, "seed": 3}).encode()
    events = http(stories.server.http_port, "POST", "/v2/models/storyteller/generate_stream", body).body
    assert [json.loads(event)["token"] for event in re.findall(rb"^data: (.*)$", events, re.MULTILINE)] == tokens


def test_a_story_without_words(stories: Example) -> None:
    assert tell(stories, "The dog", max_tokens=0) == []


def test_more_stories_than_threads(stories: Example) -> None:
    with ThreadPoolExecutor(12) as pool:
        at_once = list(pool.map(lambda seed: tell(stories, "The sea", max_tokens=200, seed=seed), range(12)))
    assert at_once == [tell(stories, "The sea", max_tokens=200, seed=seed) for seed in range(12)]


def test_a_client_that_has_heard_enough(stories: Example) -> None:
    story = stories.client.stream(stories.grpc(), "The keeper", max_tokens=1_000_000)
    assert len(list(itertools.islice(story, 10))) == 10
    story.close()
    count = int(stories.server.wait_for(r"cancelled after (\d+) tokens", SECONDS)[1])
    assert 10 <= count < 1_000_000


def values_of(number: int) -> list[list[float]]:
    """Ten requests of one to five values."""
    source = np.random.default_rng(number)
    return [source.normal(number, 1 + number, source.integers(1, 6)).tolist() for _ in range(10)]


def check_series(example: Example, number: int) -> None:
    """Over a sequence of requests, every response is that of all values so far."""
    watched = example.client.Series(example.grpc(), number)
    requests = values_of(number)
    so_far: list[float] = []
    for position, values in enumerate(requests):
        result = watched.send(*values, end=position == len(requests) - 1)
        for value, score in zip(values, result.as_numpy("score")[0].tolist(), strict=True):
            deviation = np.std(so_far) if so_far else 0
            expected = (value - np.mean(so_far)) / deviation if deviation else 0
            assert score == pytest.approx(expected, rel=1e-5, abs=1e-6)
            so_far.append(value)
        assert result.as_numpy("count").item() == len(so_far)
        assert result.as_numpy("mean").item() == pytest.approx(np.mean(so_far))
        assert result.as_numpy("deviation").item() == pytest.approx(np.std(so_far))


def test_series_at_the_same_time(series: Example) -> None:
    """Each starts when all of them can, and none sees the values of another."""
    start = threading.Barrier(8)

    def check(number: int) -> None:
        start.wait(SECONDS)
        check_series(series, number)

    with ThreadPoolExecutor(8) as pool:
        for check_done in [pool.submit(check, number) for number in range(1, 9)]:
            check_done.result()


def test_a_series_begins_anew(series: Example) -> None:
    """After its end, and by a second start before it."""
    check_series(series, 100)
    check_series(series, 100)
    unfinished = series.client.Series(series.grpc(), 101)
    unfinished.send(1.0, 2.0, 3.0)
    check_series(series, 101)


def test_functions_as_models_are_the_functions(functions: Example) -> None:
    places = load(functions.folder / "places.py")
    source = np.random.default_rng(0)
    start, end = (source.uniform([-90, -180], [90, 180], (50, 2)) for _ in range(2))
    served = functions.client.call(functions.http(), "distance", start=start, end=end).as_numpy("output")
    np.testing.assert_allclose(served, places.distance(start, end))
    equator = functions.client.call(functions.http(), "distance", start=[(0, 0)], end=[(0, 180)])
    assert equator.as_numpy("output").item() == pytest.approx(np.pi * places.EARTH_RADIUS_KM)


def test_every_city_is_nearest_to_itself(functions: Example) -> None:
    rows = [line.split(",") for line in (functions.folder / "cities.csv").read_text("utf-8").splitlines()[1:]]
    places = [(float(latitude), float(longitude)) for _, latitude, longitude in rows]
    result = functions.client.call(functions.http(), "nearest", place=places)
    assert [name.decode() for name in result.as_numpy("name").ravel()] == [name for name, _, _ in rows]
    assert result.as_numpy("distance").ravel().tolist() == [0] * len(rows)


def test_a_route_without_steps(functions: Example) -> None:
    body = json.dumps({"start": [0, 0], "end": [1, 1], "steps": 0}).encode()
    answer = http(functions.server.http_port, "POST", "/v2/models/route/generate_stream", body)
    assert "'steps' is 0; there must be one at least" in answer.body.decode()
