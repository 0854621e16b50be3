"""The benchmark of Python models: its options, repositories and requests, and what it makes of the figures."""

import ast
import threading
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import bar_chart
import python_backend
import python_workloads
from bar_chart import Panel
from modserve.pb import inference as pb
from overhead import Contender, Load, ServerProcess
from python_backend import PROCESS, THREAD, TRITON, Entry

NAMES = [path.name for path in sorted(python_workloads.MODELS.iterdir())]
H2LOAD = """finished in 2.00s, 2032.00 req/s, 493.16KB/s
requests: 4 total, 5 started, 4 done, 4 succeeded, 0 failed, 0 errored, 0 timeout
traffic: 1.2KB (1200) total, 12B (12) headers (space savings 96.11%), 800B (800) data
"""
LOG = "1\t200\t10\n2\t200\t30\n3\t200\t20\n4\t200\t40\n"


def contender(name: str, per_second: float) -> Contender:
    """With two windows of add_sub and of bls, at 1 client over HTTP."""
    target = ServerProcess(pid=0, http=1, grpc=2, metrics=3, start_seconds=0.5, ready_rss_mb=100)
    plain = [Load(per_second * factor, 100, 200, 300, 1e6 / per_second, 10) for factor in (1, 3)]
    calling = [Load(per_second, 100 + 1e5 / per_second, 900, 900, 3e6 / per_second, 10)] * 2
    return Contender(name, target, {("add_sub, HTTP", 1): plain, ("bls, HTTP", 1): calling})


SERVED = [contender(PROCESS, 2000), contender(THREAD, 4000), contender(TRITON, 1000)]


def test_each_model_has_a_workload() -> None:
    assert sorted(python_workloads.workloads()) == NAMES


@pytest.mark.parametrize("mode", ["", "thread"])
def test_repository(tmp_path: Path, mode: str) -> None:
    written = python_workloads.write_repository(tmp_path, NAMES, mode)
    for name in NAMES:
        ast.parse((written / name / "1" / "model.py").read_text())
        config = (written / name / "config.pbtxt").read_text()
        assert 'backend: "python"' in config
        assert ("EXECUTION_MODE" in config) is bool(mode)
    assert (written / "onnx_inside" / "1" / "perceptron.onnx").stat().st_size > 3 * 64 * 64 * 4


def test_bls_brings_the_model_that_it_calls(tmp_path: Path) -> None:
    written = python_workloads.write_repository(tmp_path, ["bls"])
    assert sorted(path.name for path in written.iterdir()) == ["add_sub", "bls"]


def test_requests() -> None:
    known = python_workloads.workloads()
    verb, body, length = python_workloads.http_body(known["add_sub"])
    assert verb == "infer"
    assert length is not None
    assert body[length:] == b"".join(array.tobytes() for array in known["add_sub"].inputs.values())
    assert python_workloads.http_body(known["numbers"]) == ("generate_stream", b'{"COUNT":[100]}', None)

    method, wire = python_workloads.grpc_body(known["numbers"])
    message = pb.ModelInferRequest.FromString(wire[5:])
    assert method == "ModelStreamInfer"
    assert int.from_bytes(wire[1:5], "big") == len(wire) - 5
    assert message.model_name == "numbers"
    assert np.frombuffer(message.raw_input_contents[0], np.int32).tolist() == [100]


def test_what_h2load_says() -> None:
    assert python_backend.read_h2load(H2LOAD, LOG, cpu_seconds=1.0, least=200) == Load(2032, 30, 40, 40, 250_000, 4)


@pytest.mark.parametrize(
    ("text", "least", "message"),
    [
        (H2LOAD, 201, "fewer than 201 bytes"),
        (H2LOAD.replace("4 succeeded", "3 succeeded"), 1, "h2load saw failures"),
        (H2LOAD.replace("4 done, 4 succeeded", "0 done, 0 succeeded"), 1, "longer ones"),
        ("", 1, "h2load saw failures"),
    ],
)
def test_failures_are_no_measurement(text: str, least: int, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        python_backend.read_h2load(text, LOG, 1.0, least)


def test_options() -> None:
    options = python_backend.parser(NAMES)
    assert options.parse_args([]).clients == [1, 8, 32]
    assert options.parse_args([]).models == NAMES
    chosen = options.parse_args(["--models", "bls,add_sub", "--protocols", "gRPC", "--clients", "2,4"])
    assert (chosen.models, chosen.protocols, chosen.clients) == (["add_sub", "bls"], ["gRPC"], [2, 4])
    assert (options.parse_args([]).busy, options.parse_args(["--busy", "2"]).busy) == (0, 2)


def test_busy_loops_end_with_the_measurement() -> None:
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    with python_backend.busy_loops(2):
        assert len(children.read_text().split()) == len(before.split()) + 2
    assert children.read_text() == before


def test_unknown_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        python_backend.parser(NAMES).parse_args(["--models", "add_sub,other"])
    assert "other; known are add_sub" in capsys.readouterr().err


def test_ratios_stand_beside_the_figures() -> None:
    table = python_backend.loads_table(python_workloads.workloads()["add_sub"], SERVED)
    assert table[-3:] == [
        "| HTTP | 1 | modserve, process | 4,000 (2,000–6,000) | 2.00 (2.00–2.00) | 0.10 ms | 0.20 ms "
        "| 500 (500–500) µs | 0.50 (0.50–0.50) |",
        "| HTTP | 1 | modserve, thread | 8,000 (4,000–12,000) | 4.00 (4.00–4.00) | 0.10 ms | 0.20 ms "
        "| 250 (250–250) µs | 0.25 (0.25–0.25) |",
        "| HTTP | 1 | Triton | 2,000 (1,000–3,000) |  | 0.10 ms | 0.20 ms | 1,000 (1,000–1,000) µs |  |",
    ]


def test_cost_of_a_bls_call() -> None:
    table = python_backend.bls_table(SERVED)
    assert table[-3:] == [
        "| HTTP | 1 | modserve, process | 50 (50–50) µs | 0.50 | 1,000 (1,000–1,000) µs | 0.50 |",
        "| HTTP | 1 | modserve, thread | 25 (25–25) µs | 0.25 | 500 (500–500) µs | 0.25 |",
        "| HTTP | 1 | Triton | 100 (100–100) µs |  | 2,000 (2,000–2,000) µs |  |",
    ]


def test_summary_for_the_page() -> None:
    known = python_workloads.workloads()
    table = python_backend.summary([known["add_sub"]], SERVED)
    assert table[1] == "With 1 client:"
    assert table[-3:] == [
        "| `add_sub` | HTTP | modserve, process | 4,000 | 2.00 | 0.20 | 500 | 0.50 |",
        "| `add_sub` | HTTP | modserve, thread | 8,000 | 4.00 | 0.20 | 250 | 0.25 |",
        "| `add_sub` | HTTP | Triton | 2,000 |  | 0.20 | 1,000 |  |",
    ]


def test_tables_without_triton() -> None:
    alone = SERVED[:1]
    assert python_backend.loads_table(python_workloads.workloads()["add_sub"], alone)[-1].endswith(" µs |  |")
    assert python_backend.bls_table(alone)[-1].endswith(" µs |  |")
    assert python_backend.bls_table([Contender(PROCESS, SERVED[0].target)]) == []


def test_memory() -> None:
    entry = Entry(SERVED[0], NAMES, {"when READY": 100.4, "at the end": 120.0})
    assert python_backend.memory_table([entry])[-1] == (
        f"| modserve, process, {len(NAMES)} models | 0.50 s | 100 MB | 120 MB |"
    )


def test_picture_has_a_bar_for_each_server() -> None:
    known = python_workloads.workloads()
    root = ET.fromstring(python_backend.picture([known["add_sub"], known["bls"]], SERVED))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {PROCESS, THREAD, TRITON, "bls, HTTP: CPU ms/request", "1 client", "8.0k"} <= set(texts)
    # The ground, three squares of the legend, and three bars in each of two panels for each of two models.
    assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) == 1 + 3 + 2 * 2 * 3


def test_bars_of_series_that_are_missing_leave_a_gap() -> None:
    root = ET.fromstring(bar_chart.draw([[Panel("<a & b>", {"x": {"one": 1.0}}), Panel("none", {})]], ["one", "two"]))
    assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) == 1 + 2 + 1


@pytest.mark.parametrize(
    ("value", "text"), [(0.423, "0.42"), (7.31, "7.3"), (812, "812"), (6543, "6.5k"), (2e4, "20k")]
)
def test_short_numbers(value: float, text: str) -> None:
    assert bar_chart.short(value) == text
