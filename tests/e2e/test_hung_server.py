"""What an operator sees of a model that hangs, and of a server that hangs with it."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from server_process import LOADED, ServerProcess, eventually, started
from test_supervised_server import KILLED, SUPERVISE, child
from wire import SECONDS, Ask, Input, http, http_infer, ints

WAITS, HOLDS_THE_INTERPRETER = 1, 2


def write_hanging(repository: Path) -> None:
    """`hang`: INT32 [1] A, on a thread of the server."""
    folder = repository / "hang" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(
        "import ctypes, time\n"
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        [a] = requests[0].inputs()\n"
        f"        if a.as_numpy()[0] == {WAITS}:\n"
        "            time.sleep(600)\n"
        "        ctypes.PyDLL(None).pause()\n"
    )
    (folder.parent / "config.pbtxt").write_text(
        'backend: "python"\n'
        "instance_group { count: 2 kind: KIND_CPU }\n"
        'parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }\n'
        'input { name: "A" data_type: TYPE_INT32 dims: [ 1 ] }\n'
        'output { name: "B" data_type: TYPE_INT32 dims: [ 1 ] }\n'
    )


def test_a_hung_model_and_a_hung_server_show_where_they_hang(tmp_path: Path) -> None:
    write_hanging(tmp_path)
    with started(tmp_path, options=[SUPERVISE]) as server, ThreadPoolExecutor() as threads:
        server.wait_for(LOADED)
        port, metrics_port = server.http_port, server.metrics_port

        def ask(what: int) -> None:
            with suppress(OSError, HTTPException):
                http_infer(port, Ask((Input("A", "INT32", (1,), ints(what)),), model="hang"))

        def oldest_s() -> float:
            page = http(metrics_port, "GET", "/metrics").body.decode()
            name = 'modserve_oldest_execution_seconds{model="hang",version="1"} '
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
        eventually(lambda: "line 8 in execute" in dumped(server))
        os.kill(pid, signal.SIGKILL)
        server.wait_for(KILLED.format("SIGKILL"))


def dumped(server: ServerProcess) -> str:
    """The log, soon after the server has been told to write its stacks."""
    server.signal(signal.SIGUSR1)
    time.sleep(0.2)  # the caller looks again and again, and each look writes
    return server.log
