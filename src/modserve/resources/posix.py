"""Maps POSIX shared memory that another process made."""

import errno
import mmap
import os
import stat
from pathlib import Path

from modserve.core.errors import invalid, unavailable
from modserve.core.tensors.shared_memory import SystemRegion
from modserve.core.tensors.tensor import Buffer

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Like ``shm_open``, follows no links; and never waits."""

_TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})


class PosixMemory:
    """Implements `shared_memory.Memory`.

    A client that makes its memory smaller removes pages from the mapping, and touching them would end the process. So
    each access checks the size first.
    """

    def __init__(self, directory: Path, region: SystemRegion) -> None:
        """Raises INVALID_ARG for a key that names no shared memory, or too little of it."""
        self._region = region
        descriptor = _open(directory, region.key)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _cannot_open(region.key)
            # In this order: mmap must not see a client's numbers before they are checked.
            if region.offset < 0 or region.byte_size < 1 or region.offset + region.byte_size > status.st_size:
                raise invalid(f"failed to register shared memory region '{region.name}': invalid args")
            lead = region.offset % mmap.ALLOCATIONGRANULARITY
            try:
                self._map = mmap.mmap(descriptor, lead + region.byte_size, offset=region.offset - lead)
            except OSError as error:
                reason = error.strerror or "invalid args"
                raise unavailable(f"failed to register shared memory region '{region.name}': {reason}") from None
        finally:
            os.close(descriptor)
        self._view = memoryview(self._map)[lead:]

    def read(self, offset: int, size: int) -> Buffer:
        self._check(offset + size)
        return self._view[offset : offset + size].toreadonly()

    def write(self, offset: int, raw: Buffer) -> None:
        self._check(offset + len(raw))
        self._view[offset : offset + len(raw)] = raw

    def close(self) -> None:
        # The mapping itself ends with the last view of it: a cancelled request's tensors may still be read.
        self._view = memoryview(b"")
        del self._map

    def _check(self, end: int) -> None:
        """Raises INVALID_ARG unless the first `end` bytes of the region are still there."""
        size = self._map.size() - self._region.offset
        if end > size:
            raise invalid(
                f"shared memory region '{self._region.name}' was registered with {self._region.byte_size} bytes, but "
                f"'{self._region.key}' has been made smaller since and has {max(size, 0)} of them"
            )


def _open(directory: Path, key: str) -> int:
    """A descriptor of the memory that ``shm_open`` would open for this key. Slashes before it do not count."""
    name = key.lstrip("/")
    if name in ("", ".", "..") or "/" in name:
        raise _cannot_open(key)
    try:
        return os.open(directory / name, _FLAGS)
    except OSError as error:
        if error.errno in _TOO_MANY_FILES:
            raise unavailable(f"Unable to open shared memory region: '{key}': {error.strerror}") from None
        raise _cannot_open(key) from None
    except ValueError:  # a null character, or a lone surrogate
        raise _cannot_open(key) from None


def _cannot_open(key: str) -> Exception:
    return invalid(f"Unable to open shared memory region: '{key}'")
