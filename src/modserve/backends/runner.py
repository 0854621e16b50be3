"""Runners of instances without a server, for each kind of instance that takes merged batches."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from modserve.core.errors import internal
from modserve.core.tensors.tensor import Array, Tensor

from .api import (
    AsyncInstance,
    AsyncRequestInstance,
    BackendInstance,
    Executor,
    InstanceLostError,
    RequestInstance,
    Values,
)
from .api import reuses_outputs as reuses

Inputs: TypeAlias = Mapping[str, Array]


class UnmeasurableError(Exception):
    """A model cannot be run with generated inputs, and why."""


class Runner:
    """An instance that blocks its caller, one execution at a time. Implements `race.Entrant`.

    Every method is for one and the same thread. `timed` are the inputs that `run` executes, one after the other; they
    may be changed between two runs.
    """

    def __init__(self, instance: BackendInstance, names: tuple[str, ...], timed: Sequence[Inputs]) -> None:
        self._instance = instance
        self._names = names
        self.timed = timed

    def outputs(self, inputs: Inputs) -> Mapping[str, Array]:
        """Execute once. The outputs are the caller's."""
        return _copy_outputs(self._instance.execute(inputs, self._names), reuses(self._instance))

    def run(self, times: int) -> int:
        for _ in range(times):
            for inputs in self.timed:
                self._instance.execute(inputs, self._names)
        return times

    def close(self) -> None:
        self._instance.close()


class AsyncRunner:
    """An instance on an event loop of its own, with a number of concurrent executions."""

    def __init__(
        self, instance: AsyncInstance, names: tuple[str, ...], timed: Sequence[Inputs], *, alone: bool = False
    ) -> None:
        self._instance = instance
        self._names = names
        self.timed = timed
        self._lanes = 1 if alone else max(1, int(getattr(instance, "max_in_flight", 1)))
        self._loop = asyncio.new_event_loop()
        self._under_way: set[asyncio.Future[Values]] = set()
        try:
            self._loop.run_until_complete(self._attach())
        except BaseException:
            self._loop.close()
            raise

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def lost(self, error: InstanceLostError) -> None:
        """Record the loss of the instance: implements `api.InstanceHandle`, with `loop`."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def outputs(self, inputs: Inputs) -> Mapping[str, Array]:
        """Execute once. The outputs are the caller's."""
        return _copy_outputs(self._loop.run_until_complete(self._execute(inputs)), reuses(self._instance))

    def run(self, times: int) -> int:
        self._loop.run_until_complete(self._lane_race(times))
        return times * self._lanes

    def close(self) -> None:
        try:
            self._loop.run_until_complete(self._detach())
        finally:
            self._loop.close()
            self._instance.close()

    async def _attach(self) -> None:
        self._instance.attach(self)

    async def _detach(self) -> None:
        self._instance.detach()

    async def _lane_race(self, times: int) -> None:
        async def lane() -> None:
            for _ in range(times):
                for inputs in self.timed:
                    await self._execute(inputs)

        await asyncio.gather(*(lane() for _ in range(self._lanes)))

    async def _execute(self, inputs: Inputs) -> Values:
        outcome: asyncio.Future[Values] = self._loop.create_future()
        self._under_way.add(outcome)
        outcome.add_done_callback(self._under_way.discard)

        def settle(result: Values | BaseException) -> None:
            if outcome.done():
                return
            if isinstance(result, BaseException):
                outcome.set_exception(result)
            else:
                outcome.set_result(result)

        def on_done(result: Values | BaseException) -> None:
            self._loop.call_soon_threadsafe(settle, result)

        self._instance.start(inputs, self._names, on_done)
        return await outcome

    def _fail(self, error: InstanceLostError) -> None:
        for outcome in list(self._under_way):
            if not outcome.done():
                outcome.set_exception(error)


def runner(
    instance: Executor, names: tuple[str, ...], timed: Sequence[Inputs], *, alone: bool = False
) -> Runner | AsyncRunner:
    """Return a runner over an instance, which it closes. `alone`: one execution at a time, for any instance.

    Raises UnmeasurableError for one that needs requests in place of a batch, INTERNAL if it is no instance.
    """
    if isinstance(instance, RequestInstance | AsyncRequestInstance):
        raise UnmeasurableError("the engine takes requests one by one, not a batch")
    if isinstance(instance, AsyncInstance):
        return AsyncRunner(instance, names, timed, alone=alone)
    if not callable(getattr(instance, "execute", None)):
        raise internal(f"a {type(instance).__name__} is not an instance")
    return Runner(instance, names, timed)


def _copy_outputs(outputs: Mapping[str, Any], reused: bool) -> Mapping[str, Array]:
    arrays = {name: value.array if isinstance(value, Tensor) else value for name, value in outputs.items()}
    return {name: np.array(array) if reused else np.asarray(array) for name, array in arrays.items()}
