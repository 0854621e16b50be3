"""Backoff after failed loads: each further attempt comes later."""

from collections.abc import Callable

from modserve.core.errors import ModserveError, OverloadedError, first_paragraph
from modserve.core.runtime.clock import Alarm, Clock
from modserve.core.version import ModelId

from .memory import TooLargeError

_FIRST_NS = 1_000_000_000
_LONGEST_NS = 60_000_000_000
_TOO_LARGE_NS = 300_000_000_000
"""Wait for a model larger than the limit: its load would need memory, and others would have to leave for it."""


class Backoff:
    """`failure` is why the last load failed, until it is time to try again; `on_change` hears when it changes."""

    def __init__(self, clock: Clock, model_id: ModelId, on_change: Callable[[], None]) -> None:
        self.failure: ModserveError | None = None
        self._clock = clock
        self._id = model_id
        self._on_change = on_change
        self._times = 0
        self._retry_ns = 0
        self._alarm = Alarm(clock, self._look)

    def on_failure(self, failure: ModserveError) -> None:
        wait_ns = min(_FIRST_NS << self._times, _LONGEST_NS)
        if isinstance(failure, TooLargeError):
            wait_ns = _TOO_LARGE_NS
        self._times = min(self._times + 1, 16)
        self.failure = failure
        self._retry_ns = self._clock.now_ns() + wait_ns
        self._alarm.at(self._retry_ns)
        self._on_change()

    def on_success(self) -> None:
        self._times = 0
        self._forgive()

    def end(self) -> None:
        self._alarm.end()

    def check(self) -> None:
        """Raise UNAVAILABLE until it is time to try again."""
        if self.failure is not None:
            raise self.refusal(self.failure)

    def refusal(self, failure: ModserveError) -> ModserveError:
        """Return the error of requests after a failed load."""
        left_ns = max(0, self._retry_ns - self._clock.now_ns())
        name, version = self._id
        return OverloadedError(
            f"model '{name}' version {version} cannot be loaded: {first_paragraph(failure.message)} "
            f"(the next attempt is due in {left_ns / 1e9:.0f} s)",
            left_ns,
        )

    def _look(self) -> None:
        if self._clock.now_ns() < self._retry_ns:
            self._alarm.at(self._retry_ns)
        else:
            self._forgive()

    def _forgive(self) -> None:
        self._alarm.cancel()
        if self.failure is not None:
            self.failure = None
            self._on_change()
