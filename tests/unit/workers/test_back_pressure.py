"""A worker that does not read what another one sends to it costs that one no memory without bound."""

import asyncio
import logging
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from modserve.core.errors import OverloadedError
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import Outcome
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.workers import sequences
from modserve.workers.identity import WorkerIdentity
from modserve.workers.link import HEAD, FrameKind, PeerLink
from modserve.workers.sequences import SequenceForwarder

MB = 1_000_000


class Sink:
    def settle(self, outcome: Outcome, final: bool) -> None: ...


def request(size: int) -> InferenceRequest:
    tensor = Tensor.from_raw(dtypes.BY_NAME["UINT8"], (size,), np.zeros(size, np.uint8).tobytes())
    return InferenceRequest("m", {"A": tensor}, (), None, "", {"sequence_id": 1}, 0, 0)


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not fact():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Whose name is short enough for sockets."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
async def deaf(directory: Path) -> AsyncIterator[asyncio.Queue[asyncio.StreamReader]]:
    """Worker 1 of two: it takes connections, and reads what comes on one when the test does."""
    readers: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        readers.put_nowait(reader)
        writers.append(writer)

    path = WorkerIdentity(0, 2, 0, directory).sequence_socket(1)
    async with await asyncio.start_unix_server(serve, path):
        yield readers
        for writer in writers:
            writer.close()


async def test_requests_for_a_worker_that_reads_nothing_are_refused(
    directory: Path,
    deaf: asyncio.Queue[asyncio.StreamReader],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sequences, "MOST_UNSENT", 3 * MB)
    forwarder = SequenceForwarder(WorkerIdentity(0, 2, 0, directory))
    count = 0

    async def go_on() -> None:
        nonlocal count
        for _ in range(100):
            forwarder.forward(1, request(MB), Sink(), 0)
            count += 1
            await asyncio.sleep(0)

    with pytest.raises(OverloadedError, match="worker 1, which has the sequence, does not read"):
        await go_on()
    reader = await deaf.get()
    for _ in range(3):
        with pytest.raises(OverloadedError):
            forwarder.forward(1, request(MB), Sink(), 0)
    assert 3 <= count < 10
    assert caplog.text.count("worker 1 does not read") == 1

    reading = asyncio.create_task(reader.read(-1))  # it is well again
    way = forwarder._links[1]
    await until(lambda: way.unsent == 0)
    forwarder.forward(1, request(MB), Sink(), 0)
    assert caplog.text.count("worker 1 reads again") == 1
    forwarder.close()
    whole = await reading
    assert len(whole) > (count + 1) * MB


async def test_requests_of_a_worker_that_takes_no_responses_are_not_read() -> None:
    seen = 0

    def respond(link: PeerLink, number: int, kind: int, content: bytes) -> None:
        nonlocal seen
        seen += 1
        link.send(number, FrameKind.LAST, bytes(MB))

    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    lost = asyncio.Event()
    link = PeerLink(respond, lambda _: lost.set(), responds=True)
    await loop.create_unix_connection(lambda: link, sock=ours)
    frames = b"".join(HEAD.pack(HEAD.size - 4, number, FrameKind.REQUEST) for number in range(50))
    await loop.sock_sendall(theirs, frames)
    await until(lambda: seen)
    for _ in range(20):
        await asyncio.sleep(0)
    assert seen < 10
    assert link.unsent < 10 * MB

    left = 50 * (MB + HEAD.size)
    while left:
        left -= len(await loop.sock_recv(theirs, left))
    assert seen == 50
    theirs.close()
    await lost.wait()


async def test_one_that_sends_requests_reads_always() -> None:
    """Or both could wait for each other."""
    seen: list[int] = []
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    lost = asyncio.Event()
    link = PeerLink(lambda _, number, kind, content: seen.append(number), lambda _: lost.set())
    await loop.create_unix_connection(lambda: link, sock=ours)
    for number in range(20):
        link.send(number, FrameKind.REQUEST, bytes(MB))
    assert link.unsent > 10 * MB
    await loop.sock_sendall(theirs, HEAD.pack(HEAD.size - 4, 7, FrameKind.END))
    await until(lambda: seen == [7])
    theirs.close()
    await lost.wait()
