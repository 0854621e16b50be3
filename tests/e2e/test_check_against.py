"""``modserve check --against``: a repository compared with a server that has others of the same names."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from open_server import OpenServer
from repositories import (
    EXAMPLES,
    copy_example,
    write_accumulator,
    write_identity,
    write_onnx_identity,
    write_sequence_echo,
)
from server_process import ServerProcess

ECHO = 'direct { } control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }'


def write_scale(repository: Path, name: str, factor: float) -> None:
    """OUTPUT is INPUT (FP32 [-1, 8]) times a weight."""
    weight = numpy_helper.from_array(np.array(factor, np.float32), "W")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["INPUT", "W"], ["OUTPUT"])],
        name,
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["batch", 8])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (repository / name / "1").mkdir(parents=True)
    onnx.save(model, repository / name / "1" / "model.onnx")


def check(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODSERVE_")}
    command = [sys.executable, "-m", "modserve", "check", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`here` is checked, and `there` is what another server has."""
    folder = tmp_path_factory.mktemp("compared")
    here, there = folder / "here", folder / "there"
    for repository in (here, there):
        copy_example(repository, "simple", "simple")
        copy_example(repository, "repeat", "repeat")
        copy_example(repository, "digits", "digits")
        for datatype in ("BYTES", "FP16", "BF16", "BOOL", "UINT64"):
            write_identity(repository, f"identity_{datatype}", datatype)
        write_accumulator(repository, "sums", "direct { }")
        write_sequence_echo(repository, "echo", "oldest { max_candidate_sequences: 2 }", id_type="BYTES")
    write_scale(here, "weights", 1.0)
    write_scale(there, "weights", 1.01)
    write_scale(here, "rounding", 1.0)
    write_scale(there, "rounding", 1.0001)
    write_onnx_identity(here, "types", "FP32")
    write_onnx_identity(there, "types", "INT32")
    copy_example(here, "simple", "batch")
    copy_example(there, "simple", "batch")
    config = there / "batch" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
    copy_example(here, "simple", "settings", "instance_group { count: 3 }")
    copy_example(there, "simple", "settings", "response_cache { enable: true } instance_group { count: 1 }")
    copy_example(here, "simple", "versions", "version_policy { all { } }")
    shutil.copytree(here / "versions" / "1", here / "versions" / "2")
    copy_example(there, "simple", "versions")
    copy_example(here, "simple", "only_here")
    copy_example(there, "simple", "only_there")
    return folder


@pytest.fixture(scope="module")
def other(folder: Path, open_server: OpenServer) -> Iterator[ServerProcess]:
    with open_server.host(folder / "there") as running:
        yield running


ALIKE = {"simple", "repeat", "digits", "sums", "echo", "rounding"} | {
    f"identity_{datatype}" for datatype in ("BYTES", "FP16", "BF16", "BOOL", "UINT64")
}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_differs(folder: Path, other: ServerProcess, protocol: str) -> None:
    url = f"{protocol}://127.0.0.1:{other.http_port if protocol == 'http' else other.grpc_port}"
    run = check(folder, "here", "--against", url, "--json")
    assert run.returncode == 1, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    assert (report["ok"], report["loaded"], report["against"]) == (False, True, url)
    models = {model["name"]: model for model in report["models"]}
    assert {name for name, model in models.items() if model["ok"]} == ALIKE | {"settings"}
    problems = {
        name: {each["text"].replace(url, "URL") for each in model["problems"]} for name, model in models.items()
    }
    assert problems["types"] == {
        "input 'INPUT0' is FP32 [-1, -1] here, and INT32 [-1, -1] at URL",
        "output 'OUTPUT0' is FP32 [-1, -1] here, and INT32 [-1, -1] at URL",
    }
    assert problems["batch"] == {"max_batch_size is 8 here, and 4 at URL"}
    (batch,) = models["batch"]["problems"]
    assert (batch["file"], batch["excerpt"][0]) == (f"{folder}/here/batch/config.pbtxt", "max_batch_size: 8")
    assert problems["versions"] == {"URL serves versions 1, and not 2"}
    (absent,) = problems["only_here"]
    assert absent.startswith("URL has no such model: ")
    weights = sorted(problems["weights"])
    assert len(weights) == 2
    assert weights[0].startswith("version 1, random values, 2 rows: output 'OUTPUT' differs in 15 of 16 elements, ")
    assert {name: model["compared"] for name, model in models.items() if model["ok"]} == {
        name: {"repeat": 0, "digits": 4}.get(name, 2) for name in (*ALIKE, "settings")
    }
    (repeat,) = models["repeat"]["notes"]
    assert repeat["text"] == "version 1 is decoupled: its responses are not compared"
    assert {each["text"].replace(url, "URL") for each in models["settings"]["notes"]} == {
        "instance_group is 3 here, and 1 at URL",
        "response_cache is not set here, and set at URL",
    }
    assert report["remarks"] == [f"{url} serves models that are not here: 'only_there'"]


def test_the_tolerance(tmp_path: Path, other: ServerProcess) -> None:
    write_scale(tmp_path / "models", "weights", 1.0)
    write_scale(tmp_path / "models", "rounding", 1.0)
    url = f"127.0.0.1:{other.http_port}"
    for tolerance, code in (("0.02", 0), ("1e-3", 1), ("0.00001", 1)):
        run = check(tmp_path, "models", f"--against={url}", "--tolerance", tolerance)
        assert run.returncode == code, run.stdout
    assert f"\n2 models loaded and compared with {url} (4 responses): 4 problems in 2 models" in run.stdout


def test_no_response_compared_is_no_success(tmp_path: Path, other: ServerProcess) -> None:
    """The only model is decoupled, so nothing could differ but its configuration."""
    copy_example(tmp_path / "models", "repeat", "repeat")
    url = f"127.0.0.1:{other.http_port}"
    run = check(tmp_path, "models", "--against", url)
    assert run.returncode == 2, run.stdout
    assert "note: version 1 is decoupled: its responses are not compared\n" in run.stdout
    assert run.stdout.splitlines()[-1] == (
        f"1 model loaded and compared with {url} (0 responses): no verdict, because no response was compared, 2 notes"
    )
    run = check(tmp_path, "models", "--against", url, "--json")
    assert (run.returncode, json.loads(run.stdout)["ok"]) == (2, False)


def test_nobody_is_there(folder: Path) -> None:
    for url, text in (
        ("http://127.0.0.1:1", "modserve: cannot reach a server at http://127.0.0.1:1: "),
        ("grpc://127.0.0.1:1", "modserve: cannot reach a server at grpc://127.0.0.1:1: "),
        (
            "ftp://x",
            "modserve: 'ftp://x' is not the address of a server; expected, for example, ",
        ),
    ):
        run = check(folder, "here", "--against", url)
        assert (run.returncode, run.stdout) == (2, "")
        assert run.stderr.startswith(text)


def test_the_examples_against_themselves(folder: Path, server: ServerProcess) -> None:
    run = check(folder, str(EXAMPLES), "--against", f"http://127.0.0.1:{server.http_port}")
    assert run.returncode == 0, run.stdout
