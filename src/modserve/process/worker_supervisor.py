"""The parent process of ``modserve serve --workers N``: starts the workers, replaces the dead, and ends them in order.

It holds the numbers of the ports by sockets that do not listen, and imports very little, so that little can go wrong in
it. Each worker is a child with a process group of its own, which gets SIGTERM if this process dies.

- A worker that crashes is started again, later and later as long as that does not help; one that ends in order without
  a stop of the server (somebody has sent it SIGTERM) is replaced at once.
- One that fails at its first start, before it has served, ends the server: another start would not help.
- The first SIGTERM or SIGINT drains the workers one after the other, each of which gets its part of the grace period
  for itself, while those behind it still serve. What has not ended with the grace period is ended by force. A second
  signal, and SIGQUIT, go to all of them at once.
- SIGHUP goes to all of them, and ends none: each opens the log file anew, and so does this process.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from modserve.core.configuration.log_settings import LogFormat, LogSettings
from modserve.observability.logging import Logs
from modserve.process.supervisor import BackOff, Ending, Signals, ending, start
from modserve.workers.identity import WorkerIdentity

_log = logging.getLogger("modserve.supervisor")

_ORDERLY = (signal.SIGTERM, signal.SIGINT)
_BEFORE_IT_HEARS = 128 + signal.SIGTERM
"""How a worker ends that gets SIGTERM while it still starts: it has nothing to finish."""
_LAST_WORDS_S = 0.5
"""What a worker gets beyond the grace period to say that it was too short."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is started: `command` gets a worker's place in place of the word `PLACE`."""

    count: int
    grace_s: float
    directory: Path
    command: Sequence[str]

    def of(self, index: int, starts: int) -> list[str]:
        place = str(WorkerIdentity(index, self.count, starts, self.directory))
        return [place if word == PLACE else word for word in self.command]


PLACE = "PLACE"


@dataclass(slots=True, eq=False)
class Worker:
    """What the supervisor knows of a worker."""

    index: int
    pid: int | None = None
    starts: int = 0
    since_s: float = 0.0
    due_s: float | None = None
    """When it is started again; None while it runs."""
    back_off: BackOff = field(default_factory=BackOff)


class Fleet:
    """The workers, and what becomes of them. Knows processes only by `launch` and `send`, and no clock of its own."""

    def __init__(
        self,
        plan: Plan,
        launch: Callable[[Sequence[str]], int] = start,
        send: Callable[[int, int], None] = os.kill,
    ) -> None:
        self._plan = plan
        self._launch = launch
        self._send = send
        self.workers = [Worker(index) for index in range(plan.count)]
        self.stopping = False
        self.code = 0
        self._waiting: list[Worker] = []
        """Those that are still to be drained, after the one that is being drained."""
        self._draining: Worker | None = None
        self._next_s = 0.0
        self._end_s: float | None = None
        self._patient = True
        """A single signal has requested the end, which the workers reach in order."""
        self._over_time = False

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.pid is not None]

    @property
    def over(self) -> bool:
        return self.stopping and not self.running

    def begin(self, now_s: float) -> None:
        for worker in self.workers:
            self._start(worker, now_s)

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until `turn` has something to do; None if that takes a signal."""
        times = [worker.due_s for worker in self.workers if worker.due_s is not None and not self.stopping]
        if self._waiting:
            times.append(self._next_s)
        if self._end_s is not None:
            times.append(self._end_s)
        return max(0.0, min(times) - now_s) if times else None

    def turn(self, now_s: float) -> None:
        """Do what is due at `now_s`."""
        if not self.stopping:
            for worker in self.workers:
                if worker.due_s is not None and worker.due_s <= now_s:
                    self._start(worker, now_s)
            return
        if self._waiting and (now_s >= self._next_s or self._draining is None or self._draining.pid is None):
            self._drain_next(now_s)
        if self._end_s is not None and now_s >= self._end_s:
            self._end_s = None
            _log.error("the grace period is over: the workers that are left end now")
            self.code = max(self.code, 1)
            self._over_time = True
            self._send_all(signal.SIGTERM)
            self._send_all(signal.SIGKILL)

    def signalled(self, number: int, now_s: float) -> None:
        """A signal requests the end, or is SIGHUP."""
        if number == signal.SIGHUP:
            self._send_all(number)
            return
        if number not in _ORDERLY or self.stopping:
            self.stopping = True
            self._patient = False
            self._waiting.clear()
            self._send_all(number)
            return
        self.stopping = True
        self._waiting = self.running
        self._end_s = now_s + self._plan.grace_s + _LAST_WORDS_S
        self._drain_next(now_s)

    def ended(self, pid: int, end: Ending, now_s: float) -> None:
        """A child has ended, which may be a worker."""
        worker = next((each for each in self.workers if each.pid == pid), None)
        if worker is None:
            return
        worker.pid = None
        if self.stopping:
            early = self._patient and end.code == _BEFORE_IT_HEARS
            self.code = max(self.code, 0 if early or self._over_time else end.code)
            return
        has_served = WorkerIdentity(worker.index, self._plan.count, 0, self._plan.directory).mark(worker.index).exists()
        if not end.crashed and end.code and not has_served:
            _log.error("worker %d %s at its start: the server stops", worker.index, end.text)
            self.code = end.code
            self.stopping = True
            self._end_s = now_s + self._plan.grace_s + _LAST_WORDS_S
            self._send_all(signal.SIGTERM)
            return
        delay = worker.back_off.delay(now_s - worker.since_s) if end.code else 0.0
        worker.due_s = now_s + delay
        when = f"in {delay:g} s" if delay else "at once"
        level = logging.ERROR if end.code else logging.INFO
        _log.log(level, "worker %d, process %d, %s; starting it again %s", worker.index, pid, end.text, when)

    def _start(self, worker: Worker, now_s: float) -> None:
        worker.pid = self._launch(self._plan.of(worker.index, worker.starts))
        worker.starts += 1
        worker.since_s, worker.due_s = now_s, None
        _log.info("supervising worker %d, process %d", worker.index, worker.pid)

    def _drain_next(self, now_s: float) -> None:
        """Let the next worker finish what it has. One that takes long does not keep the others from ending in time."""
        while self._waiting:
            worker = self._draining = self._waiting.pop(0)
            self._next_s = now_s + self._plan.grace_s / self._plan.count
            if worker.pid is not None:
                self._send_to(worker.pid, signal.SIGTERM)
                return

    def _send_all(self, number: int) -> None:
        for worker in self.running:
            assert worker.pid is not None, "those that run have one: this is a bug"
            self._send_to(worker.pid, number)

    def _send_to(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            self._send(pid, number)


def supervise(plan: Plan, on_hang_up: Callable[[], None] = lambda: None) -> int:
    """Runs the workers until a signal requests the end. Returns 0 if all have ended in order.

    Calls `on_hang_up` at SIGHUP, which the workers get, too.
    """
    signals, fleet = Signals(), Fleet(plan)
    fleet.begin(time.monotonic())
    while not fleet.over:
        number = signals.next(fleet.wait_s(time.monotonic()))
        now_s = time.monotonic()
        if number == signal.SIGCHLD:
            for pid, end in _reaped():
                fleet.ended(pid, end, now_s)
        elif number is not None:
            if number == signal.SIGHUP:
                on_hang_up()
            fleet.signalled(number, now_s)
        fleet.turn(now_s)
    return fleet.code


def _reaped() -> list[tuple[int, Ending]]:
    """Every child that has ended, orphans included."""
    endings: list[tuple[int, Ending]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return endings
        if not pid:
            return endings
        endings.append((pid, ending(status)))


def arguments(logs: LogSettings, plan: Plan, descriptors: Sequence[int]) -> list[str]:
    """The command line, behind the interpreter's name, of the process that supervises the workers of `plan`.

    `descriptors` are those of the sockets that hold the ports.
    """
    numbers = ",".join(map(str, descriptors))
    words = (logs.format.value, logs.file, str(plan.count), str(plan.grace_s), str(plan.directory), numbers)
    return ["-m", "modserve.process.worker_supervisor", *words, *plan.command]


def main() -> int:
    """Supervises what this process's arguments say, which `arguments` made."""
    log_format, log_file, count, grace, directory, numbers, *command = sys.argv[1:]
    plan = Plan(int(count), float(grace), Path(directory), command)
    try:
        for descriptor in numbers.split(","):
            os.set_inheritable(int(descriptor), False)
        logs = Logs(LogSettings(format=LogFormat(log_format), file=log_file))
        logs.install()
        return supervise(plan, logs.reopen)
    except OSError as error:
        print(f"modserve: cannot open the log file; '--log-file' names another: {error}", file=sys.stderr)
        return 1
    finally:
        remove(plan.directory)


def remove(directory: Path) -> None:
    """Remove the workers' directory and all files in it."""
    with suppress(OSError):
        for entry in os.scandir(directory):
            os.unlink(entry.path)
        os.rmdir(directory)


if __name__ == "__main__":
    sys.exit(main())
