"""Logging of the standard output and error of a worker, line by line, with the model's name."""

import contextlib
import logging
import os
from collections import deque

_log = logging.getLogger(__name__)

_BYTES = 2 * 1024
"""Read at a time: they may be a thousand lines, and other work of the event loop goes on between."""
_PIPE_BYTES = 1024 * 1024
"""More than a pipe holds."""
_KEPT_LINES = 20
_KEPT_LINE = 400
"""Characters of a line that are kept. What is kept goes into error messages, which gRPC has in its headers."""
_KEPT = 4000
"""Characters of all lines that are kept."""
_LONGEST_LINE = 8 * 1024


class WorkerOutput:
    """The pipe `fd` that a worker writes to; `label` begins each line in the log. Never blocks."""

    def __init__(self, fd: int, label: str) -> None:
        self.fd = fd
        self.label = label
        self._kept: deque[str] = deque(maxlen=_KEPT_LINES)
        self._line = b""
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Read some of the output; returns whether more may come."""
        try:
            some = os.read(self.fd, _BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._take(some)
        return bool(some)

    def read_rest(self) -> None:
        """Read the rest, to the last line: the worker has ended."""
        with contextlib.suppress(OSError):
            for _ in range(_PIPE_BYTES // _BYTES):  # something that the model has started may go on writing
                some = os.read(self.fd, _BYTES)
                if not some:
                    break
                self._take(some)
        self._take(b"\n")

    def last(self) -> str:
        """Return the last lines, to end an error's text with."""
        lines: list[str] = []
        left = _KEPT
        for line in reversed(self._kept):
            left -= len(line)
            if left < 0:
                break
            lines.insert(0, f"\n  {line}")
        return f"; its last output:{''.join(lines)}" if lines else ""

    def close(self) -> None:
        """Close the output. May be called again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _take(self, some: bytes) -> None:
        *lines, self._line = (self._line + some).split(b"\n")
        if len(self._line) > _LONGEST_LINE:
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                self._kept.append(text if len(text) <= _KEPT_LINE else f"{text[:_KEPT_LINE]}…")
                _log.info("%s: %s", self.label, text)
