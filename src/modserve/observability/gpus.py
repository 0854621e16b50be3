"""Metrics of the GPUs from NVML, under Triton's names. The library is nvidia-ml-py, of the extra ``gpu``.

The first scrape imports it. Without the library or a driver there are no metrics, and the log
says so once, below the level of a warning: most machines have no GPU.
"""

import logging
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from .families import Family, family, format_labels

_log = logging.getLogger(__name__)

_Read = Callable[[Any, Any], float]

_FAMILIES: tuple[tuple[str, str, str, _Read], ...] = (
    (
        "nv_gpu_utilization",
        "gauge",
        "Utilization of a GPU, from 0 to 1",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    (
        "nv_gpu_memory_total_bytes",
        "gauge",
        "Total memory of a GPU in bytes",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    ),
    (
        "nv_gpu_memory_used_bytes",
        "gauge",
        "Used memory of a GPU in bytes",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    (
        "nv_gpu_power_usage",
        "gauge",
        "Power usage of a GPU in watts",
        lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    ),
    (
        "nv_gpu_power_limit",
        "gauge",
        "Power limit of a GPU in watts",
        lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
    ),
)


class GpuCollector:
    """Reads at each scrape, but not more often than every `interval_ms`. `load` imports the library."""

    def __init__(
        self,
        interval_ms: int,
        load: Callable[[], Any] = lambda: import_module("pynvml"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval = interval_ms / 1e3
        self._load = load
        self._clock = clock
        self._nvml: Any = None
        self._begun = False
        self._gpus: list[tuple[str, Any]] = []
        """Labels and handles of the GPUs."""
        self._energy_at_first: dict[str, float] = {}
        self._read: float | None = None
        self._families: list[Family] = []

    def collect(self) -> Iterator[Family]:
        if not self._begun:
            self._begun = True
            self._begin()
        now = self._clock()
        if self._gpus and (self._read is None or now - self._read >= self._interval):
            self._read = now
            self._families = [*self._current()]
        yield from self._families

    def _begin(self) -> None:
        try:
            nvml = self._load()
            nvml.nvmlInit()
            for index in range(nvml.nvmlDeviceGetCount()):
                gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = nvml.nvmlDeviceGetUUID(gpu)
                name = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
                self._gpus.append((format_labels({"gpu_uuid": name}), gpu))
            self._nvml = nvml
        except Exception as error:  # the library has an exception of its own for each code
            _log.debug("no metrics of GPUs: %s", error)
            self._gpus = []

    def _current(self) -> Iterator[Family]:
        for name, kind, text, read in _FAMILIES:
            yield family(name, kind, text, self._values(read))
        joules = self._values(lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3)
        for labels, value in joules:
            self._energy_at_first.setdefault(labels, value)
        used = [(labels, value - self._energy_at_first[labels]) for labels, value in joules]
        yield family("nv_energy_consumption", "counter", "Energy used by a GPU since the first scrape, in joules", used)

    def _values(self, read: _Read) -> list[tuple[str, float]]:
        """Return a figure by labels, for the GPUs that have it: not all do."""
        values = []
        for labels, gpu in self._gpus:
            try:
                values.append((labels, float(read(self._nvml, gpu))))
            except Exception:  # as above
                continue
        return values
