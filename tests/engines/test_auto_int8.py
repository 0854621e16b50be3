"""int8 where a tolerance asks for it: real networks, and a server whose second start measures nothing."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rows import FORMS, NETWORKS
from model_packages import place
from server_process import LOADED, ServerProcess, started
from tritonclient import http as triton

from modserve.backends.auto.candidates import FORMATS as FORMATS_OF_FILES
from modserve.backends.auto.candidates import INT8, hindrance, this_cpu

pytest.importorskip("onnx")
pytest.importorskip("modserve.backends.openvino.backend")

_INT8 = [each for each in FORMATS_OF_FILES[0].candidates if each.precision == INT8]
pytestmark = pytest.mark.skipif(
    any(hindrance(each, ["onnxruntime", "openvino"], this_cpu().flags) for each in _INT8),
    reason="this CPU does not add up products of 8-bit integers",
)

LOAD_SECONDS = 300.0
MINILM = NETWORKS["minilm"]
CONFIG = """
backend: "auto"
max_batch_size: 4
parameters {{ key: "tolerance" value {{ string_value: "{tolerance}" }} }}
parameters {{ key: "engines" value {{ string_value: "{engines}" }} }}
parameters {{ key: "budget_seconds" value {{ string_value: "120" }} }}
"""


@contextmanager
def serving(directory: Path) -> Iterator[ServerProcess]:
    options = [f"--backend-config=auto,cache-dir={directory / 'cache'}"]
    with started(directory / "models", options=options) as server:
        server.wait_for(LOADED, LOAD_SECONDS)
        yield server
        server.stop()


def report_of(server: ServerProcess, model: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/v2/models/{model}/engine") as response:
        report: dict[str, Any] = json.load(response)
    return report


def embeddings(server: ServerProcess, model: str) -> Any:
    with triton.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        tensors = []
        for name, array in MINILM.arrays().items():
            tensors.append(triton.InferInput(name, list(array.shape), "INT64"))
            tensors[-1].set_data_from_numpy(array)
        return client.infer(model, tensors).as_numpy("token_embeddings")


def rows(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {f"{row['backend']} {row['precision']}": row for row in report["candidates"]}


def test_the_second_start_measures_nothing(tmp_path: Path) -> None:
    """MiniLM by either engine: what was chosen, its figures and its error come back, and the outputs are the same."""
    form = FORMS["minilm_onnx"]
    for engine in ("onnxruntime", "openvino"):
        config = CONFIG.format(tolerance=0.5, engines=engine)
        place(form.path(), tmp_path / "models" / engine, config, form.filename)
    exact = 'backend: "onnxruntime" max_batch_size: 4'
    place(form.path(), tmp_path / "models" / "exact", exact, form.filename)
    seen: list[dict[str, dict[str, Any]]] = []
    outputs: list[dict[str, Any]] = []
    for _ in range(2):
        with serving(tmp_path) as server:
            seen.append({engine: report_of(server, engine) for engine in ("onnxruntime", "openvino")})
            outputs.append({name: embeddings(server, name) for name in ("onnxruntime", "openvino", "exact")})
            listed = [sys.executable, "-m", "modserve", "models", "openvino", "--url", f"127.0.0.1:{server.http_port}"]
            text = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
            assert f"engine of version 1: {seen[-1]['openvino']['reason']}" in text
            assert server.log.count("→") == 2, "a table for each model"
            assert server.log.count("(measured before)") == (0 if len(seen) == 1 else 2)
    first, second = seen
    for engine, report in first.items():
        measured = rows(report)
        assert report["samples"] == "generated data"
        assert 1e-4 < measured[f"{engine} int8"]["error"] < 0.5
        assert measured[f"{engine} int8"]["seconds"] > 0
        for key in report.keys() - {"from_cache", "shared_session"}:
            assert second[engine][key] == report[key]
        assert second[engine]["from_cache"]
        assert not report["from_cache"]
        np.testing.assert_array_equal(outputs[0][engine], outputs[1][engine])
        largest = np.abs(outputs[0]["exact"]).max()
        assert np.abs(outputs[0][engine] - outputs[0]["exact"]).max() < 0.5 * largest
    files = list((tmp_path / "cache" / "quantized").iterdir())
    assert len(files) == (first["onnxruntime"]["precision"] == "int8"), "that of a model that serves is kept"


def test_what_the_tolerance_rules_out(tmp_path: Path) -> None:
    """basic-pitch has no matrix products; the error of MiniLM in int8 is above 0.01. The quantised file is not kept."""
    pitch, minilm = FORMS["pitch_onnx"], FORMS["minilm_onnx"]
    config = CONFIG.format(tolerance=0.01, engines="onnxruntime,openvino")
    place(pitch.path(), tmp_path / "models" / "pitch", config, pitch.filename)
    place(minilm.path(), tmp_path / "models" / "minilm", config, minilm.filename)
    with serving(tmp_path) as server:
        reports = {name: report_of(server, name) for name in ("pitch", "minilm")}
    of_pitch, of_minilm = rows(reports["pitch"]), rows(reports["minilm"])
    assert "it has no MatMul, Gemm, Attention or LSTM" in of_pitch["onnxruntime int8"]["why"]
    assert "no large constant matrix to multiply by" in of_pitch["openvino int8"]["why"]
    for engine in ("onnxruntime", "openvino"):
        row = of_minilm[f"{engine} int8"]
        assert row["error"] > 0.01
        assert "its outputs differ from those of ONNX Runtime fp32" in row["why"]
    assert {report["precision"] for report in reports.values()} <= {"fp32", "bf16"}
    assert list((tmp_path / "cache" / "quantized").iterdir()) == []
