"""Where instances run, and how many threads they get."""

import os
from pathlib import Path

import pytest

from modserve.backends.api import Placement
from modserve.core.configuration.model_config import InstanceGroup, InstanceKind
from modserve.core.errors import Code, ModserveError
from modserve.execution.placement import available_cores, placements, thread_share

AUTO, CPU, GPU, MODEL = InstanceKind.AUTO, InstanceKind.CPU, InstanceKind.GPU, InstanceKind.MODEL


@pytest.mark.parametrize(
    ("groups", "gpu_count", "expected"),
    [
        ([], 0, []),
        ([InstanceGroup("m_0", CPU, 2)], 2, [("m_0_0", CPU, 0), ("m_0_1", CPU, 0)]),
        ([InstanceGroup("m_0", MODEL, 1)], 2, [("m_0_0", MODEL, 0)]),
        ([InstanceGroup("m_0", AUTO, 1)], 0, [("m_0_0", CPU, 0)]),
        ([InstanceGroup("m_0", AUTO, 1)], 2, [("m_0_0_0", GPU, 0), ("m_0_1_0", GPU, 1)]),
        ([InstanceGroup("m_0", GPU, 1)], 1, [("m_0_0_0", GPU, 0)]),
        (
            [InstanceGroup("m_0", GPU, 2, gpus=(2, 0))],
            3,
            [("m_0_2_0", GPU, 2), ("m_0_2_1", GPU, 2), ("m_0_0_0", GPU, 0), ("m_0_0_1", GPU, 0)],
        ),
        (
            [InstanceGroup("a", CPU, 1), InstanceGroup("b", GPU, 1, gpus=(0,))],
            1,
            [("a_0", CPU, 0), ("b_0_0", GPU, 0)],
        ),
    ],
    ids=[
        "no groups",
        "count",
        "the model decides",
        "auto without GPUs",
        "auto with GPUs",
        "all GPUs",
        "listed GPUs",
        "two groups",
    ],
)
def test_placements(groups: list[InstanceGroup], gpu_count: int, expected: list[tuple[str, InstanceKind, int]]) -> None:
    found = placements("m", groups, gpu_count)
    assert found == [(name, Placement(kind, device)) for name, kind, device in expected]
    assert len({name for name, _ in found}) == len(found)


@pytest.mark.parametrize(
    ("gpus", "gpu_count", "named"),
    [((), 0, "instances"), ((0,), 0, "0"), ((0, 2, 3), 2, "2, 3")],
    ids=["any", "the first", "beyond the last"],
)
def test_gpus_that_are_not_there(gpus: tuple[int, ...], gpu_count: int, named: str) -> None:
    with pytest.raises(ModserveError) as caught:
        placements("m", [InstanceGroup("m_0", GPU, 1, gpus)], gpu_count)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        f"instance group m_0 of model m specifies GPU {named}, but {gpu_count} GPUs are available here; "
        "use kind: KIND_CPU or KIND_AUTO"
    )


@pytest.mark.parametrize(
    ("cores", "instances", "expected"),
    [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 5, 1), (1, 1, 1), (8, 0, 8)],
    ids=str,
)
def test_thread_share(cores: int, instances: int, expected: int) -> None:
    assert thread_share(cores, instances) == expected


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> int:
    """A process bound to six cores of a larger machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    return 6


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 6),
        ({"cpu.max": "max 100000\n"}, 6),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "900000 100000\n"}, 6),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 6),
        ({"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "250000\n"}, 6),
        ({"cpu.max": "garbage\n"}, 6),
        ({"cpu.max": "lots 100000\n"}, 6),
    ],
    ids=[
        "no files",
        "v2 no quota",
        "v2",
        "v2 rounded up",
        "v2 less than a core",
        "v2 more than the affinity",
        "v1 no quota",
        "v1 rounded up",
        "v1 half there",
        "garbage",
        "no number",
    ],
)
@pytest.mark.usefixtures("affinity")
def test_available_cores(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cores(tmp_path) == expected


def test_platforms_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert available_cores(tmp_path) == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores(tmp_path) == 1
