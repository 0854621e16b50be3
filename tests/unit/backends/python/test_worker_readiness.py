"""The question to a worker whether its model is ready, without a worker."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from modserve.backends.python.process import WorkerProcess


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def test_a_late_response_is_about_an_earlier_question(sockets: tuple[socket.socket, socket.socket]) -> None:
    worker = WorkerProcess(asyncio.get_running_loop(), "model 'm'")
    worker._ready, model = sockets
    with pytest.raises(TimeoutError):
        await worker.check_ready(0.01)
    model.sendall(b"1")  # too late
    second = asyncio.create_task(worker.check_ready(10))
    await asyncio.sleep(0.01)
    assert not second.done()
    model.sendall(b"0")
    assert await second is False
    model.sendall(b"1")
    assert await worker.check_ready(10) is True
    assert model.recv(10) == b"???"


async def test_a_process_that_has_ended_is_not_ready(sockets: tuple[socket.socket, socket.socket]) -> None:
    worker = WorkerProcess(asyncio.get_running_loop(), "model 'm'")
    worker._ready, model = sockets
    with pytest.raises(TimeoutError):
        await worker.check_ready(0.01)
    model.shutdown(socket.SHUT_WR)
    assert await worker.check_ready(10) is False
