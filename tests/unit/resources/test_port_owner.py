"""Who has a port, read from a copy of /proc."""

from pathlib import Path

import pytest

from modserve.resources.posix import owner

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(port: int, state: str, inode: int) -> str:
    return (
        f"   0: 00000000:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0  0 {inode} 1 0 0\n"
    )


def process(proc: Path, pid: int, words: list[str], *targets: str) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
    for number, target in enumerate(targets):
        (proc / str(pid) / "fd" / str(number)).symlink_to(target)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(HEAD + row(8000, "0A", 11) + row(8001, "01", 12))
    (tmp_path / "net" / "tcp6").write_text(HEAD + row(8002, "0A", 13))
    (tmp_path / "self").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["/usr/bin/python3", "-m", "modserve", "serve"], "python3 -m modserve"),
        (["/usr/bin/python3", "/opt/bin/modserve", "serve"], "python3 /opt/bin/modserve"),
        (["/usr/bin/python3", "-c", "code"], "python3"),
        (["nginx", "-psecret"], "nginx"),
        (["a\nb"], "a?b"),
        ([], "?"),
    ],
)
def test_the_process_that_listens(proc: Path, words: list[str], shown: str) -> None:
    process(proc, 9, ["other"], "socket:[12]", "/dev/null")
    process(proc, 10, words, "/dev/null", "socket:[11]")
    assert owner(8000, proc) == f"process 10 ({shown})"


def test_over_the_sixth_version_of_the_protocol(proc: Path) -> None:
    process(proc, 10, ["server"], "socket:[13]")
    assert owner(8002, proc) == "process 10 (server)"


def test_nobody_to_name(proc: Path) -> None:
    process(proc, 10, ["client"], "socket:[12]")
    assert owner(8001, proc) == "", "a connection is no listener"
    assert owner(8000, proc) == "", "the process is another user's"
    assert owner(8005, proc) == ""
    assert owner(8000, proc / "nosuch") == ""
