"""The threads to which an event loop hands work, watched or held up; in the compiled form too."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any


class Threads(ThreadPoolExecutor):
    """Those of the running event loop, from now on; `work` has the names of the functions that they were handed."""

    def __init__(self) -> None:
        super().__init__(2)
        self.work: list[str] = []
        asyncio.get_running_loop().set_default_executor(self)

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.work.append(_name(work, args))
        return super().submit(work, *args, **kwargs)


class HeldThreads(Threads):
    """Their first work says when it has `begun`, and waits until it may `go` on."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.go = threading.Event()

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.work:
            return super().submit(work, *args, **kwargs)
        self.work.append(_name(work, args))

        def held() -> Any:
            self._loop.call_soon_threadsafe(self.begun.set)
            assert self.go.wait(30)
            return work(*args, **kwargs)

        return ThreadPoolExecutor.submit(self, held)


def _name(work: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """That of the function itself, behind `partial` and the context in which `asyncio.to_thread` runs it."""
    if isinstance(work, partial):
        return _name(work.func, (*work.args, *args))
    name: str = work.__name__
    return _name(args[0], args[1:]) if name == "run" and args else name
