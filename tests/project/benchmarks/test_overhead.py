"""What the benchmark makes of the load generators' words, and of several servers' figures."""

import os
from pathlib import Path

import pytest

import overhead
from overhead import Contender, Load, ServerProcess, Way

WRK = """Running 1s test @ http://127.0.0.1:1/v2
  1 threads and 16 connections
  17958 requests in 1.00s, 5.00MB read
Requests/sec:  17950.25
Transfer/sec:      5.00MB
percentiles 830 3100 9000
"""


def test_what_wrk_says() -> None:
    load = overhead.read_wrk(WRK, cpu_seconds=1.0)
    assert load == Load(17950.25, 830, 3100, 9000, 1e6 / 17958, 17958)


@pytest.mark.parametrize(
    "line", ["  Non-2xx or 3xx responses: 3", "  Socket errors: connect 0, read 1, write 0, timeout 0"]
)
def test_failures_are_no_measurement(line: str) -> None:
    with pytest.raises(SystemExit, match="wrk saw failures"):
        overhead.read_wrk(f"{WRK}{line}\n", 1.0)


@pytest.mark.parametrize(("share", "value"), [(0.5, 501), (0.99, 991), (0.999, 1000), (1.0, 1000)])
def test_quantiles(share: float, value: int) -> None:
    assert overhead.quantile(range(1, 1001), share) == value
    assert overhead.quantile([7], share) == 7


def test_missing_programs_are_named_in_one_line() -> None:
    assert overhead.missing_programs(lambda name: name) == ""
    assert overhead.missing_programs(lambda name: None if name == "h2load" else name) == (
        "not installed: h2load (Debian: apt-get install nghttp2-client)"
    )
    assert "wrk nghttp2-client" in overhead.missing_programs(lambda name: None)


def test_tritons_command() -> None:
    template = "docker run -v '{repository}:/models' triton --http-port={http_port} {grpc_port} {metrics_port}"
    command = overhead.triton_command(template, Path("/a b"), (1, 2, 3))
    assert command == ["docker", "run", "-v", "/a b:/models", "triton", "--http-port=1", "2", "3"]


@pytest.mark.parametrize("template", ["triton {repo}", "triton {}", "triton {http_port"])
def test_tritons_command_with_other_placeholders(template: str) -> None:
    with pytest.raises(SystemExit, match=r"\{repository\}, \{http_port\}, \{grpc_port\} and \{metrics_port\}"):
        overhead.triton_command(template, Path("/"), (1, 2, 3))


def test_repositories(tmp_path: Path) -> None:
    """The same two models, as files for an engine and as Python."""
    for python in (False, True):
        written = overhead.write_repository(tmp_path / str(python), python)
        files = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
        model = "model.py" if python else "model.onnx"
        assert {f"{name}/1/{model}" for name in ("simple", "large")} <= files
        for name in ("simple", "large"):
            config = (written / name / "config.pbtxt").read_text()
            assert ('backend: "python"' in config) is python
    for name in ("simple", "large"):
        compile((tmp_path / "True" / name / "1" / "model.py").read_text(), name, "exec")


def contender(name: str, factor: float = 1.0) -> Contender:
    """Whose windows count up: 1, 2 and 3 times `factor`."""
    target = ServerProcess(pid=0, http=1, grpc=2, metrics=3, start_seconds=0.5, ready_rss_mb=100)
    loads = [Load(run * factor, run, run * factor, run, run * factor, 10) for run in (1, 2, 3)]
    return Contender(name, target, {("a way", 16): loads})


def test_tables() -> None:
    servers = [contender("modserve"), contender("other", 2.0)]
    table = overhead.loads_table(servers, bare_us=10)
    assert table[2].startswith("| bare ONNX Runtime loop, one thread | - | - | 100,000 |")
    assert [row.split(" | ")[2:4] for row in table[3:]] == [["modserve", "2"], ["other", "4"]]
    assert "| a way | 16 | 0.50 (0.50 to 0.50) | 0.50 (0.50 to 0.50) | 0.50 (0.50 to 0.50) |" in overhead.ratio_table(
        servers
    )
    assert overhead.ratio_table(servers[:1]) == []


def test_windows_alternate_and_large_requests_are_enough() -> None:
    order: list[str] = []
    servers = [contender("first"), contender("second")]
    for index, each in enumerate(servers):
        each.loads.clear()
        each.target = ServerProcess(0, index, 0, 0, 0, 0)

    def load(target: ServerProcess, connections: int) -> Load:
        order.append(servers[target.http].name)
        return Load(1, 1, 1, 1, 1, count=40)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerProcess, "rss_mb", lambda self: 123.0)
        overhead.measure(servers, [Way(overhead.LARGE_PATH, (4,), load)], runs=2, large_requests=100)
    assert order[:6] == ["first", "second", "first", "second", "second", "first"]
    assert [len(each.loads[overhead.LARGE_PATH, 4]) for each in servers] == [3, 3]
    assert servers[0].after_mb == 123.0


def test_a_baseline_must_be_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["overhead.py", "--baseline", str(tmp_path)])
    monkeypatch.setattr(overhead, "missing_programs", lambda: "")
    with pytest.raises(SystemExit, match="has no src/modserve"):
        overhead.main()


def test_the_own_process_has_memory_and_time() -> None:
    own = ServerProcess(os.getpid(), 0, 0, 0, 0, 0)
    resident = own.rss_mb()  # first: it may grow
    assert own.peak_mb() >= resident > 0
    assert own.cpu_seconds() > 0


def test_a_table_says_when_and_by_which_command_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a.py begins -->\nold\n<!-- a.py ends -->\nafter\n")
    monkeypatch.setattr("sys.argv", ["/somewhere/a.py", "--runs", "3", "--model", "a b"])
    monkeypatch.setattr(overhead, "form", lambda: "compiled")
    overhead.put_into_report("a.py", "new", page)
    text = page.read_text()
    assert text.startswith("before\n<!-- a.py begins -->\nnew\n\n*20")
    command = "python benchmarks/a.py --runs 3 --model 'a b'"
    assert f": `PYTHONPATH=$(python scripts/compiled_form.py --kept) {command}`*\n<!-- a.py ends -->\nafter" in text
    monkeypatch.setattr(overhead, "form", lambda: "interpreted")
    assert overhead.stamp().endswith(f": `{command}`*")
