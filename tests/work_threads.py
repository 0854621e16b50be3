"""The threads to which an event loop hands work, watched or held up; in the compiled form too."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Threads(ThreadPoolExecutor):
    """Those of the running event loop, from now on; `jobs` is how much work they have had."""

    def __init__(self) -> None:
        super().__init__(2)
        self.jobs = 0
        asyncio.get_running_loop().set_default_executor(self)

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs += 1
        return super().submit(work, *args, **kwargs)


class HeldThreads(Threads):
    """Their first work says when it has `begun`, and waits until it may `go` on."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.go = threading.Event()

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.jobs:
            return super().submit(work, *args, **kwargs)

        def held() -> Any:
            self._loop.call_soon_threadsafe(self.begun.set)
            assert self.go.wait(30)
            return work(*args, **kwargs)

        return super().submit(held)
