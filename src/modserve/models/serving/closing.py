"""Closing engines, which may hang."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from modserve.core.errors import internal

LIMIT_SECONDS = 60.0


async def close_aside(close: Callable[[], None], label: str, limit: float = LIMIT_SECONDS) -> None:
    """Run `close`, which blocks, on a thread of its own that does not keep the process from ending.

    The event loop's own threads are joined when it ends, however long that takes. A caller that is cancelled leaves the
    thread to itself. Raises what `close` raises, and INTERNAL if it has not ended after `limit` seconds.
    """
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[None] = loop.create_future()

    def settle(failure: BaseException | None) -> None:
        if closed.done():
            return
        if failure is None:
            closed.set_result(None)
        else:
            closed.set_exception(failure)

    def work() -> None:
        failure: BaseException | None = None
        try:
            close()
        except BaseException as error:
            ordinary = isinstance(error, Exception) and not isinstance(error, StopIteration)
            # The others would mean something else to the event loop than that an engine failed to close.
            failure = error if ordinary else internal(f"{type(error).__name__}: {error}")
        with suppress(RuntimeError):  # the loop has closed: the server ended without waiting
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=work, name=f"close-{label}", daemon=True).start()
    try:
        async with asyncio.timeout(limit):
            await closed
    except TimeoutError as error:
        if closed.done() and not closed.cancelled():
            raise
        raise internal(f"{label}: the engine has not closed within {limit:g} s, and is abandoned") from error
