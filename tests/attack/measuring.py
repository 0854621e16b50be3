"""What an attack costs the server, and those who use it meanwhile."""

import atexit
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from server_process import ServerProcess, eventually

from attack.probe import cpu_seconds

LIVE_SECONDS = 0.1
"""In which health must be answered, during an attack and after it."""

_ENDLESS = 5.0
"""Seconds with a core after which health counts as not answered, whatever the server's CPU time says."""

_LEFT_MB = 64.0
"""What may be left of an attack in memory: allocators keep some of what was freed."""
_LEFT_THREADS = 8
"""Pools of threads fill as they are first used."""
_LOG_BYTES = 64 * 1024
_WATCHDOG = " modserve.observability.watchdog: "
"""In lines of which a busy machine makes more; `Limits.live_seconds` is about what they say."""
_TROUBLE = re.compile(r" (?:ERROR|CRITICAL) |Traceback|Warning:|^E\d{4} ", re.MULTILINE)
_PROBE = Path(__file__).parent / "probe.py"


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds."""

    rss_mb: float
    descriptors: int
    threads: int


def footprint(pid: int) -> Footprint:
    status = Path(f"/proc/{pid}/status").read_text()
    return Footprint(_status(status, "VmRSS") / 1024, len(os.listdir(f"/proc/{pid}/fd")), _status(status, "Threads"))


def peak_mb(pid: int) -> float:
    """The most resident memory since `forget_peak`."""
    return status_number(pid, "VmHWM") / 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def status_number(pid: int, field_name: str) -> int:
    """A number in a process's status, as the system has it: kibibytes of memory, threads."""
    return _status(Path(f"/proc/{pid}/status").read_text(), field_name)


def _status(text: str, field_name: str) -> int:
    match = re.search(rf"^{field_name}:\s+(\d+)", text, re.MULTILINE)
    assert match is not None, f"no {field_name} in:\n{text}"
    return int(match[1])


@dataclass(frozen=True, slots=True)
class Limits:
    """What an attack may cost."""

    peak_mb: float = 256.0
    """More resident memory than before, at any time."""
    cpu_seconds: float | None = None
    """The server's CPU time, from the first byte until it has recovered."""
    left_mb: float = _LEFT_MB
    log_bytes: int = _LOG_BYTES
    """Logged within any one second: a slow machine logs for longer."""
    live_seconds: float = LIVE_SECONDS
    errors: str = ""
    """A pattern of the lines that the log may have as errors; empty: it has none."""


@dataclass
class Cost:
    """Of one attack; filled when it is over."""

    name: str
    live_seconds: float = 0.0
    """The longest that health took, less what the machine is to blame for."""
    live_raw_seconds: float = 0.0
    cpu_seconds: float = 0.0
    before: Footprint = field(default_factory=lambda: Footprint(0, 0, 0))
    after: Footprint = field(default_factory=lambda: Footprint(0, 0, 0))
    peak_mb: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.name}: live {self.live_seconds * 1e3:.0f} ms (on the clock {self.live_raw_seconds * 1e3:.0f}), "
            f"CPU {self.cpu_seconds:.2f} s, RSS {self.before.rss_mb:.0f} -> {self.after.rss_mb:.0f} MB "
            f"(peak {self.peak_mb:.0f}), descriptors {self.before.descriptors} -> {self.after.descriptors}, "
            f"threads {self.before.threads} -> {self.after.threads}"
        )


COSTS: list[Cost] = []
"""Of all attacks so far, for the report at the end."""


@contextmanager
def attacked(server: ServerProcess, name: str, limits: Limits = Limits()) -> Iterator[Cost]:
    """Watches the server while the block attacks it; afterwards it must be as before, within `limits`."""
    cost = Cost(name, before=footprint(server.pid))
    logged = len(server.log)
    forget_peak(server.pid)
    began = cpu_seconds(server.pid)
    with _watching(server) as watching:
        yield cost
        try:
            # The footprint that counts: at any other moment a server may have opened a file.
            cost.after = eventually(lambda: _recovered(cost, limits, footprint(server.pid))) or cost.after
        except AssertionError:
            cost.after = footprint(server.pid)  # what is wrong is said below, in words
        except OSError:
            pass  # the server has ended
        watching.stop()
    assert server.running, f"the server has ended:\n{server.log[-4000:]}"
    cost.cpu_seconds = cpu_seconds(server.pid) - began
    cost.peak_mb = peak_mb(server.pid)
    cost.live_seconds, cost.live_raw_seconds = watching.worst()
    COSTS.append(cost)
    _check(cost, limits, watching.failure, server.log[logged:])


def _recovered(cost: Cost, limits: Limits, now: Footprint) -> Footprint | None:
    recovered = (
        now.rss_mb <= cost.before.rss_mb + limits.left_mb
        and now.descriptors <= cost.before.descriptors + 1  # the probe's own connection
        and now.threads <= cost.before.threads + _LEFT_THREADS
    )
    return now if recovered else None


def _check(cost: Cost, limits: Limits, failure: str, log: str) -> None:
    """All that is wrong in one text."""
    wrong = [failure] if failure else []
    if cost.live_seconds > limits.live_seconds:
        wrong.append(f"health took more than {limits.live_seconds * 1e3:.0f} ms")
    if limits.cpu_seconds is not None and cost.cpu_seconds > limits.cpu_seconds:
        wrong.append(f"it took more than {limits.cpu_seconds} s of CPU")
    if cost.peak_mb > cost.before.rss_mb + limits.peak_mb:
        wrong.append(f"memory grew by more than {limits.peak_mb:.0f} MB")
    if not _recovered(cost, limits, cost.after):
        wrong.append("it kept memory, descriptors or threads")
    lines = [line for line in log.splitlines() if _WATCHDOG not in line]
    logged: Counter[str] = Counter()
    for line in lines:
        logged[line[: len("2000-01-01T00:00:00")]] += len(line)
    if most := [second for second, size in logged.items() if size > limits.log_bytes]:
        wrong.append(f"it logged {logged[most[0]]} characters at {most[0]}, beginning {lines[:20]}")
    errors = [line for line in lines if _TROUBLE.search(line)]
    if unexpected := [line for line in errors if not (limits.errors and re.search(limits.errors, line))]:
        wrong.append(f"it logged errors: {unexpected[:5]}")
    assert not wrong, f"{'; '.join(wrong)}\n{cost}"


class _Probe:
    """The process that asks: one for all attacks, since starting it takes longer than most of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def begin(self, pid: int, port: int) -> None:
        """It asks from now on. Raises AssertionError if the server does not answer."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(_PROBE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            atexit.register(self.kill)
        first = self._exchange(f"{pid} {port}")
        assert first == "watching\n", f"health was not answered before the attack: {first}"

    def end(self) -> str:
        """It asks no more, and these are its findings."""
        return self._exchange("stop")

    def _exchange(self, line: str) -> str:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        return self._process.stdout.readline()

    def kill(self) -> None:
        """The next attack has another one."""
        process, self._process = self._process, None
        if process is not None:
            atexit.unregister(self.kill)
            process.kill()
            process.communicate()


_probe = _Probe()


class _Watching:
    """The probe's view of one attack."""

    def __init__(self, server: ServerProcess) -> None:
        _probe.begin(server.pid, server.http_port)
        self.failure = ""
        self.stopped = False
        self._server: list[tuple[float, float, float, float]] = []
        self._control: list[tuple[float, float, float, float]] = []

    def stop(self) -> None:
        """It asks no more, and what it has found is here."""
        time.sleep(0.02)  # one more question after the attack
        found = json.loads(_probe.end())
        self.failure, self._server, self._control = found["failure"], found["server"], found["control"]
        self.stopped = True

    def worst(self) -> tuple[float, float]:
        """The longest that health took: less what the machine is to blame for, and as it was on the clock."""
        waits = [ended - asked for asked, ended, _, _ in self._server]
        blamed = [self._blamed(*sample) for sample in self._server]
        return max(blamed, default=0.0), max(waits, default=0.0)

    def _blamed(self, asked: float, ended: float, computed: float, queued: float) -> float:
        """Of an answer's time, what the server itself has used, and the control has not waited as well."""
        waited = ended - asked
        machine = max((min(ended, end) - max(asked, begin) for begin, end, _, _ in self._control), default=0.0)
        had_a_core = waited - queued
        return had_a_core if had_a_core > _ENDLESS else max(0.0, min(had_a_core, computed) - max(0.0, machine))


@contextmanager
def _watching(server: ServerProcess) -> Iterator[_Watching]:
    watching: _Watching | None = None
    try:
        watching = _Watching(server)
        yield watching
    finally:
        if watching is None or not watching.stopped:
            _probe.kill()
