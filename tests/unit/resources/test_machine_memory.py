import resource
from pathlib import Path

import pytest

from modserve.resources.machine_memory import allowed_memory

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
    return allowed_memory(tmp_path, meminfo)


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
    assert allowed_memory(tmp_path, tmp_path / "missing") == 0
