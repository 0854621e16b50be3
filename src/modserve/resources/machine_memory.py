"""The memory that this process may use: the smallest limit of its container, its user and the machine."""

import resource
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_LIMIT_FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""Those of cgroup version 2 and 1, where a container sees its own group."""
_MEMINFO = Path("/proc/meminfo")


def allowed_memory(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int:
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
