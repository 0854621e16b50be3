"""Lock of changes: one at a time, over all workers."""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path


class FleetLock:
    """A lock that one worker has at a time, and one task of it. The system frees it when its worker dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = asyncio.Lock()
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="workers-lock")

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        async with self._own:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            locked = asyncio.get_running_loop().run_in_executor(self._waiter, fcntl.flock, descriptor, fcntl.LOCK_EX)
            try:
                await asyncio.shield(locked)
                yield
            finally:
                # Closing frees it. A thread that still waits for it must not find another file behind the number.
                if locked.done():
                    os.close(descriptor)
                else:
                    locked.add_done_callback(lambda _: os.close(descriptor))

    def close(self) -> None:
        self._waiter.shutdown(wait=False, cancel_futures=True)
