"""A rolling update of deploy/k8s under load, with the times of the manifest: the test plays kubelet, and kube-proxy.

Pods are real servers. kube-proxy is a forwarder of connections that learns late which pods are gone.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from kustomizing import BASE
from repositories import write_identity
from server_process import ServerProcess, eventually, started
from wire import (
    SECONDS,
    Ask,
    Input,
    binary_outputs,
    binary_request,
    channel,
    connect,
    http,
    ints,
    message,
    raw_outputs,
    send,
    stub,
)

FASTER = 5
"""The manifest's seconds are divided by it."""
LATE_SECONDS = 6 / FASTER
"""After which kube-proxy has learnt of a change: six seconds of the manifest's ten."""
DATA = ints(3, 4)
ASK = Ask((Input("INPUT0", "INT32", (1, 2), DATA),), model="model")
PATH = "/v2/models/model/infer"


class Proxy:
    """Forwards each new connection to one of the pods that it knows of, in turn; made ones stay where they are."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._pods: list[ServerProcess] = []
        self._turn = 0
        self._servers: list[asyncio.Server] = []
        self.http_port = self._listen("http_port")
        self.grpc_port = self._listen("grpc_port")

    def learn(self, pods: list[ServerProcess]) -> None:
        """Later, as from the API server."""
        self._loop.call_soon_threadsafe(self._loop.call_later, LATE_SECONDS, setattr, self, "_pods", pods)

    def knows(self, pod: ServerProcess) -> bool:
        return pod in self._pods

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _listen(self, port: str) -> int:
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._turn += 1
            pod = self._pods[self._turn % len(self._pods)]
            try:
                other_reader, other_writer = await asyncio.open_connection("127.0.0.1", getattr(pod, port))
            except OSError:
                writer.transport.abort()
                return
            await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while data := await reader.read(1 << 16):
                    writer.write(data)
                    await writer.drain()
            except OSError:
                writer.transport.abort()
            else:
                writer.close()

        async def start() -> asyncio.Server:
            return await asyncio.start_server(forward, "127.0.0.1", 0)

        self._servers.append(asyncio.run_coroutine_threadsafe(start(), self._loop).result(10))
        return int(self._servers[-1].sockets[0].getsockname()[1])


@dataclass
class Clients:
    """They never pause, and never try anything twice."""

    proxy: Proxy
    over: threading.Event = field(default_factory=threading.Event)
    right: int = 0
    wrong: list[str] = field(default_factory=list)

    def ask(self, call: Callable[[], bytes]) -> None:
        while not self.over.is_set():
            try:
                output = call()
            except Exception as error:
                self.wrong.append(f"{call.__name__}: {error!r}")
            else:
                if output == DATA:
                    self.right += 1
                else:
                    self.wrong.append(f"{call.__name__}: {output!r}")

    def on_new_connections(self) -> None:
        body, headers = binary_request(ASK)

        def http_once() -> bytes:
            return binary_outputs(http(self.proxy.http_port, "POST", PATH, body, headers))["OUTPUT0"]

        self.ask(http_once)

    def on_kept_connections(self) -> None:
        """As every client of HTTP/1.1 does, with a new one where the server has said that it closes."""
        body, headers = binary_request(ASK)
        with closing(connect(self.proxy.http_port)) as connection:

            def http_kept() -> bytes:
                return binary_outputs(send(connection, "POST", PATH, body, headers))["OUTPUT0"]

            self.ask(http_kept)

    def by_grpc(self) -> None:
        with channel(self.proxy.grpc_port) as opened:

            def grpc_call() -> bytes:
                return raw_outputs(stub(opened).ModelInfer(message(ASK), timeout=SECONDS))["OUTPUT0"]

            self.ask(grpc_call)


@contextmanager
def load(proxy: Proxy) -> Iterator[Clients]:
    clients = Clients(proxy)
    ways = [clients.on_new_connections, clients.on_kept_connections, clients.on_kept_connections, clients.by_grpc]
    with ThreadPoolExecutor(len(ways)) as threads:
        running = [threads.submit(way) for way in ways]
        try:
            yield clients
        finally:
            clients.over.set()
            for each in running:
                each.result()


@pytest.fixture
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((BASE / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    return found


def test_an_update_loses_nothing(manifest: dict[str, Any], tmp_path: Path) -> None:
    (container,) = manifest["containers"]
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    notice = next(
        int(word.split("=")[1]) // FASTER for word in container["args"] if word.startswith("--shutdown-delay-secs=")
    )
    grace = manifest["terminationGracePeriodSeconds"] / FASTER
    probe = container["readinessProbe"]["httpGet"]["path"]
    period = container["readinessProbe"]["periodSeconds"] / FASTER
    options = [word for word in container["args"] if word.startswith("--exit")]
    options.append(f"--shutdown-delay-secs={notice}")
    write_identity(tmp_path, "model", parameters={"execute_delay_ms": 3})
    with ExitStack() as stack:
        proxy = Proxy()
        stack.callback(proxy.close)
        pods: list[ServerProcess] = []

        def start() -> ServerProcess:
            pod = stack.enter_context(started(tmp_path, options=options))

            def ready() -> bool:
                time.sleep(period)
                return bool(http(pod.http_port, "GET", probe).status == 200)

            eventually(ready)
            pods.append(pod)
            proxy.learn(list(pods))
            return pod

        def delete(pod: ServerProcess) -> None:
            pods.remove(pod)
            proxy.learn(list(pods))
            command = [sys.executable, "-m", *hook, f"--url=http://127.0.0.1:{pod.http_port}"]
            assert subprocess.run(command, timeout=SECONDS).returncode == 0
            pod.signal(signal.SIGTERM)
            pod.wait(0, seconds=grace - notice)

        old = [start(), start()]
        eventually(lambda: all(proxy.knows(pod) for pod in old))
        with load(proxy) as clients:

            def served(number: int = 20) -> None:
                least = clients.right + number
                eventually(lambda: clients.right > least)

            for pod in old:
                served()
                start()  # maxSurge 1, maxUnavailable 0
                delete(pod)
            served()
        assert clients.wrong == []
        for pod in pods:
            pod.stop()
