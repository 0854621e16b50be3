import resource
from pathlib import Path

import pytest

from modserve.resources.machine_memory import ContainerMemory, container_memory, read_memory_limit

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def no_address_space_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def machine(tmp_path: Path, **files: str) -> int:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:        2048 kB\nMemFree:         1024 kB\n")
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return read_memory_limit(tmp_path, meminfo)


def test_the_machine_is_the_limit_where_nothing_else_is(tmp_path: Path) -> None:
    assert machine(tmp_path) == 2 * MIB
    assert machine(tmp_path, memory_dot_max="max\n") == 2 * MIB


def test_a_container_of_either_version_limits(tmp_path: Path) -> None:
    assert machine(tmp_path, memory_dot_max="1048576\n") == MIB


def test_a_container_of_the_first_version_limits(tmp_path: Path) -> None:
    assert machine(tmp_path, memory__memory_dot_limit_in_bytes="524288\n") == MIB // 2
    assert machine(tmp_path, memory__memory_dot_limit_in_bytes="9223372036854771712\n") == 2 * MIB


def test_the_address_space_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 2048))
    assert machine(tmp_path) == 1024


def test_nothing_is_known_without_files(tmp_path: Path) -> None:
    assert read_memory_limit(tmp_path, tmp_path / "missing") == 0


STATISTICS = "cache 100\ninactive_file 40\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"memory_dot_max": "1048576\n"}, None),
        ({"memory_dot_max": "1048576\n", "memory_dot_current": "1000\n"}, ContainerMemory(MIB, 1000)),
        (
            {"memory_dot_max": "max\n", "memory_dot_current": "1000\n", "memory_dot_stat": STATISTICS},
            ContainerMemory(0, 960),
        ),
        (
            {
                "memory__memory_dot_limit_in_bytes": "9223372036854771712\n",
                "memory__memory_dot_usage_in_bytes": "1000\n",
                "memory__memory_dot_stat": f"{STATISTICS}total_inactive_file 70\n",
            },
            ContainerMemory(0, 930),
        ),
        ({"memory_dot_current": "10\n", "memory_dot_stat": STATISTICS}, ContainerMemory(0, 0)),
        ({"memory_dot_current": "10\n", "memory_dot_stat": "inactive_file many\n"}, ContainerMemory(0, 10)),
    ],
    ids=range(7),
)
def test_what_a_container_may_use_and_uses(tmp_path: Path, files: dict[str, str], expected: object) -> None:
    machine(tmp_path, **files)
    assert container_memory(tmp_path) == expected
