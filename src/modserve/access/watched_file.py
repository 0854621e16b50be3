"""The file of keys, read again when it changes.

Writing may take time: a change is read when the file has stayed the same for one interval. One that cannot be
used is logged once, and what was good before stays in use until the file changes again.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from modserve.core.errors import ModserveError, invalid
from modserve.core.files import regular_file
from modserve.core.runtime.failures import count_failure
from modserve.core.runtime.periodic import PeriodicTask

from .key_file import AccessFile, read

_log = logging.getLogger(__name__)

INTERVAL: Final = 0.5
"""Seconds between two looks at the file."""
_LARGEST: Final = 256 * 1024 * 1024
_ATTEMPTS: Final = 3
"""Reads of a file that changes meanwhile, before it is a failure."""

Stamp: TypeAlias = tuple[int, ...]


class WatchedFile:
    """Reads `path` at once, and tells `on_change` of each later state that can be used.

    Raises INVALID_ARG if the file cannot be used at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content, self._stamp = _read(path)
        self._seen = self._stamp
        self._complaint = ""
        self._on_change: Callable[[AccessFile], None] = lambda content: None
        self._task = PeriodicTask("keys", INTERVAL, self._look_in_thread)

    def start(self, on_change: Callable[[AccessFile], None]) -> None:
        """Watch it from now on, on this event loop, until `stop`."""
        self._on_change = on_change
        self._task.start()

    def stop(self) -> None:
        self._task.stop()

    async def _look_in_thread(self) -> None:
        content = await asyncio.to_thread(self.look)
        if content is not None:
            try:
                self._on_change(content)
            except BaseException:
                self._stamp = ()  # it is to be read again
                raise

    def look(self) -> AccessFile | None:
        """Return the file's content if it has changed and can be used. Blocks."""
        stamp, before = _stamp(self._path), self._seen
        self._seen = stamp
        if stamp != before or stamp == self._stamp:
            return None
        try:
            self.content, self._stamp = _read(self._path)
        except ModserveError as error:
            count_failure(self._task.name)
            if not isinstance(error.__context__, OSError) or stamp[:1] == stamp:
                self._stamp = stamp  # the same text would fail again
            if error.message != self._complaint:
                self._complaint = error.message
                _log.error("%s; the previous keys stay in use", error.message)
            return None
        self._seen, self._complaint = self._stamp, ""
        _log.info("keys were read again from '%s': there are %d", self._path, len(self.content.keys))
        return self.content


def _stamp(path: Path) -> Stamp:
    """Changes when the file does, or cannot be seen any more."""
    try:
        status = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> tuple[AccessFile, Stamp]:
    """Return the content of a file that stays the same meanwhile. Raises INVALID_ARG."""
    for _ in range(_ATTEMPTS):
        before = _stamp(path)
        try:
            with regular_file.open_regular(path) as file:
                text = file.read(_LARGEST).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise invalid(f"cannot read the file of keys '{path}': {reason}") from None
        content = read(text, str(path))
        if _stamp(path) == before:
            return content, before
    raise invalid(f"cannot read the file of keys '{path}': it keeps changing")
