"""The fastest engine is chosen among real ones: by the library, and by a server process that others call."""

import json
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_process import serving
from tritonclient import http as triton

from modserve import InferenceServer, Settings
from modserve.core.lifecycle import LifecycleState
from modserve.protocol.control import metadata

onnx = pytest.importorskip("onnx")
pytest.importorskip("modserve.backends.openvino.backend")

from onnx import TensorProto, helper, numpy_helper

PAGE = Path(__file__).parents[2] / "docs" / "engines" / "auto.md"
WIDE = 256
BUDGET = 'parameters { key: "budget_seconds" value { string_value: "1" } }'
BF16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else False


def write_network(directory: Path, name: str, config: str, file: str = "model.onnx", width: int = 64) -> None:
    """INPUT0 [-1, width] → OUTPUT0 [-1, 16], over two dense layers."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 16, label)
        for label, shape in (("W0", (width, WIDE)), ("W1", (WIDE, 16)))
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["INPUT0", "W0"], ["H0"]),
            helper.make_node("Relu", ["H0"], ["H1"]),
            helper.make_node("MatMul", ["H1", "W1"], ["OUTPUT0"]),
        ],
        name,
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["batch", 16])],
        weights,
    )
    place = directory / name / "1"
    place.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), place / file)
    (directory / name / "config.pbtxt").write_text(config)


def write_text_model(directory: Path, name: str) -> None:
    """Gives back texts, which OpenVINO does not take."""
    texts = [helper.make_tensor_value_info(side, TensorProto.STRING, ["batch", 1]) for side in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Identity", ["IN"], ["OUT"])], name, texts[:1], texts[1:])
    place = directory / name / "1"
    place.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), place / "model.onnx")
    (directory / name / "config.pbtxt").write_text(f'backend: "auto" {BUDGET}')


def settings(directory: Path, **auto: str) -> Settings:
    return Settings(
        model_repository=directory / "models", backend_config={"auto": {"cache-dir": str(directory / "cache"), **auto}}
    )


async def report_and_output(directory: Path, name: str, inputs: Any, **auto: str) -> tuple[dict[str, Any], Any]:
    async with InferenceServer(settings(directory, **auto)) as server:
        (entry,) = server.index()
        assert entry.state is LifecycleState.READY, entry.reason
        response = await server.infer(name, inputs)
        (output,) = response.outputs.values()
        return metadata.engine_json(server.model(name)), output.array


def rows(report: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(row["backend"], row["precision"]): row for row in report["candidates"]}


X = {"INPUT0": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)}


async def test_onnx_runtime_and_openvino_are_compared(tmp_path: Path) -> None:
    write_network(tmp_path / "models", "net", f'backend: "auto" max_batch_size: 8 {BUDGET}')
    report, output = await report_and_output(tmp_path, "net", X)
    measured = rows(report)
    runtime, openvino = measured["onnxruntime", "fp32"], measured["openvino", "fp32"]
    assert runtime["seconds"] > 0
    assert openvino["seconds"] > 0
    assert runtime["error"] == 0
    assert openvino["error"] < 1e-4
    assert "why" in measured["openvino", "bf16"]
    chosen = measured[report["chosen_backend"], report["precision"]]
    assert chosen["seconds"] <= 1.031 * min(row["seconds"] for row in (runtime, openvino))
    assert (report["engine"], report["version"]) == (chosen["engine"], chosen["version"])
    write_network(tmp_path / "plain" / "models", "net", 'backend: "onnxruntime" max_batch_size: 8')
    _, expected = await report_and_output(tmp_path / "plain", "net", X)
    np.testing.assert_allclose(output, expected, atol=1e-4)


async def test_the_second_start_measures_nothing(tmp_path: Path) -> None:
    write_network(tmp_path / "models", "net", f'backend: "auto" {BUDGET}')
    first, expected = await report_and_output(tmp_path, "net", X)
    again, output = await report_and_output(tmp_path, "net", X)
    assert (first["from_cache"], again["from_cache"]) == (False, True)
    assert again["candidates"] == first["candidates"]
    assert output.tolist() == expected.tolist()


@pytest.mark.skipif(not BF16, reason="this CPU has no AVX512-BF16")
async def test_bf16_is_measured_if_the_tolerance_admits_it(tmp_path: Path) -> None:
    write_network(tmp_path / "models", "net", f'backend: "auto" {BUDGET}')
    report, _ = await report_and_output(tmp_path, "net", X, tolerance="0.1")
    bf16 = rows(report)["openvino", "bf16"]
    assert "why" not in bf16
    assert 1e-5 < bf16["error"] < 0.1
    strict, _ = await report_and_output(tmp_path, "net", X, tolerance="1e-5")
    assert "its outputs differ from those of ONNX Runtime fp32" in rows(strict)["openvino", "bf16"]["why"]


async def test_an_engine_that_does_not_take_the_model_is_a_row(tmp_path: Path) -> None:
    write_text_model(tmp_path / "models", "echo")
    report, output = await report_and_output(tmp_path, "echo", {"IN": np.array([[b"a text"]], object)})
    assert output.tolist() == [[b"a text"]]
    assert report["chosen_backend"] == "onnxruntime"
    assert rows(report)["openvino", "fp32"]["why"]


async def test_a_file_that_no_engine_can_read(tmp_path: Path) -> None:
    write_network(tmp_path / "models", "net", 'backend: "auto"')
    file = tmp_path / "models" / "net" / "1" / "model.onnx"
    file.write_bytes(file.read_bytes()[:100])
    async with InferenceServer(settings(tmp_path)) as server:
        (entry,) = server.index()
    assert entry.state is LifecycleState.UNAVAILABLE
    assert re.search(r"no engine can serve .*\n  ONNX Runtime fp32: .+\n  OpenVINO fp32: .+", entry.reason)


async def test_the_configuration_of_the_page(tmp_path: Path) -> None:
    blocks = re.findall(r"^```protobuf\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    write_network(tmp_path / "models", "net", max(blocks, key=len))
    report, _ = await report_and_output(tmp_path, "net", X)
    assert (report["samples"], report["batch_size"], report["tolerance"]) == ("model_warmup", 8, "0.05")


def test_a_server_process_and_tritons_client(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_network(models, "net", f'backend: "auto" max_batch_size: 8 {BUDGET}')
    modular = f'backend: "modular" default_model_filename: "net.onnx" instance_group {{ kind: KIND_CPU }} {BUDGET}'
    write_network(models, "modular", modular, "net.onnx")
    options = [f"--backend-config=auto,cache-dir={tmp_path / 'cache'}", "--backend-config=modular,cache-dir=none"]
    with serving(models, options=options) as server:
        assert "as fast as" in server.log or "may be noise" in server.log
        with triton.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
            tensor = triton.InferInput("INPUT0", [4, 64], "FP32")
            tensor.set_data_from_numpy(X["INPUT0"])
            outputs = [client.infer(name, [tensor]).as_numpy("OUTPUT0") for name in ("net", "modular")]
        np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-4)
        for name in ("net", "modular"):
            with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/v2/models/{name}/engine") as response:
                report = json.load(response)
            assert report["backend"] == ("auto" if name == "net" else "modular")
            assert len(report["candidates"]) == 5
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as response:
            page = response.read().decode()
    assert re.search(r'^modserve_engine_info\{backend="auto",.*model="net"', page, re.MULTILINE)
    assert len(re.findall(r'^modserve_engine_candidate_seconds\{.*model="net"', page, re.MULTILINE)) == 2
