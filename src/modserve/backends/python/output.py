"""What a worker process writes to its standard output and error: it goes to the log, line by line."""

import asyncio
import contextlib
import logging
import os
from collections import deque

_log = logging.getLogger(__name__)

_AT_ONCE = 2 * 1024
"""Bytes that are read at a time: they may be a thousand lines, and other work of the event loop goes on between."""
_TAIL_LINES = 20
_TAIL_LINE = 400
"""Characters of a line that are kept. The tail goes into error messages, which gRPC has in its headers."""
_TAIL_CHARACTERS = 4000
_LONGEST_LINE = 8 * 1024
_PIPE_BYTES = 1024 * 1024
"""More than a pipe holds."""


class Output:
    """The reading end of the pipe that a worker writes to. `who` begins each line in the log."""

    def __init__(self, loop: asyncio.AbstractEventLoop, who: str) -> None:
        """Raises OSError where no pipe can be made. `written` is the other end, which the caller closes."""
        self.who = who
        self._loop = loop
        self._fd, self.written = os.pipe()
        os.set_blocking(self._fd, False)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._line = b""
        self._listening = False

    def fileno(self) -> int:
        return self._fd

    @property
    def tail(self) -> str:
        """The last lines, for a message; empty if nothing was written."""
        lines: list[str] = []
        left = _TAIL_CHARACTERS
        for line in reversed(self._tail):
            left -= len(line)
            if left < 0:
                break
            lines.insert(0, f"\n  {line}")
        return "".join(lines)

    def listen(self) -> None:
        """On the event loop's thread, as `end`."""
        self._listening = True
        self._loop.add_reader(self._fd, self._read)

    def end(self) -> None:
        """Let go of the event loop. May be called again."""
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._fd)

    def _read(self) -> None:
        if not self.read():
            self.end()

    def read(self) -> bool:
        """Take some of what has been written, if there is any. False at the end."""
        try:
            some = os.read(self._fd, _AT_ONCE)
        except BlockingIOError:
            return True
        except OSError:
            some = b""
        if some:
            self._take(some)
        return bool(some)

    def rest(self) -> None:
        """Take what has been written, to the last line, now that the process has ended."""
        with contextlib.suppress(OSError):
            for _ in range(_PIPE_BYTES // _AT_ONCE):  # something that the model has started may go on writing
                some = os.read(self._fd, _AT_ONCE)
                if not some:
                    break
                self._take(some)
        self._take(b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take(self, some: bytes) -> None:
        *lines, self._line = (self._line + some).split(b"\n")
        if len(self._line) > _LONGEST_LINE:
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                self._tail.append(text if len(text) <= _TAIL_LINE else f"{text[:_TAIL_LINE]}…")
                _log.info("%s: %s", self.who, text)
