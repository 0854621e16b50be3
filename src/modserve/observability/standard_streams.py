"""Standard output and error of a server's process, for code of models that prints: nobody waits for a reader."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from .logging import LineWriter, TextStream


@contextmanager
def unblocked() -> Iterator[None]:
    """Let threads write what this process prints. What the reader does not take is left out."""
    former = sys.stdout, sys.stderr
    streams = _Unblocked("stdout", sys.stdout), _Unblocked("stderr", sys.stderr)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = former
        for stream in streams:
            stream.writer.flush()


class _Unblocked:
    """A stream whose `write` never blocks; else as the one behind it."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._stream = stream
        self.writer = LineWriter(name, TextStream(stream).write, lambda count, reason: None)

    def write(self, text: str) -> int:
        self.writer.put(text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        self.writer.put("".join(lines))

    def flush(self) -> None:
        """Do nothing: it would wait."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
