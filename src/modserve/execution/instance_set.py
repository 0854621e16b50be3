"""Instances of one model version: creation, loss, replacement and removal.

An instance is in one of three states. *Free*: it is in `_free`, once for each execution that it can take. *Busy*: all
of its places are taken; their number may change with its executions (`Instance.most_places`). *Gone*: it was lost, is
no longer in `_free`, and finishes nothing; `revival` creates a new instance with its number. A scheduler's slot is a
place taken from `_free`; `run` or `release` returns it. Only the methods here and in `pool.py` change the state, all on
the event loop's thread.

Instances may be added and removed while others run (`change`). A removed instance is gone as well, but finishes its
executions: it is in `leaving` until no request waits for it, and then the owner closes it. Its number is not reused. An
instance in warm-up is in `_warming`; the warm-up handles its loss.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial

from modserve.backends.api import Executor, InstanceLostError
from modserve.core.errors import ModserveError, first_paragraph, from_exception, unavailable
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId

from .instance import Instance
from .owner import Learner, PoolOwner
from .revival import Make, Revival, RevivalClock
from .settlement import Settlement
from .warming import MakeSamples, OnEnd, Ran, Sample, WarmUpRun, failure_of

_log = logging.getLogger(__name__)


class InstanceSet:
    """Instances of a pool. `pool.InstancePool` creates and runs them."""

    def __init__(
        self,
        model: ModelId,
        statistics: ModelStatistics,
        owner: PoolOwner,
        loop: asyncio.AbstractEventLoop,
        settlement: Settlement,
        make: Make | None,
        clock: RevivalClock | None,
        make_samples: MakeSamples | None,
    ) -> None:
        self.trouble: ModserveError | None = None
        """Reason for refusing all executions while no instance is left."""
        self._model = model
        self._statistics = statistics
        self._owner = owner
        self._loop = loop
        self._settlement = settlement
        self._make_samples = make_samples
        self._revival: Revival | None = None
        if make is not None and clock is not None:
            self._revival = Revival(make, clock, loop.call_soon_threadsafe, self._on_revived, self._revival_failed)
        self._instances: dict[int, Instance] = {}
        """Instances by number."""
        self._once_lost: set[int] = set()
        """Numbers of all instances ever lost. A revived instance runs its own warm-up."""
        self._next_number = 0
        self._free: deque[Instance] = deque()
        self.leaving: list[Instance] = []
        self._warming: dict[Instance, WarmUpRun] = {}
        self._prefers_idle = self._prefers_first = False

    def _instance(self, number: int, name: str, engine: Executor) -> Instance:
        raise NotImplementedError

    def _begin(self, engines: Sequence[tuple[str, Executor]]) -> None:
        """Add the initial instances. Raises an engine's exceptions."""
        try:
            instances = [self.new_instance(name, engine) for name, engine in engines]
        except BaseException:
            self.end()
            raise
        for instance in instances:
            self._put_in_service(instance)
        self._count_instances()

    @property
    def executors(self) -> list[tuple[str, Executor]]:
        """Names and backend instances of the running instances."""
        return [(instance.name, instance.engine) for instance in self._instances.values() if not instance.gone]

    @property
    def names(self) -> dict[int, str]:
        """Names of the instances by number, including lost ones."""
        return {number: instance.name for number, instance in self._instances.items()}

    @property
    def awaited(self) -> bool:
        """True if requests wait for the instances. Executions for abandoned requests do not count."""
        return any(instance.awaited for instance in (*self._instances.values(), *self.leaving))

    @property
    def count(self) -> int:
        return len(self._instances)

    @property
    def most_places(self) -> int:
        """Number of concurrent batches when all instances are running."""
        return sum([instance.max_in_flight for instance in self._instances.values()])

    def warm_up(self, number: int, samples: Sequence[Sample], on_end: OnEnd) -> None:
        """Run samples on one of the instances, before it takes requests."""
        instance = self._instances[number]
        if number not in self._once_lost:
            self._start_warming(instance, samples, on_end)
            return
        text = f"model '{self._model.name}', instance '{instance.name}' was lost before its warm-up"
        on_end([Ran(samples[0].name, 0, 0, InstanceLostError(text), samples[0].made_up)])

    def _start_warming(self, instance: Instance, samples: Sequence[Sample], on_end: OnEnd) -> None:
        ended = partial(self._warming_ended, instance, on_end)
        warming = self._warming[instance] = WarmUpRun(self._model, instance, samples, ended)
        warming.start()

    def _warming_ended(self, instance: Instance, on_end: OnEnd, ran: list[Ran]) -> None:
        del self._warming[instance]
        on_end(ran)

    def on_lost_in_warm_up(self, number: int, error: InstanceLostError) -> None:
        """Handle the loss of an instance to generated warm-up data. It is replaced without warm-up."""
        self._make_samples = None
        self._lose(self._instances[number], error)

    # Adding and removing instances

    def new_instance(self, name: str, engine: Executor) -> Instance:
        """Return an instance that takes no jobs until `change` puts it in service or `dismiss` ends it."""
        number = self._next_number
        self._next_number += 1
        instance = self._instances[number] = self._instance(number, name, engine)
        instance.gone = True
        return instance

    def change(self, added: Collection[Instance], removed: Collection[int]) -> None:
        """Put instances from `new_instance` in service and remove others, which finish their jobs. Does not wait."""
        for number in removed:
            self._remove(self._instances.pop(number))
        for instance in added:
            self._put_in_service(instance)
        self._count_instances()
        if added and self.trouble is not None:
            self._set_trouble(None)
        self._tell_free()

    def dismiss(self, instance: Instance) -> None:
        """End a new instance that will not serve."""
        del self._instances[instance.number]
        self._leave(instance)

    @property
    def learner(self) -> Learner | None:
        return self._settlement.learner

    def learn(self, learner: Learner | None, make_samples: MakeSamples | None) -> None:
        """Replace the learner, and the warm-up samples for revived instances."""
        self._settlement.learner, self._make_samples = learner, make_samples

    def _put_in_service(self, instance: Instance) -> None:
        instance.gone = False
        self._free.extend([instance] * instance.max_in_flight)
        instance.places = instance.max_in_flight

    def _count_instances(self) -> None:
        instances = self._instances.values()
        several = len(instances) > 1
        self._prefers_idle = several and any(instance.max_ahead for instance in instances)
        self._prefers_first = several and any(getattr(each.engine, "prefers_first", False) for each in instances)
        self._statistics.instances = len(instances)

    def _remove(self, instance: Instance) -> None:
        if instance.gone:  # lost: a replacement in progress leaves when it is ready
            self._statistics.instances_lost -= 1
            if self._revival is None or self._revival.forget(instance.number):
                self._leave(instance)
            return
        instance.gone = True
        self._free = deque(each for each in self._free if each is not instance)
        self._leave(instance)

    def _leave(self, instance: Instance) -> None:
        self.leaving.append(instance)
        self.release_leaving()

    def release_leaving(self) -> None:
        """Hand idle leaving instances to the owner. Also called after requests were settled."""
        if self.leaving:
            for instance in [each for each in self.leaving if not each.awaited]:
                self.leaving.remove(instance)
                self._owner.instance_left(instance)

    # Loss and revival of instances

    def _lose(self, instance: Instance, error: InstanceLostError) -> None:
        """Take a lost instance out of service, fail its outstanding requests, and start a revival."""
        if (warming := self._warming.get(instance)) is not None:
            warming.on_lost(error)
            return
        if instance in self.leaving:
            text = "model '%s': an instance was lost while it was being removed: %s"
            _log.warning(text, self._model.name, error.message)
            self._fail_open(instance, error)
            return
        if instance.gone:
            return
        instance.gone = True
        self._once_lost.add(instance.number)
        self._statistics.instances_lost += 1
        if instance in self._free:
            self._free = deque(each for each in self._free if each is not instance)
        self._fail_open(instance, error)
        wait = "it will not be replaced"
        if self._revival is not None:
            wait_ns = self._revival.revive(instance.number, instance.close)
            wait = f"a new one will be made in {wait_ns / 1e9:g} s"
        _log.error("%s; %s", error.message, wait)
        self._report_loss(instance.number, error, failed_revival=False)

    def _fail_open(self, instance: Instance, error: InstanceLostError) -> None:
        for running in list(instance.open):
            if running.executed:
                self._settlement.fail_open(running, error)

    def _report_loss(self, number: int, error: ModserveError, *, failed_revival: bool) -> None:
        """Report the loss of an instance, or another failed revival."""
        if all(each.gone for each in self._instances.values()):
            self._set_trouble(error)
        try:
            self._owner.slot_lost(number, error, failed_revival or self._revival is None)
        except Exception:
            self._settlement.log_exception("notifying its scheduler of a lost instance")

    def _on_revived(self, number: int, engine: Executor) -> None:
        name = self._instances[number].name if number in self._instances else "removed"
        try:
            instance = self._instance(number, name, engine)
        except BaseException:
            self._owner.engine_left(engine.close, name)
            raise
        if number not in self._instances:
            self._leave(instance)
            return
        making = None if self._make_samples is None else self._make_samples()
        self._instances[number] = instance
        if making is None:
            self._take_in(instance)
        else:
            instance.gone = True  # until the end of the warm-up
            making.add_done_callback(partial(self._from_thread, self._warm, instance))

    def _warm(self, instance: Instance, making: "Future[Sequence[Sample]]") -> None:
        if making.cancelled():
            return  # the server has ended
        if (error := making.exception()) is not None:
            self._stays_cold(instance, from_exception(error, "its warm-up failed"))
        else:
            self._start_warming(instance, making.result(), partial(self._on_warm, instance))

    def _on_warm(self, instance: Instance, ran: list[Ran]) -> None:
        if (error := failure_of(ran)) is None:
            self._take_in(instance)
        else:
            self._make_samples = None if ran[-1].made_up else self._make_samples
            self._stays_cold(instance, error)

    def _stays_cold(self, instance: Instance, error: ModserveError) -> None:
        if instance.number not in self._instances:
            self._leave(instance)
        elif self._revival is not None:
            self._revival_failed(instance.number, error, self._revival.revive(instance.number, instance.close))

    def _take_in(self, instance: Instance) -> None:
        if instance.number not in self._instances:
            self._leave(instance)
            return
        self._put_in_service(instance)
        self._statistics.instances_lost -= 1
        self._statistics.instance_restarts += 1
        _log.info("model '%s': instance '%s' runs again", self._model.name, instance.name)
        self._set_trouble(None)
        self._tell_free()

    def _revival_failed(self, number: int, error: ModserveError, wait_ns: int) -> None:
        if number not in self._instances:
            return
        label = f"model '{self._model.name}', instance '{self._instances[number].name}'"
        what = f"{label} was lost and cannot be replaced"
        _log.error("%s: %s; the next attempt is in %g s", what, error.message, wait_ns / 1e9)
        # UNAVAILABLE whatever the cause: the waiting requests are not at fault.
        self._report_loss(number, unavailable(f"{what}: {first_paragraph(error.message)}"), failed_revival=True)

    def _set_trouble(self, error: ModserveError | None) -> None:
        self.trouble = error
        self._owner.health_changed()

    def _tell_free(self) -> None:
        try:
            self._owner.slot_free()
        except Exception:
            self._settlement.log_exception("notifying its scheduler of a free instance")

    def _from_thread(self, callback: Callable[..., object], *arguments: object) -> None:
        """Run `callback` on the event loop from any thread: one hop per batch, or per separate response."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The event loop has closed: the server stopped without waiting for this batch.
            _log.debug("model '%s': an engine responded after the server had stopped", self._model.name)

    # The end

    def end(self) -> None:
        """End the instances of an idle pool. Backend instances stay open. Does not wait."""
        self.stop_reviving()
        for instance in self._instances.values():
            instance.end()

    def stop_reviving(self) -> None:
        """Stop all revivals. Call before `close`, which may be called on another thread."""
        if self._revival is not None:
            self._revival.end()

    def close(self) -> None:
        """End all instances after their current jobs. Blocks; not for the event loop's thread."""
        with ExitStack() as stack:  # closes all instances, even if closing one fails
            if self._revival is not None:
                self.stop_reviving()
                stack.callback(self._revival.close)
            for instance in reversed((*self._instances.values(), *self.leaving)):
                stack.callback(instance.close)
