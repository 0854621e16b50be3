"""Child processes of a supervisor: start, explanation of their exit statuses, and signals."""

import ctypes
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Signals that request the end. They are passed on to the server, which knows its pending work."""

HARMLESS = (signal.SIGHUP, signal.SIGUSR1)
"""SIGHUP, sent by log rotation, reopens log files, here and in the server. SIGUSR1 makes the server write the stack of
each thread."""

_PASSED_ON = (*_STOPPING, *HARMLESS)

_DELIBERATE = frozenset({0, 1, 2})
"""Exit codes after which a restart would not help: an orderly stop, a failed start, a wrong command line."""

_HEALTHY_S = 60.0
"""Seconds after which a running server counts as healthy: its next crash is treated as the first."""

_LONGEST_DELAY_S = 60.0

_MEANINGS: Mapping[int, str] = {
    signal.SIGABRT: "native code aborted, after a failed check or allocation",
    signal.SIGBUS: "native code accessed memory that does not exist; a mapped file was truncated, or /dev/shm is full",
    signal.SIGFPE: "native code divided by zero or overflowed",
    signal.SIGILL: "native code used an instruction that this CPU does not have",
    signal.SIGKILL: "it was ended by force, usually by the kernel for lack of memory",
    signal.SIGSEGV: "native code accessed memory that it does not own",
    signal.SIGSYS: "it made a system call that is forbidden here",
}

_PR_SET_PDEATHSIG = 1
"""Operation of prctl(2): the signal that a process gets when its parent dies."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Exit status of a process. `code` as in a shell: 128 plus the signal's number after a signal."""

    code: int
    crashed: bool
    text: str


def exit_status(status: int) -> ExitStatus:
    """Return the meaning of a status from wait(2)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        meaning = _MEANINGS.get(number)
        text = f"was killed by {name}" + (f": {meaning}" if meaning else "")
        return ExitStatus(128 + number, True, text)
    code = os.waitstatus_to_exitcode(status)
    return ExitStatus(code, code not in _DELIBERATE, f"ended with exit code {code}")


class BackOff:
    """Delay before a restart: none after the first crash, then 1, 2, 4 … 60 seconds."""

    def __init__(self) -> None:
        self._crashes = 0

    def delay(self, lived_s: float) -> float:
        """Return the seconds to wait after a crash of a process that ran for `lived_s` seconds."""
        self._crashes = 1 if lived_s >= _HEALTHY_S else self._crashes + 1
        return 0.0 if self._crashes == 1 else min(_LONGEST_DELAY_S, 2.0 ** min(self._crashes - 2, 16))


class Signals:
    """Stream of signal numbers: SIGCHLD and the signals to pass on. `next` waits for one."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*_PASSED_ON, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: None)

    def next(self, timeout_s: float | None) -> int | None:
        """Return the next signal's number; None after `timeout_s` seconds without one."""
        readable, _, _ = select.select([self._read], [], [], timeout_s)
        return os.read(self._read, 1)[0] if readable else None


def start(command: Sequence[str]) -> int:
    """Start `command` as a child process and return its id. Raises OSError if the system cannot create a process.

    The child has its own process group: a Ctrl-C in the terminal reaches only this process, which passes it on, so that
    the server gets a single signal. On Linux, the child gets SIGTERM if this process dies.
    """
    # Blocked meanwhile: a signal that reaches the child before the exec would run this process's handlers.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    parent = os.getpid()
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_STOPPING, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for number in HARMLESS:
            signal.signal(number, signal.SIG_IGN)  # until it has its own handler: not meant to end it
        os.setpgid(0, 0)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
            if os.getppid() != parent:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(command[0], list(command))
    except BaseException as error:
        os.write(2, f"modserve: cannot start {command[0]}: {error}\n".encode())
    finally:
        os._exit(1)


def reap() -> list[tuple[int, ExitStatus]]:
    """Return every ended child by process id, including orphans."""
    endings: list[tuple[int, ExitStatus]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return endings
        if not pid:
            return endings
        endings.append((pid, exit_status(status)))
