"""The call that a server prints when it has loaded its models, pasted into a shell."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from command_here import run_here
from repositories import (
    EXAMPLES,
    copy_example,
    write_accumulator,
    write_identity,
    write_onnx_identity,
    write_sequence_echo,
    write_text_keeper,
)
from server_here import serving_here
from server_process import Server
from wire import SECONDS, assert_serving, http

LINE = r"^Try it:\n  ((?:curl|modserve infer) .*)$"


def pasted(server: Server, pattern: str = LINE, a_process: bool = False) -> tuple[str, Any]:
    """The line, and the JSON that it answers; of a stream, that of the first message.

    With `a_process`, a line for modserve's own command is one.
    """
    line = server.wait_for(pattern)[1]
    if line.startswith("curl"):
        assert shutil.which("curl"), "curl is not on PATH, and this test runs the line that the server prints for it"
        command = ["sh", "-c", f"{line} -sS"]
    else:
        _, *words = shlex.split(line.partition("    #")[0].replace("@picture.jpg", "--sample"))
        command = [sys.executable, "-m", "modserve", *words, "--json"]
        if not a_process:
            printed = run_here(*words, "--json")
            assert (printed.returncode, printed.stderr) == (0, ""), printed
            return line, json.loads(printed.stdout)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stderr == ""
    first = done.stdout if command[-1] == "--json" else (done.stdout.splitlines() or ["null"])[0]
    return line, json.loads(first.removeprefix("data: "))


def answered(server: Server, model: str) -> list[Any]:
    """The elements of the first output, from `model`."""
    _, answer = pasted(server)
    assert answer["model_name"] == model, answer
    if "outputs" in answer:
        data: list[Any] = answer["outputs"][0]["data"]
    else:
        [data] = [value if isinstance(value, list) else [value] for key, value in answer.items() if key in OUTPUTS]
    assert data
    return data


OUTPUTS = ("OUTPUT0", "OUTPUT", "OUT")


def test_the_examples() -> None:
    with serving_here(EXAMPLES) as server:
        line, answer = pasted(server, a_process=True)
        assert answer["model_name"] in line
        assert answer["outputs"]


@pytest.mark.parametrize("example", ["digits", "repeat"])
def test_each_kind_of_example(tmp_path: Path, example: str) -> None:
    copy_example(tmp_path, example, example)
    with serving_here(tmp_path) as server:
        answered(server, example)


@pytest.mark.parametrize("datatype", ["BOOL", "FP16", "FP32", "BYTES"])
def test_datatypes(tmp_path: Path, datatype: str) -> None:
    """In dimensions of any size."""
    write_onnx_identity(tmp_path, "model", datatype)
    with serving_here(tmp_path) as server:
        assert answered(server, "model") == [{"BOOL": True, "BYTES": "text 0"}.get(datatype, 0)]


@pytest.mark.parametrize("id_type", ["UINT64", "BYTES"])
def test_a_sequence(tmp_path: Path, id_type: str) -> None:
    write_sequence_echo(tmp_path, "model", "direct { }", id_type=id_type)
    with serving_here(tmp_path) as server:
        assert answered(server, "model") == [0]
        assert answered(server, "model") == [0]  # it ends with the request, and may begin again


def test_states(tmp_path: Path) -> None:
    write_accumulator(tmp_path, "sum", "oldest { }")
    with serving_here(tmp_path) as server:
        answered(server, "sum")


def test_a_model_without_batches(tmp_path: Path) -> None:
    write_text_keeper(tmp_path, "keeper")
    with serving_here(tmp_path) as server:
        assert answered(server, "keeper") == ["first", "text 0"]


@pytest.mark.parametrize("dims", ["3, 224, 224", "3, -1, -1"])
def test_pictures(tmp_path: Path, dims: str) -> None:
    tensors = [
        f'{kind} [ {{ name: "{kind}0" data_type: TYPE_FP32 dims: [ {dims} ] }} ]' for kind in ("input", "output")
    ]
    (tmp_path / "image" / "1").mkdir(parents=True)
    (tmp_path / "image" / "config.pbtxt").write_text("\n".join(['backend: "identity"\nmax_batch_size: 2', *tensors]))
    with serving_here(tmp_path) as server:
        line, answer = pasted(server)
        assert "infer image @picture.jpg" in line
        assert answer["outputs"][0]["shape"] == [1, 3, 224, 224]


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.2", "::1", "::", "localhost"])
def test_addresses(address: str) -> None:
    with serving_here(EXAMPLES, options=[f"--http-address={address}"]) as server:
        assert ("localhost" in pasted(server)[0]) == (address in ("0.0.0.0", "localhost"))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_tls(tmp_path: Path, address: str) -> None:
    """With a certificate that curl does not know."""
    certificate, key = Authority(tmp_path, "authority").issue("server")
    options = [f"--http-address={address}", "--http-use-ssl=true"]
    options += [f"--http-server-cert={certificate}", f"--http-server-key={key}"]
    with serving_here(EXAMPLES, options=options) as server:
        assert "https://" in pasted(server)[0]


@pytest.mark.parametrize(
    "options",
    [
        ["--allow-http=false"],
        ["--http-restricted-api=inference:key=SECRET"],
        ["--http-restricted-api=metadata:key=SECRET"],
    ],
)
def test_nothing_is_printed_that_would_not_work(options: Sequence[str]) -> None:
    with serving_here(EXAMPLES, options=options) as server:
        pass
    assert "Try it" not in server.log
    assert "SECRET" not in server.log


def test_models_that_wait_to_be_loaded() -> None:
    """Only what is there is loaded, and the line loads the first of them."""
    with serving_here(EXAMPLES, options=["--model-control-mode=explicit"]) as server:
        line, _ = pasted(server, r"^\d models wait for a load call: .*\n  (curl .*)$")
        assert "/models/digits/load" in line
        assert http(server.http_port, "GET", "/v2/models/digits/ready").status == 200


def test_an_empty_repository(tmp_path: Path) -> None:
    with serving_here(tmp_path) as server:
        server.wait_for(rf"^There are no models in {tmp_path}\.")


def test_a_start_says_what_it_does(tmp_path: Path) -> None:
    write_identity(tmp_path, "model")
    with serving_here(tmp_path) as server:
        server.wait_for(r"modserve\.repository\.control: loading 1 model$")
    with serving_here(EXAMPLES) as server:
        server.wait_for(r"modserve\.repository\.control: loading 5 models$")
        assert_serving(server)
