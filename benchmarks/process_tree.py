"""What a process and all below it cost: CPU time and memory. Those that end meanwhile count as nothing."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and all below it."""
    members = [pid]
    for each in members:
        try:
            for task in Path(f"/proc/{each}/task").glob("*/children"):
                members += map(int, task.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return members


def cpu_seconds(pid: int) -> float:
    """User and system time, of ended children too where their parent has waited for them."""
    return sum(_ticks(each) for each in family(pid)) / _TICK


def rss_mb(pid: int) -> float:
    """Resident memory; what processes share counts once for each of them."""
    return sum(_megabytes(each, "status", "VmRSS") for each in family(pid))


def pss_mb(pid: int) -> float:
    """Resident memory; what processes share counts once."""
    return sum(_megabytes(each, "smaps_rollup", "Pss") for each in family(pid))


def end(process: "subprocess.Popen[bytes]", seconds: float = 15.0) -> None:
    """Ask the process to end; after `seconds`, kill it and everything that it has started.

    It must be the first of a session (`start_new_session`): a server that has crashed leaves orphans, which are in it.
    """
    members = family(process.pid)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    limit = time.monotonic() + 5.0
    while (left := [each for each in members[1:] if alive(each)]) and time.monotonic() < limit:
        time.sleep(0.05)
    for each in left:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether it runs; not where it only waits to be waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(map(int, fields[11:15]))


def _megabytes(pid: int, file: str, name: str) -> float:
    try:
        match = re.search(rf"(?m)^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return int(match[1]) / 1024 if match else 0.0
