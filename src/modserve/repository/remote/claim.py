"""A download as far as it has come."""

import hashlib
import os
import threading
from pathlib import Path
from typing import BinaryIO, Final

UNCHANGED_NS: Final = 946_684_800_000_000_000
"""The time of modification of every content: another one shows that somebody has written to it since."""
_READ_BYTES = 1 << 20


class Claim:
    """A download that nobody else writes meanwhile. Its methods may be called from any thread."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file
        self._guard = threading.Lock()
        self._closed = False
        self.size = 0
        """How many bytes are there."""
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        while block := os.read(file, _READ_BYTES):
            self._count(block)

    def _count(self, block: bytes) -> None:
        self._sha256.update(block)
        self._md5.update(block)
        self.size += len(block)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    def write(self, block: bytes) -> None:
        with self._guard:
            if self._closed:
                return
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            self._count(block)

    def restart(self) -> None:
        """Throw away what is there."""
        with self._guard:
            if not self._closed:
                os.ftruncate(self._file, 0)
                os.lseek(self._file, 0, os.SEEK_SET)
                self._sha256, self._md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
                self.size = 0

    def move_to(self, place: Path) -> None:
        os.fchmod(self._file, 0o444)
        os.utime(self._file, ns=(UNCHANGED_NS, UNCHANGED_NS))
        os.rename(self._path, place)

    def discard(self) -> None:
        """Remove what is there."""
        self._path.unlink(missing_ok=True)

    def read(self) -> BinaryIO:
        """The file, from its beginning on."""
        return self._path.open("rb")

    def close(self) -> None:
        """Let it go. May be called again."""
        with self._guard:
            if not self._closed:
                self._closed = True
                os.close(self._file)
