"""Several servers, called at the same time: a command takes as long as the slowest, and tells what each of them did."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from modserve.core.errors import ModserveError

from .destination import Destination
from .errors import RefusedError, UnreachableError
from .remote_server import RemoteServer, connect

T = TypeVar("T")
_AT_A_TIME = 64
"""Threads, and so servers, that are called at the same time."""

_SIGNALS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """Outcome of a call to one server: a value, or an error."""

    server: RemoteServer
    seconds: float
    result: T | None = None
    error: ModserveError | None = None

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def value(self) -> T:
        """Raises the error of the call if it failed."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class ServerSet:
    """The servers, in the order of the command line."""

    def __init__(self, servers: Sequence[RemoteServer]) -> None:
        self.servers = servers
        self._threads = ThreadPoolExecutor(min(len(servers), _AT_A_TIME), "server")

    def call(
        self, work: Callable[[RemoteServer], T], servers: Sequence[RemoteServer] | None = None
    ) -> list[Outcome[T]]:
        """Run `work` for each server, or only for these."""
        chosen = self.servers if servers is None else servers
        futures = [self._threads.submit(_outcome, work, server) for server in chosen]
        while wait(futures, _SIGNALS_SECONDS).not_done:
            pass  # a signal that comes just before the wait would otherwise wait as well
        return [future.result() for future in futures]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for server in self.servers:
            server.close()


def connect_all(places: Sequence[Destination]) -> ServerSet:
    """Make clients of all servers, without a call yet. Raises INVALID_ARG."""
    return ServerSet([connect(place) for place in places])


def _outcome(work: Callable[[RemoteServer], T], server: RemoteServer) -> Outcome[T]:
    begin = time.perf_counter()
    try:
        result = work(server)
        return Outcome(server, time.perf_counter() - begin, result)
    except ModserveError as error:
        return Outcome(server, time.perf_counter() - begin, error=error)


def failure_verb(error: ModserveError) -> str:
    """Return the predicate of a message about a failed call."""
    return "refuses the call" if isinstance(error, RefusedError) else "does not respond"


def failure_text(error: ModserveError, url: str) -> str:
    """Return the failure's text for a row that already names the server."""
    if isinstance(error, UnreachableError):
        return error.message.removeprefix(f"cannot reach a server at {url}: ")
    advice = error.advice if isinstance(error, RefusedError) else ""
    return f"{error.message}\n{advice}" if advice else error.message
