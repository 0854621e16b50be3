"""Placement of instances on devices, and the number of CPU threads that each may use."""

import os
from collections.abc import Iterable
from pathlib import Path

from modserve.backends.api import Placement
from modserve.core.configuration.model_config import InstanceGroup, InstanceKind
from modserve.core.errors import invalid


def available_cores(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the CPU cores this process may use: its affinity mask, cut down to the cgroup's CPU quota (rounded up)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(cgroup_root)
    return max(1, min(cores, quota)) if quota else cores


def _cgroup_quota(root: Path) -> int:
    """Return the whole cores of the CPU quota, rounded up; 0 if there is none. Reads cgroup v2, then v1."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return 0
    if not (limit.isdigit() and period.isdigit() and int(period)):
        return 0  # "max", or -1 in v1
    return -(-int(limit) // int(period))


def placements(model: str, groups: Iterable[InstanceGroup], gpu_count: int) -> list[tuple[str, Placement]]:
    """Return a name and a place for each instance. Raises INVALID_ARG for a GPU that is not there."""
    instances: list[tuple[str, Placement]] = []
    for group in groups:
        kind = group.kind
        if kind is InstanceKind.AUTO:
            kind = InstanceKind.GPU if gpu_count else InstanceKind.CPU
        devices: Iterable[int] = (0,)
        if kind is InstanceKind.GPU:
            devices = group.gpus or range(gpu_count)
            missing = [device for device in devices if device >= gpu_count]
            if missing or not gpu_count:
                raise invalid(
                    f"instance group {group.name} of model {model} specifies GPU "
                    f"{', '.join(map(str, missing)) or 'instances'}, but {gpu_count} GPUs are available here; "
                    "use kind: KIND_CPU or KIND_AUTO"
                )
        for device in devices:
            for index in range(group.count):
                suffix = f"_{device}" if kind is InstanceKind.GPU else ""
                instances.append((f"{group.name}{suffix}_{index}", Placement(kind, device)))
    return instances


def thread_share(cores: int, cpu_instances: int) -> int:
    """Return the CPU threads of one instance if all CPU instances of the server share `cores`; at least 1."""
    return max(1, cores // max(1, cpu_instances))
