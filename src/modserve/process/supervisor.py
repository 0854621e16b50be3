"""The parent process of ``modserve serve --supervise`` and ``--workers N``: starts the servers and restarts them.

Engines run native code in the server's process, so a fault in one of them ends the whole process, and no handler inside
can prevent it. This process stays outside, and imports very little, so that little can go wrong. With several workers
it reserves the ports by sockets that do not listen, and passes on listening Unix sockets. As process 1 of a container
it also reaps orphans.

- A crashed child is restarted, with growing delays while it keeps crashing.
- Several workers: a worker that ends normally while the server runs (after a SIGTERM to that worker) is replaced at
  once. A worker that fails at its first start, before it has served, ends the server: a restart would not help.
- Several workers: the first SIGTERM or SIGINT drains them one after the other. Each gets its share of the grace period,
  while the others serve. Workers still running at the end of the grace period are killed. With a notice, a file first
  tells the first worker that all will end; it makes the others report that they are not ready.
- A single server: a failed start or a normal end ends the supervisor too. The server itself keeps the grace period.
- Every other signal that requests the end goes to all children at once. So does SIGHUP, without ending them: they
  reopen the log file, and so does this process. On a terminal, SIGHUP means that it closes, and acts like SIGTERM.
- SIGUSR1 goes to all children, which write the stacks of their threads. It ends none, and this process writes none.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from modserve.core.configuration.log_settings import LogFormat, LogSettings
from modserve.core.runtime import unix_socket
from modserve.observability.logging import Logs
from modserve.workers.identity import STOPPING, WorkerIdentity

from .child_process import HARMLESS, BackOff, ExitStatus, Signals, reap, start

_log = logging.getLogger("modserve.supervisor")

_ORDERLY = (signal.SIGTERM, signal.SIGINT)
_TERMINATED_AT_START = 128 + signal.SIGTERM
"""Exit code of a worker that gets SIGTERM before it handles signals: it has nothing to finish."""
_LAST_WORDS_S = 0.5
"""Seconds for a worker after the grace period, to report that this was too short."""

IDENTITY = "IDENTITY"
"""Placeholder for a worker's identity in the command that starts it."""


@dataclass(frozen=True, slots=True)
class Workers:
    """`count` workers with the common `directory`. At the stop they are not ready for `notice_s` seconds, and then
    share `grace_s` seconds."""

    count: int
    grace_s: float
    directory: Path
    notice_s: float = 0.0


@dataclass(slots=True, eq=False)
class Child:
    """The supervisor's state of a serving process."""

    index: int
    pid: int | None = None
    starts: int = 0
    since_s: float = 0.0
    due_s: float | None = None
    """Time of its next start; None while it runs."""
    code: int = 0
    """Last exit code."""
    back_off: BackOff = field(default_factory=BackOff)


class Supervisor:
    """State of the children, and decisions about them. Affects processes only by `launch` and `send`, has no clock."""

    def __init__(
        self,
        command: Sequence[str],
        workers: Workers | None = None,
        launch: Callable[[Sequence[str]], int] = start,
        send: Callable[[int, int], None] = os.kill,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Without `workers`, `command` is a single server. `close`: called when no worker will accept connections."""
        self._command = command
        self._workers = workers
        self._launch = launch
        self._send = send
        self._close = close
        self._children = [Child(index) for index in range(1 if workers is None else workers.count)]
        self.stopping = False
        self.code = 0
        self._waiting: list[Child] = []
        """Processes to drain after the current one."""
        self._draining: Child | None = None
        self._next_s = 0.0
        self._end_s: float | None = None
        self._patient = False
        """True if a single signal has requested the end, and the workers end in order."""
        self._over_time = False

    @property
    def _running(self) -> list[Child]:
        return [child for child in self._children if child.pid is not None]

    @property
    def over(self) -> bool:
        return self.stopping and not self._running

    def begin(self, now_s: float) -> None:
        """Start all children. Raises OSError if the system cannot create a process."""
        for child in self._children:
            self._start(child, now_s)

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next action of `turn`; None if only a signal can cause one."""
        times = [child.due_s for child in self._children if child.due_s is not None and not self.stopping]
        if self._waiting:
            times.append(self._next_s)
        if self._end_s is not None:
            times.append(self._end_s)
        return max(0.0, min(times) - now_s) if times else None

    def turn(self, now_s: float) -> None:
        """Perform the actions due at `now_s`."""
        if not self.stopping:
            for child in self._children:
                if child.due_s is not None and child.due_s <= now_s:
                    self._start_again(child, now_s)
            return
        if self._waiting and (now_s >= self._next_s or self._draining is None or self._draining.pid is None):
            self._drain_next(now_s)
        if self._end_s is not None and now_s >= self._end_s:
            self._end_s = None
            _log.error("the grace period is over: the remaining workers are killed")
            self.code = max(self.code, 1)
            self._over_time = True
            self._send_all(signal.SIGTERM)
            self._send_all(signal.SIGKILL)

    def on_signal(self, number: int, now_s: float) -> None:
        """Handle a signal that requests the end, or one of `HARMLESS`."""
        if number in HARMLESS:
            self._send_all(number)
            return
        if self._workers is None:
            if not self._running:
                self.code = self._children[0].code
            self._send_all(number)
        elif number not in _ORDERLY or self.stopping:
            self._patient = False
            self._waiting.clear()
            with suppress(OSError):
                (self._workers.directory / STOPPING).unlink(missing_ok=True)
            self._close()
            self._send_all(number)
        else:
            self._patient = True
            self._waiting = self._running
            notice_s = self._workers.notice_s if self._gives_notice(self._workers) else 0.0
            self._end_s = now_s + notice_s + self._workers.grace_s + _LAST_WORDS_S
            self._drain_next(now_s)
            self._next_s += notice_s
        self.stopping = True

    def on_end(self, pid: int, end: ExitStatus, now_s: float) -> None:
        """Handle the end of a process, possibly a serving child."""
        child = next((each for each in self._children if each.pid == pid), None)
        if child is None:
            return
        child.pid, child.code = None, end.code
        if self.stopping:
            early = self._patient and end.code == _TERMINATED_AT_START
            self.code = max(self.code, 0 if early or self._over_time else end.code)
            return
        if self._is_final(child, end):
            self.stopping, self.code = True, end.code
            if self._workers is not None:
                _log.error("%s %s during startup: the server stops", self._name(child), end.text)
                self._patient = True
                self._end_s = now_s + self._workers.grace_s + _LAST_WORDS_S
                self._close()
                self._send_all(signal.SIGTERM)
            return
        delay = child.back_off.delay(now_s - child.since_s) if end.code else 0.0
        child.due_s = now_s + delay
        when = f"in {delay:g} s" if delay else "at once"
        level = logging.ERROR if end.code else logging.INFO
        _log.log(level, "%s, process %d, %s; starting it again %s", self._name(child), pid, end.text, when)

    def _is_final(self, child: Child, end: ExitStatus) -> bool:
        """True if a restart would not help."""
        if self._workers is None:
            return not end.crashed
        has_served = self._identity(child, self._workers).mark(child.index).exists()
        return not end.crashed and end.code != 0 and not has_served

    def _name(self, child: Child) -> str:
        return "the server" if self._workers is None else f"worker {child.index}"

    @staticmethod
    def _identity(child: Child, workers: Workers) -> WorkerIdentity:
        return WorkerIdentity(child.index, workers.count, child.starts, workers.directory)

    def _start(self, child: Child, now_s: float) -> None:
        identity = "" if self._workers is None else str(self._identity(child, self._workers))
        child.pid = self._launch([identity if word == IDENTITY else word for word in self._command])
        child.starts += 1
        child.since_s, child.due_s = now_s, None
        _log.info("supervising %s, process %d", self._name(child), child.pid)

    def _start_again(self, child: Child, now_s: float) -> None:
        try:
            self._start(child, now_s)
        except OSError as error:  # temporarily out of processes or memory
            delay = max(1.0, child.back_off.delay(0.0))
            child.due_s = now_s + delay
            _log.error("cannot start %s: %s; trying again in %g s", self._name(child), error, delay)

    @staticmethod
    def _gives_notice(workers: Workers) -> bool:
        """Make the workers report that they are not ready, if configured; return False otherwise."""
        if not workers.notice_s:
            return False
        path = workers.directory / STOPPING
        try:
            path.touch()
        except OSError as error:  # such as a full disk
            _log.error("the stop begins without its notice of %g s: cannot write %s: %s", workers.notice_s, path, error)
            return False
        return True

    def _drain_next(self, now_s: float) -> None:
        """Drain the next worker. A slow one does not keep the others from ending in time."""
        assert self._workers is not None, "a server alone is not drained: this is a bug"
        while self._waiting:
            child = self._draining = self._waiting.pop(0)
            if not self._waiting:
                self._close()
            self._next_s = now_s + self._workers.grace_s / self._workers.count
            if child.pid is not None:
                self._send_to(child.pid, signal.SIGTERM)
                return

    def _send_all(self, number: int) -> None:
        for child in self._children:
            if child.pid is not None:
                self._send_to(child.pid, number)

    def _send_to(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            self._send(pid, number)


def supervise(supervisor: Supervisor, on_hang_up: Callable[[], None] = lambda: None) -> int:
    """Run the children until none is left to run. Return the exit code: 0 if all ended in order.

    Calls `on_hang_up` at SIGHUP, which the children get, too. Unless SIGHUP was ignored before, it means SIGTERM.
    """
    of_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    signals = Signals()
    supervisor.begin(time.monotonic())
    while not supervisor.over:
        number = signals.next(supervisor.wait_s(time.monotonic()))
        if number == signal.SIGHUP and of_terminal:
            if supervisor.stopping:  # the shell and the system may both send it
                continue
            number = signal.SIGTERM
        now_s = time.monotonic()
        if number == signal.SIGCHLD:
            for pid, end in reap():
                supervisor.on_end(pid, end, now_s)
        elif number is not None:
            if number == signal.SIGHUP:
                on_hang_up()
            supervisor.on_signal(number, now_s)
        supervisor.turn(now_s)
    return supervisor.code


def arguments(
    logs: LogSettings, command: Sequence[str], workers: Workers | None = None, descriptors: Sequence[int] = ()
) -> list[str]:
    """Return the arguments after the interpreter's name for a process that supervises `command`.

    `descriptors`: sockets that hold the workers' ports, and their Unix sockets.
    """
    of_workers = (
        ["0", "", "", ""]
        if workers is None
        else [str(workers.count), str(workers.grace_s), str(workers.notice_s), str(workers.directory)]
    )
    numbers = ",".join(map(str, descriptors))
    return ["-m", "modserve.process.supervisor", logs.format.value, logs.file, *of_workers, numbers, *command]


def main() -> int:
    """Supervise according to this process's arguments, made by `arguments`."""
    log_format, log_file, count, grace, notice, directory, numbers, *command = sys.argv[1:]
    workers = Workers(int(count), float(grace), Path(directory), float(notice)) if directory else None
    held = HeldSockets([int(descriptor) for descriptor in filter(None, numbers.split(","))])
    try:
        try:
            logs = Logs(LogSettings(format=LogFormat(log_format), file=log_file))
            logs.install()
        except OSError as error:
            print(f"modserve: cannot open the log file; '--log-file' names another: {error}", file=sys.stderr)
            return 1
        try:
            return supervise(Supervisor(command, workers, close=held.close), logs.reopen)
        except OSError as error:
            _log.error("cannot start the server: %s", error)
            return 1
    finally:
        held.close()
        if workers is not None:
            remove(workers.directory)


class HeldSockets:
    """Sockets held for workers, which inherit the listening Unix sockets, but not the sockets that reserve a port."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        self._unix = [each for each in sockets if each.family == socket.AF_UNIX]
        self._holding = [each for each in sockets if each.family != socket.AF_UNIX]
        self._files = [unix_socket.SocketFile(each) for each in self._unix]
        for each in self._holding:
            each.set_inheritable(False)

    def close(self) -> None:
        """Remove the Unix sockets, once the workers have closed theirs. Idempotent."""
        for file in self._files:
            file.remove()
        for each in self._unix:
            each.close()


def remove(directory: Path) -> None:
    """Remove the workers' directory and all files in it."""
    with suppress(OSError):
        for entry in os.scandir(directory):
            os.unlink(entry.path)
        os.rmdir(directory)


if __name__ == "__main__":
    sys.exit(main())
