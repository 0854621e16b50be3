"""The time limit for executions. Opening engines does not count, because it cannot be interrupted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Budget:
    """Time budget in seconds of `clock`; only time spent inside `running` counts."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._spent = 0.0
        self._since: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time inside. Not to be nested."""
        self._since = self._clock()
        try:
            yield
        finally:
            self._spent, self._since = self.spent, None

    @property
    def spent(self) -> float:
        return self._spent + (0.0 if self._since is None else self._clock() - self._since)

    @property
    def left(self) -> float:
        """Seconds, 0 when it is over."""
        return max(0.0, self.seconds - self.spent)

    @property
    def over_text(self) -> str:
        """Reason why a candidate was left out."""
        return f"the {self.seconds:g} s for measuring ended before it had run"
