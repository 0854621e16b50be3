"""A whole server for tests of clients: in this process, on free ports."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modserve.client.facade import Client
from modserve.core.runtime.event_loop import new_event_loop
from modserve.frontends.offload import background_threads
from modserve.library.connecting import connect, settings_of
from modserve.observability.watchdog import Watchdog
from modserve.process.app import InferenceServer
from modserve.process.listeners import Listeners, Ports, access_control
from modserve.settings import Settings
from modserve.settings.front_ends import FrontEndSettings

_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server. `client` calls it in process; `connect` makes clients of its addresses."""

    server: InferenceServer
    client: Client
    ports: Ports

    @property
    def http_url(self) -> str:
        """``http://127.0.0.1:PORT``. `http_address` has no scheme, as `tritonclient` needs it."""
        return f"http{_secure(self.server.settings.http)}://{self.http_address}"

    @property
    def grpc_url(self) -> str:
        return f"grpc{_secure(self.server.settings.grpc)}://{self.grpc_address}"

    @property
    def metrics_url(self) -> str:
        return f"http://{_address(self.ports.metrics, 'allow_metrics')}/metrics"

    @property
    def http_address(self) -> str:
        return _address(self.ports.http, "allow_http")

    @property
    def grpc_address(self) -> str:
        return _address(self.ports.grpc, "allow_grpc")


def _secure(settings: FrontEndSettings) -> str:
    return "" if settings.tls is None else "s"


def _address(port: int | None, setting: str) -> str:
    if port is None:
        raise ValueError(f"this port is not served: the setting '{setting}' is False")
    return f"{_HOST}:{port}"


@contextmanager
def serve(models: str | Path | Settings, **settings: Any) -> Iterator[Serving]:
    """Serve a model repository, a model file, or `Settings`, over HTTP, gRPC and with metrics.

    The server uses free ports of the loopback, in this process, on its own thread, until the block ends. `settings` are
    keywords of `Settings`, in addition to a repository or file. Models that fail to load raise AssertionError with all
    reasons, rather than failing a test later with less information. Raises `ClientError` if there are no models.
    """
    if settings and isinstance(models, Settings):
        raise TypeError("settings beside a Settings object: put them into it")
    chosen = settings_of(models) if not settings else settings_of(models, **settings)
    with _Thread(_on_free_ports(chosen)) as thread:
        failed = [f"model '{entry.name}': {entry.reason}" for entry in thread.server.unready_reasons()]
        if failed:
            raise AssertionError("models failed to load:\n" + "\n".join(failed))
        with connect(thread.server) as client:
            yield Serving(thread.server, client, thread.ports)


def _on_free_ports(settings: Settings) -> Settings:
    http, grpc = (replace(each, address=_HOST, port=0) for each in (settings.http, settings.grpc))
    return settings.model_copy(update={"http": http, "grpc": grpc, "metrics_address": _HOST, "metrics_port": 0})


class _Thread:
    """The thread that runs the server."""

    server: InferenceServer
    ports: Ports

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="modserve-testing", daemon=True)

    def __enter__(self) -> "_Thread":
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None, "the server has started: this is a bug"
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = self.server = InferenceServer(self._settings)
        watchdog = Watchdog(0)
        with background_threads(server.cores):
            async with asyncio.TaskGroup() as tasks:
                access = access_control(self._settings)
                listeners = Listeners(server, server.engine_metrics, self._settings, tasks, watchdog, access=access)
                self.ports = await listeners.start()
                try:
                    with watchdog:
                        await server.load()
                        self._started.set()
                        await self._stopping.wait()
                finally:
                    await listeners.end(server.shut_down)
