"""Unpacking archives of environments, hostile ones included."""

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from modserve.backends.python import archive

Member = tuple[str, str]
"""A name, and what it is: ``file:…``, ``dir:``, ``link:…`` (symbolic), ``hard:…``, ``fifo:``."""
KINDS = {"dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "fifo": tarfile.FIFOTYPE}


def packed(*members: Member, mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, what in members:
            kind, _, rest = what.partition(":")
            info = tarfile.TarInfo(name)
            info.mode, info.mtime = mode, 1_000_000_000
            info.type = KINDS.get(kind, tarfile.REGTYPE)
            if kind in ("link", "hard"):
                info.linkname = rest
            content = rest.encode() if kind == "file" else b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def unpacked(tmp_path: Path, content: bytes) -> Path:
    path, place = tmp_path / "archive", tmp_path / "place"
    path.write_bytes(content)
    place.mkdir()
    archive.unpack(str(path), str(place))
    return place


GOOD = packed(
    ("bin", "dir:"), ("bin/python3", "file:program"), ("bin/python", "link:python3"), ("lib/a/b.py", "file:b")
)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_each_compression(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    place = unpacked(tmp_path, compress(GOOD))
    assert (place / "bin" / "python").read_text() == "program"
    assert os.readlink(place / "bin" / "python") == "python3"
    assert (place / "lib" / "a" / "b.py").stat().st_mtime == 1_000_000_000


def test_members_that_are_fine(tmp_path: Path) -> None:
    place = unpacked(
        tmp_path,
        packed(
            (".", "dir:"),
            ("./a", "file:1"),
            ("a", "file:2"),
            ("b", "hard:a"),
            ("deep/er", "dir:"),
            ("deep/er/up", "link:../../a"),
            ("deep/root", "link:.."),
            ("dangling", "link:not/there"),
        ),
    )
    assert (place / "b").read_text() == "2"
    assert (place / "deep" / "er" / "up").read_text() == "2"


def test_modes_are_those_of_private_files(tmp_path: Path) -> None:
    place = unpacked(tmp_path, packed(("a", "file:1"), ("d", "dir:"), ("d/b", "file:2"), mode=0o4577))
    assert stat.S_IMODE((place / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((place / "d").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([("../out", "file:x")], "'../out' would be written outside the environment"),
        ([("a/../../out", "file:x")], "'a/../../out' would be written outside the environment"),
        ([("/tmp/out", "file:x")], "'/tmp/out' would be written outside the environment"),
        ([("l", "link:.."), ("l/out", "file:x")], "'l/out' would be written through 'l', a link"),
        ([("d", "dir:"), ("l", "link:d"), ("l/in", "file:x")], "'l/in' would be written through 'l', a link"),
        ([("f", "file:x"), ("f/in", "file:x")], "'f/in' would be written through 'f', a link"),
        ([("l", "link:/etc/passwd")], "'l' is a link to '/etc/passwd', which is outside the environment"),
        ([("a/l", "link:../../x")], "'a/l' is a link to '../../x', which is outside the environment"),
        # Each of the two looks harmless by its name alone.
        (
            [("a/b", "dir:"), ("a/up", "link:.."), ("l", "link:a/up/../..")],
            "'l' is a link to 'a/up/../..', which is outside the environment",
        ),
        ([("h", "hard:/etc/passwd")], "'/etc/passwd' would be written outside the environment"),
        ([("h", "hard:../x")], "'../x' would be written outside the environment"),
        ([("h", "hard:later"), ("later", "file:x")], "'h' is a link to 'later', which does not come before it"),
        ([("l", "link:.."), ("h", "hard:l/x")], "'h' is a link to 'l/x' through another link"),
        (
            [("a/b/l", "link:../../x"), ("h", "hard:a/b/l")],
            "'h' is a link to '../../x', which is outside the environment",
        ),
        ([("pipe", "fifo:")], "'pipe' is neither a file nor a directory nor a link"),
        ([("l", "link:x"), ("l", "dir:")], "'l' is a directory, but an earlier entry is something else"),
        ([("d", "dir:"), ("d", "file:x")], "'d' is not a directory, but an earlier entry is"),
    ],
)
def test_members_that_are_refused(tmp_path: Path, members: list[Member], text: str) -> None:
    with pytest.raises(archive.EnvironmentArchiveError) as caught:
        unpacked(tmp_path, packed(*members))
    assert str(caught.value).partition("; an environment that needs")[0] == text
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "place"}


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("kept", [0.3, 0.9, 0.99])
def test_an_archive_that_was_cut_off(tmp_path: Path, compress: Callable[[bytes], bytes], kept: float) -> None:
    whole = compress(packed(("a", "file:" + os.urandom(4000).hex())))
    with pytest.raises(archive.EnvironmentArchiveError, match="it is damaged or not a tar archive"):
        unpacked(tmp_path, whole[: int(len(whole) * kept)])


def test_a_checksum_that_is_wrong(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(GOOD))
    whole[-8] ^= 1
    with pytest.raises(archive.EnvironmentArchiveError, match="CRC check failed"):
        unpacked(tmp_path, bytes(whole))


@pytest.mark.parametrize("content", [b"", b"PK\3\4 a zip file", b"BZh but not", b"\x1f\x8b" + bytes(30)])
def test_no_archive_at_all(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(archive.EnvironmentArchiveError, match="it is damaged or not a tar archive"):
        unpacked(tmp_path, content)


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "archive"
    path.write_bytes(GOOD)
    (tmp_path / "place").mkdir()
    assert archive.main(str(path), str(tmp_path / "place")) == 0
    path.write_bytes(packed(("../out", "file:x")))
    assert archive.main(str(path), str(tmp_path / "place")) == archive.REFUSED
    assert archive.main(str(tmp_path / "none"), str(tmp_path / "place")) == archive.FAILED
    assert capsys.readouterr().err.splitlines() == [
        "'../out' would be written outside the environment",
        "No such file or directory",
    ]
