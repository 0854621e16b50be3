"""Unpacking of an environment's archive. A program of its own, since it would hold up the server's other threads.

``python archive.py ARCHIVE DIRECTORY`` with the standard library alone. It ends with 0, or with `REFUSED` or `FAILED`
and the reason on standard error: the fault of the archive, or of the file system.

Nothing is written outside the directory, and no link in it leads out of it: names with ``..`` and absolute ones are
refused, nothing is written through a link, and where the links lead is looked at when all of them are there. As
libarchive's "secure" flags, which Triton's python backend uses, and stricter about links.
"""

import bz2
import gzip
import io
import lzma
import os
import posixpath
import shutil
import stat
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator

REFUSED = 3
FAILED = 4
_BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError, OverflowError)
_COPIED_AT_A_TIME = 1 << 20

_READERS: dict[bytes, Callable[[str], io.BufferedIOBase]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
"""Readers of compressed files by their first bytes. Other files are taken for plain tar archives."""


class EnvironmentArchiveError(Exception):
    """A damaged archive, or one with a member that must not be unpacked. The text names the member, and the reason."""


def unpack(archive: str, directory: str) -> None:
    """Unpack a tar archive into an empty directory. Raises OSError, or `EnvironmentArchiveError` for a bad archive."""
    links: list[tuple[str, str, str]] = []
    with _open(archive) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as members:
                for member in members:
                    path = _place(directory, member.name)
                    if path is not None:
                        links += _write(members, member, path, directory)
            # A checksum stands at the end of a compressed file, behind the end of the archive.
            while stream.read(_COPIED_AT_A_TIME):
                pass
        except (*_BROKEN, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise EnvironmentArchiveError(f"it is damaged or not a tar archive: {error}") from error
    root = os.path.realpath(directory)
    for path, name, target in links:
        real = os.path.realpath(path)
        if real != root and not real.startswith(root + os.sep):
            raise EnvironmentArchiveError(
                f"'{name}' is a link to '{target}', which is outside the environment; an environment that needs "
                "files outside, such as a virtual environment, cannot be packed: name its directory instead"
            )


def _open(archive: str) -> io.BufferedIOBase:
    with open(archive, "rb") as file:
        start = file.read(8)
    reader = next((each for magic, each in _READERS.items() if start.startswith(magic)), None)
    return open(archive, "rb") if reader is None else reader(archive)


def _place(directory: str, name: str) -> str | None:
    """Return the path of a member; None for the directory itself."""
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise EnvironmentArchiveError(f"'{name}' would be written outside the environment")
    path = posixpath.normpath(name)
    return None if path == "." else os.path.join(directory, path)


def _parents(path: str, directory: str) -> Iterator[str]:
    """Yield the directories between `directory` and `path`, the outermost first."""
    parts = os.path.relpath(os.path.dirname(path), directory).split(os.sep)
    inner = directory
    for part in parts:
        if part != ".":
            inner = os.path.join(inner, part)
            yield inner


def _make_parents(path: str, directory: str, name: str) -> None:
    for parent in _parents(path, directory):
        try:
            mode = os.lstat(parent).st_mode
        except FileNotFoundError:
            os.mkdir(parent)
            continue
        if not stat.S_ISDIR(mode):
            raise EnvironmentArchiveError(
                f"'{name}' would be written through '{os.path.relpath(parent, directory)}', a link"
            )


def _write(
    members: tarfile.TarFile, member: tarfile.TarInfo, path: str, directory: str
) -> Iterator[tuple[str, str, str]]:
    """Write one member; the symbolic link that it is, if it is one: its path, its name and its target."""
    _make_parents(path, directory, member.name)
    if member.isdir():
        if not os.path.lexists(path):
            os.mkdir(path)
        elif os.path.islink(path) or not os.path.isdir(path):
            raise EnvironmentArchiveError(f"'{member.name}' is a directory, but an earlier entry is something else")
        os.chmod(path, _mode(member) | 0o700)
        return
    if os.path.lexists(path):
        if os.path.isdir(path) and not os.path.islink(path):
            raise EnvironmentArchiveError(f"'{member.name}' is not a directory, but an earlier entry is")
        os.unlink(path)
    if member.issym():
        os.symlink(member.linkname, path)
        yield path, member.name, member.linkname
    elif member.islnk():
        _hard_link(member, path, directory)
        if os.path.islink(path):
            # From here, a relative link may lead somewhere else than the same one there.
            yield path, member.name, os.readlink(path)
    elif member.isfile():
        _copy(members, member, path)
    else:
        raise EnvironmentArchiveError(f"'{member.name}' is neither a file nor a directory nor a link")


def _hard_link(member: tarfile.TarInfo, path: str, directory: str) -> None:
    original = _place(directory, member.linkname)
    if original is None or any(os.path.islink(parent) for parent in _parents(original, directory)):
        raise EnvironmentArchiveError(f"'{member.name}' is a link to '{member.linkname}' through another link")
    try:
        os.link(original, path, follow_symlinks=False)
    except FileNotFoundError:
        raise EnvironmentArchiveError(
            f"'{member.name}' is a link to '{member.linkname}', which does not come before it"
        ) from None


def _copy(members: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    content = members.extractfile(member)
    assert content is not None  # of a regular file
    with content, open(path, "xb") as file:
        shutil.copyfileobj(content, file, _COPIED_AT_A_TIME)
        if file.tell() != member.size:
            raise EnvironmentArchiveError(f"it ends in the middle of '{member.name}'")
        os.fchmod(file.fileno(), _mode(member) | 0o600)
    # Compiled modules are used only if they know the time of their source.
    os.utime(path, (member.mtime, member.mtime))


def _mode(member: tarfile.TarInfo) -> int:
    return member.mode & 0o755


def main(archive: str, directory: str) -> int:
    try:
        unpack(archive, directory)
    except EnvironmentArchiveError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
