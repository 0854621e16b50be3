"""A server that crashes is there again at once, and a server that is told to stop stops."""

import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from pathlib import Path

import pytest
from python_models import tensors, write_python
from repositories import EXAMPLES, HELD, write_held
from server_process import LOADED, ServerProcess, eventually, free_port, started
from wire import HOST, SECONDS, Answer, Ask, Input, assert_serving, binary_outputs, http, http_infer, ints

from modserve.core.configuration.log_settings import LogSettings
from modserve.process.supervisor import arguments

SUPERVISE = "--supervise"
SUPERVISING = r"^(\S+) INFO    modserve\.supervisor: supervising the server, process (\d+)$"
KILLED = r"^(\S+) ERROR   modserve\.supervisor: the server, process \d+, was killed by {}\b.*; starting it again (.*)$"
PR_SET_CHILD_SUBREAPER = 36


DIVIDES = """
import signal
class TritonPythonModel:
    def execute(self, requests):
        a, b = [one.as_numpy() for one in requests[0].inputs()]
        if b[0] == -1:
            signal.raise_signal(signal.SIGFPE)  # like native code whose division overflows
        return [pb_utils.InferenceResponse([pb_utils.Tensor("C", a // b)])]
"""
DIVISION = "\n".join((tensors("input", A="INT32 1", B="INT32 1"), tensors("output", C="INT32 1")))


def division(a: int, b: int) -> Ask:
    inputs = tuple(Input(name, "INT32", (1,), ints(value)) for name, value in (("A", a), ("B", b)))
    return Ask(inputs, model="divide_thread")


def child(server: ServerProcess) -> int:
    """The process id of the server that runs at the moment."""
    server.wait_for(SUPERVISING)
    return int(re.findall(SUPERVISING, server.log, re.MULTILINE)[-1][1])


def test_a_request_that_crashes_the_engine(tmp_path: Path) -> None:
    """The server is back on the same ports, started at once; the log says what has happened, and where."""
    write_python(tmp_path, "divide", DIVIDES, DIVISION, modes=["thread"])
    names = ("http", "grpc", "metrics")
    options = [SUPERVISE, *(f"--{name}-port={free_port()}" for name in names)]
    killed = KILLED.format("SIGFPE")
    with started(tmp_path, EXAMPLES, options=options) as server:
        server.wait_for(LOADED)
        assert binary_outputs(http_infer(server.http_port, division(7, 2))) == {"C": ints(3)}
        with pytest.raises((OSError, HTTPException)):
            http_infer(server.http_port, division(-(2**31), -1))
        died = server.wait_for(killed)
        assert died[2] == "at once"
        assert "native code divided by zero or overflowed" in died[0]
        eventually(lambda: serves(server.http_port))
        assert binary_outputs(http_infer(server.http_port, division(7, 2))) == {"C": ints(3)}
        assert_serving(server)
        assert metric_page(server).status == 200
        first, again = re.findall(SUPERVISING, server.log, re.MULTILINE)
        assert first[1] != again[1]
        assert "Fatal Python error: Floating point exception" in server.log
        server.stop(errors=[killed])


def serves(port: int) -> bool:
    try:
        return http(port, "GET", "/v2/health/ready").status == 200
    except (OSError, HTTPException):
        return False


def metric_page(server: ServerProcess) -> Answer:
    return http(server.metrics_port, "GET", "/metrics")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_an_orderly_stop_and_the_second_an_end(tmp_path: Path, number: signal.Signals) -> None:
    gate = write_held(tmp_path, "model")
    ask = Ask((Input("INPUT0", "INT32", (1, 2), ints(3, 4)),), model="model")
    with started(tmp_path, options=[SUPERVISE], environment=HELD) as server, ThreadPoolExecutor(1) as threads:
        server.wait_for(LOADED)
        call = threads.submit(http_infer, server.http_port, ask)
        eventually(lambda: gate.begun == 1)
        server.signal(number)
        server.wait_for("stopping: ")
        assert not call.done()
        if number is signal.SIGTERM:
            gate.open()
            assert binary_outputs(call.result()) == {"OUTPUT0": ints(3, 4)}
            server.wait(0)
        else:
            server.signal(number)
            server.wait(128 + number)
            assert isinstance(call.exception(), OSError | HTTPException)
    assert "starting it again" not in server.log


def test_a_failed_start_is_not_tried_again() -> None:
    with closing(socket.create_server((HOST, 0))) as taken:
        options = [SUPERVISE, f"--http-address={HOST}", f"--http-port={taken.getsockname()[1]}"]
        with started(EXAMPLES, options=options) as server:
            server.wait(1, errors=["cannot open the HTTP port"])
            assert len(re.findall(SUPERVISING, server.log, re.MULTILINE)) == 1


def test_a_wrong_command_line_is_not_supervised() -> None:
    with started(EXAMPLES, options=[SUPERVISE, "--nosuch=1"]) as server:
        server.wait(2)
        assert "supervising" not in server.log


def test_crashes_in_a_row_are_waited_for_and_the_wait_ends_with_a_signal() -> None:
    with started(EXAMPLES, options=[SUPERVISE]) as server:
        os.kill(child(server), signal.SIGKILL)
        server.wait_for(KILLED.format("SIGKILL"))
        eventually(lambda: len(re.findall(SUPERVISING, server.log, re.MULTILINE)) == 2)
        os.kill(child(server), signal.SIGABRT)
        assert server.wait_for(KILLED.format("SIGABRT"))[2] == "in 1 s"
        server.signal(signal.SIGTERM)
        server.wait(128 + signal.SIGABRT, errors=["was killed by SIGKILL", "was killed by SIGABRT"])


def test_the_server_ends_with_its_supervisor() -> None:
    with started(EXAMPLES, options=[SUPERVISE]) as server:
        server.wait_for(LOADED)
        running = child(server)
        server.signal(signal.SIGKILL)
        server.wait(-signal.SIGKILL)  # which reads the log to its end, that is that of the server
        assert "stopping: " in server.log
        eventually(lambda: not Path(f"/proc/{running}").exists())


def test_orphans_are_reaped() -> None:
    """As process 1 of a container has to; here those of its descendants become its children without that."""
    adopt = "import ctypes, os, sys; ctypes.CDLL(None).prctl(int(sys.argv[1]), 1); os.execv(sys.argv[2], sys.argv[2:])"
    script = "(sleep 0.2 & echo $!); exec cat"
    supervise = [sys.executable, *arguments(LogSettings(), ["/bin/sh", "-c", script])]
    # By a program of its own: a `preexec_fn` runs in a fork, which gRPC ends where it was at work in this process.
    command = [sys.executable, "-c", adopt, str(PR_SET_CHILD_SUBREAPER), *supervise]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        orphan = int(supervisor.stdout.readline())
        eventually(lambda: not Path(f"/proc/{orphan}").exists())
        supervisor.stdin.close()
        assert supervisor.wait(SECONDS) == 0
