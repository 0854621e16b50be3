"""A thread that runs work in order, and holds up neither a caller nor the end of the process."""

import queue
import threading
from collections.abc import Callable

from modserve.core.runtime.failures import count_failure


class RecordWriter:
    """Starts with the first piece of work. `put` is for one thread."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, work: Callable[[], None]) -> bool:
        """False, and it never runs, after `close`."""
        if self._closed:
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="record", daemon=True)
            self._thread.start()
        self._work.put(work)
        return True

    def close(self, seconds: float) -> bool:
        """Run all work that waits and end; False if that takes more than `seconds`. May be called again."""
        if not self._closed:
            self._closed = True
            self._work.put(None)
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:
                count_failure("record", error)
