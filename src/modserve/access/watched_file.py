"""The file of keys, read again when it changes.

Whoever writes it may be slow: a change is read when the file has stayed the same for one interval. One that cannot be
used is logged once, and what was good before stays in use until the file changes again.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from modserve.core.errors import ModserveError, invalid

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
        self._ticking: asyncio.TimerHandle | None = None
        self._looking: asyncio.Future[AccessFile | None] | None = None

    def start(self, on_change: Callable[[AccessFile], None]) -> None:
        """Watch it from now on, on this event loop, until `stop`."""
        loop = asyncio.get_running_loop()

        def tick() -> None:
            self._looking = loop.run_in_executor(None, self.look)
            self._looking.add_done_callback(looked)

        def looked(look: "asyncio.Future[AccessFile | None]") -> None:
            if look.cancelled():
                return
            if (content := look.result()) is not None:
                on_change(content)
            self._ticking = loop.call_later(INTERVAL, tick)

        self._ticking = loop.call_later(INTERVAL, tick)

    def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def look(self) -> AccessFile | None:
        """What the file says, if it has changed and can be used. Blocks; never raises."""
        stamp, before = _stamp(self._path), self._seen
        self._seen = stamp
        if stamp != before or stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            self.content, self._stamp = _read(self._path)
        except ModserveError as error:
            _log.error("%s; the previous keys stay in use", error.message)
            return None
        self._seen = self._stamp
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
    """The content of a file that stays the same meanwhile. Raises INVALID_ARG."""
    for _ in range(_ATTEMPTS):
        before = _stamp(path)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(_LARGEST)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise invalid(f"cannot read the file of keys '{path}': {reason}") from None
        content = read(text, str(path))
        if _stamp(path) == before:
            return content, before
    raise invalid(f"cannot read the file of keys '{path}': it keeps changing")
