"""Standard output and error of a server process, for model code that prints: threads do not wait for a reader."""

import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from .logging import LineWriter, TextStream

_LONGEST_REST = 8192
"""Maximum length in characters of an incomplete line that is held back."""


@contextmanager
def unblock() -> Iterator[None]:
    """Print on threads in this process. Output that the reader does not accept is dropped."""
    former = sys.stdout, sys.stderr
    streams = _Unblocked("stdout", sys.stdout), _Unblocked("stderr", sys.stderr)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = former
        for stream in streams:
            stream.flush()
            stream.writer.flush()


class _Unblocked:
    """A stream with a `write` that never blocks; otherwise like the underlying stream.

    It is written in complete lines, or at a `flush`, so that lines of several threads and processes do not mix. A
    process forked by a model has no writer thread; there, it is the underlying stream.
    """

    def __init__(self, name: str, stream: TextIO) -> None:
        self._stream = stream
        self._forked = False
        self._rest = ""
        """Text of an incomplete line."""
        self._lock = threading.RLock()  # reentrant: a Python signal handler may print
        self.writer = LineWriter(name, TextStream(stream).write, lambda count, reason: None)
        _streams.add(self)

    def write(self, text: str) -> int:
        with self._lock:
            ready = self._rest + text
            end = len(ready) if len(ready) > _LONGEST_REST else ready.rfind("\n") + 1
            ready, self._rest = ready[:end], ready[end:]
            self._put(ready)
        return len(text)

    def _put(self, text: str) -> None:
        if self._forked:
            self._stream.write(text)
        elif text:
            self.writer.put(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Queue an incomplete line for writing. Does not wait for it."""
        with self._lock:
            ready, self._rest = self._rest, ""
            self._put(ready)
        if self._forked:
            self._stream.flush()

    def fork(self) -> None:
        """Adapt to a forked process."""
        self._forked = True
        self._rest = ""  # the parent process writes it
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_streams: weakref.WeakSet[_Unblocked] = weakref.WeakSet()


def _fork() -> None:
    for each in list(_streams):
        each.fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork)
