"""Listening on ports and Unix sockets, with both event loops: clients, files, and what comes while one closes."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import cast

import pytest

from modserve.core.runtime import unix_socket
from modserve.core.runtime.event_loop import new_event_loop
from modserve.frontends.listening import listen, peer_of


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        opened.write(str(peer_of(opened)).encode())
        opened.close()


async def greeting(path: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    text = await reader.read()
    writer.close()
    return text


@pytest.fixture(params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "ours"])
def loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    return factory


def test_a_socket_and_its_file(
    loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def work() -> None:
        opened = await listen(Greeting, "unix:a.sock", 1234, True)
        assert opened.port == 0
        assert await greeting("a.sock") == b"unix"
        await opened.close()
        await opened.close()
        assert os.listdir() == []

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work())


def test_an_inherited_socket_stays(
    loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers have it. One ends; the other serves on, and so does one that is started later."""
    monkeypatch.chdir(tmp_path)

    async def work(parent: socket.socket) -> None:
        workers = []
        for _ in range(2):
            descriptor = os.dup(parent.fileno())
            workers.append(await listen(Greeting, f"fd@{descriptor}", 0, False))
        await workers[0].close()
        await asyncio.sleep(0)
        assert [await greeting("a.sock") for _ in range(5)] == [b"unix"] * 5
        await workers[1].close()
        await asyncio.sleep(0)
        later = await listen(Greeting, f"fd@{os.dup(parent.fileno())}", 0, False)
        assert await greeting("a.sock") == b"unix"
        await later.close()
        assert os.listdir() == ["a.sock"]

    with closing(unix_socket.listening("a.sock", 5)) as parent, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work(parent))


async def test_a_port() -> None:
    opened = await listen(Greeting, "127.0.0.1", 0, False)
    assert opened.port > 0
    reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
    assert (await reader.read()).startswith(b"('127.0.0.1', ")
    writer.close()
    await opened.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "unix:a.sock"])
def test_nobody_who_has_connected_is_reset(
    loop: Callable[[], asyncio.AbstractEventLoop], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has connected them, and the event loop has not heard of it when the port closes."""
    monkeypatch.chdir(tmp_path)

    async def work() -> list[bytes]:
        opened = await listen(Greeting, address, 0, False)
        path = unix_socket.path_of(address)
        with ExitStack() as clients:
            connections = [clients.enter_context(connected(path, address, opened.port)) for _ in range(40)]
            await opened.close()
            return [await asyncio.to_thread(each.recv, 9) for each in connections]

    with asyncio.Runner(loop_factory=loop) as runner:
        answers = runner.run(work())
    assert len(answers) == 40
    assert all(answers)


def connected(path: str, host: str, port: int) -> socket.socket:
    if not path:
        return socket.create_connection((host, port), timeout=10)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(path)
    return client


@pytest.mark.skipif(sys.platform != "linux", reason="packet filters are Linux's")
async def test_attempts_while_a_port_closes_are_refused_and_never_reset() -> None:
    with socket.socket() as held, socket.socket() as attempt:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))  # and never listens: no other process gets this port once it is closed
        opened = await listen(Greeting, "127.0.0.1", held.getsockname()[1], True)
        closing_port = asyncio.ensure_future(opened.close())
        await asyncio.sleep(0)  # it has begun
        attempt.setblocking(False)
        attempted = asyncio.ensure_future(asyncio.get_running_loop().sock_connect(attempt, held.getsockname()))
        await closing_port
        assert not attempted.done()
        with pytest.raises(ConnectionRefusedError):
            await attempted
