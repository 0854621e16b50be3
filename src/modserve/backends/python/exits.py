"""Waiting for the end of processes, and its description. The functions block, so never call them on the event loop."""

import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable

from .output import WorkerOutput

_LOOK_S = 0.002


def file_of(pid: int) -> int:
    """Return a file descriptor that is readable when a child has ended; -1 if the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def wait(process: "subprocess.Popen[bytes]", end: float) -> bool:
    """Wait for a child until `end`, in seconds; returns True if it ends. It is not reaped, so it keeps its group."""
    if process.returncode is not None:
        return True
    file = file_of(process.pid)
    if file >= 0:
        try:
            poll = select.poll()
            poll.register(file, select.POLLIN)
            return bool(poll.poll(max(0.0, end - time.monotonic()) * 1000))
        finally:
            os.close(file)
    while not _has_ended(process.pid):
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_S)  # the system has no way to wait for a child, but not for ever
    return True


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def describe(code: int) -> str:
    """Describe a `Popen.returncode`, to end a sentence about the process with."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def converse(
    sock: socket.socket, output: WorkerOutput, words: deque[bytes], take: Callable[[], bool], end: float
) -> None:
    """Send `words`, and receive by `take` and `output`, until the other side closes `sock` or `take` is false.

    No longer than until `end`. `take` may add words; it raises OSError as `sock` does.
    """
    unsent = b""
    poll = select.poll()
    poll.register(output.fd, select.POLLIN)
    while (left := end - time.monotonic()) > 0:
        while words:
            unsent += words.popleft()
        poll.register(sock, select.POLLIN | (select.POLLOUT if unsent else 0))
        for fd, events in poll.poll(left * 1000):
            if fd == output.fd:
                if not output.read():
                    poll.unregister(fd)
                continue
            try:
                if events & select.POLLOUT:
                    unsent = unsent[sock.send(unsent) :]
                if events & (select.POLLIN | select.POLLHUP) and not take():
                    return
            except BlockingIOError:
                continue
            except OSError:
                return
