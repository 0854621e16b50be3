"""A server in the test's own process: the whole command ``modserve serve`` on a thread, for 0.02 s of CPU, not 0.5 s.

For tests of what clients get. What belongs to a process needs `server_process`: signals, workers, a terminal, crashes,
memory, what processes of models print. Servers here at the same time have each other's lines in their logs;
unexpected errors are those of the last one that started.
"""

import asyncio
import contextlib
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import MagicMock, patch

from server_process import LOADED, NO_VARIABLES, WORKERS, Server, serve_words, started

from kept_logging import kept_logging
from modserve import cli
from modserve.observability.logging import Logs
from modserve.process import app

_STOP_SECONDS = 20.0


_servers: "list[ServerHere]" = []
"""Servers that have not been disposed of."""


class _LineStream(io.TextIOBase):
    """Gives whole lines to all servers. Any thread may write."""

    def __init__(self) -> None:
        self._rest = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                for server in _servers:
                    if server is not _servers[-1]:
                        server._foreign.add(f"{line}\n")
                    server._add_line(f"{line}\n")
        return len(text)


class ServerHere(Server):
    """`environment` is that of the whole test process until the server ends, as is the log."""

    def __init__(
        self, repositories: Sequence[Path], options: Sequence[str] = (), environment: Mapping[str, str] = NO_VARIABLES
    ) -> None:
        super().__init__()
        self._alone = False
        assert not [each for each in options if re.match("--(workers|supervise)", each)], "options of a process"
        self._code: int | None = None
        self._begun = threading.Event()
        self._stop: Callable[[], object] | None = None
        self._thread = threading.Thread(
            target=self._run, args=(["serve", *serve_words(repositories, options)],), name="server", daemon=True
        )
        with ExitStack() as stack:
            self._replace_what_a_process_has_once(stack, environment)
            stream = _LineStream()
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
                self._thread.start()
                self._begun.wait()
            self._stack = stack.pop_all()

    def _replace_what_a_process_has_once(self, stack: ExitStack, environment: Mapping[str, str]) -> None:
        _servers.append(self)
        stack.callback(_servers.remove, self)
        stack.enter_context(kept_logging())
        stack.callback(self._close_log)
        stack.callback(setattr, threading, "excepthook", threading.excepthook)
        stack.enter_context(patch.object(logging, "captureWarnings"))
        stack.enter_context(patch.dict(os.environ, environment))
        stack.enter_context(
            patch.object(sys, "path", [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *sys.path])
        )
        for name in [name for name in os.environ if name.startswith("MODSERVE_") and name not in environment]:
            del os.environ[name]
        stack.enter_context(patch.multiple(cli, signal=MagicMock(), standard_streams=MagicMock(), _become=None))
        # The garbage collector would go through all that the tests hold.
        stack.enter_context(patch.multiple(app, Freezer=MagicMock(), freeze_uncollected=MagicMock()))
        stack.enter_context(patch.object(app, "_handle_signals", self._set_up))

    def _close_log(self) -> None:
        for handler in logging.getLogger().handlers:
            if handler.__module__ == Logs.__module__:
                handler.close()

    def _set_up(self, stopping: asyncio.Event, *_: object) -> None:
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stopping.set)
        self._begun.set()

    def _run(self, words: Sequence[str]) -> None:
        try:
            self._code = cli.main(words)
            for handler in logging.getLogger().handlers:
                handler.flush()
        finally:
            self._begun.set()
            self._end_log()

    def begin_stop(self) -> None:
        if self._stop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._stop()

    def _exit_code(self, seconds: float) -> int:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"the server does not end:\n{self.log}"
        assert self._code is not None, f"the command has failed:\n{self.log}"
        return self._code

    def dispose(self) -> None:
        self.begin_stop()
        self._thread.join(_STOP_SECONDS)
        self._stack.close()
        assert not self._thread.is_alive(), f"the server does not end:\n{self.log}"


@contextmanager
def started_here(
    *repositories: Path, options: Sequence[str] = (), environment: Mapping[str, str] = NO_VARIABLES
) -> Iterator[Server]:
    """A server from its first moment on, as `started`; a process if the tests are to run with workers."""
    if WORKERS:
        with started(*repositories, options=options, environment=environment) as process:
            yield process
        return
    server = ServerHere(repositories, options, environment)
    try:
        yield server
    finally:
        server.dispose()


@contextmanager
def serving_here(
    *repositories: Path,
    options: Sequence[str] = (),
    errors: Sequence[str] = (),
    environment: Mapping[str, str] = NO_VARIABLES,
) -> Iterator[Server]:
    """A server that has loaded its models, as `serving`."""
    with started_here(*repositories, options=options, environment=environment) as server:
        server.wait_for(LOADED)
        yield server
        server.stop(errors=errors)
