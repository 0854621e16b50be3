"""Calls to a server in this process, on its event loop; for threads, on a loop in a thread of its own."""

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.response import InferenceResponse
from modserve.core.residency import describe
from modserve.protocol.control import metadata, repository, statistics
from modserve.server import Phase
from modserve.server.local import LocalServer

from .errors import ClientError, client_errors
from .input_values import ClientCall, Result
from .transport import CONFIG, INDEX, LIVE, LOAD, METADATA, MODEL_READY, READY, SERVER, STATISTICS, UNLOAD, ControlCall

T = TypeVar("T")


async def _metadata(server: LocalServer, control: ControlCall) -> Any:
    servables = server.models(control.model, control.version)
    await describe(servables[-1])
    return metadata.model_json(servables[-1], [servable.id.version for servable in servables])


async def _config(server: LocalServer, control: ControlCall) -> Any:
    servable = server.model(control.model, control.version)
    await describe(servable)
    return metadata.config_json(servable)


async def _model_ready(server: LocalServer, control: ControlCall) -> bool:
    try:
        return await server.check_model_ready(control.model, control.version)
    except ModserveError:
        return False


async def _load(server: LocalServer, control: ControlCall) -> Any:
    parameters = control.parameters or {}
    config = parameters.get("config")
    await server.load_model(control.model, None if config is None else str(config))
    return {}


async def _unload(server: LocalServer, control: ControlCall) -> Any:
    await server.unload_model(control.model, bool((control.parameters or {}).get("unload_dependents", False)))
    return {}


async def _index(server: LocalServer, control: ControlCall) -> Any:
    return repository.index_json(await server.repository_index(False))


async def _server(server: LocalServer, control: ControlCall) -> Any:
    return metadata.server_json(server.name, server.version, server.extensions)


async def _statistics(server: LocalServer, control: ControlCall) -> Any:
    return statistics.json(await server.statistics(control.model or "", control.version))


async def _live(server: LocalServer, control: ControlCall) -> bool:
    return server.live


async def _ready(server: LocalServer, control: ControlCall) -> bool:
    return server.ready


_CALLS: dict[str, Callable[[LocalServer, ControlCall], Awaitable[Any]]] = {
    LIVE.rpc: _live,
    READY.rpc: _ready,
    SERVER.rpc: _server,
    STATISTICS.rpc: _statistics,
    MODEL_READY.rpc: _model_ready,
    METADATA.rpc: _metadata,
    CONFIG.rpc: _config,
    INDEX.rpc: _index,
    LOAD.rpc: _load,
    UNLOAD.rpc: _unload,
}


class AsyncEmbeddedTransport:
    """Implements `AsyncTransport`, on the server's event loop. It begins a server that has not begun, and ends it."""

    def __init__(
        self, server: LocalServer, begin: Callable[[], Awaitable[object]], end: Callable[[], Awaitable[object]]
    ) -> None:
        self._server = server
        self._begin = begin
        self._end = end
        self._owned = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        with client_errors():
            if self._server.phase is Phase.STARTING:
                self._owned = True
                await self._begin()
        self._loop = asyncio.get_running_loop()
        if self._server.loop is not self._loop:
            self._loop = None
            raise ClientError(
                Code.UNSUPPORTED, "the server runs on another event loop: call it from there, or use modserve.connect"
            )

    async def call(self, control: ControlCall) -> Any:
        self._check()
        with client_errors(control.timeout):
            async with asyncio.timeout(control.timeout):
                return await _CALLS[control.operation.rpc](self._server, control)

    async def infer(self, call: ClientCall) -> Result:
        self._check()
        with client_errors(call.timeout):
            async with asyncio.timeout(call.timeout):
                return _result(await self._server.infer(call.model, call.tensors, **_options(call)))

    async def stream(self, call: ClientCall) -> AsyncGenerator[Result]:
        self._check()
        end = None if call.timeout is None else asyncio.get_running_loop().time() + call.timeout
        async with aclosing(self._server.infer_stream(call.model, call.tensors, **_options(call))) as responses:
            while True:
                # No timeout is open at a yield: it would cancel the caller.
                with client_errors(call.timeout):
                    async with asyncio.timeout_at(end):
                        response = await anext(responses, None)
                if response is None:
                    return
                yield _result(response)

    async def close(self) -> None:
        if self._owned:
            self._owned = False
            await self._end()

    def _check(self) -> None:
        if self._loop is None:
            raise ClientError(
                Code.UNAVAILABLE, "the server has not been started: use 'async with' the client, or await its start()"
            )


def _options(call: ClientCall) -> dict[str, Any]:
    return {
        "outputs": call.outputs,
        "version": call.version,
        "request_id": call.request_id,
        "parameters": call.parameters,
        "timeout": call.timeout,
    }


def _result(response: InferenceResponse) -> Result:
    return Result(response.model_name, response.model_version, response.outputs, response.id, response.parameters)


class EventLoopThread:
    """An event loop on a thread of its own."""

    def __init__(self, make: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop = make()
        self._thread = threading.Thread(target=self._run, name="modserve", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def stop(self) -> None:
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()


async def _end_tasks() -> None:
    """Cancel what the loop has not finished."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Portal:
    """Calls coroutines on an event loop of another thread, and waits for them.

    What is handed over before `end` reaches the loop before it is stopped: no call is left waiting.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ended = False

    def end(self) -> None:
        """Take no more calls."""
        with self._lock:
            self._ended = True

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result or raise its error; cancel it when the wait is interrupted.

        Raises ClientError where waiting would never end: on the loop's own thread, after a fork, for a loop that ended.
        """
        try:
            self._check()
            with self._lock:
                if self._ended or self._loop.is_closed():
                    raise ClientError(Code.UNAVAILABLE, "the client is closed")
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientError(Code.CANCELLED, "the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise ClientError(Code.UNAVAILABLE, "a client does not survive a fork: connect in the child process")
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return
        if running is self._loop:
            raise ClientError(
                Code.UNSUPPORTED,
                "this call would block the event loop it waits for: use modserve.connect_async here, "
                "and await its calls",
            )


class EmbeddedTransport:
    """Implements `Transport`: the asynchronous one, on the loop of a thread of ours or on that of a running server."""

    def __init__(
        self,
        inner: AsyncEmbeddedTransport,
        running_on: asyncio.AbstractEventLoop | None,
        make_loop: Callable[[], asyncio.AbstractEventLoop],
    ) -> None:
        self._inner = inner
        self._thread: EventLoopThread | None = None
        if running_on is None:
            self._thread = EventLoopThread(make_loop)
            running_on = self._thread.loop
        self._portal = Portal(running_on)
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        try:
            self._portal.call(self._inner.start())
        except BaseException:
            self.close()
            raise
        _close_at_exit(self)

    def call(self, control: ControlCall) -> Any:
        return self._portal.call(self._inner.call(control))

    def infer(self, call: ClientCall) -> Result:
        return self._portal.call(self._inner.infer(call))

    def stream(self, call: ClientCall) -> Generator[Result]:
        responses = self._inner.stream(call)
        portal = self._portal
        try:
            while True:
                result = portal.call(_next(responses))
                if result is None:
                    return
                yield result
        finally:
            with suppress(ClientError):
                portal.call(responses.aclose())

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._portal.call(self._inner.close())
        finally:
            self._portal.end()
            if self._thread is not None:
                self._thread.stop()


async def _next(responses: AsyncGenerator[Result]) -> Result | None:
    return await anext(responses, None)


def _close_at_exit(transport: EmbeddedTransport) -> None:
    """Unload in order at the end of the process, if it was not closed by then."""
    reference = weakref.ref(transport)

    def close() -> None:
        left = reference()
        if left is not None:
            with suppress(Exception):
                left.close()

    atexit.register(close)
    weakref.finalize(transport, atexit.unregister, close)
