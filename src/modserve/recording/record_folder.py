"""The files of recorded requests: ``FOLDER/<model>/<time of its first request>-w<worker>.jsonl``.

All files together have at most so many bytes: the oldest go first, whichever model they are of. A file is opened for
each line, so that one that was removed or moved away is no trouble. A line that cannot be written as a whole is taken
back. What an earlier server process has left counts, and goes first.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from .record import FileHead, head_line

ENDING: Final = ".jsonl"
_LARGEST_FILE: Final = 64 * 1024 * 1024
_FILES: Final = 8
"""All bytes are at least those of so many files: when the oldest goes, the others stay."""
_PART: Final = 64 * 1024
"""Bytes that are written at a time, or a bit more."""
_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-w([0-9]+)\.jsonl")


class LongLineError(Exception):
    """A line is longer than all files together may be."""


class RecordFolder:
    """Used by one thread at a time. `size` bounds the files of this process, which is number `worker` of `workers`."""

    def __init__(self, place: Path, size: int, run: str, server: str, worker: int = 0, workers: int = 1) -> None:
        self._place = place
        self._most = size
        self._run = run
        self._server = server
        self._worker = worker
        self._workers = workers
        self._largest = min(_LARGEST_FILE, size // _FILES)
        self._files: dict[Path, int] = {}
        """The bytes of each file, the oldest first."""
        self._current: dict[str, Path] = {}
        self.size = 0
        """Bytes of all files."""

    def open(self) -> None:
        """Make the folder, for its owner only, and look for earlier files. Raises OSError if it cannot be written."""
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self._place, os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to write to {self._place}")
        for path in sorted(self._place.glob(f"*/*{ENDING}"), key=lambda path: path.name):
            match = _NAME.fullmatch(path.name)
            if match is not None and self._owns(int(match[1])):
                with suppress(OSError):  # another process has removed it
                    self._files[path] = path.stat().st_size
        self.size = sum(self._files.values())
        self._make_room(0)

    def _owns(self, worker: int) -> bool:
        """Those of workers that there are no more are the first one's."""
        return worker == self._worker or (not self._worker and worker >= self._workers)

    def add(self, model: str, at_us: int, parts: Sequence[bytes]) -> None:
        """Append a line to the newest file of a model. Raises OSError, or LongLineError; nothing is written then."""
        path, size = self._current.get(model), sum(map(len, parts))
        if path is not None and (path not in self._files or self._files[path] + size > self._largest):
            path = None
        if path is not None and self._append(path, size, parts, os.O_APPEND):
            return
        head = head_line(FileHead(model, self._run, self._server))
        path = self._new_path(model, at_us)
        self._append(path, size + len(head), [head, *parts], os.O_CREAT | os.O_EXCL)
        self._current[model] = path

    def _append(self, path: Path, size: int, parts: Sequence[bytes], flags: int) -> bool:
        """False if the file is no longer there."""
        if size > self._most:
            raise LongLineError
        self._make_room(size)
        if flags & os.O_APPEND and path not in self._files:
            return False  # it was the oldest
        try:
            file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        except FileNotFoundError:
            if flags & os.O_CREAT:
                raise
            self.size -= self._files.pop(path)
            return False
        try:
            _write(file, parts)
        except OSError:
            if flags & os.O_CREAT:
                path.unlink()
            raise
        finally:
            os.close(file)
        self._files[path] = self._files.get(path, 0) + size
        self.size += size
        return True

    def _new_path(self, model: str, at_us: int) -> Path:
        folder = self._place / folder_name(model)
        folder.mkdir(mode=0o700, exist_ok=True)
        while True:
            second = datetime.fromtimestamp(at_us // 1_000_000, UTC)
            path = folder / f"{second:%Y%m%dT%H%M%S}.{at_us % 1_000_000:06d}Z-w{self._worker}{ENDING}"
            if not path.exists():
                return path
            at_us += 1

    def _make_room(self, size: int) -> None:
        while self._files and self.size + size > self._most:
            oldest = next(iter(self._files))
            self.size -= self._files.pop(oldest)
            oldest.unlink(missing_ok=True)
            with suppress(OSError):  # it has other files
                oldest.parent.rmdir()


def folder_name(model: str) -> str:
    """Of a model's files: its name, with what is special in paths replaced."""
    return quote(model, safe=" ").replace(".", "%2E") if model.strip(".") == "" else quote(model, safe=" ")


def _joined(parts: Sequence[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer parts."""
    some: list[bytes] = []
    size = 0
    for part in parts:
        some.append(part)
        size += len(part)
        if size >= _PART:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)


def _write(file: int, parts: Sequence[bytes]) -> None:
    """Write all of it, or nothing. Raises OSError."""
    start = os.lseek(file, 0, os.SEEK_END)
    try:
        for part in _joined(parts):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(file, rest) :]
    except OSError:
        os.ftruncate(file, start)
        raise
