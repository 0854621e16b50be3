"""Commands against one server, which lets nobody load models without a header.

One call of each is a process. The others run in the test's, which has its libraries already.
"""

import contextlib
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from repositories import EXAMPLES
from server_process import ServerProcess, serving

from kept_logging import kept_logging
from modserve import cli

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
HEADER = "--header=admin: secret"
ROW = list(range(1, 17))


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ["--model-control-mode=explicit", "--http-restricted-api=model-repository:admin=secret"]
    options += [f"--load-model={name}" for name in ("simple", "digits_pipeline", "repeat")]
    with serving(EXAMPLES, options=options) as running:
        yield running


def run(server: ServerProcess, *words: str, code: int = 0, header: str = HEADER) -> str:
    """What a command prints, in both streams; `code` is the exit code that it has to have."""
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        kept_logging(),
        patch.dict(os.environ, environment(server), clear=True),
    ):
        ended = cli.main([*words, *([header] if header else [])])
    assert ended == code, printed.getvalue()
    return printed.getvalue()


def run_process(server: ServerProcess, *words: str, header: str = HEADER) -> str:
    """As `run`, by a process of its own."""
    done = start(server, *words, *([header] if header else []))
    out, _ = done.communicate(timeout=60)
    assert done.returncode == 0, out
    return out


def environment(server: ServerProcess) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MODSERVE_")} | {
        "MODSERVE_URL": f"http://127.0.0.1:{server.http_port}",
        "MODSERVE_METRICS_URL": f"http://127.0.0.1:{server.metrics_port}",
    }


def start(server: ServerProcess, *words: str, folder: Path | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "modserve", *words],
        cwd=folder,
        env=environment(server),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_status(server: ServerProcess) -> None:
    text = run_process(server, "status")
    assert text.startswith(f"http://127.0.0.1:{server.http_port}: modserve ")
    assert ", ready\n" in text
    assert json.loads(run(server, "status", "--json"))["ready"] is True
    assert "not shown: This API is restricted, expecting header 'admin'" in run(server, "status", header="")


def test_models(server: ServerProcess) -> None:
    text = run_process(server, "models", "simple")
    assert "simple  1        READY  ONNX Runtime " in text
    assert "\ninput   INPUT0   INT32  [-1, 16]\n" in text
    assert "did you mean 'simple'?" in run(server, "models", "simpel", code=1)


def test_over_grpc(server: ServerProcess) -> None:
    """Where only the engines of versions and the reasons of a server that is not ready are not told."""
    url = f"--url=grpc://127.0.0.1:{server.grpc_port}"
    assert run(server, "status", url).startswith(f"grpc://127.0.0.1:{server.grpc_port}: modserve ")
    assert json.loads(run(server, "status", "--json", url))["ready"] is True
    text = run(server, "models", "simple", url)
    assert "simple  1        READY  -" in text
    assert "\ninput   INPUT0   INT32  [-1, 16]\n" in text
    assert "did you mean 'simple'?" in run(server, "models", "simpel", url, code=1)
    assert run(server, "unload", "digits_pipeline", url) == "digits_pipeline: unloaded\n"
    assert run(server, "load", "digits_pipeline", url).startswith("digits_pipeline: version 1 READY, after ")


def test_a_model_of_files_over_grpc(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"backend": "onnxruntime"}')
    url = f"--url=grpc://127.0.0.1:{server.grpc_port}"
    file = f"--file=1/model.onnx={EXAMPLES / 'simple' / '1' / 'model.onnx'}"
    text = run(server, "load", "sent", f"--config={tmp_path / 'config.json'}", file, url)
    assert text.startswith("sent: version 1 READY, after ")
    assert run(server, "unload", "sent") == "sent: unloaded\n"


def test_watching_ends_with_an_interrupt(server: ServerProcess) -> None:
    watching = start(server, "status", "--watch", "0.1", HEADER)
    assert watching.stdout is not None
    heads = [line for line, _ in zip(watching.stdout, range(8), strict=False) if ", ready" in line]
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert (len(heads), watching.returncode) == (2, 0)


@pytest.mark.parametrize("over", ["HTTP", "gRPC"])
def test_an_inference(server: ServerProcess, tmp_path: Path, over: str) -> None:
    words = [f"--url=grpc://127.0.0.1:{server.grpc_port}"] if over == "gRPC" else []
    file = tmp_path / "sum.npy"
    text = run_process(
        server, "infer", "simple", "INPUT0=1", f"INPUT1={ROW}", *words, "--outputs=OUTPUT0", f"--output={file}"
    )
    assert text == f"wrote OUTPUT0 to {file}\n"
    assert np.load(file).tolist() == [[1 + each for each in ROW]]
    body = json.loads(run(server, "infer", "simple", f"INPUT0=@{file}", "--sample", "--json", "--request-id=a", *words))
    assert (body["model_name"], body["id"], len(body["outputs"])) == ("simple", "a", 2)
    text = run(server, "infer", "repeat", "IN=7,8", "DELAY=0,0", "WAIT=0", "--stream", *words)
    assert text.count("OUT  INT32 [1]\n") == 2


def test_sizes_that_are_made_up(server: ServerProcess) -> None:
    text = run(server, "infer", "digits_pipeline", "--sample")
    assert "the variable sizes of 'photo' [-1, -1, -1] are made up; set them with --shape photo:64,64\n" in text
    assert "made up" not in run(server, "infer", "digits_pipeline", "--sample", "--shape=photo:28x28")
    assert "option '--shape' is for '--sample'" in run(server, "infer", "repeat", "IN=1", "--shape=IN:2", code=2)
    assert "no data is generated for 'OUT'" in run(server, "infer", "repeat", "--sample", "--shape=OUT:2", code=2)


def test_an_inference_that_fails(server: ServerProcess) -> None:
    text = run(server, "infer", "simple", code=2)
    assert "missing values for the inputs of 'simple': INPUT0 INT32 [-1, 16]; INPUT1 INT32 [-1, 16]" in text
    text = run(server, "infer", "simple", "INPUT0=1", code=1)
    assert "missing required input(s) ['INPUT1']" in text
    assert "modserve: --sample generates data" in text
    assert "modserve: 'modserve models' lists" in run(server, "infer", "nosuch", "a=1", code=1)


def test_the_picture_of_the_page(server: ServerProcess, tmp_path: Path) -> None:
    """Its lines work as they stand, in a folder that has the example models."""
    (tmp_path / "model_repository").symlink_to(EXAMPLES)
    blocks = re.findall(r"^\$ (modserve infer digits_pipeline .*)\n((?:(?![$`]).*\n)*)", PAGE.read_text(), re.MULTILINE)
    assert len(blocks) == 1
    for line, shown in blocks:
        done = start(server, *shlex.split(line)[1:], HEADER, folder=tmp_path)
        out, _ = done.communicate(timeout=60)
        assert done.returncode == 0, out
        assert timeless(out) == timeless(shown)


def timeless(text: str) -> str:
    return re.sub(r"(?<= after )[\d.]+ \w+$", "…", text, flags=re.MULTILINE)


def test_loading(server: ServerProcess) -> None:
    assert "modserve: --header 'NAME: VALUE' sends that header" in run(server, "unload", "repeat", code=1, header="")
    assert run_process(server, "unload", "repeat") == "repeat: unloaded\n"
    assert "'modserve models' lists" in run(server, "infer", "repeat", "IN=1", code=1)
    assert run_process(server, "load", "repeat").startswith("repeat: version 1 READY, after ")
    assert "model 'repaet' does not exist; did you mean 'repeat'?" in run(server, "load", "repaet", code=1)


@pytest.mark.parametrize("over", ["HTTP", "gRPC"])
def test_an_unload_names_what_goes_with_the_model(server: ServerProcess, over: str) -> None:
    words = [f"--url=grpc://127.0.0.1:{server.grpc_port}"] if over == "gRPC" else []
    text = run(server, "unload", "digits", *words)
    assert text == "digits: unloaded, and with it digits_pipeline, which needs it\n"
    assert run(server, "load", "digits", *words).startswith("digits: version 1 READY, version 2 READY, after ")
    text = run(server, "unload", "digits_pipeline", "--dependents", *words)
    run(server, "load", "digits_pipeline", *words)
    assert text == "digits_pipeline: unloaded, and with it digits_resize\n", "digits was loaded by name, too"


def test_top(server: ServerProcess) -> None:
    text = run_process(server, "top", "--count=2", "--interval=0.1")
    assert text.count(" in flight, ") == 2
    assert text.count("\nsimple ") == 2


def test_no_server(server: ServerProcess) -> None:
    text = run(server, "status", "--url=http://127.0.0.1:1", code=1)
    assert ": Connection refused\nmodserve: 'modserve serve --model-repository DIR' starts a server; --url or " in text
    text = run(server, "status", f"--url=http://127.0.0.1:{server.grpc_port}", code=1)
    assert "--url needs the HTTP port" in text


def test_the_doctor_names_who_has_a_port(server: ServerProcess) -> None:
    with socket.create_server(("", 0)) as other:
        options = [f"--http-port={other.getsockname()[1]}", "--grpc-port=0", "--metrics-port=0"]
        text = run(server, "doctor", *options, code=1, header="")
    assert f"is in use by process {os.getpid()} (python" in text
    assert "→ '--http-port' chooses another one\n" in text


def test_the_doctor_knows_a_server_that_runs(server: ServerProcess) -> None:
    ports = [f"--http-port={server.http_port}", f"--grpc-port={server.grpc_port}"]
    text = run_process(server, "doctor", *ports, f"--metrics-port={server.metrics_port}", header="")
    assert text.count("modserve answers at 0.0.0.0:") == 3


def test_the_doctor_asks_a_server_what_is_open(server: ServerProcess) -> None:
    text = run(server, "doctor", "--security", "--url", f"http://127.0.0.1:{server.http_port}", "--json", header="")
    rows = {row["name"]: row for row in json.loads(text)}
    assert {name for name, row in rows.items() if row["level"] == "ok"} == {"TLS", "health", "model control"}
    assert rows["model control"]["text"] == "refused without a key or header"
    assert rows["metrics"]["text"].startswith("open at this port: ")
    text = run(server, "doctor", "--security", "--url", "http://127.0.0.1:1", header="", code=1)
    assert text.startswith("modserve: cannot reach http://127.0.0.1:1: ")


@pytest.mark.parametrize("words", [["--help"], ["top", "--help"], ["engines"]], ids=" ".join)
def test_output_that_nobody_reads_is_no_bug(words: list[str]) -> None:
    """As behind ``| head``, which ends after the first lines."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "modserve", *words]
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, timeout=60, text=True)
    assert (done.returncode, done.stderr) == (1, "")
