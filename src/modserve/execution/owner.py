"""The interface through which a pool of instances reports to its model."""

from collections.abc import Callable, Sequence
from typing import Protocol

from modserve.core.errors import ModserveError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.timing import ExecutionTiming

from .instance import Instance


class PoolOwner(Protocol):
    """Implemented by `models.serving.model.Model`. All methods run on the event loop's thread and never wait."""

    def on_settle(self, count: int) -> None:
        """Count `count` settled requests. Calls `InstancePool.release_leaving` if instances are `leaving`."""

    def slot_free(self) -> None:
        """Called when a place to run a batch may have become free."""

    def batch_done(self, members: list[Inflight]) -> None:
        """Called when the execution of these is over, before their slot is free. Models with sequences only."""

    def run_again(self, inflight: Inflight) -> None:
        """Called when the engine wants to execute a request once more. Models with sequences only."""

    def mixes_rows(self) -> None:
        """Run requests alone from now on: a batch that was not configured gave other rows than they do."""

    def slot_lost(self, number: int, error: ModserveError, in_vain: bool) -> None:
        """Called when an instance is lost; `in_vain`: no attempt to replace it has helped, or none is made."""

    def instance_left(self, instance: Instance) -> None:
        """Called when a removed instance has nothing left to do, and is to be closed on another thread."""

    def engine_left(self, close: Callable[[], None], name: str) -> None:
        """Called when an engine's instance is of no use; `close`, which blocks, is to be called on another thread."""

    def health_changed(self) -> None:
        """Called when `InstancePool.trouble` may have changed."""


class Learner(Protocol):
    """Learns from executions how long the next ones take."""

    def observe(self, timing: ExecutionTiming, members: Sequence[Inflight]) -> None:
        """Observe an execution that has succeeded."""

    def expect(self, members: Sequence[Inflight]) -> int:
        """Return how long a batch of these is likely to take, in nanoseconds; 0 if nothing is known."""
