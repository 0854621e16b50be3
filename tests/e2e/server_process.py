"""A real server: ``python -m modserve serve`` on free ports, its log at hand, ended by its process id."""

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

LOADED = r"^model +version +state +load time$"
"""The head of the table that is printed when the first load is over."""

_TROUBLE = re.compile(r" (ERROR|CRITICAL) |^E\d{4} .*\.py:\d+\] |Traceback|Warning:")
_STALL = re.compile(r"the event loop was held for ([\d.]+) s: its thread computed for ([\d.]+) s")
_LONGEST_STALL_MS = 100
_BETWEEN_BEATS_S = 0.05
"""What the loop may compute between two beats of its watchdog without being late."""
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0

WORKERS = os.environ.get("MODSERVE_TEST_WORKERS", "")
"""How many workers each server has that the tests start, if not one."""


NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

T = TypeVar("T")


def serve_words(repositories: Sequence[Path], options: Sequence[str]) -> list[str]:
    """Words after ``serve``: free ports and a strict watchdog, unless the options say otherwise."""
    words = [word for repository in repositories for word in ("--model-repository", str(repository))]
    has_admin = any(option.startswith("--admin-address") for option in options)  # which has the metrics
    for port in ("--http-port", "--grpc-port", *(() if has_admin else ("--metrics-port",))):
        if not any(option.startswith(port) for option in options):
            words += [port, "0"]
    if not any(option.startswith("--event-loop-warning-ms") for option in options):
        words += ["--event-loop-warning-ms", str(_LONGEST_STALL_MS)]
    if WORKERS and not any(option.startswith("--workers") for option in options):
        words += ["--workers", WORKERS]
    return [*words, *options]


class Server(ABC):
    """A server as tests see it. Standard output and standard error are one log, in which `wait_for` waits for lines."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._begin = 0
        """The first line of `log`."""
        self._alone = True
        """The process is the server's: what its loop's thread computes is the server's doing."""
        self._foreign: set[str] = set()
        """Lines of `log` that may be another server's."""
        self._ended = False
        self._changed = threading.Condition()

    def _add_line(self, line: str) -> None:
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def _end_log(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @abstractmethod
    def begin_stop(self) -> None:
        """Begin an orderly stop."""

    @abstractmethod
    def _exit_code(self, seconds: float) -> int:
        """Wait for the end, at most `seconds`, and until the log is whole."""

    @abstractmethod
    def dispose(self) -> None:
        """Nothing of it is left, however the test went."""

    @property
    def log(self) -> str:
        return "".join(self._lines[self._begin :])

    def wait_for(self, pattern: str, seconds: float = _START_SECONDS) -> re.Match[str]:
        """The first place in the log that matches, once there is one."""

        def found() -> re.Match[str] | None:
            return re.search(pattern, self.log, re.MULTILINE)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, seconds)
        match = found()
        assert match is not None, f"{pattern!r} is not in the log:\n{self.log}"
        return match

    def _port(self, name: str) -> int:
        return int(self.wait_for(rf"^{name} listening on \S+:(\d+)$")[1])

    @property
    def http_port(self) -> int:
        return self._port("HTTP")

    @property
    def grpc_port(self) -> int:
        return self._port("gRPC")

    @property
    def metrics_port(self) -> int:
        return self._port("metrics")

    @property
    def admin_port(self) -> int:
        return self._port("admin")

    def wait(self, code: int, *, errors: Sequence[str] = (), seconds: float = _STOP_SECONDS) -> None:
        """The server ends by itself within `seconds`, with `code`, and has logged no errors but `errors`.

        `errors` are patterns; each must be in the log. A callback that computes for more than 100 ms on the event
        loop's thread is an error too, but for servers in the test's process, of which some of it is the doing (garbage
        of all tests). Time that the machine gave to others does not count.
        """
        ended = self._exit_code(seconds)
        assert ended == code, f"exit code {ended}, expected {code}:\n{self.log}"
        self.check_log(errors)

    def check_log(self, errors: Sequence[str]) -> None:
        """`log` has `errors`, and no others."""
        trouble = [
            line for line in self._lines[self._begin :] if _TROUBLE.search(line) or (self._alone and _is_stall(line))
        ]
        if WORKERS:  # what the supervisor adds to what the worker says itself
            trouble = [line for line in trouble if not line.endswith(" during startup: the server stops\n")]
        own = [line for line in trouble if line not in self._foreign]
        unexpected = [line for line in own if not any(re.search(pattern, line) for pattern in errors)]
        assert not unexpected, f"unexpected in the log: {unexpected}\n{self.log}"
        missing = [pattern for pattern in errors if not any(re.search(pattern, line) for line in trouble)]
        assert not missing, f"expected among the errors: {missing}\n{self.log}"

    def stop(self, *, errors: Sequence[str] = ()) -> None:
        """An orderly end."""
        self.begin_stop()
        self.wait(0, errors=errors)


class ServerProcess(Server):
    """``python -m modserve serve``.

    `environment` is added to that of the tests, of which what sets options of the server is left out. `before` is the
    command that the server's command line is given to, which becomes the server; `program` stands before its options;
    `directory` is where it runs, if not here.
    """

    def __init__(
        self,
        repositories: Sequence[Path],
        options: Sequence[str] = (),
        environment: Mapping[str, str] = NO_VARIABLES,
        before: Sequence[str] = (),
        program: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        super().__init__()
        # Tests put another interpreter into `sys.executable`.
        command = [*before, *(program or (sys.executable, "-m", "modserve", "serve"))]
        self._process = subprocess.Popen(
            [*command, *serve_words(repositories, options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("MODSERVE_")},
                **environment,
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._add_line(line)
        self._end_log()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def begin_stop(self) -> None:
        self.signal(signal.SIGTERM)

    def _exit_code(self, seconds: float) -> int:
        ended = self._process.wait(seconds)
        self._reader.join()
        return ended

    def dispose(self) -> None:
        if self.running:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _is_stall(line: str) -> bool:
    match = _STALL.search(line)
    return match is not None and float(match[2]) > _LONGEST_STALL_MS / 1e3 + _BETWEEN_BEATS_S


@contextmanager
def started(
    *repositories: Path,
    options: Sequence[str] = (),
    environment: Mapping[str, str] = NO_VARIABLES,
    before: Sequence[str] = (),
    program: Sequence[str] = (),
    directory: Path | None = None,
) -> Iterator[ServerProcess]:
    """A server from its first moment on; the test ends it, and what it leaves is killed."""
    server = ServerProcess(repositories, options, environment, before, program, directory)
    try:
        yield server
    finally:
        server.dispose()


@contextmanager
def serving(
    *repositories: Path,
    options: Sequence[str] = (),
    errors: Sequence[str] = (),
    environment: Mapping[str, str] = NO_VARIABLES,
) -> Iterator[ServerProcess]:
    """A server that has loaded its models, stopped in order afterwards; `errors` as for `ServerProcess.wait`."""
    with started(*repositories, options=options, environment=environment) as server:
        server.wait_for(LOADED)
        yield server
        server.stop(errors=errors)


_FIRST_PORT, _LAST_PORT = 10_000, 30_000
"""Below those that Linux chooses from for port 0 and for connections: nobody gets one of these by chance."""
_ports = itertools.count(os.getpid() * 64)


def free_port() -> int:
    """For a test that has to know the number before the server starts, or looks at it when the server has closed it.

    Each process tries numbers of its own first.
    """
    while True:
        port = _FIRST_PORT + next(_ports) % (_LAST_PORT - _FIRST_PORT)
        with contextlib.suppress(OSError), contextlib.closing(socket.create_server(("127.0.0.1", port))):
            return port


def own_ports() -> list[str]:
    """Options of HTTP's and gRPC's ports, which refuse everybody once the server has closed them."""
    return [f"--http-port={free_port()}", f"--grpc-port={free_port()}"]


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_STOP_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it has just been in the backlog of the closing port
        return False
    return False


def eventually(fact: Callable[[], T], seconds: float = 20.0) -> T:
    """What `fact` gives, as soon as it is true: asks another process again and again, but not for ever.

    The longer it has waited, the longer it pauses: whom it asks need not compute for answers all the time.
    """
    deadline = time.monotonic() + seconds
    pause = 0.01
    while not (found := fact()):
        assert time.monotonic() < deadline, f"not true within {seconds} s; last: {found!r}"
        time.sleep(pause)
        pause = min(1.1 * pause, 0.05)
    return found
