"""Schedulers that keep requests out of each other's batches, in front of the one that queues them."""

from collections.abc import Callable
from typing import TypeAlias

from modserve.core.errors import ModserveError, invalid
from modserve.core.inflight import Inflight

from .scheduler import Scheduler

_VALUES = (str, int, float, bool, type(None))

Key: TypeAlias = Callable[[Inflight], object]


class Grouped:
    """Implements `scheduler.Scheduler`: requests only share a batch if `key` is the same for them."""

    def __init__(self, scheduler: Scheduler, key: Key) -> None:
        self._scheduler = scheduler
        self._key = key

    def enqueue(self, inflight: Inflight) -> None:
        inflight.shape_key = (inflight.shape_key, self._key(inflight))
        self._scheduler.enqueue(inflight)

    def stop(self) -> None:
        self._scheduler.stop()

    def close(self, error: ModserveError) -> None:
        self._scheduler.close(error)

    def fail_waiting(self, error: ModserveError) -> None:
        self._scheduler.fail_waiting(error)


def by_parameters(names: tuple[str, ...], model: str) -> Key:
    """A key made of request parameters. It raises INVALID_ARG for values that parameters cannot have."""

    def key(inflight: Inflight) -> object:
        request = inflight.request
        values: list[object] = []
        for name in names:
            value: object = request.parameters.get(name)
            if not isinstance(value, _VALUES):
                raise invalid(
                    f"{request.label}parameter '{name}' of a request to model '{model}' is of type "
                    f"{type(value).__name__}, expected a string, a number or a boolean"
                )
            values.append((type(value), value))
        return tuple(values)

    return key
