"""The asynchronous client over HTTP, with a server at the other end of a pair of sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import numpy as np
import pytest

from modserve.client.address import Access, Address
from modserve.client.errors import ClientTimeoutError
from modserve.client.http_async import AsyncHttpTransport
from modserve.client.input_values import ClientCall
from modserve.core.tensors.tensor import Tensor

TENSORS = {"a": Tensor.from_array(np.array([1], np.int32))}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ADDRESS = Address("http", "host", 8000)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def chunk(number: int) -> bytes:
    output = {"name": "b", "datatype": "INT32", "shape": [1], "data": [number]}
    line = json.dumps({"model_name": "m", "model_version": "1", "outputs": [output]}).encode() + b"\n"
    return b"%x\r\n%s\r\n" % (len(line), line)


@asynccontextmanager
async def client(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> AsyncIterator[AsyncHttpTransport]:
    """Each connection is served by `serve`."""
    connect, serving = asyncio.open_connection, []

    async def open_connection(host: str, port: int, **how: Any) -> Any:
        ours, theirs = socket.socketpair()
        serving.append(asyncio.create_task(_serve(await connect(sock=theirs), serve)))
        return await connect(sock=ours, limit=how["limit"])

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    transport = AsyncHttpTransport(ADDRESS, Access())
    yield transport
    await transport.close()
    for each in serving:
        each.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


async def _serve(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], serve: Serve) -> None:
    reader, writer = streams
    try:
        await reader.readuntil(b"\r\n\r\n")
        await serve(reader, writer)
    finally:
        writer.close()


def one_and_no_more() -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(1))
        await asyncio.Event().wait()

    return serve


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    while True:
        writer.write(chunk(1) * 100)
        await writer.drain()


def number(result: Any) -> int:
    return int(result["b"][0])


async def read(transport: AsyncHttpTransport, seconds: float, take: Callable[[int], object] = lambda _: None) -> None:
    async with aclosing(transport.stream(ClientCall("m", None, TENSORS, timeout=seconds))) as results:
        async for result in results:
            take(number(result))


async def test_the_time_of_a_stream_runs_out_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(monkeypatch, one_and_no_more()) as transport:
        numbers: list[int] = []
        with pytest.raises(ClientTimeoutError):
            await read(transport, 0.05, numbers.append)
        assert numbers == [1]
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


ENOUGH_S = 0.5
"""For the first response, also on a busy machine."""


async def test_a_caller_that_does_something_else_by_then_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    late = asyncio.Event()
    async with (
        client(monkeypatch, one_and_no_more()) as transport,
        aclosing(transport.stream(ClientCall("m", None, TENSORS, timeout=ENOUGH_S))) as results,
    ):
        assert number(await anext(results)) == 1
        asyncio.get_running_loop().call_later(ENOUGH_S + 0.05, late.set)
        await late.wait()  # the time runs out meanwhile: the error is that of the next step
        with pytest.raises(ClientTimeoutError):
            await anext(results)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_stream_that_is_left_late_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    late = asyncio.Event()
    async with (
        client(monkeypatch, one_and_no_more()) as transport,
        aclosing(transport.stream(ClientCall("m", None, TENSORS, timeout=ENOUGH_S))) as results,
    ):
        assert number(await anext(results)) == 1
        asyncio.get_running_loop().call_later(ENOUGH_S + 0.05, late.set)
        await late.wait()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_the_time_of_a_stream_that_always_has_more_runs_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(monkeypatch, endless) as transport:
        with pytest.raises(ClientTimeoutError):
            await read(transport, 0.2)


async def test_another_task_may_go_on_with_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(monkeypatch, one_and_no_more()) as transport:
        results = transport.stream(ClientCall("m", None, TENSORS, timeout=60))
        assert number(await asyncio.create_task(anext(results))) == 1
        loop = asyncio.get_running_loop()
        later = loop.time() + 61
        monkeypatch.setattr(loop, "time", lambda: later)
        with pytest.raises(ClientTimeoutError):
            await anext(results)


async def test_a_caller_that_is_cancelled_is(monkeypatch: pytest.MonkeyPatch) -> None:
    first = asyncio.Event()

    async with client(monkeypatch, one_and_no_more()) as transport:
        task = asyncio.create_task(read(transport, 60, lambda _: first.set()))
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
