"""The instances of one model version: how they come, are lost and made anew, and go.

An instance is in one of three states. *Free*: it is in `_free`, as often as it can take another execution. *Busy*: all
of its places are taken; how many it has may change with its executions (`Instance.most_places`). *Gone*: it was lost,
is in `_free` no more, and finishes nothing; `revival` makes another one that takes its number. A slot that a scheduler
holds is a place that was taken from `_free`; `run` or `release` ends that. Only the methods here and in `pool.py` move
instances between the states, all on the event loop's thread.

Instances may be added and removed while others run (`change`). One that is removed is gone as well, but finishes what
it has: it is in `_leaving` until nobody waits for it, and then goes to `on_left`. Its number is not used again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial

from modserve.backends.api import Executor, InstanceLostError
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, from_exception, unavailable
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.version import ModelId

from .instance import Instance
from .revival import Clock, Make, Revival
from .settlement import Observe, Settlement
from .warming import MakeSamples, OnEnd, Ran, Sample, Warming, failure_of

_log = logging.getLogger(__name__)


class Membership(Settlement):
    """The part of a pool that has its instances. What makes and runs them is in `pool.InstancePool`."""

    def __init__(
        self,
        model: ModelId,
        config: ModelConfig,
        statistics: ModelStatistics,
        on_settled: Callable[[int], None],
        loop: asyncio.AbstractEventLoop,
        observe: Observe | None,
        make: Make | None,
        clock: Clock | None,
        on_health: Callable[[], None],
        make_samples: MakeSamples | None,
    ) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self.on_lost: Callable[[int, ModserveError, bool], None] = lambda number, error, again: None
        self.on_stuck: Callable[[ModserveError], None] = lambda error: None
        self.on_left: Callable[[Instance], None] = lambda instance: None
        """Gets each instance that was removed and has nothing left to do, to close it on another thread."""
        self.trouble: ModserveError | None = None
        """Why nothing can run, while no instance is left."""
        super().__init__(model, config, statistics, on_settled, loop, observe)
        self._on_health = on_health
        self._make_samples = make_samples
        self._revival: Revival | None = None
        if make is not None and clock is not None:
            self._revival = Revival(make, clock, loop.call_soon_threadsafe, self._revived, self._revival_failed)
        self._instances: dict[int, Instance] = {}
        """By number."""
        self._next_number = 0
        self._free: deque[Instance] = deque()
        self._leaving: list[Instance] = []
        self._settled_before_leaving: Callable[[int], None] | None = None
        self._prefers_idle = self._prefers_first = False

    def _instance(self, number: int, name: str, engine: Executor) -> Instance:
        raise NotImplementedError

    def _begin(self, engines: Sequence[tuple[str, Executor]]) -> None:
        """Take in the first instances. Raises what an engine raises."""
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
        """Those of the engine that are up, by the names of their instances."""
        return [(instance.name, instance.engine) for instance in self._instances.values() if not instance.gone]

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of the instances, lost ones included, by name."""
        return {instance.name: number for number, instance in self._instances.items()}

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for what the instances do. False also where nobody does any more, and they go on."""
        return any(instance.awaited for instance in (*self._instances.values(), *self._leaving))

    @property
    def count(self) -> int:
        return len(self._instances)

    @property
    def most_places(self) -> int:
        """How many batches run at a time when all instances are up."""
        return sum([instance.max_in_flight for instance in self._instances.values()])

    def warm_up(self, number: int, samples: Sequence[Sample], on_end: OnEnd) -> None:
        """Run samples on one of the instances, before there are requests to run."""
        Warming(self._model, self._instances[number], samples, on_end).start()

    def lost_in_warm_up(self, number: int, error: InstanceLostError) -> None:
        """Data that was made up has been too much for an instance: others are made, and serve without it."""
        self._make_samples = None
        self._lose(self._instances[number], error)

    # Instances are added and removed

    def new_instance(self, name: str, engine: Executor) -> Instance:
        """An instance that takes nothing until it is in service: by `change`, or `dismiss` ends it."""
        number = self._next_number
        self._next_number += 1
        instance = self._instances[number] = self._instance(number, name, engine)
        instance.gone = True
        return instance

    def change(self, added: Collection[Instance], removed: Collection[int]) -> None:
        """Put instances of `new_instance` in service, and take others out, which finish what they have. At once."""
        for number in removed:
            self._remove(self._instances.pop(number))
        for instance in added:
            self._put_in_service(instance)
        self._count_instances()
        self._tell_free()

    def dismiss(self, instance: Instance) -> None:
        """End a new instance that is not to serve."""
        del self._instances[instance.number]
        self._leave(instance)

    def learn(self, observe: Observe | None, make_samples: MakeSamples | None) -> None:
        """Replace what hears of executions, and what instances run that are made anew."""
        self._observe, self._make_samples = observe, make_samples

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
        if instance.gone:  # it was lost: one that is being made anew leaves when it is there
            self._statistics.instances_lost -= 1
            if self._revival is None or self._revival.forget(instance.number):
                self._leave(instance)
            return
        instance.gone = True
        instance.on_lost = partial(self._lost_while_leaving, instance)
        self._free = deque(each for each in self._free if each is not instance)
        self._leave(instance)

    def _leave(self, instance: Instance) -> None:
        self._leaving.append(instance)
        if self._settled_before_leaving is None:
            self._settled_before_leaving, self._on_settled = self._on_settled, self._settled_while_leaving
        self._see_off()

    def _see_off(self) -> None:
        """Hand over those of the leaving that have nothing left to do."""
        left = [instance for instance in self._leaving if not instance.awaited]
        for instance in left:
            self._leaving.remove(instance)
            self.on_left(instance)
        if not self._leaving and self._settled_before_leaving is not None:
            self._on_settled, self._settled_before_leaving = self._settled_before_leaving, None

    def _settled_while_leaving(self, count: int) -> None:
        """In place of `on_settled` while an instance leaves."""
        if self._settled_before_leaving is not None:
            self._settled_before_leaving(count)
        self._see_off()

    def _lost_while_leaving(self, instance: Instance, error: InstanceLostError) -> None:
        _log.warning("model '%s': an instance that was to go was lost: %s", self._model.name, error.message)
        self._fail_open(instance, error)

    # Instances are lost and made anew

    def _lose(self, instance: Instance, error: InstanceLostError) -> None:
        """An instance is gone: what it still owes fails, and another one is made."""
        if instance.on_lost is not None:
            instance.on_lost(error)
            return
        if instance.gone:
            return
        instance.gone = True
        self._statistics.instances_lost += 1
        if instance in self._free:
            self._free = deque(each for each in self._free if each is not instance)
        self._fail_open(instance, error)
        wait = "it is not made anew"
        if self._revival is not None:
            wait_ns = self._revival.lost(instance.number, instance.close)
            wait = f"another one is made in {wait_ns / 1e9:g} s"
        _log.error("%s; %s", error.message, wait)
        self._tell_of_loss(instance.number, error, again=False)

    def _fail_open(self, instance: Instance, error: InstanceLostError) -> None:
        for running in list(instance.open):
            if running.executed:
                self.fail_open(running, error)

    def _tell_of_loss(self, number: int, error: ModserveError, *, again: bool) -> None:
        """An instance was lost, or could not be made anew once more."""
        if all(each.gone for each in self._instances.values()):
            self._set_trouble(error)
        try:
            self.on_lost(number, error, again)
            if self.trouble is not None and (again or self._revival is None):
                self.on_stuck(error)
        except Exception:
            self.misbehaved("telling its scheduler of a lost instance")

    def _revived(self, number: int, engine: Executor) -> None:
        name = self._instances[number].name if number in self._instances else "removed"
        instance = self._instance(number, name, engine)
        if number not in self._instances:
            self._leave(instance)
            return
        making = None if self._make_samples is None else self._make_samples()
        self._instances[number] = instance
        if making is None:
            self._take_in(instance)
        else:
            instance.gone = True  # until it is warm
            making.add_done_callback(partial(self._from_thread, self._warm, instance))

    def _warm(self, instance: Instance, making: "Future[Sequence[Sample]]") -> None:
        if making.cancelled():
            return  # the server has ended
        if (error := making.exception()) is not None:
            self._stays_cold(instance, from_exception(error, "its warm-up failed"))
        else:
            Warming(self._model, instance, making.result(), partial(self._warmed, instance)).start()

    def _warmed(self, instance: Instance, ran: list[Ran]) -> None:
        if (error := failure_of(ran)) is None:
            self._take_in(instance)
        else:
            self._make_samples = None if ran[-1].made_up else self._make_samples
            self._stays_cold(instance, error)

    def _stays_cold(self, instance: Instance, error: ModserveError) -> None:
        if instance.number not in self._instances:
            self._leave(instance)
        elif self._revival is not None:
            self._revival_failed(instance.number, error, self._revival.lost(instance.number, instance.close))

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
        who = f"model '{self._model.name}', instance '{self._instances[number].name}'"
        # Whatever went wrong is no fault of those who wait.
        failure = unavailable(f"{who} was lost and cannot be made anew: {error.message}")
        _log.error("%s; the next attempt is in %g s", failure.message, wait_ns / 1e9)
        self._tell_of_loss(number, failure, again=True)

    def _set_trouble(self, error: ModserveError | None) -> None:
        self.trouble = error
        self._on_health()

    def _tell_free(self) -> None:
        try:
            self.on_free()
        except Exception:
            self.misbehaved("telling its scheduler of a free instance")

    def _from_thread(self, callback: Callable[..., object], *arguments: object) -> None:
        """On any thread: one hop to the event loop for each batch, and for each response of a request by itself."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop has closed: the server was stopped without waiting for this batch, and nobody waits for it.
            _log.debug("model '%s': an engine responded after the server's end", self._model.name)

    # The end

    def end(self) -> None:
        """Let the instances end of a pool that nothing runs on. The engines' instances stay open. Does not wait."""
        self.stop_reviving()
        for instance in self._instances.values():
            instance.end()

    def stop_reviving(self) -> None:
        """No instance is made anew any more. Before `close`, which may be called on another thread."""
        if self._revival is not None:
            self._revival.end()

    def close(self) -> None:
        """End all instances after what they are running. Blocks; not for the event loop's thread."""
        with ExitStack() as stack:  # one that fails to close leaves no other open
            if self._revival is not None:
                self.stop_reviving()
                stack.callback(self._revival.close)
            for instance in reversed((*self._instances.values(), *self._leaving)):
                stack.callback(instance.close)
