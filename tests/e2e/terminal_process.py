"""A program at a terminal of its own: a test types, and waits for what appears."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_SECONDS = 30.0
_ATTACH = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
CTRL_C, CTRL_D = "\x03", "\x04"


class TerminalProcess:
    """`screen` is all that has appeared, with carriage returns and escape sequences left out."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self._master = master
        self._raw = b""
        self._seen = 0

    @property
    def screen(self) -> str:
        text = self._raw.decode(errors="replace").replace("\r", "")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def line(self, text: str) -> None:
        self.type(text + "\n")

    def expect(self, pattern: str) -> str:
        """Wait for a text behind the last one that was waited for; returns it and what came before it."""
        deadline = time.monotonic() + _SECONDS
        while True:
            rest = self.screen[self._seen :]
            if match := re.search(pattern, rest):
                self._seen += match.end()
                return rest[: match.end()]
            assert time.monotonic() < deadline, f"{pattern!r} does not appear in:\n{self.screen}"
            if not self._read(1.0) and self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}, without {pattern!r}:\n{self.screen}")

    def interrupt(self) -> None:
        """Ctrl-C at a prompt, once the program waits for a key there.

        CPython's readline notes a signal that comes after the prompt is written and before it waits, but raises
        KeyboardInterrupt only at the next key.
        """
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(") ")[2][0] != "S":
            self._read(0.001)
        self.type(CTRL_C)

    def hang_up(self) -> int:
        """Close the window; returns the exit code, by which the program ends."""
        os.close(self._master)
        self._master = -1
        return self.process.wait(_SECONDS)

    def close(self) -> None:
        """Whatever is left."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    def end(self) -> int:
        """Wait for the end of the program; returns its exit code."""
        deadline = time.monotonic() + _SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"does not end:\n{self.screen}"
            self._read(0.05)
        while self._read(0.0):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bytes:
        if not select.select([self._master], [], [], seconds)[0]:
            return b""
        try:
            data = os.read(self._master, 65536)
        except OSError:  # nobody has the terminal open any more
            return b""
        self._raw += data
        return data


@contextlib.contextmanager
def at_terminal(words: Sequence[str]) -> Iterator[TerminalProcess]:
    """``modserve`` with these words. What is left of it at the end is killed."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", _ATTACH, sys.executable, "-m", "modserve", *words]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    with contextlib.closing(TerminalProcess(process, master)) as terminal:
        yield terminal
