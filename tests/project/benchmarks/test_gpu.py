"""benchmarks/gpu.py without a GPU: its plan, its memory by a fake driver, its models and its files."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import gpu
import gpu_clients
import gpu_memory
import gpu_models
import gpu_report
from fake_cuda import OUT_OF_MEMORY, FakeDriver
from gpu_memory import Gpu, NoGpuError
from gpu_report import Report, Row
from modserve.core.tensors.shared_memory import RegionSlice
from modserve.protocol.control.regions import register_cuda_json
from modserve.resources.cuda import Cuda
from modserve.resources.shared_memory import SharedMemory

ROW = Row("mlp", "GPU × 2", gpu.CUDA, 8, 1234.5, 1.234, 5.678, 0.5, 2048.4)
CPU_ROW = Row("mlp", "CPU × 1", gpu.WIRE, 1, 100.0, 10.0, 20.0, None, None)


def report() -> Report:
    engines: dict[str, object] = {"CPU × 1, mlp": {"device": "CPU"}, "GPU × 2, mlp": {"device": "GPU 0"}}
    return Report([CPU_ROW, ROW], {"CPU × 1, wire, mlp": 0.0, "GPU × 2, wire, mlp": 1e-4}, engines)


def test_the_cpu_comes_first_and_a_gpu_has_every_way_of_tensors() -> None:
    assert [(stage.label, stage.ways) for stage in gpu.stages("gpu")] == [
        ("CPU × 1", (gpu.WIRE,)),
        ("GPU × 1", (gpu.WIRE, gpu.SYSTEM, gpu.CUDA)),
        ("GPU × 2", (gpu.WIRE, gpu.SYSTEM, gpu.CUDA)),
    ]
    assert [stage.label for stage in gpu.stages("cpu")] == ["CPU × 1", "CPU × 1", "CPU × 2"]


def test_without_a_driver_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_memory, "load_driver", lambda: None)
    assert gpu.main(["--output", str(tmp_path / "gpu")]) == 3
    text = (
        "no GPU to measure: there is no driver of NVIDIA (libcuda.so.1); --device cpu tries the benchmark without one\n"
    )
    assert capsys.readouterr().err == text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        (FakeDriver(devices=0), "there is no GPU 0: the driver has 0"),
        (FakeDriver(failing=("cuInit",)), "cuInit failed with CUDA error 1"),
        (FakeDriver(failing={"cuDevicePrimaryCtxRetain": 2}), "cuDevicePrimaryCtxRetain failed with CUDA error 2"),
    ],
)
def test_a_driver_that_cannot_be_used(driver: FakeDriver, text: str) -> None:
    with pytest.raises(NoGpuError, match=text):
        Gpu(library=driver)


def test_an_engine_that_cannot_use_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_memory, "load_driver", FakeDriver)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert gpu.main(["--output", str(tmp_path / "gpu")]) == 4
    assert "has no CUDAExecutionProvider; docs/engines/gpu.md says what to install" in capsys.readouterr().err


def test_memory_of_a_gpu_reaches_the_server_and_comes_back() -> None:
    """The client's half of the fake driver makes what the server's half opens."""
    driver = FakeDriver(devices=2)
    device = Gpu(1, driver)
    assert (device.name, device.cuda_version) == ("Fake GPU 1", "13.1")
    region = device.allocate(32)
    assert driver.allocated == 2 * 1024 * 1024
    region.write(b"to the server")
    assert not driver.copying
    memory = SharedMemory(True, cuda=Cuda(lambda: driver))  # type: ignore[arg-type, return-value]
    registration, handle = register_cuda_json("g", json.dumps(region.registration).encode())
    assert (registration.device_id, registration.byte_size) == (1, 32)
    memory.register_cuda(registration, handle)
    lease, place = memory.lease(), RegionSlice("g", 16, 8)
    assert bytes(lease.read(RegionSlice("g", 0, 13))) == b"to the server"
    lease.reserve(place)
    lease.write(place, b"and back")
    assert region.read(16, 8) == b"and back"
    region.close()
    assert (driver.allocated, driver.contexts) == (0, 0)


def test_memory_that_cannot_be_shared_is_freed() -> None:
    driver = FakeDriver(failing={"cuIpcGetMemHandle": OUT_OF_MEMORY})
    device = Gpu(library=driver)
    with pytest.raises(NoGpuError, match="cuIpcGetMemHandle failed with CUDA error 2"):
        device.allocate(32)
    assert (driver.allocated, driver.contexts) == (0, 0)


def test_memory_of_the_system() -> None:
    region = gpu_memory.SystemRegion(8)
    file = Path("/dev/shm") / str(region.registration["key"]).lstrip("/")
    region.write(b"abc")
    assert (region.read(1, 2), file.read_bytes()[:3]) == (b"bc", b"abc")
    region.close()
    assert not file.exists()


def test_models_compute_what_their_weights_say(tmp_path: Path) -> None:
    sizes = gpu_models.SMALL
    mlp, conv = gpu_models.models(sizes, torch=False)
    gpu_models.write_repository(tmp_path, [mlp, conv], sizes, "KIND_GPU", 2)
    assert "instance_group { kind: KIND_GPU count: 2 gpus: [ 0 ] }" in (tmp_path / "conv" / "config.pbtxt").read_text()
    answers = {}
    for model in (mlp, conv):
        session = onnxruntime.InferenceSession(tmp_path / model.name / "1" / "model.onnx")
        (answers[model.name],) = session.run(None, {"INPUT": model.request_array()})
        assert answers[model.name].shape == (1, model.features)
        assert answers[model.name].nbytes == model.output_bytes
    expected = mlp.request_array()
    for matrix in gpu_models.mlp_weights(sizes)[:-1]:
        expected = np.maximum(expected @ matrix, 0)
    expected = expected @ gpu_models.mlp_weights(sizes)[-1]
    assert gpu_models.difference(expected, answers["mlp"]) < 1e-5
    assert answers["conv"].std() > 0
    assert gpu_models.difference(answers["mlp"], answers["mlp"] * 2) > gpu_report.TOLERANCE


def test_figures_of_the_gpu_are_the_largest_of_all() -> None:
    page = (
        '# HELP nv_gpu_utilization Utilization\nnv_gpu_utilization{gpu_uuid="a"} 0.25\n'
        'nv_gpu_utilization{gpu_uuid="b"} 0.75\nnv_gpu_memory_used_bytes{gpu_uuid="a"} 2e9\nnv_cache_entries 3\n'
    )
    assert gpu.gpu_figures(page) == {"nv_gpu_utilization": 0.75, "nv_gpu_memory_used_bytes": 2e9}
    assert gpu.gpu_figures("") == {}


def test_the_rate_is_that_of_the_time_in_which_all_clients_ran() -> None:
    runs = [[9.0, 11.0, 12.0], [10.0, 10.5, 14.0]]
    seen = gpu_clients.summary(runs)
    assert seen.requests_per_second == pytest.approx((0.5 + 1 + 1 + 1.5 / 3.5) / 2)
    assert gpu_clients.summary([[1.0, 2.0], [3.0, 5.0]]).requests_per_second == pytest.approx(2 / 4)
    assert [seen.p50_ms, seen.p99_ms] == pytest.approx([1500.0, 3455.0])


def test_files(tmp_path: Path) -> None:
    result: dict[str, object] = {"date": "2030-01-02", "command": "python benchmarks/gpu.py", "machine": {"GPU": "X"}}
    written = gpu_report.write(tmp_path / "results" / "x.1", result, report())
    assert [file.name for file in written] == ["x.1.json", "x.1.md"]
    document = json.loads(written[0].read_text())
    assert document["machine"] == {"GPU": "X"}
    assert document["rows"][1]["gpu_memory_mb"] == 2048.4
    assert document["engines"]["GPU × 2, mlp"] == {"device": "GPU 0"}
    text = written[1].read_text()
    assert "GPU X.\n\nCommand: `python benchmarks/gpu.py`.\n" in text
    assert "| mlp | CPU × 1 | wire | 1 | 100 | 10.00 | 20.00 | — | — |\n" in text
    assert "| mlp | GPU × 2 | CUDA shared memory | 8 | 1234 | 1.23 | 5.68 | 50% | 2048 |\n" in text
    assert "at most 1.0e-04 of the largest value (GPU × 2, wire, mlp)" in text


def test_figures_that_are_worth_nothing() -> None:
    measured = report()
    assert gpu_report.faults(measured, "gpu") == []
    measured.differences["GPU × 2, wire, mlp"] = float("nan")
    measured.engines["GPU × 2, mlp"] = {"device": "CPU"}
    assert gpu_report.faults(measured, "gpu") == [
        "GPU × 2, wire, mlp: the answer differs from the CPU's by nan of the largest value",
        "GPU × 2, mlp: the model runs on 'CPU'",
    ]
