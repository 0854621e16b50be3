"""``modserve bench`` against a real server: its figures are those that the server counts, and its reports say them."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from bench_runs import QUICK, Bench, bench_against, results, successes
from open_server import OpenServer
from repositories import EXAMPLES, write_identity
from server_process import ServerProcess
from wire import HOST

from modserve.commands import terminal

DELAY_MS = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    """Serves the examples, `words` (BYTES), and `slow`, which takes `DELAY_MS` for a request, one after the other."""
    repository = tmp_path_factory.mktemp("benched")
    write_identity(repository, "words", "BYTES")
    write_identity(repository, "slow", parameters={"execute_delay_ms": DELAY_MS})
    with open_server.host(EXAMPLES, repository) as running:
        yield running


@pytest.fixture
def bench(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Bench:
    return bench_against(server, capsys)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_sweep(server: ServerProcess, bench: Bench, protocol: str) -> None:
    before = successes(server, "simple")
    rows = results(bench, protocol, "simple", "--concurrency=1:16:x4")
    assert [row["concurrency"] for row in rows] == [1, 4, 16]
    for row in rows:
        assert row["errors"] == {}
        assert row["requests_per_second"] == pytest.approx(row["requests"] / row["seconds"])
        latency = row["latency_ms"]
        assert 0 < latency["p50"] <= latency["p90"] <= latency["p95"] <= latency["p99"] <= latency["p99.9"]
        assert row["server"]["mean_ms"]["total"] <= latency["mean"] * 1.5
    assert successes(server, "simple") - before > sum(row["requests"] for row in rows)  # and those of the warm-up


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_rate(bench: Bench, protocol: str) -> None:
    (row,) = results(bench, protocol, "simple", "--rate=300", "--poisson")
    assert row["request_rate"] == 300
    due = row["requests"] + row["waiting"]  # a busy machine is late with some
    assert 150 < due / row["seconds"] < 450


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_latency_of_a_slow_model(bench: Bench, protocol: str) -> None:
    """Two at a time wait for one instance."""
    (row,) = results(bench, protocol, "slow", "--concurrency=2", "--shape=INPUT0:4")
    assert row["latency_ms"]["p50"] >= 2 * DELAY_MS
    assert DELAY_MS <= row["server"]["mean_ms"]["infer"] < row["latency_ms"]["mean"] - DELAY_MS / 2
    assert row["server"]["mean_ms"]["queue"] >= DELAY_MS / 2


def test_an_overload_shows_in_the_latency(bench: Bench) -> None:
    """Twice as many as the model can take: with two connections, a closed view would be of twice its time."""
    (row,) = results(bench, "http", "slow", "--rate=100", "--connections=2", "--shape=INPUT0:4")
    assert row["latency_ms"]["p99"] > 3 * DELAY_MS
    assert row["waiting"] > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("words", [["-b", "3"], ["--format=json"], ["--input-data=zero", "--model-version=1"]])
def test_forms_of_requests(bench: Bench, protocol: str, words: Sequence[str]) -> None:
    (row,) = results(bench, protocol, "digits", *words)
    rows = 3 if "-b" in words else 1
    assert row["inferences_per_second"] == pytest.approx(rows * row["requests_per_second"])
    assert row["server"]["inferences"] == rows * row["server"]["requests"]


def test_data_of_files(bench: Bench, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(16, dtype=np.int32))
    (tmp_path / "b.json").write_text(json.dumps({"data": [{"INPUT1": [1] * 16}, {"INPUT1": [2] * 16}]}))
    files = [f"--input=INPUT0=@{tmp_path}/a.npy", f"--input-data={tmp_path}/b.json"]
    assert results(bench, "http", "simple", *files)[0]["errors"] == {}
    assert results(bench, "grpc", "words", "--string-length=10", "--shape=INPUT0:3")[0]["errors"] == {}


def test_the_highest_rate_within_a_goal(bench: Bench, tmp_path: Path) -> None:
    """One instance of 20 ms makes 50 a second at most: at 75, the last of three windows is half a second late."""
    page = tmp_path / "report.html"
    goal = ["--goal-ms=500", "--percentile=90", "--shape=INPUT0:4", "--rate=5:200", f"--html={page}"]
    done = bench("http", "slow", *goal, "--window-secs=0.5")
    best = re.search(r"The highest rate that meets p90 of at most 500 ms: ([\d.,]+) requests/s", done.stdout)
    assert best is not None, done.stdout
    assert 5 <= float(best[1]) <= 75
    text = page.read_text()
    assert text.count("<svg") == 3
    assert best[0] in text
    assert not re.search(r"(src|href)=", text)


MISTAKES = {
    "no such model": (["nosuch"], 1, "Request for unknown model: 'nosuch' is not found"),
    "no model": ([], 2, "the following arguments are required: MODEL"),
    "no range": (["simple", "--concurrency=4:1"], 2, "expected such as 8, or 1,4,16"),
    "two loads": (["simple", "--concurrency=4", "--rate=1"], 2, "option '--concurrency' is for a closed loop"),
    "another option": (["simple", "--concurency=4"], 2, "unknown option '--concurency'; did you mean '--concurrency'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake(bench: Bench, case: str) -> None:
    words, code, text = MISTAKES[case]
    assert text in bench("http", *words, code=code).stderr


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("bench", ["m", "--url", f"http://{HOST}:9"]) == 1
    assert "cannot reach a server at http://127.0.0.1:9" in capsys.readouterr().err


def test_ctrl_c_gives_the_results_so_far(server: ServerProcess) -> None:
    words = ["simple", "--url", f"http://{HOST}:{server.http_port}", "--concurrency=1:64", *QUICK]
    line = [sys.executable, "-m", "modserve", "bench", *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "concurrency 1: window 1" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    assert re.search(r"^concurrency 1 ", output, re.MULTILINE), output
    assert "concurrency 64" not in output
