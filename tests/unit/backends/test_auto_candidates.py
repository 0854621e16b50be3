"""Which engines take a file, which of them can run here, and what users may say about it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from modserve.backends import catalogue
from modserve.backends.api import ModelSource
from modserve.backends.auto.candidates import (
    FORMATS,
    FP32,
    Candidate,
    find_artifact,
    hindrance,
    missing_package,
    read_cpu,
    this_cpu,
)
from modserve.backends.auto.options import AutoOptions, Tolerance, engine_parameters, read_options, warnings
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError
from modserve.core.pip_command import pip_install

X86 = """processor	: 0
model name	: AMD EPYC
flags		: fpu avx2 avx512_bf16

processor	: 1
model name	: another
flags		: fpu
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU part\t: 0xd4f\n"


def test_what_linux_says_of_a_cpu() -> None:
    assert (read_cpu(X86).model, sorted(read_cpu(X86).flags)) == ("AMD EPYC", ["avx2", "avx512_bf16", "fpu"])
    assert (read_cpu(ARM).model, sorted(read_cpu(ARM).flags)) == ("0xd4f", ["asimd", "bf16", "fp"])
    assert read_cpu("").flags == frozenset()
    assert this_cpu().model


def test_the_reference_of_every_format_has_full_precision() -> None:
    assert all(each.candidates[0].precision == FP32 for each in FORMATS)
    assert all(len({one.name for one in each.candidates}) == len(each.candidates) for each in FORMATS)


@pytest.mark.parametrize(
    ("available", "flags", "why"),
    [
        (["openvino"], ["amx_bf16"], ""),
        (["openvino"], ["avx512f"], "this CPU cannot compute bf16: it needs one of avx512_bf16, amx_bf16"),
        (["onnxruntime"], ["amx_bf16"], f"OpenVINO is not installed: {pip_install('openvino')}"),
    ],
)
def test_what_is_in_the_way(available: list[str], flags: list[str], why: str) -> None:
    candidate = Candidate("openvino", "bf16", needs=("avx512_bf16", "amx_bf16"))
    assert hindrance(candidate, available, flags) == why
    assert hindrance(Candidate("made_up"), available, flags) == "made_up is not installed"


def test_a_package_that_int8_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    (onnx,) = (each for each in FORMATS if each.name == "ONNX")
    by_name = {each.name: each for each in onnx.candidates}
    assert list(by_name) == ["onnxruntime fp32", "openvino fp32", "openvino bf16", "onnxruntime int8", "openvino int8"]
    assert missing_package(by_name["onnxruntime int8"]) == ""
    monkeypatch.setattr(catalogue, "is_installed", lambda module: False)
    wants = f"int8 needs the package onnx: {pip_install('quantization')}"
    assert missing_package(by_name["onnxruntime int8"]) == wants
    assert missing_package(by_name["openvino int8"]) == ""
    assert hindrance(by_name["openvino int8"], ["openvino"], ["avx_vnni"]) == ""
    assert "this CPU cannot compute int8" in hindrance(by_name["openvino int8"], ["openvino"], ["avx2"])


def version_directory(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("names", "file", "format"),
    [
        (["model.onnx", "model.onnx.data", "notes.txt"], "model.onnx", "ONNX"),
        (["model.xml", "model.bin"], "model.xml", "OpenVINO IR"),
        (["model.pt", "model.onnx"], "model.onnx", "ONNX"),
        (["other.pt", "model.tflite"], "model.tflite", "TensorFlow Lite"),
        (["roberta.torchscript"], "roberta.torchscript", "TorchScript"),
        (["model.savedmodel/saved_model.pb"], "model.savedmodel", "TensorFlow SavedModel"),
        (["nmp/saved_model.pb"], "nmp", "TensorFlow SavedModel"),
        (["model.pb"], "model.pb", "TensorFlow graph"),
        (["model.onnx/model.onnx", "model.onnx/weights"], "model.onnx", "ONNX"),
    ],
)
def test_the_file_in_a_version_directory(tmp_path: Path, names: list[str], file: str, format: str) -> None:
    artifact = find_artifact(version_directory(tmp_path, *names), "m")
    assert (artifact.path, artifact.format.name) == (tmp_path / file, format)
    assert find_artifact(tmp_path / file, "m") == artifact


def test_a_version_directory_that_is_a_saved_model(tmp_path: Path) -> None:
    version_directory(tmp_path, "saved_model.pb", "variables/variables.index")
    for path in (tmp_path, tmp_path / "saved_model.pb"):
        artifact = find_artifact(path, "m")
        assert (artifact.path, artifact.format.name) == (tmp_path, "TensorFlow SavedModel")


@pytest.mark.parametrize(
    ("names", "file", "message"),
    [
        ([], "", "is empty; backend 'auto' takes ONNX (.onnx), OpenVINO IR (.xml)"),
        (["model.gguf"], "", "holds model.gguf; backend"),
        (["a.onnx", "b.pt"], "", "holds several models (a.onnx, b.pt): 'default_model_filename' names one"),
        (["model.gguf"], "model.gguf", "is a file of another format; backend"),
        (["a.onnx"], "model.onnx", "unable to find model file"),
    ],
)
def test_no_file_that_an_engine_takes(tmp_path: Path, names: list[str], file: str, message: str) -> None:
    version_directory(tmp_path, *names)
    with pytest.raises(ModserveError) as caught:
        find_artifact(tmp_path / file, "m")
    assert caught.value.code is Code.INVALID_ARG
    assert message in caught.value.message
    assert "'m'" in caught.value.message


CONFIG = ModelConfig("m", "auto")
SOURCE = ModelSource(CONFIG, 1, Path("m/1"), Path("m"))


def options(parameters: dict[str, str], server: dict[str, str] | None = None) -> AutoOptions:
    return read_options(replace(SOURCE, config=replace(CONFIG, parameters=parameters), options=server or {}))


def test_options_of_the_model_win_over_those_of_the_server() -> None:
    server = {"tolerance": "exact", "budget-seconds": "3", "engines": "openvino", "cache-dir": "/somewhere"}
    assert options({}, server) == AutoOptions(
        Tolerance(0.0), 3.0, engines=("openvino",), cache_directory=Path("/somewhere")
    )
    model = {"tolerance": "0.05", "objective": "latency", "engines": "openvino, onnxruntime", "sample_shape": "128"}
    assert options(model, server) == AutoOptions(
        Tolerance(0.05, reduced=True), 3.0, "latency", "128", ("openvino", "onnxruntime"), (), Path("/somewhere")
    )


@pytest.mark.parametrize("text", ["", "none"])
def test_without_a_cache(text: str) -> None:
    assert options({}, {"cache-dir": text}).cache_directory is None


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert options({}).cache_directory == Path("/caches/modserve/engines")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert options({}).cache_directory == Path("/home/somebody/.cache/modserve/engines")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home
    assert options({}).cache_directory is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tolerance", "small", "parameter 'tolerance' is 'small', expected 'exact' or a number above 0"),
        ("tolerance", "-1", "parameter 'tolerance' is '-1'"),
        ("tolerance", "nan", "parameter 'tolerance' is 'nan'"),
        ("budget_seconds", "0", "parameter 'budget_seconds' is '0', expected a number of seconds above 0"),
        ("objective", "fun", "parameter 'objective' is 'fun', expected one of: latency, throughput"),
        ("tune", "threads", "parameter 'tune' names 'threads', expected some of batch, instances"),
        ("engines", "openvion", "parameter 'engines' names 'openvion', expected some of onnxruntime, openvino"),
    ],
)
def test_options_that_are_no_good(key: str, value: str, message: str) -> None:
    with pytest.raises(ModserveError, match="model 'm'") as caught:
        options({key: value})
    assert message in caught.value.message
    with pytest.raises(ModserveError, match="backend option"):
        options({}, {key.replace("_", "-"): value})


def test_what_an_engine_gets_of_the_parameters() -> None:
    parameters = {"tolerance": "1", "openvino.NUM_STREAMS": "2", "onnxruntime.x": "3", "padding.axes": "IN"}
    config = replace(CONFIG, parameters=parameters)
    assert engine_parameters(config, "openvino", {"HINT": "f32"}) == {
        "NUM_STREAMS": "2",
        "padding.axes": "IN",
        "HINT": "f32",
    }
    assert warnings(config) == []


def test_what_has_no_effect() -> None:
    config = replace(CONFIG, parameters={"tolerence": "1", "padding.axes": "IN"})
    (warning,) = warnings(config)
    assert "parameter 'tolerence' has no effect" in warning
    assert "did you mean 'tolerance'?" in warning
    modular = replace(config, backend="modular", parameters={"pretty-print": "1", "serialize": "0", "engines": ""})
    (warning,) = warnings(modular)
    assert warning.endswith("ignores these parameters: 'pretty-print', 'serialize'")
