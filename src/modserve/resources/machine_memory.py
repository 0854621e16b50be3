"""The memory that this process may use: the smallest limit of its container, its user and the machine."""

import resource
from pathlib import Path
from typing import NamedTuple

_CGROUP = Path("/sys/fs/cgroup")
_LIMIT_FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""Limit files of cgroup version 2 and 1, where a container sees its own group."""
_USES = (("memory.current", "memory.stat"), ("memory/memory.usage_in_bytes", "memory/memory.stat"))
_NO_LIMIT = 2**60
"""Bytes: version 1 writes a number like that where there is none."""
_MEMINFO = Path("/proc/meminfo")


class ContainerMemory(NamedTuple):
    """Bytes. `limit` is 0 without one."""

    limit: int
    used: int


def container_memory(cgroup: Path = _CGROUP) -> ContainerMemory | None:
    """Return the memory of this process's control group; None where the system does not say.

    As Kubernetes counts it, files that the system would drop before it ends a process are not in use.
    """
    for limit_file, (use_file, stat_file) in zip(_LIMIT_FILES, _USES, strict=True):
        used = _read_limit(cgroup / use_file)
        if used:
            limit = _read_limit(cgroup / limit_file)
            return ContainerMemory(0 if limit > _NO_LIMIT else limit, max(0, used - _idle_files(cgroup / stat_file)))
    return None


def _idle_files(path: Path) -> int:
    try:
        values = {name: value for name, _, value in (line.partition(" ") for line in path.read_text().splitlines())}
        return int(values.get("total_inactive_file") or values.get("inactive_file") or 0)
    except (OSError, ValueError):
        return 0


def read_memory_limit(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int:
    """Bytes; 0 if the system does not say."""
    limits = [_read_limit(cgroup / name) for name in _LIMIT_FILES]
    limits += [_address_space(), _machine(meminfo)]
    return min((limit for limit in limits if limit > 0), default=0)


def _read_limit(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0  # "max": no limit


def _address_space() -> int:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit


def _machine(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return 0
