"""What the benchmark beside other servers makes of the load generators' words, and how it speaks to each server."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import curve_chart
import peers
import process_tree
from side_by_side import dialects, loads, report, servers
from side_by_side.dialects import GRPC, JSON, Dialect
from side_by_side.environments import Unavailable
from side_by_side.loads import Window
from side_by_side.models import MODELS, Model, Tensor, write_files, write_repository
from side_by_side.report import Results, Server
from side_by_side.running import Running, compare
from side_by_side.servers import Peer, Site

WRK = """Running 1s test @ http://127.0.0.1:1/v2
  1 threads and 16 connections
  17958 requests in 1.00s, 5.00MB read
Requests/sec:  17950.25
Transfer/sec:      5.00MB
percentiles 830 3100 9000
total 20000 in 2000000 us, errors 500
"""

H2LOAD = """starting benchmark...
finished in 1.02s, 1000.00 req/s, 1.04MB/s
requests: 4 total, 4 started, 4 done, 4 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 4 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 1.06MB (1112345) total, 70.20KB (71890) headers (space savings 93.01%), 400B (400) data
"""
H2LOAD_LOG = "1\t200\t900\n2\t200\t100\n3\t200\t500\n4\t200\t700\n"


def window(rate: float = 1000.0, count: int = 10_000, errors: int = 0) -> Window:
    return Window(rate, 1000.0, 2000.0, 3000.0, 50.0, count, errors)


def test_what_wrk_says() -> None:
    assert loads.read_wrk(WRK) == Window(9750.0, 830, 3100, 9000, 0.0, 20000, 500)


@pytest.mark.parametrize("text", ["unable to connect", WRK.replace("total 20000", "total 0")])
def test_no_words_of_wrk_are_no_figures(text: str) -> None:
    with pytest.raises(ValueError, match=r"no 'percentiles|no request was answered"):
        loads.read_wrk(text)


def test_wrks_script_has_headers_and_body() -> None:
    script = loads.lua(Path("/a/body"), {"Content-Type": "application/json"})
    assert 'io.open("/a/body", "rb")' in script
    assert 'wrk.headers["Content-Type"] = "application/json"' in script


def test_what_h2load_says() -> None:
    assert loads.read_h2load(H2LOAD, H2LOAD_LOG, data_bytes=100) == Window(1000.0, 700, 900, 900, 0.0, 4, 0)


def test_bytes_that_are_missing_are_failed_calls() -> None:
    """A gRPC error has status 200; a response without its message is one."""
    seen = loads.read_h2load(H2LOAD.replace("(400) data", "(100) data"), H2LOAD_LOG, data_bytes=100)
    assert (seen.errors, seen.per_second) == (3, 250.0)


def test_no_log_of_h2load_is_no_figure() -> None:
    with pytest.raises(ValueError, match="no request was answered"):
        loads.read_h2load(H2LOAD, "", data_bytes=100)


def test_medians_and_sums() -> None:
    middle = loads.median([window(1.0, 10, 1), window(3.0, 20, 0), window(2.0, 30, 2)])
    assert (middle.per_second, middle.count, middle.errors) == (2.0, 60, 3)


@pytest.mark.parametrize("dialect", [dialects.V2_JSON, dialects.V2_BINARY, dialects.V2_GRPC])
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_each_model_has_a_request_in_the_protocol(dialect: Dialect, model: Model) -> None:
    assert dialect.is_v2
    assert dialect.write(model).body


def test_reading_a_binary_response() -> None:
    values = np.arange(16, dtype=np.int32).reshape(1, 16)
    parts = [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
        for name in ("OUTPUT0", "OUTPUT1")
    ]
    text = json.dumps({"outputs": parts}).encode()
    headers = {"inference-header-content-length": str(len(text))}
    outputs = dialects.V2_BINARY.read(MODELS["simple"], headers, text + values.tobytes() + (values + 1).tobytes())
    compare({"OUTPUT0": values, "OUTPUT1": values + 1}, outputs)


def test_reading_a_json_response_without_a_protocol() -> None:
    outputs = dialects.PLAIN_JSON.read(MODELS["mlp"], {}, json.dumps({"OUTPUT": [[0.5] * 10]}).encode())
    assert outputs["OUTPUT"].shape == (1, 10)


def test_torchserves_messages() -> None:
    request = dialects.TORCHSERVE_GRPC.write(MODELS["simple"])
    assert request.body.startswith(b"\x0a\x06simple\x1a\x4a\x0a\x06INPUT0\x12\x40")
    data = np.arange(32, dtype=np.int32).tobytes()
    outputs = dialects.TORCHSERVE_GRPC.read(MODELS["simple"], {}, dialects.protobuf_field(1, data))
    assert outputs["OUTPUT1"][0, 0] == 16


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({}, "no output x"),
        ({"x": np.zeros((2, 1), np.float32)}, "has shape"),
        ({"x": np.ones((1, 2), np.float32)}, "other values"),
    ],
)
def test_wrong_outputs(outputs: dict[str, Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compare({"x": np.zeros((1, 2), np.float32)}, outputs)


def test_repositories_for_an_engine_and_in_python(tmp_path: Path) -> None:
    simple = [MODELS["simple"]]
    write_files(tmp_path / "files", simple)
    engine = write_repository(tmp_path / "engine", tmp_path / "files", simple)
    assert (engine / "simple" / "1" / "model.onnx").read_bytes()
    assert 'backend: "onnxruntime"' in (engine / "simple" / "config.pbtxt").read_text()
    python = write_repository(tmp_path / "python", tmp_path / "files", simple, servers.PROGRAMS / "triton_model.py")
    assert {path.name for path in (python / "simple" / "1").iterdir()} == {"model.py", "onnx_models.py"}
    assert MODELS["simple"].expected(tmp_path / "files" / "simple.onnx")["OUTPUT0"][0, 1] == 2


def test_the_programs_are_python() -> None:
    for program in servers.PROGRAMS.glob("*.py"):
        compile(program.read_text(), program.name, "exec")


def test_forms_and_workers_of_modserve(tmp_path: Path) -> None:
    keys = [peer.key for peer in servers.modserve_peers(tmp_path, "")]
    assert keys == ["modserve"]
    (tmp_path / "modserve").mkdir()
    every = servers.modserve_peers(tmp_path, "--workers N")
    assert [peer.key for peer in every] == [
        "modserve",
        "modserve-compiled",
        "modserve-compiled-workers",
    ]


def test_tritons_command(tmp_path: Path) -> None:
    site = Site(tmp_path, tmp_path, [], (1, 2, 3, 4, 5), tmp_path)
    command = servers.triton_command("triton {repository} {http_port} {grpc_port} {metrics_port}").prepare(site)
    assert command.words == ["triton", str(tmp_path / "models"), "1", "2", "3"]
    with pytest.raises(SystemExit, match=r"the placeholders are \{repository\}"):
        servers.triton_command("triton {port}").prepare(site)


def test_what_only_chooses() -> None:
    assert peers.selection([]) == (list(MODELS), list(dialects.WAYS.values()))
    assert peers.selection(["mlp", "grpc"]) == (["mlp"], [GRPC])
    assert peers.selection(["json"]) == (list(MODELS), [JSON])


def results() -> Results:
    made = Results((1, 16), notes=["TorchServe needs Java"])
    made.servers = [Server(name, name, 1.0, 100.0, 110.0, 90.0, 0.01) for name in ("modserve", "other")]
    for connections in made.connections:
        made.windows["simple", JSON, connections] = {"modserve": [window(2000.0)], "other": [window(1000.0)]}
    made.windows["simple", GRPC, 1] = {"modserve": [window()]}
    return made


def test_the_report() -> None:
    text = report.text(results(), "ONNX Runtime 1", 2, "3 windows of 1 s")
    assert "| modserve | 2,000 | 1, 2, 3 | 50 µs | 2,000 | 1, 2, 3 | 50 µs |" in text
    assert "| simple | HTTP JSON | 16 | 2, 1, 1 |" in text
    assert "| other | 1.00 s | 100 MB | 110 MB | 90 MB | 1.0% of a core |" in text
    assert text.endswith("- TorchServe needs Java")


def test_the_summary_for_the_page() -> None:
    text = report.summary(results(), "ONNX Runtime 1", 2, "3 windows of 1 s")
    assert "| modserve | 2,000<br>2<br>50, 50 | - |" in text
    assert "| other | 1,000<br>2<br>50, 50 | - |" in text
    assert "| other | 1.00 s | 100 MB | 110 MB | 90 MB | 1.0% of a core |" in text
    assert text.endswith("- TorchServe needs Java")


def test_few_requests_have_no_percentiles_and_failures_show() -> None:
    rate, times, cpu = report.figures(window(50.0, count=1000, errors=3))
    assert (rate, times, cpu) == ("50.0 (3 of 1,000 failed)", "1, 2, -", "50 µs")


def test_the_figures_and_the_picture() -> None:
    figures = json.loads(json.dumps(report.figures_json(results(), "ONNX Runtime 1", 2)))
    assert len(figures["cells"]) == 5
    picture = report.picture(results())
    assert picture.count("<polyline") == 3
    assert "simple, HTTP JSON" in picture


def test_decades() -> None:
    assert curve_chart.decades([3.0, 200.0]) == (0, 3)
    assert curve_chart.decades([10.0]) == (1, 2)
    assert curve_chart.decades([]) == (0, 1)


def test_windows_alternate_and_a_failed_one_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Process:
        pid = 1

        def poll(self) -> None:
            return None

    def load(target: loads.Target, *_: object) -> Window:
        order.append("first" if target.port == 1 else "second")
        if len(order) == 6:
            raise ValueError("no words")
        return window()

    def prepare(site: Site) -> servers.Command:
        raise Unavailable("never started")

    monkeypatch.setattr(peers, "load", load)
    rivals = []
    for port, name in ((1, "first"), (2, "second")):
        site = Site(Path(), Path(), [], (port, 0, 0, 0, 0), Path())
        peer = Peer(name, name, {JSON: dialects.V2_JSON}, prepare)
        rivals.append(Running(peer, Process(), site, 0.0))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.argv", ["peers.py", "--rounds", "2", "--connections", "1"])
    made = Results((1,))
    peers._take_turns(rivals, ["simple"], [JSON], peers.arguments(), made)
    assert order == ["first", "second", "first", "second", "second", "first"]
    assert [len(windows) for windows in made.windows["simple", JSON, 1].values()] == [1, 2]
    assert made.notes == ["simple, HTTP JSON, 1 connections, first: no words"]


def test_a_process_that_is_not_there_costs_nothing() -> None:
    nobody = 2**22 + 1
    assert process_tree.cpu_seconds(nobody) == process_tree.rss_mb(nobody) == process_tree.pss_mb(nobody) == 0
    assert not process_tree.alive(nobody)


def test_an_orphan_of_a_crashed_server_is_ended() -> None:
    """The shell ends at once and leaves its child, which only the session still knows."""
    command = ["sh", "-c", "sleep 60 & echo $!"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    orphan = int(process.stdout.readline())
    process.wait()
    assert process_tree.alive(orphan)
    process_tree.end(process)
    assert process.stdout.read() == b"", "it ends when the last process that holds the pipe has ended"
    process.stdout.close()


def test_workers_have_a_table_of_ratios_of_their_own() -> None:
    results = Results((16,))
    for name in ("modserve compiled", "modserve compiled, 2 workers", "Triton"):
        results.servers.append(Server(name, name, 0.0, 0.0, 0.0, 0.0, 0.0))
        results.windows.setdefault(("simple", GRPC, 16), {})[name] = [window(3000.0 if "2" in name else 1500.0)]
    text = report.text(results, "engine", 2, "windows")
    assert "modserve compiled / others" in text
    assert "modserve compiled, 2 workers / others" in text
    assert "| simple | gRPC | 16 | 1, 1, 1 |" in text
    assert "| simple | gRPC | 16 | 2, 1, 1 |" in text
