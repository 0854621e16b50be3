"""Resources that the instances of several models share (``--rate-limit``, ``instance_group.rate_limiter``).

An execution begins when all resources that its instance needs are free. Waiting instances take turns: an instance of
priority 2 gets half as many as one of priority 1, counted from when it began to wait, so that a new or idle model
neither waits for long nor holds back the others to catch up. The next instance in turn that cannot begin yet is
not overtaken by later ones that need one of the same resources; otherwise an instance that needs much could wait
forever.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from modserve.core.configuration.model_config import InstanceKind, ModelConfig
from modserve.core.errors import invalid

_log = logging.getLogger(__name__)

_GLOBAL = -2
_EACH_DEVICE = -1

_Key: TypeAlias = tuple[str, int]
"""A resource's name, and its device, or `_GLOBAL`."""


class TurnState(enum.Enum):
    IDLE = "idle"
    WAITING = "waiting"
    GRANTED = "granted"
    """Turn with its resources, which may begin."""
    RUNNING = "running"


@dataclass(slots=True, eq=False)
class ResourceTurn:
    """An instance, and where it stands. Changed by `RateLimiter` only, and `state` by who runs it."""

    needs: Mapping[_Key, int]
    weight: int = 1
    """The priority: larger numbers get fewer turns."""
    on_grant: Callable[[], None] = lambda: None
    """Called when it may begin. If it is still GRANTED afterwards, it is not needed now."""
    state: TurnState = TurnState.IDLE
    clock: int = 0
    """Virtual time, advanced by the weight with each turn; the lowest comes first."""
    since: int = field(default=0)
    """Order of arrival, among turns with the same clock."""
    held: Mapping[_Key, int] = field(default_factory=dict)
    """Resources held while GRANTED or RUNNING: the needs of that time, which may have changed meanwhile."""


def turns(config: ModelConfig, on_grant: Callable[[], None] = lambda: None) -> list[ResourceTurn]:
    """Return one turn for each instance of a model, in their order. Empty if none of them needs anything."""
    made = []
    for group in config.instance_groups:
        devices = group.gpus if group.kind is InstanceKind.GPU else (0,)
        for device in devices:
            needs: dict[_Key, int] = {}
            for resource in group.resources:
                needs[resource.name, _GLOBAL if resource.is_global else device] = resource.count
            made += [ResourceTurn(needs, group.priority, on_grant) for _ in range(group.count)]
    return made if any(turn.needs for turn in made) else []


class RateLimiter:
    """Available and held resources of all instances. For the event loop's thread.

    `available` is from the server's options, by name and device, None for all devices; the device does not matter for
    resources of the whole server. Without it, the available amount of each resource is the largest need of one
    instance. `soon` calls back in the next turn of the event loop.
    """

    def __init__(
        self,
        available: Mapping[tuple[str, int | None], int],
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._available = {
            (name, _EACH_DEVICE if device is None else device): count for (name, device), count in available.items()
        }
        self._soon = soon
        self._turns: list[ResourceTurn] = []
        self._promised: list[ResourceTurn] = []
        self._most: dict[_Key, int] = {}
        self._used: dict[_Key, int] = {}
        self._waiting: list[ResourceTurn] = []
        self._clock = 0
        self._count = 0
        self._due = False

    # Models come and go

    def add(self, turns: Sequence[ResourceTurn]) -> None:
        """Add the instances of a version that loads. Raises INVALID_ARG if one of them could never run."""
        self._check_all(turns, self._turns)
        self._turns += turns
        self._most = self._limits(self._turns)

    def promise(self, turns: Sequence[ResourceTurn], in_place_of: Sequence[ResourceTurn]) -> None:
        """Note the needs of instances after a change, for which `replace` cannot fail then. Raises as `add`.

        Until then it changes nothing but what others may need: `break_promise` takes it back.
        """
        former = set(map(id, in_place_of))
        self._check_all(turns, [turn for turn in self._turns if id(turn) not in former])
        self._promised += turns

    def break_promise(self, turns: Sequence[ResourceTurn]) -> None:
        """Withdraw a promise, as the change does not happen, or has happened."""
        gone = set(map(id, turns))
        self._promised = [turn for turn in self._promised if id(turn) not in gone]

    def replace(self, former: Sequence[ResourceTurn], now: Sequence[ResourceTurn]) -> None:
        """Replace turns of a version, all at once. Turns in both may have other needs than before."""
        staying = set(map(id, now))
        gone = [turn for turn in former if id(turn) not in staying]
        known = set(map(id, former))
        self._turns += [turn for turn in now if id(turn) not in known]
        self.remove(gone)
        self._most = self._limits(self._turns)

    def _check_all(self, turns: Sequence[ResourceTurn], others: Sequence[ResourceTurn]) -> None:
        most = self._limits([*others, *self._promised, *turns])
        for turn in turns:
            for (name, device), count in turn.needs.items():
                self._check(name, device, count, most)

    def _check(self, name: str, device: int, count: int, most: Mapping[_Key, int]) -> None:
        """Check the limit of one resource. Raises INVALID_ARG with Triton's texts if it is below `count`."""
        limit = most[name, device]
        if limit < count:
            raise invalid(
                f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one or more model '
                f"instances, the minimum required count is {count}"
            )
        devices = {other for known, other in most if known == name}
        if _GLOBAL in devices and len(devices) > 1:
            raise invalid(
                f'Resource "{name}" is present as both global and device-specific resource in the model configuration.'
            )

    def _limits(self, turns: Sequence[ResourceTurn]) -> dict[_Key, int]:
        most: dict[_Key, int] = {}
        for turn in turns:
            for key, count in turn.needs.items():
                most[key] = self._available_count(*key) if self._available else max(count, most.get(key, 0))
        return most

    def _available_count(self, name: str, device: int) -> int:
        devices = (device, _EACH_DEVICE)
        return max(
            (
                count
                for (known, place), count in self._available.items()
                if known == name and (device == _GLOBAL or place in devices)
            ),
            default=0,
        )

    def remove(self, turns: Sequence[ResourceTurn]) -> None:
        """Remove turns that run no more."""
        gone = set(map(id, turns))
        for turn in turns:
            self.end(turn)
        self._turns = [turn for turn in self._turns if id(turn) not in gone]
        if not self._available:
            self._most = self._limits(self._turns)
        self._look_soon()

    # Executions

    def begin(self, turn: ResourceTurn) -> bool:
        """Return True and set the turn to RUNNING if it may run now. Otherwise it waits."""
        if turn.state is TurnState.GRANTED:
            turn.state = TurnState.RUNNING
            return True
        if turn.state is TurnState.IDLE:
            turn.clock = max(turn.clock, self._clock)
            self._count += 1
            turn.since = self._count
            if not any(self._before(other, turn) for other in self._waiting) and self._fits(turn):
                self._take(turn)
                turn.state = TurnState.RUNNING
                return True
            turn.state = TurnState.WAITING
            self._waiting.append(turn)
        return False

    def end(self, turn: ResourceTurn) -> None:
        """End a turn: its execution is over or does not begin after all, or it no longer waits."""
        if turn.state is TurnState.WAITING:
            self._waiting.remove(turn)
        elif turn.state is not TurnState.IDLE:
            for key, count in turn.held.items():
                self._used[key] -= count
        turn.state = TurnState.IDLE
        self._look_soon()

    def _before(self, other: ResourceTurn, turn: ResourceTurn) -> bool:
        return (other.clock, other.since) < (turn.clock, turn.since) and not other.needs.keys().isdisjoint(turn.needs)

    def _fits(self, turn: ResourceTurn) -> bool:
        return all(self._used.get(key, 0) + count <= self._most[key] for key, count in turn.needs.items())

    def _take(self, turn: ResourceTurn) -> None:
        turn.held = turn.needs
        for key, count in turn.held.items():
            self._used[key] = self._used.get(key, 0) + count
        self._clock = max(self._clock, turn.clock)
        turn.clock += turn.weight

    def _look_soon(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            (self._soon or asyncio.get_running_loop().call_soon)(self._look)

    def _look(self) -> None:
        """Grant the free resources to the waiting turns, in order."""
        self._due = False
        held: set[_Key] = set()
        granted = []
        for turn in sorted(self._waiting, key=lambda turn: (turn.clock, turn.since)):
            if held.isdisjoint(turn.needs) and self._fits(turn):
                self._take(turn)
                turn.state = TurnState.GRANTED
                granted.append(turn)
            else:
                held.update(turn.needs)
        self._waiting = [turn for turn in self._waiting if turn.state is TurnState.WAITING]
        for turn in granted:
            try:
                if turn.state is TurnState.GRANTED:
                    turn.on_grant()
            except Exception:  # it is one model's, and the others wait for their turns
                _log.exception("starting an execution with its resources failed")
            finally:
                if turn.state is TurnState.GRANTED:
                    self.end(turn)
