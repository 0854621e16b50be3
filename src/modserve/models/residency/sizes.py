"""How large models are: in files, and in memory.

What a load adds is read from ``/proc``: the anonymous and file-backed pages of this process, and of the processes that
the load has started, their proportional share (PSS), since they share the interpreter's and the libraries' pages.
Freed memory that the allocator keeps is returned to the system first, or the load would take that and seem to need
nothing. Shared memory is left out: it belongs to requests. Everything here blocks, and is for a thread.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Files(NamedTuple):
    """The files of a version."""

    size: int = 0
    """Bytes of all of them."""
    changed_ns: int = 0
    """When the last of them was changed."""


def files_of(directory: Path) -> Files:
    """All that lies below a directory."""
    size = changed_ns = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                status = os.stat(os.path.join(folder, name))
            except OSError:
                continue
            size += status.st_size
            changed_ns = max(changed_ns, status.st_mtime_ns)
    return Files(size, changed_ns)


def own_bytes(proc: Path = _PROC) -> int:
    """Bytes of memory that this process has, without shared memory; 0 if the system does not say."""
    try:
        lines = (proc / "self/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssFile:")))


def children(pid: int, proc: Path = _PROC) -> frozenset[int]:
    """The processes that a process has started, with those that these have started."""
    parents: dict[int, list[int]] = {}
    try:
        numbers = [int(name) for name in os.listdir(proc) if name.isdecimal()]
    except OSError:
        return frozenset()
    for number in numbers:
        try:  # behind the name, which may have any characters: the state, and the parent
            parent = int((proc / str(number) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        parents.setdefault(parent, []).append(number)
    below: set[int] = set()
    left = [pid]
    while left:
        news = [each for each in parents.get(left.pop(), ()) if each not in below]
        below.update(news)
        left += news
    return frozenset(below)


def share_of(pid: int, proc: Path = _PROC) -> int:
    """The proportional share of memory of another process; what is resident where the system says no more."""
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    try:
        return int((proc / str(pid) / "statm").read_bytes().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


class MemorySample(NamedTuple):
    """The memory before a load."""

    own: int
    processes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Meter:
    """Measures what a load adds. `trim` gives back to the system what the allocator keeps."""

    trim: Callable[[], object] = lambda: None
    own: Callable[[], int] = own_bytes
    processes: Callable[[], frozenset[int]] = lambda: children(os.getpid())
    share: Callable[[int], int] = share_of

    def before(self) -> MemorySample:
        self.trim()
        return MemorySample(self.own(), self.processes())

    def after(self, before: MemorySample) -> int:
        """Bytes that this process has grown by, and that the processes have which were not there before."""
        self.trim()
        grown = max(0, self.own() - before.own)
        return grown + sum(self.share(pid) for pid in self.processes() - before.processes)
