"""How large things are, from a file system that says so."""

import os
from pathlib import Path

from modserve.models.residency.memory import Meter, children, files_of, own_bytes, share_of


def write_process(proc: Path, pid: int, parent: int, pss_kb: int | None, name: str = "python") -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1")
    (proc / str(pid) / "statm").write_text("100 7 3 0 0 0 0")
    if pss_kb is not None:
        (proc / str(pid) / "smaps_rollup").write_text(f"00-ff [rollup]\nRss: 9 kB\nPss: {pss_kb} kB\nPss_Anon: 1 kB\n")


def test_files_with_what_is_below_them(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "a").write_bytes(bytes(10))
    (tmp_path / "deeper" / "b").write_bytes(bytes(5))
    (tmp_path / "nowhere").symlink_to(tmp_path / "nothing")
    os.utime(tmp_path / "deeper" / "b", ns=(7, 4_000_000_000_000_000_000))
    assert files_of(tmp_path) == (15, 4_000_000_000_000_000_000)
    assert files_of(tmp_path / "nothing") == (0, 0)


def test_the_own_memory_is_what_is_not_shared(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    status = "VmRSS:\t 70 kB\nRssAnon:\t 40 kB\nRssFile:\t 20 kB\nRssShmem:\t 10 kB\n"
    (tmp_path / "self" / "status").write_text(status)
    assert own_bytes(tmp_path) == 60 * 1024
    assert own_bytes(tmp_path / "nothing") == 0
    assert own_bytes() > 1_000_000


def test_children_and_theirs(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1)):
        write_process(tmp_path, pid, parent, 5, name="a) S (b")
    (tmp_path / "99").mkdir()  # which ends at this moment
    assert children(10, tmp_path) == {11, 12}
    assert children(10, tmp_path / "nothing") == frozenset()


def test_the_share_of_a_process(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1, 50)
    write_process(tmp_path, 11, 1, None)
    assert share_of(10, tmp_path) == 50 * 1024
    assert share_of(11, tmp_path) == 7 * os.sysconf("SC_PAGE_SIZE")
    assert share_of(12, tmp_path) == 0


def test_what_a_load_adds() -> None:
    own, processes, trimmed = [100, 250, 240], [frozenset({1}), frozenset({1, 2, 3}), frozenset({1})], []
    meter = Meter(lambda: trimmed.append(1), lambda: own.pop(0), lambda: processes.pop(0), lambda pid: 1000 * pid)
    before = meter.before()
    assert meter.after(before) == 150 + 2000 + 3000
    assert len(trimmed) == 2
    assert meter.after(before) == 140
