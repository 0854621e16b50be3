"""How a process ends, for those who wait for it. The functions block, on any thread but the event loop's."""

import os
import signal
import subprocess
import time

_LOOK_S = 0.002


def file_of(pid: int) -> int:
    """A file descriptor that is readable when a child has ended; -1 where the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def wait(process: "subprocess.Popen[bytes]", end: float) -> bool:
    """Whether a child ends before `end`, in seconds. It is not reaped, so that its group is still its own."""
    while True:
        if process.returncode is not None:
            return True
        try:
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_S)


def describe(code: int) -> str:
    """What `Popen.returncode` means, to end a sentence about the process with."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
