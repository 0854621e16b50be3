"""CPU, memory and GPUs by Triton's names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from modserve.observability.families import render
from modserve.observability.gpus import GpuCollector
from modserve.observability.server_metrics import MachineCollector

MEMORY = "MemTotal:       1000 kB\nMemFree:   100 kB\nMemAvailable:    400 kB\nHugePages_Total:       0\n"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def values(collector: Any) -> dict[str, float]:
    lines = render([collector.collect]).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def write(proc: Path, *ticks: int) -> None:
    (proc / "stat").write_text("cpu  " + " ".join(map(str, ticks)) + "\ncpu0 1 2 3\n")
    (proc / "meminfo").write_text(MEMORY)


def test_the_machine(tmp_path: Path) -> None:
    clock = Clock()
    # user, nice, system, idle, iowait, irq, softirq, steal, and guests, which are counted among the users
    write(tmp_path, 100, 0, 0, 100, 0, 0, 0, 0, 50, 50)
    collector = MachineCollector(2000, tmp_path, clock)
    write(tmp_path, 110, 5, 5, 150, 20, 3, 4, 3, 90, 90)
    assert values(collector) == {
        "nv_cpu_utilization": 0.3,
        "nv_cpu_memory_total_bytes": 1_024_000,
        "nv_cpu_memory_used_bytes": 614_400,
    }
    write(tmp_path, 210, 5, 5, 150, 20, 3, 4, 3)
    clock.now = 1.9
    assert values(collector)["nv_cpu_utilization"] == 0.3
    clock.now = 2.0
    assert values(collector)["nv_cpu_utilization"] == 1


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert values(MachineCollector(2000, tmp_path)) == {}
    (tmp_path / "stat").write_text("cpu x\n")
    (tmp_path / "meminfo").write_text("MemTotal: many\n")
    assert values(MachineCollector(2000, tmp_path)) == {}


class FakeNvml:
    """Two GPUs. The second one has no figures of power and energy."""

    def __init__(self) -> None:
        self.millijoules = 5_000
        self.reads = 0

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, gpu: int) -> str | bytes:
        return "GPU-b" if gpu else b"GPU-a"

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> SimpleNamespace:
        self.reads += 1
        return SimpleNamespace(gpu=25 * (gpu + 1), memory=1)

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(total=2000, used=500, free=1500)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        return self._only_first(gpu, 70_000)

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:
        return self._only_first(gpu, 350_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:
        return self._only_first(gpu, self.millijoules)

    def _only_first(self, gpu: int, value: int) -> int:
        if gpu:
            raise RuntimeError("Not Supported")
        return value


def test_gpus() -> None:
    nvml, clock = FakeNvml(), Clock()
    collector = GpuCollector(1000, lambda: nvml, clock)
    expected = {
        'nv_gpu_utilization{gpu_uuid="GPU-a"}': 0.25,
        'nv_gpu_utilization{gpu_uuid="GPU-b"}': 0.5,
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"}': 2000,
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-b"}': 2000,
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"}': 500,
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"}': 500,
        'nv_gpu_power_usage{gpu_uuid="GPU-a"}': 70,
        'nv_gpu_power_limit{gpu_uuid="GPU-a"}': 350,
        'nv_energy_consumption{gpu_uuid="GPU-a"}': 0,
    }
    assert values(collector) == expected
    nvml.millijoules = 7_500
    clock.now = 0.5
    assert (values(collector), nvml.reads) == (expected, 2)
    clock.now = 1.0
    assert values(collector) == {**expected, 'nv_energy_consumption{gpu_uuid="GPU-a"}': 2.5}


def test_no_gpus() -> None:
    def missing() -> Any:
        raise ImportError("No module named 'pynvml'")

    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise RuntimeError("Driver Not Loaded")

    for load in (missing, NoDriver):
        collector = GpuCollector(1000, load)
        assert values(collector) == {}
        assert values(collector) == {}
