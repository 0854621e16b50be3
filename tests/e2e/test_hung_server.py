"""What an operator sees of a model that hangs, and of a server that hangs with it."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from python_models import tensors, write_python
from server_process import LOADED, ServerProcess, eventually, started
from test_supervised_server import KILLED, SUPERVISE, child
from wire import SECONDS, Ask, Input, http, http_infer, ints

WAITS, HOLDS_THE_INTERPRETER = 1, 2


HANGS = f"""
import ctypes, time
class TritonPythonModel:
    def execute(self, requests):
        [a] = requests[0].inputs()
        if a.as_numpy()[0] == {WAITS}:
            time.sleep(600)
        ctypes.PyDLL(None).pause()
"""
CONFIG = "instance_group {{ count: 2 kind: KIND_CPU }}\n{}\n{}".format(
    tensors("input", A="INT32 1"), tensors("output", B="INT32 1")
)


def test_a_hung_model_and_a_hung_server_show_where_they_hang(tmp_path: Path) -> None:
    write_python(tmp_path, "hang", HANGS, CONFIG, modes=["thread"])
    with started(tmp_path, options=[SUPERVISE]) as server, ThreadPoolExecutor() as threads:
        server.wait_for(LOADED)
        port, metrics_port = server.http_port, server.metrics_port

        def ask(what: int) -> None:
            with suppress(OSError, HTTPException):
                http_infer(port, Ask((Input("A", "INT32", (1,), ints(what)),), model="hang_thread"))

        def oldest_s() -> float:
            page = http(metrics_port, "GET", "/metrics").body.decode()
            name = 'modserve_oldest_execution_seconds{model="hang_thread",version="1"} '
            return next(float(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name))

        assert oldest_s() == 0
        threads.submit(ask, WAITS)
        eventually(oldest_s)
        first_s, since_s = oldest_s(), time.monotonic()
        eventually(lambda: time.monotonic() - since_s > 0.5)
        assert 0.4 < oldest_s() - first_s < SECONDS
        response = http(port, "GET", "/v2/stacks")
        [hangs] = [
            (thread, stack) for thread, stack in json.loads(response.body)["stacks"].items() if "sleep" in stack[-1]
        ]
        assert hangs[0].startswith("instance-hang")
        assert "execute: time.sleep(600)" in hangs[1][-1]

        pid = child(server)
        threads.submit(ask, HOLDS_THE_INTERPRETER)
        eventually(lambda: "line 11 in execute" in dumped(server))
        os.kill(pid, signal.SIGKILL)
        server.wait_for(KILLED.format("SIGKILL"))


def dumped(server: ServerProcess) -> str:
    """The log, soon after the server has been told to write its stacks."""
    server.signal(signal.SIGUSR1)
    time.sleep(0.2)  # the caller looks again and again, and each look writes
    return server.log
