"""Standard output and error of a server's process, for code of models that prints: no thread waits for a reader."""

import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from .logging import LineWriter, TextStream

_LONGEST_REST = 8192
"""Characters of a line that waits for its end."""


@contextmanager
def unblock() -> Iterator[None]:
    """Let threads write what this process prints. What the reader does not take is left out."""
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
    """A stream whose `write` never blocks; else as the one behind it.

    It is written in whole lines, or what there is at a `flush`: those of several threads and processes do not mix. In a
    process that a model forks there is no thread that writes: there it is the one behind it.
    """

    def __init__(self, name: str, stream: TextIO) -> None:
        self._stream = stream
        self._forked = False
        self._rest = ""
        """The beginning of a line."""
        self._lock = threading.RLock()  # reentrant: a signal handler of Python's may print
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
        """Have the beginning of a line written, too. Do not wait for that."""
        with self._lock:
            ready, self._rest = self._rest, ""
            self._put(ready)
        if self._forked:
            self._stream.flush()

    def fork(self) -> None:
        """This is another process from now on."""
        self._forked = True
        self._rest = ""  # which the other one will write
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_streams: weakref.WeakSet[_Unblocked] = weakref.WeakSet()


def _fork() -> None:
    for each in list(_streams):
        each.fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork)
