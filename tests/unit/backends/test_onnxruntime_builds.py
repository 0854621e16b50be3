"""The builds of ONNX Runtime: which one is there, and why a provider of it cannot be used."""

import importlib
import logging
import subprocess
import types
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

import modserve.backends.onnxruntime
from modserve.backends.onnxruntime import builds
from modserve.backends.onnxruntime.backend import OnnxRuntimeBackend, set_up


@pytest.fixture(autouse=True)
def first() -> None:
    """Each test has the first backend of a process."""
    set_up.cache_clear()


def test_the_log_says_what_there_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        OnnxRuntimeBackend()
    assert caplog.messages == [f"onnxruntime {ort.__version__}: {', '.join(ort.get_available_providers())}"]
    assert "CPUExecutionProvider" in caplog.messages[0]


def test_the_log_says_what_a_build_cannot_use(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modserve.backends.onnxruntime.backend._gpu_devices", lambda: ["nvidia1", "nvidia0"])
    with caplog.at_level(logging.INFO):
        OnnxRuntimeBackend()
    assert caplog.messages[1].startswith("this build of ONNX Runtime cannot use the GPUs of this machine (nvidia0, ")
    OnnxRuntimeBackend()
    assert len(caplog.messages) == 2, "it is said once"
    caplog.clear()
    set_up.cache_clear()
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with caplog.at_level(logging.INFO):
        OnnxRuntimeBackend()
    assert len(caplog.messages) == 1


def test_the_log_warns_of_two_distributions(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "find_installed", lambda: {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"})
    OnnxRuntimeBackend()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().startswith("onnxruntime 1.31.1 and onnxruntime-gpu 1.31.1 are installed over each other")


def test_what_is_installed_here() -> None:
    assert builds.find_installed() == {"onnxruntime": ort.__version__}
    assert builds.find_loaded_distribution() == "onnxruntime"


def test_files_that_are_gone_are_not_an_error_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """What uninstalling one of two distributions leaves is a folder that can be imported, and has nothing in it."""
    monkeypatch.delattr(ort, "InferenceSession")
    missing = r"files of ONNX Runtime are missing, .*: pip install --force-reinstall --no-deps onnxruntime"
    with pytest.raises(ImportError, match=missing):
        importlib.reload(modserve.backends.onnxruntime)


ANEW = "pip install --force-reinstall --no-deps"


@pytest.mark.parametrize(
    ("distributions", "loaded", "commands"),
    [
        ({"onnxruntime": "2"}, "onnxruntime", ""),
        ({"onnxruntime-gpu": "2"}, "onnxruntime-gpu", ""),
        ({}, "", ""),
        ({"onnxruntime": "2", "onnxruntime-gpu": "2"}, "onnxruntime-gpu", ""),
        ({"onnxruntime": "2", "onnxruntime-gpu": "2"}, "onnxruntime", f"{ANEW} onnxruntime-gpu==2"),
        (
            {"onnxruntime": "3", "onnxruntime-gpu": "2"},
            "onnxruntime-gpu",
            f"{ANEW} onnxruntime==2 && {ANEW} onnxruntime-gpu==2",
        ),
        (
            {"onnxruntime": "2", "onnxruntime-gpu": "2", "onnxruntime-openvino": "2"},
            "onnxruntime-openvino",
            f"pip uninstall -y onnxruntime-gpu && {ANEW} onnxruntime-openvino==2",
        ),
        ({"onnxruntime": "2", "onnxruntime-qnn": "2"}, "", f"{ANEW} onnxruntime-qnn==2"),
    ],
    ids=["plain", "gpu", "none", "gpu on top", "plain on top", "versions", "three", "unknown"],
)
def test_distributions_that_share_their_files(distributions: dict[str, str], loaded: str, commands: str) -> None:
    warning = builds.conflict(distributions, loaded)
    assert warning.rpartition(": ")[2] == commands
    if commands:
        assert f"the files are those of {loaded or 'an unknown one'}" in warning


# Why a provider cannot be used

CUDA_LOG = (
    "\x1b[0;93m2026-11-22 09:04:40.407897462 [W:onnxruntime:Default, onnxruntime_pybind_state.cc:856 operator()] No "
    "registered plugin EP device found\x1b[m\n"
    "\x1b[1;31m2026-11-22 09:04:40.429 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] /provider.cc:"
    "2043 Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library /lib/libcuda_provider.so with error: "
    "libcublasLt.so.13: cannot open shared object file: No such file or directory\n\x1b[m\n"
)
OPENVINO_LOG = (
    "2026-11-22 09:15:53.0 [E:onnxruntime:Default, provider_bridge_ort.cc:2310 Create] /x.cc:141 std::string "
    "onnxruntime::openvino_ep::ParseDeviceType() [ERROR] [OpenVINO] Device NPU is not available\n"
)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            CUDA_LOG,
            "Failed to load library /lib/libcuda_provider.so with error: libcublasLt.so.13: cannot open shared object "
            "file: No such file or directory",
        ),
        (OPENVINO_LOG, "[OpenVINO] Device NPU is not available"),
        (CUDA_LOG.splitlines()[0], "No registered plugin EP device found"),
        ("Traceback\nRuntimeError: something\n", ""),
        ("", ""),
    ],
    ids=["cuda", "openvino", "warning", "another", "nothing"],
)
def test_the_reason_in_the_log(log: str, reason: str) -> None:
    assert builds.reason(log) == reason


def test_the_reason_is_sought_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **more: Any) -> Any:
        commands.append(command)
        return types.SimpleNamespace(stderr=OPENVINO_LOG)

    monkeypatch.setattr(subprocess, "run", run)
    assert builds.why_unusable("OpenVINOExecutionProvider", {"device_type": "NPU"}).endswith("NPU is not available")
    assert commands[0][-3:] == ["OpenVINOExecutionProvider", '{"device_type": "NPU"}', ""]
    model = bytes.fromhex(commands[0][-4])
    assert ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"X": [1.0]})[0].tolist() == [1]


@pytest.mark.parametrize("failure", [OSError("no process"), subprocess.TimeoutExpired("python", 60)], ids=repr)
def test_a_process_that_cannot_say(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def run(*arguments: Any, **more: Any) -> Any:
        raise failure

    monkeypatch.setattr(subprocess, "run", run)
    assert builds.why_unusable("CUDAExecutionProvider", {}) == ""


# CUDA's libraries, as pip installs them


@pytest.mark.parametrize(
    ("providers", "folder", "expected"),
    [
        (["CUDAExecutionProvider", "CPUExecutionProvider"], True, 1),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], False, 0),
        (["CPUExecutionProvider"], True, 0),
    ],
    ids=["wheels", "no wheels", "no gpu"],
)
def test_libraries_of_wheels_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, providers: list[str], folder: bool, expected: int
) -> None:
    calls: list[int] = []
    (tmp_path / "onnxruntime").mkdir()
    if folder:
        (tmp_path / "nvidia").mkdir()
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "onnxruntime" / "__init__.py"))
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    monkeypatch.setattr(ort, "preload_dlls", lambda: calls.append(1))
    OnnxRuntimeBackend()
    assert len(calls) == expected
