"""``modserve bench`` with streams, decoupled models, sequences, and TLS, against a real server."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from bench_runs import QUICK, Bench, bench_against, results, successes
from open_server import OpenServer
from repositories import EXAMPLES, write_accumulator, write_identity, write_sequence_echo
from server_process import ServerProcess, eventually, serving
from wire import http

from modserve.commands import terminal

pytestmark = pytest.mark.slow

DELAYS_MS = (20, 5, 5)
PATIENT = "max_sequence_idle_microseconds: 600000000"
"""A sequence that the client forgets would keep its slot as long as the tests run."""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step {
  model_name: "sum_direct" model_version: -1
  input_map { key: "INPUT" value: "IN" }
  output_map { key: "OUTPUT" value: "OUT" }
} }
"""
SEQUENCE_WAYS = {"http": [], "http json": ["--format=json"], "grpc": [], "grpc stream": ["--streaming"]}
LOADS = {"closed": ["--concurrency=1,6", "--window-secs=0.03", "--window-requests=30"], "open": ["--rate=200"]}
"""A closed loop keeps two cores busy: it ends when there are enough requests."""
SEQUENCE_CASES = [
    (model, way, tuple(LOADS)[(row + column) % 2])
    for row, model in enumerate(("sum_direct", "sum_oldest", "texts", "whole"))
    for column, way in enumerate(SEQUENCE_WAYS)
]
"""Every two of a model, a way and a load meet."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, open_server: OpenServer) -> Iterator[ServerProcess]:
    """Serves the examples, and models that keep sequences, four at a time: `sum_…`, and `texts`, whose ids are strings;
    `whole` is an ensemble of the first;
    `full` takes one request at a time, and one that waits."""
    repository = tmp_path_factory.mktemp("kinds")
    write_accumulator(repository, "sum_direct", "direct { }", PATIENT)
    write_accumulator(repository, "sum_oldest", "oldest { max_candidate_sequences: 4 }", PATIENT)
    write_sequence_echo(repository, "texts", f"direct {{ }} {PATIENT}", id_type="BYTES")
    (repository / "whole" / "1").mkdir(parents=True)
    (repository / "whole" / "config.pbtxt").write_text(ENSEMBLE)
    queue = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    write_identity(repository, "full", parameters={"execute_delay_ms": 20}, extra=queue)
    with open_server.host(EXAMPLES, repository) as running:
        yield running


@pytest.fixture
def bench(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Bench:
    return bench_against(server, capsys)


def without_errors(bench: Bench, protocol: str, *words: str) -> list[dict[str, Any]]:
    rows = results(bench, protocol, *words)
    assert all(row["errors"] == {} for row in rows), rows
    return rows


# Streams


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_an_ordinary_model_by_streams(server: ServerProcess, bench: Bench, load: Sequence[str]) -> None:
    before = successes(server, "simple")
    rows = without_errors(bench, "grpc", "simple", "--streaming", *load)
    assert successes(server, "simple") - before > sum(row["requests"] for row in rows) > 0
    for row in rows:
        assert row["responses"] is None
        assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p99"]


def test_each_client_has_one_stream(server: ServerProcess, bench: Bench) -> None:
    """The server counts calls, and a stream is one, however many requests go by it."""

    def calls() -> float:
        page = http(server.metrics_port, "GET", "/metrics").body.decode()
        return sum(map(float, re.findall(r"^modserve_grpc_responses_total{.*} (\S+)$", page, re.M)))

    before = calls()
    (row,) = without_errors(bench, "grpc", "simple", "--streaming", "--concurrency=7")
    assert row["requests"] > 100
    eventually(lambda: calls() - before >= 7)
    assert calls() - before < 30  # and some about the model and its statistics


def test_a_stream_goes_on_behind_a_request_that_fails(bench: Bench) -> None:
    words = ["--streaming", "--shape=INPUT0:4", "--concurrency=6", "--json=-"]
    (row,) = json.loads(bench("grpc", "full", *words, code=1).stdout)["results"]
    assert row["requests"] > 0
    ((text, number),) = row["errors"].items()
    assert "exceeds maximum queue size" in text.lower()
    assert number > 6


def test_the_first_request_fails(bench: Bench) -> None:
    text = bench("grpc", "digits", "--streaming", "-b", "1000", code=1).stderr
    assert "the first request failed: " in text
    assert "batch" in text


def test_streaming_is_for_grpc(bench: Bench) -> None:
    assert "option '--streaming' is for gRPC" in bench("http", "simple", "--streaming", code=2).stderr


# Decoupled models


@pytest.fixture
def three(tmp_path: Path) -> str:
    """Three responses to each request, after `DELAYS_MS`."""
    file = tmp_path / "three.json"
    content = {"IN": {"content": [7, 8, 9], "shape": [3]}, "DELAY": {"content": DELAYS_MS, "shape": [3]}, "WAIT": [0]}
    file.write_text(json.dumps({"data": [content]}))
    return f"--input-data={file}"


@pytest.mark.parametrize("load", [["--concurrency=4"], ["--rate=50"]], ids=LOADS)
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_decoupled_model(bench: Bench, three: str, protocol: str, load: Sequence[str]) -> None:
    (row,) = without_errors(bench, protocol, "repeat", three, *load, "--window-secs=0.5")
    responses = row["responses"]
    assert responses["per_request"] == pytest.approx(3, abs=0.5)  # some begin before a window or end behind it
    assert responses["per_second"] == pytest.approx(responses["count"] / row["seconds"])
    first, between = responses["time_to_first_ms"], responses["time_between_ms"]
    assert DELAYS_MS[0] <= first["p50"] <= first["p99"]
    assert 0 < between["p50"] < first["p50"]
    assert between["p50"] <= between["p99"]
    assert row["latency_ms"]["p50"] >= sum(DELAYS_MS)


def test_a_decoupled_model_in_all_reports(bench: Bench, three: str, tmp_path: Path) -> None:
    page, document = tmp_path / "report.html", tmp_path / "report.json"
    done = bench("grpc", "repeat", three, "--concurrency=2", f"--html={page}", f"--json={document}")
    assert "model 'repeat' is decoupled" in done.stderr
    assert re.search(
        r"^load +responses/s +per request +first p50 +first p99 +between p50 +between p99$", done.stdout, re.M
    )
    report = json.loads(document.read_text())
    assert report["decoupled"] is True
    html = page.read_text()
    assert "responses: ms to the first, and between two" in html
    assert "<th>first p50</th>" in html


def test_a_decoupled_model_that_does_not_respond(bench: Bench, tmp_path: Path) -> None:
    """Nothing but the end of each request comes back, and that is enough."""
    file = tmp_path / "none.json"
    empty = {"content": [], "shape": [0]}
    file.write_text(json.dumps({"data": [{"IN": empty, "DELAY": empty, "WAIT": [0]}]}))
    for protocol in ("grpc", "http"):
        (row,) = without_errors(bench, protocol, "repeat", f"--input-data={file}")
        assert row["requests"] > 10
        assert row["responses"] is None


# Sequences


@pytest.mark.parametrize(("model", "way", "load"), SEQUENCE_CASES)
def test_sequences(server: ServerProcess, bench: Bench, model: str, way: str, load: str) -> None:
    """With more clients than the model has places.

    The server waits for ever: were sequences left that have no end, nothing would come back by the second command.
    """
    before = successes(server, model)
    rows = without_errors(bench, way.split()[0], model, "--sequence-length=5", *SEQUENCE_WAYS[way], *LOADS[load])
    assert successes(server, model) - before > sum(row["requests"] for row in rows) > 0
    for row in rows:
        assert 0 < row["sequences_per_second"] < row["requests_per_second"] / 3


def test_lengths_of_sequences(bench: Bench) -> None:
    """How many requests a sequence has, on average, is what the options say, or 20."""
    for words, least, most in (
        (["--sequence-length=4", "--sequence-length-variation=0"], 3.5, 4.5),
        (["--sequence-length=1"], 0.9, 1.1),
        ([], 15, 26),
    ):
        (row,) = without_errors(bench, "http", "sum_direct", "--window-secs=0.1", "--window-requests=200", *words)
        assert least < row["requests_per_second"] / row["sequences_per_second"] < most, words


def test_sequences_of_a_file(bench: Bench, server: ServerProcess, tmp_path: Path) -> None:
    """Lists are the steps of sequences, which are as long as these; what is no list is one sequence."""
    file = tmp_path / "steps.json"
    file.write_text(json.dumps({"data": [[{"INPUT": [1]}] * 2, [{"INPUT": [1]}] * 4]}))
    for protocol in ("http", "grpc"):
        (row,) = without_errors(bench, protocol, "sum_direct", f"--input-data={file}", "--window-requests=100")
        assert 2.9 < row["requests_per_second"] / row["sequences_per_second"] < 3.1
    file.write_text(json.dumps({"data": [{"INPUT": [1]}, {"INPUT": [2]}]}))
    (row,) = without_errors(bench, "http", "sum_direct", f"--input-data={file}", "--window-requests=100")
    assert 1.9 < row["requests_per_second"] / row["sequences_per_second"] < 2.1


def test_sequences_in_the_table(bench: Bench) -> None:
    done = bench("grpc", "sum_direct", "--concurrency=2")
    assert "model 'sum_direct' uses sequences" in done.stderr
    assert re.search(r"^load +requests/s +sequences/s +mean", done.stdout, re.M)


def test_the_highest_rate_of_sequences(bench: Bench) -> None:
    done = bench("http", "sum_direct", "--goal-ms=1000", "--rate=20:40", "--window-requests=3")
    assert "The highest rate that meets p99 of at most 1000 ms: " in done.stdout


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[ServerProcess]:
    """Asks its clients for certificates."""
    pair = authority.issue("server")
    options = ["--grpc-use-ssl-mutual=true", "--http-use-ssl-mutual=true", f"--grpc-root-cert={authority.certificate}"]
    options += [f"--grpc-server-cert={pair.certificate}", f"--grpc-server-key={pair.key}"]
    with serving(EXAMPLES, options=options) as running:
        yield running


TLS_WAYS = {"https": [], "grpcs": [], "grpcs stream": ["--streaming"]}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("way", TLS_WAYS)
def test_tls(
    secure: ServerProcess,
    authority: Authority,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    way: str,
    load: Sequence[str],
) -> None:
    pair = authority.issue("client")
    scheme = way.split()[0]
    url = f"{scheme}://localhost:{secure.grpc_port if scheme == 'grpcs' else secure.http_port}"
    trust, own = [f"--ca-file={authority.certificate}"], [f"--cert={pair.certificate}", f"--key={pair.key}"]
    before = "simple", "--url", url, *QUICK, *load, *TLS_WAYS[way]
    assert terminal.run("bench", [*before, *trust, *own, "--json=-"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert all(row["errors"] == {} and row["requests"] > 0 for row in rows)
    for words in (trust, own):  # without a certificate, and without trust in the server's
        assert terminal.run("bench", [*before, *words]) == 1
        assert "cannot reach a server at" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_decoupled_model_over_tls(
    secure: ServerProcess, authority: Authority, capsys: pytest.CaptureFixture[str], three: str, scheme: str
) -> None:
    pair = authority.issue("client")
    url = f"{scheme}://localhost:{secure.grpc_port if scheme == 'grpcs' else secure.http_port}"
    files = [f"--ca-file={authority.certificate}", f"--cert={pair.certificate}", f"--key={pair.key}"]
    assert terminal.run("bench", ["repeat", "--url", url, *QUICK, *files, three, "--json=-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["errors"] == {}
    assert row["responses"]["per_request"] == pytest.approx(3, abs=0.5)
