"""NVIDIA's ``perf_analyzer`` runs to its end, and what it reports of the server is what the server has counted."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from foreign_clients import PERF_ANALYZER, run_client
from repositories import EXAMPLES, write_identity
from server_process import ServerProcess, serving
from wire import HOST, statistics

pytestmark = pytest.mark.slow

DELAY_MS = 200
REQUESTS = 200
COUNT = f"--request-count={REQUESTS}"
"""Enough that the program looks at the server's counters before the last of them is answered."""
WORDS = ["--shape=INPUT0:4", "--string-length=16"]
WINDOWS = ["--measurement-mode=count_windows", "--measurement-request-count=50"]
WINDOWS += ["--stability-percentage=1000000", "--max-trials=3"]
"""The numbers need not be stable. A window of time in which nothing is answered would end the program."""

WAYS = {
    "http-sync": ["-i", "http"],
    "http-async": ["-i", "http", "--async", "--concurrency-range=4"],
    "http-json": ["-i", "http", "--input-tensor-format=json", "--output-tensor-format=json"],
    "http-shared-memory": ["-i", "http", "--shared-memory=system"],
    "grpc-sync": ["-i", "grpc"],
    "grpc-async": ["-i", "grpc", "--async", "--concurrency-range=4"],
    "grpc-streaming": ["-i", "grpc", "--async", "--streaming", "--concurrency-range=4"],
    "grpc-compressed": ["-i", "grpc", "--grpc-compression-algorithm=gzip"],
    "grpc-shared-memory": ["-i", "grpc", "--shared-memory=system"],
    "grpc-streaming-shared-memory": ["-i", "grpc", "--async", "--streaming", "--shared-memory=system"],
}
MODELS: dict[str, list[str]] = {"simple": [], "digits": ["-b", "3"], "words": WORDS}


class Report(NamedTuple):
    """One measurement at a concurrency or rate: the client's view, then the server's.

    Times are averages in microseconds.
    """

    load: float
    requests: int
    throughput: float
    inferences: int
    executions: int
    successes: int
    latency: int
    parts: Mapping[str, int]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves the examples, `words` (BYTES), and `slow` and `paced`, which take `DELAY_MS` and 5 ms for a request."""
    repository = tmp_path_factory.mktemp("measured")
    write_identity(repository, "paced", parameters={"execute_delay_ms": 5})
    write_identity(repository, "words", "BYTES")
    write_identity(repository, "slow", parameters={"execute_delay_ms": DELAY_MS})
    with serving(EXAMPLES, repository, options=["--allow-client-shm=true"]) as running:
        yield running


HUNG_SECONDS = 10
"""With all its requests answered, the program ends within one."""
hung = Counter[str]()
"""Runs with a number of requests that never ended, by model."""


def run(server: ServerProcess, model: str, options: Sequence[str]) -> tuple[int, str]:
    """Exit code and output.

    The program starts its workers, then throws away the records of all requests that are answered by now, and then
    waits for as many records as it sends requests (`ProfileHelper` and `Measure` in its inference_profiler.cc). Where
    its main thread is held up between the first two, it waits for ever, over any protocol; it always does when it is
    given a pipe that is full as it writes "Request concurrency". Such a run, all of whose requests the server has
    answered some time ago, is made once more.
    """
    port = server.grpc_port if "grpc" in options else server.http_port
    command: list[str | Path] = [PERF_ANALYZER, "-m", model, "-u", f"{HOST}:{port}", *options]
    before, _ = counts(server, model)
    expected = next((int(option.partition("=")[2]) for option in options if option.startswith("--request-count=")), 0)
    answered = 0

    def is_hung() -> bool:
        nonlocal answered
        answered += counts(server, model)[0] - before == expected
        return answered > HUNG_SECONDS

    try:
        done = run_client(command, is_hung if expected else lambda: False)
    except subprocess.TimeoutExpired:
        if answered <= HUNG_SECONDS:
            raise  # the server owes the program an answer, or the machine is very busy
        hung[model] += 1
        done = run_client(command)
    return done.returncode, done.stdout + done.stderr


def profile(server: ServerProcess, model: str, options: Sequence[str]) -> list[Report]:
    """The measurements of a run that must succeed; each is sane by itself."""
    code, text = run(server, model, options)
    assert code == 0, text
    _, *found = re.split(r"^Request (?:concurrency|Rate): ([\d.]+)(?= inference|$)", text, flags=re.MULTILINE)
    reports = [read(float(load), section) for load, section in zip(found[::2], found[1::2], strict=True)]
    for report in reports:
        assert report.throughput > 0, text
        assert min(report.requests, report.inferences, report.executions, report.successes) > 0, text
        assert set(report.parts) == {"overhead", "queue", "compute input", "compute infer", "compute output"}
        assert abs(sum(report.parts.values()) - report.latency) <= len(report.parts), text
    return reports


def read(load: float, section: str) -> Report:
    """The numbers of one section, "Client:" and "Server:"."""

    def number(name: str) -> float:
        found = re.search(rf"^ *{name}: ([\d.]+)", section, re.MULTILINE)
        assert found is not None, f"no {name!r} in:\n{section}"
        return float(found[1])

    latency = re.search(r"^ *Avg request latency: (\d+) usec \((.*)\)$", section, re.MULTILINE)
    assert latency is not None, section
    return Report(
        load=load,
        requests=int(number("Request count")),
        throughput=number("Throughput"),
        inferences=int(number("Inference count")),
        executions=int(number("Execution count")),
        successes=int(number("Successful request count")),
        latency=int(latency[1]),
        parts={name: int(usec) for name, usec in re.findall(r"([a-z]+(?: [a-z]+)?) (\d+) usec", latency[2])},
    )


def counts(server: ServerProcess, model: str) -> tuple[int, int]:
    """Requests answered and inferences of the latest version, as the server has counted them."""
    found = statistics(server, model)
    return found["inference_stats"]["success"]["count"], found["inference_count"]


def times(server: ServerProcess, model: str) -> dict[str, float]:
    """Microseconds that its requests have taken so far: in all, and the parts that the server measures."""
    found = statistics(server, model)["inference_stats"]
    names = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    return {name.replace("_", " "): found[name]["ns"] / 1000 for name in names}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_each_way(measured: ServerProcess, options: list[str]) -> None:
    """With all models at a time, as a run takes a second of waiting; but the names in shared memory are the same."""

    def check(model: str) -> None:
        more = MODELS[model]
        before, runs = counts(measured, model), 1 - hung[model]
        (report,) = profile(measured, model, [*options, *more, COUNT])
        after = counts(measured, model)
        batch = 3 if "-b" in more else 1
        runs += hung[model]
        assert (after[0] - before[0], after[1] - before[1]) == (REQUESTS * runs, REQUESTS * runs * batch)
        assert report.requests == REQUESTS
        # The program may look at the counters for the first time when its first requests are under way.
        assert report.successes <= REQUESTS
        assert report.inferences == report.successes * batch

    with ThreadPoolExecutor(1 if "--shared-memory=system" in options else len(MODELS)) as threads:
        list(threads.map(check, MODELS))


@pytest.mark.parametrize("way", ["http-sync", "grpc-sync", "grpc-streaming"])
def test_what_it_reports_of_the_server(measured: ServerProcess, way: str) -> None:
    """Exactly, as nothing is counted before the first request is answered, long after the run's start."""
    options = [option for option in WAYS[way] if "concurrency" not in option]
    before = times(measured, "slow")
    (report,) = profile(measured, "slow", [*options, "--shape=INPUT0:4", "--request-count=5"])
    after = times(measured, "slow")
    assert (report.requests, report.inferences, report.executions, report.successes) == (5, 5, 5, 5)
    assert DELAY_MS * 1000 <= report.parts["compute infer"] < report.latency
    told = {**report.parts, "success": report.latency}
    for name, total in after.items():
        assert abs(told[name] - (total - before[name]) / 5) <= 1, name


PACED = ["--shape=INPUT0:4"]
"""A measurement of a closed loop takes three seconds: `paced` does not keep the cores busy meanwhile."""
RANGES = {
    "percentile": ("paced", [*PACED, "--percentile=95", "--concurrency-range=1:4:3", "-b", "4"], [1, 4]),
    "request-rate": ("simple", ["--request-rate-range=200:400:200"], [200, 400]),
    "poisson": ("simple", ["--request-rate-range=300", "--request-distribution=poisson"], [300]),
    "versions": ("digits", ["-x", "1", "--concurrency-range=2"], [2]),
}


@pytest.mark.parametrize(("model", "options", "loads"), RANGES.values(), ids=RANGES)
def test_ranges(measured: ServerProcess, model: str, options: list[str], loads: list[float]) -> None:
    """Over both protocols at a time, as each measurement takes three seconds of waiting."""

    def check(protocol: str) -> None:
        reports = profile(measured, model, ["-i", protocol, *options, *WINDOWS])
        assert [report.load for report in reports] == loads

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(check, ("http", "grpc")))


def test_counting_windows(measured: ServerProcess) -> None:
    (report,) = profile(measured, "paced", ["-i", "http", *PACED, *WINDOWS])
    assert report.requests >= 50


# --- data -------------------------------------------------------------------------------------------------------------

TEXTS = [{"INPUT0": {"content": ["one", "zwei ü", ""], "shape": [3]}}, {"INPUT0": {"content": ["vier"], "shape": [1]}}]
NUMBERS = {"INPUT0": list(range(16)), "INPUT1": [1] * 16}
SUMS = {"OUTPUT0": list(range(1, 17)), "OUTPUT1": list(range(-1, 15))}
REPEATED = {"IN": {"content": [7, 8, 9], "shape": [3]}, "DELAY": {"content": [0, 0, 0], "shape": [3]}, "WAIT": [0]}


def data(directory: Path, *requests: object, answers: object = None) -> str:
    """The option for a file with the inputs of `requests`, and the outputs that each must have."""
    file = directory / "data.json"
    document = {"data": requests} | ({"validation_data": [answers]} if answers else {})
    file.write_text(json.dumps(document))
    return f"--input-data={file}"


@pytest.mark.parametrize("way", ["http-sync", "http-shared-memory", "grpc-sync", "grpc-streaming"])
def test_texts(measured: ServerProcess, tmp_path: Path, way: str) -> None:
    (report,) = profile(measured, "words", [*WAYS[way], data(tmp_path, *TEXTS), COUNT])
    assert report.requests == REQUESTS


@pytest.mark.parametrize("way", ["http-sync", "http-json", "grpc-sync"])
def test_answers_are_what_they_must_be(measured: ServerProcess, tmp_path: Path, way: str) -> None:
    (report,) = profile(measured, "simple", [*WAYS[way], data(tmp_path, NUMBERS, answers=SUMS), COUNT])
    assert report.requests == REQUESTS


def test_it_would_notice_a_wrong_answer(measured: ServerProcess, tmp_path: Path) -> None:
    wrong = {**SUMS, "OUTPUT1": list(range(16))}
    code, text = run(measured, "simple", [data(tmp_path, NUMBERS, answers=wrong), COUNT])
    assert code != 0
    assert "Output doesn't match expected output" in text


def test_a_decoupled_model(measured: ServerProcess, tmp_path: Path) -> None:
    """Three responses a request, and the end alone after them."""
    export = tmp_path / "export.json"
    options = ["-i", "grpc", "--async", "--streaming", data(tmp_path, REPEATED), COUNT]
    (report,) = profile(measured, "repeat", options)
    assert report.requests == REQUESTS
    code, text = run(measured, "repeat", [*options, f"--profile-export-file={export}"])
    assert code == 0, text
    (experiment,) = json.loads(export.read_text())["experiments"]
    assert len(experiment["requests"]) == REQUESTS
    for request in experiment["requests"]:
        assert [ord(answer["OUT"][:1] or "\0") for answer in request["response_outputs"]] == [7, 8, 9, 0]


def test_a_report_as_a_file(measured: ServerProcess, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    profile(measured, "simple", ["-i", "grpc", "-f", str(table), "--verbose-csv", COUNT])
    names, values = (line.split(",") for line in table.read_text().splitlines())
    found = dict(zip(names, values, strict=True))
    for name in ("Inferences/Second", "Server Queue", "Server Compute Infer", "Avg latency"):
        assert float(found[name]) > 0, name


def test_metrics_can_be_collected(measured: ServerProcess) -> None:
    url = f"{HOST}:{measured.metrics_port}/metrics"
    options = ["--collect-metrics", f"--metrics-url={url}", "--metrics-interval=100", *WINDOWS]
    (report,) = profile(measured, "paced", [*PACED, *options])
    assert report.successes > 0
