"""``modserve bench --openai`` against models of text, and against a server of somebody else."""

import csv
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from bench_runs import QUICK, Bench, bench_against, results
from open_server import OpenServer
from server_process import ServerProcess
from text_models import FUNCTIONS, write_functions, write_speaker
from wire import HOST

from modserve.commands import terminal


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bench")
    write_speaker(folder / "models")
    write_functions(folder / "models", FUNCTIONS, "words")
    with open_server.host(folder / "models") as running:
        yield running


@pytest.fixture
def bench(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Bench:
    return bench_against(server, capsys)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_streams_of_a_model_that_counts(bench: Bench, kind: str) -> None:
    # The speaker's tokens are words: those of the prompt, the number before them, and the template's.
    words = ["speaker", f"--openai={kind}", "--input-tokens=20", "--output-tokens=6", "--concurrency=2"]
    [row] = results(bench, "http", *words, "--goodput=ttft:60000,itl:60000")
    assert row["errors"] == {}
    assert row["requests"] > 0
    texts = row["texts"]
    assert (texts["input_tokens_per_request"], texts["output_tokens_per_request"]) == (20, 6)
    assert texts["request_goodput"] == pytest.approx(row["requests_per_second"], rel=0.5)
    assert texts["tokens_counted_by_server"]
    assert 0 < texts["ttft_ms"]["p50"] <= row["latency_ms"]["p99.9"]
    assert set(texts["itl_ms"]) == {"mean", "p50", "p99"}
    assert row["server"]["requests"] > 0


def test_the_table_the_page_and_the_files(bench: Bench, tmp_path: Path) -> None:
    prompts, sheet, page = tmp_path / "prompts.txt", tmp_path / "x.csv", tmp_path / "x.html"
    prompts.write_text("one two\nthree four five\n")
    files = [f"--csv={sheet}", f"--html={page}", f"--prompts={prompts}"]
    done = bench("http", "words", "--openai=chat", "--concurrency=1,2", "--goodput=ttft:0.000001", *files)
    head, *rows = done.stdout.partition("Tokens, per second")[2].splitlines()[1:5]
    assert head.split()[:3] == ["load", "output/s", "output"]
    assert head.endswith("goodput/s")
    assert [row.split()[-1] for row in rows[1:]] == ["0.0", "0.0"]
    assert "concurrency 1: the server does not count tokens" in done.stdout
    with sheet.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["concurrency"]) for line in lines] == [1, 2]
    assert all(float(line["texts.ttft_ms.p50"]) > 0 and line["errors"] == "0" for line in lines)
    assert all(2 <= float(line["texts.output_tokens_per_request"]) <= 3 for line in lines)
    assert "between two pieces of a stream (ITL)" in page.read_text()


def test_a_rate(bench: Bench) -> None:
    [row] = results(bench, "http", "words", "--openai=chat", "--rate=20", "--output-tokens=3")
    assert row["request_rate"] == 20
    assert row["texts"]["output_tokens_per_request"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch", "--openai=chat"], "the first request failed: Request for unknown model: 'nosuch' is not found"),
        (["words", "--openai=embeddings"], "the first request failed: model 'words' takes no texts"),
        (["speaker", "--openai=chat", '--extra-body={"temperature": 9}'], "'temperature'"),
    ],
)
def test_failures_of_the_first_request(bench: Bench, words: list[str], message: str) -> None:
    assert message in bench("http", *words, code=1).stderr


class Foreign(BaseHTTPRequestHandler):
    """HTTP/1.0, whose streams end with the connection; a key is required, and what is unknown is refused."""

    seen: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).seen.append(body)
        if self.headers["authorization"] != "Bearer secret" or "stream_options" in body:
            self._answer(401, {"error": {"message": "no entry"}})
        elif self.path == "/v1/embeddings":
            tokens = sum(len(text.split()) for text in body["input"])
            self._answer(200, {"data": [], "usage": {"prompt_tokens": tokens}})
        elif not body.get("stream"):
            count = len(body["messages"][0]["content"].split()) + 10
            self._answer(200, {"choices": [], "usage": {"prompt_tokens": count}})
        else:
            self.send_response(200)
            self.end_headers()
            for word in ("a", "b", "c"):
                self.wfile.write(b'data: {"choices":[{"delta":{"content":"%s"}}]}\r\n\r\n' % word.encode())
            self.wfile.write(b"data: [DONE]\r\n\r\n")

    def _answer(self, status: int, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self._answer(404, {"detail": "Not Found"})

    def log_message(self, format: str, *values: object) -> None: ...


@pytest.fixture
def foreign() -> Iterator[str]:
    Foreign.seen = []
    with ThreadingHTTPServer((HOST, 0), Foreign) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://{HOST}:{server.server_port}/v1"
        server.shutdown()


def test_a_foreign_server(foreign: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QUICK, "m", f"--url={foreign}", "--json=-", "--header=Authorization: Bearer secret"]
    extra = '--extra-body={"stream_options": null}'
    assert terminal.run("bench", [*words, "--openai=chat", "--input-tokens=30", extra]) == 0
    [row] = json.loads(capsys.readouterr().out)["results"]
    assert (row["texts"]["output_tokens_per_request"], row["server"]) == (3, None)
    sent = [body["messages"][0]["content"] for body in Foreign.seen if body.get("stream")]
    assert {len(text.split()) for text in sent} == {20}
    assert len(set(sent)) == len(sent)
    Foreign.seen = []
    assert terminal.run("bench", [*words, "--openai=embeddings", "--input-tokens=8", "--batch-size=3"]) == 0
    [row] = json.loads(capsys.readouterr().out)["results"]
    assert row["texts"]["input_tokens_per_request"] == pytest.approx(24, abs=2)
    assert len(Foreign.seen[-1]["input"]) == 3
    assert terminal.run("bench", [*QUICK, "m", f"--url={foreign}", "--openai=chat"]) == 1
    assert "the first request failed: no entry" in capsys.readouterr().err
