"""A model.py that doubles its input, and does what the parameter `fault` of a request says before.

`test_python_faults` and `benchmarks/faults.py` copy it into repositories.
"""

import ctypes
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

KEPT: list[Any] = []
"""What lives as long as the process."""


def connection() -> int:
    """The file descriptor that frames go over: the first of the worker's five. Another of its sockets may be lower."""
    with open("/proc/self/cmdline") as command:
        return int(command.read().split("\0")[-6])


def segfault() -> None:
    print("about to read address 0", file=sys.stderr, flush=True)
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def exit_at_once() -> None:
    print("the last words")
    os._exit(3)


def system_exit() -> None:
    sys.exit(4)


def keyboard_interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_by_a_thread() -> None:
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
    time.sleep(60)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def out_of_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    try:
        KEPT.append(np.ones(1 << 31, np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def recursion() -> None:
    recursion()


def prints() -> None:
    """More than a pipe holds in long lines, in short ones, in none, and what is no text."""
    for stream in (sys.stdout, sys.stderr):
        stream.write("word " * 200_000 + "\n")
        stream.write("x\n" * 40_000)
        stream.buffer.write(bytes(range(256)) * 1000)
        stream.flush()


def logs() -> None:
    for number in range(20_000):
        pb_utils.Logger.log_info(f"{number}")


def forks() -> None:
    """Children that outlive the execution: of a fork, of multiprocessing, and programs, one of which has all files."""
    if not os.fork():
        time.sleep(600)
        os._exit(0)
    context = multiprocessing.get_context("fork")
    KEPT.append(context.Process(target=time.sleep, args=(600,)))
    KEPT[-1].start()
    KEPT.append(subprocess.Popen(["sleep", "600"]))
    os.system("sleep 600 &")


def forks_and_dies() -> None:
    forks()
    os._exit(7)


def fork_returns() -> None:
    """Both processes go on, as if nothing had happened."""
    os.fork()


def threads() -> None:
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(600,)).start()


def sleeps() -> None:
    time.sleep(600)


def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def holds_the_interpreter() -> None:
    """Native code that never returns, and never lets another thread of Python run."""
    ctypes.PyDLL(None).pause()


def ignores_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGIO, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)


def catches_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGIO, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    signal.signal(signal.SIGALRM, lambda *_: None)


def closes_files() -> None:
    os.closerange(3, 256)


def closes_output() -> None:
    os.close(1)
    os.close(2)


def writes_garbage() -> None:
    os.write(connection(), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


def writes_zeros() -> None:
    os.write(connection(), bytes(4096))


def announces_an_endless_frame() -> None:
    """A header as of a frame of responses with 2**62 bytes."""
    os.write(connection(), (1 << 62).to_bytes(8, "little") + (20).to_bytes(2, "little") + bytes(6))


def shuts_the_connection() -> None:
    with socket.socket(fileno=os.dup(connection())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def reads_stdin() -> None:
    assert sys.stdin.read() == ""
    input()


def changes_directory() -> None:
    os.chdir("/")
    os.environ.clear()


def becomes_another_program() -> None:
    os.execv("/bin/sleep", ["sleep", "600"])


def raises() -> None:
    raise ValueError("the fault of line X")


def raises_a_strange_exception() -> None:
    class StrangeError(BaseException):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise StrangeError


def raises_a_long_text() -> None:
    raise ValueError("long " * 100_000 + "\n\r\0ü")


FAULTS: dict[str, Callable[[], None]] = {
    name: function for name, function in globals().items() if callable(function) and not isinstance(function, type)
}


def output(value: Any, name: str = "OUTPUT") -> Any:
    return pb_utils.Tensor(name, value)


def response(*tensors: Any) -> Any:
    return pb_utils.InferenceResponse(list(tensors))


def sends_after_the_end(request: Any) -> None:
    sender = request.get_response_sender()
    sender.send(response(output(np.zeros((1, 1), np.float32))), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    sender.send(response(output(np.ones((1, 1), np.float32))))


def keeps_sender(request: Any) -> None:
    KEPT.append(request.get_response_sender())


RETURNS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda value: None,
    "too_few": lambda value: [],
    "too_many": lambda value: [response(output(value))] * 2,
    "no_list": lambda value: response(output(value)),
    "no_response": lambda value: [output(value)],
    "wrong_type": lambda value: [response(output(value.astype(np.int32)))],
    "wrong_shape": lambda value: [response(output(value.reshape(-1)))],
    "wrong_rows": lambda value: [response(output(np.concatenate([value, value])))],
    "wrong_name": lambda value: [response(output(value, "OUTPUTT"))],
    "an_exception": lambda value: [ValueError("as a response")],
}


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> Any:
        responses: list[Any] = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            parameters = json.loads(request.parameters())
            fault = parameters.get("fault", "")
            if fault in RETURNS:
                return RETURNS[fault](value)
            if fault in ("sends_after_the_end", "keeps_sender"):
                globals()[fault](request)
                responses.append(None)
                continue
            if fault:
                FAULTS[fault]()
            responses.append(response(output(value * 2)))
        return responses
