"""The files of recorded requests: permissions, rotation, the bound, and what is taken back when a disk is full."""

import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modserve.recording.record import LongLineError, RecordFolder, folder_name, read_head

AT_US = 1_700_000_000_000_000


def folder(place: Path, size: int = 1 << 20, worker: int = 0, workers: int = 1) -> RecordFolder:
    made = RecordFolder(place, size, "run", "server", worker, workers)
    made.open()
    return made


def files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.jsonl"), key=lambda path: path.name)


def lines(path: Path) -> list[str]:
    head, *rest = path.read_text().splitlines()
    read_head(head.encode())
    return rest


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_gets_at_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder(tmp_path / "a" / "b").add("m", AT_US, [b"x\n"])
    finally:
        os.umask(before)
    (path,) = files(tmp_path)
    assert (mode(path), mode(path.parent), mode(tmp_path / "a" / "b")) == (0o600, 0o700, 0o700)
    assert path.relative_to(tmp_path).as_posix() == "a/b/m/20231114T221320.000000Z-w0.jsonl"


def test_a_file_for_each_model(tmp_path: Path) -> None:
    made = folder(tmp_path)
    for model, text in (("m", b"1\n"), ("n", b"2\n"), ("m", b"3\n")):
        made.add(model, AT_US, [text[:1], text[1:]])
    assert {path.parent.name: lines(path) for path in files(tmp_path)} == {"m": ["1", "3"], "n": ["2"]}
    assert made.size == sum(path.stat().st_size for path in files(tmp_path))


@pytest.mark.parametrize("model", ["..", ".", "a/../b", "ä%:*", "-x"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, model: str) -> None:
    folder(tmp_path / "in").add(model, AT_US, [b"x\n"])
    (path,) = files(tmp_path / "in")
    assert path.resolve().parents[1] == (tmp_path / "in").resolve()
    assert folder_name("resnet50.v1 b") == "resnet50.v1 b"


def test_old_files_make_room_for_new_ones(tmp_path: Path) -> None:
    size = 80_000
    made = folder(tmp_path, size)
    for number in range(400):
        made.add("mn"[number % 7 == 0], AT_US + number, [f"{number} {'x' * 1000}\n".encode()])
        assert made.size == sum(path.stat().st_size for path in files(tmp_path)) <= size
    written = sorted(int(line.split()[0]) for path in files(tmp_path) for line in lines(path))
    assert len(files(tmp_path)) > 4
    assert max(path.stat().st_size for path in files(tmp_path)) <= size // 8
    assert written[-1] == 399
    assert len(written) >= 60  # of the 78 that there is room for


def test_a_line_that_has_no_room_at_all(tmp_path: Path) -> None:
    made = folder(tmp_path, 65_536)
    made.add("m", AT_US, [b"x\n"])
    with pytest.raises(LongLineError):
        made.add("m", AT_US, [b"x" * 70_000, b"\n"])
    assert [lines(path) for path in files(tmp_path)] == [["x"]]
    made.add("m", AT_US, [b"y" * 60_000, b"\n"])  # more than a file usually has
    assert [len(lines(path)[0]) for path in files(tmp_path)] == [1, 60_000]


def test_earlier_files_count_and_go_first(tmp_path: Path) -> None:
    folder(tmp_path, 65_536).add("m", AT_US, [b"old", b"x" * 40_000, b"\n"])
    made = folder(tmp_path, 65_536)
    assert made.size > 40_000
    made.add("n", AT_US + 1, [b"new", b"x" * 40_000, b"\n"])
    assert [lines(path)[0][:3] for path in files(tmp_path)] == ["new"]
    assert not (tmp_path / "m").exists()


def test_workers_have_their_own_files(tmp_path: Path) -> None:
    for worker in range(3):
        folder(tmp_path, worker=worker, workers=3).add("m", AT_US, [b"x\n"])
    sizes = [folder(tmp_path, worker=worker, workers=2).size for worker in range(2)]
    each = files(tmp_path)[0].stat().st_size
    assert sizes == [2 * each, each]  # the third one's are the first one's now


def test_files_that_somebody_removes(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.add("m", AT_US, [b"1\n"])
    files(tmp_path)[0].unlink()
    made.add("m", AT_US, [b"2\n"])
    assert [lines(path) for path in files(tmp_path)] == [["2"]]
    assert made.size == files(tmp_path)[0].stat().st_size


def test_links_are_not_followed(tmp_path: Path) -> None:
    made = folder(tmp_path / "in")
    made.add("m", AT_US, [b"1\n"])
    (path,) = files(tmp_path / "in")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        made.add("m", AT_US, [b"2\n"])


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process have at most `size` bytes, as on a full disk: what is beyond is not written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.add("m", AT_US, [b"first\n"])
    with largest_file(1000):
        with pytest.raises(OSError, match="File too large"):
            made.add("m", AT_US, [b"x" * 500, b"y" * 500, b"\n"])
        with pytest.raises(OSError, match="File too large"):
            made.add("n", AT_US, [b"x" * 500, b"y" * 500, b"\n"])
    assert [lines(path) for path in files(tmp_path)] == [["first"]]
    made.add("m", AT_US, [b"second\n"])
    made.add("n", AT_US, [b"third\n"])
    assert [lines(path) for path in files(tmp_path)] == [["first", "second"], ["third"]]
    assert made.size == sum(path.stat().st_size for path in files(tmp_path))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        folder(tmp_path / "file")
