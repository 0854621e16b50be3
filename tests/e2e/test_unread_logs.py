"""Logs that nobody reads any more: the server goes on, and ends when it is told to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from python_models import tensors, write_python
from repositories import EXAMPLES
from server_process import eventually, serving
from wire import http, metric

CALLS = 600
"""Each has a line in the access log and one in the audit log: together several times what a pipe holds."""


def port_of(output: int) -> int:
    text = b""
    while b"gRPC listening" not in text or b"HTTP listening on 0.0.0.0:" not in text:
        text += os.read(output, 65536)
    return int(text.partition(b"HTTP listening on 0.0.0.0:")[2].split()[0])


@pytest.mark.parametrize("unread", ["stderr", "log file", "audit log"])
def test_a_log_without_a_reader_holds_up_nobody(tmp_path: Path, unread: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    said, stdout = os.pipe()
    stderr = os.open(fifo, os.O_WRONLY) if unread == "stderr" else os.open(os.devnull, os.O_WRONLY)
    command = [sys.executable, "-m", "modserve", "serve", "--model-repository", str(EXAMPLES), "--access-log=all"]
    command += ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--model-control-mode=explicit"]
    command += {"stderr": [], "log file": [f"--log-file={fifo}"], "audit log": [f"--audit-log={fifo}"]}[unread]
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
    try:
        port = port_of(said)
        load = "/v2/repository/models/simple/load"
        eventually(lambda: http(port, "POST", load)[0] == 200)
        for _ in range(CALLS):
            assert http(port, "POST", "/v2/logging", b'{"log_info": true}')[0] == 200
            assert http(port, "POST", f"/v2/models/{'x' * 200}/infer", b"{")[0] == 404
        assert http(port, "GET", "/v2/health/live")[0] == 200
        assert http(port, "GET", "/v2/models/simple/ready")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        for descriptor in (reader, said, stdout, stderr):
            os.close(descriptor)


PRINTING = """
class TritonPythonModel:
    def execute(self, requests):
        print("x" * 200_000)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]) for _ in requests]
"""


def test_a_model_on_the_event_loop_that_prints_waits_for_no_reader(tmp_path: Path) -> None:
    """Standard output is a pipe that nobody reads once the server is ready."""
    config = tensors("input", IN="FP32 1") + tensors("output", OUT="FP32 1")
    write_python(tmp_path, "printing", PRINTING, config, modes=["inline"])
    said, stdout = os.pipe()
    command = [sys.executable, "-m", "modserve", "serve", "--model-repository", str(tmp_path)]
    command += ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)
    try:
        port = port_of(said)
        eventually(lambda: http(port, "GET", "/v2/models/printing_inline/ready")[0] == 200)
        body = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [3]}]}'
        for _ in range(5):
            assert http(port, "POST", "/v2/models/printing_inline/infer", body)[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(said)
        os.close(stdout)


def test_lines_that_no_disk_takes_are_counted() -> None:
    with serving(EXAMPLES, options=["--audit-log=/dev/full"], errors=["cannot be written"]) as server:
        assert metric(server, "modserve_log_lines_dropped_total", log="audit") == 0
        assert http(server.http_port, "POST", "/v2/logging", b'{"log_info": true}').status == 200
        eventually(lambda: metric(server, "modserve_log_lines_dropped_total", log="audit") == 1)
        assert metric(server, "modserve_log_lines_dropped_total", log="server") == 0


def test_a_command_without_standard_output() -> None:
    """As daemons are started whose descriptors are closed."""
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        run = subprocess.run(
            ["sh", "-c", f"exec {sys.executable} -m modserve --version {closed}"], timeout=60, check=False
        )
        assert run.returncode == 0
