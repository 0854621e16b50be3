"""Assignment of places to sequences: a pure rule, with the time as an argument.

A new sequence gets a free place, or waits in the line of its tenant. A place that becomes free goes to the waiting
tenant that holds the fewest for its weight. Sequences last, some much longer than others: tenants share the places that
they hold, not the number of assignments. Among equals, the tenant comes first that has held places for the shortest
time over its weight, counted in periods when others wait. Sequences of one tenant get places in order of their begin.
No sequence loses its place to another tenant before it ends.

As in `fair_queue`, time is not saved up, and all debts end when no sequence waits.

    free:  none      a: holds 3, weight 2      b: holds 1, weight 1, waits      c: holds 0, weight 1, waits, is next

A tenant with a `concurrency` has at most that many sequences, including waiting ones. A further one is refused: its
first request would count as in flight while it waits, and so keep the sequences with places from continuing.
"""

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from modserve.core.errors import ModserveError, OverloadedError
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.sequence import SequenceKey, SequenceStates
from modserve.core.runtime.clock import Alarm
from modserve.core.tenants import Tenant

_RETRY_NS: Final = 1_000_000_000
_SWEEP_FROM: Final = 64


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence that has begun, and has not ended or has unfinished work. For its states, see `sequence.py`."""

    key: SequenceKey
    idle_since_ns: int
    alarm: Alarm = field(init=False)
    """Rings when the sequence, or a waiting request, may have waited for too long."""
    account: "SequenceAccount" = field(init=False)
    place: tuple[int, int] | None = None
    """Row and number of its instance; None while it waits for one."""
    placed_ns: int = 0
    """Time at which it got its place."""
    waiting: deque[Inflight] = field(default_factory=deque)
    """Requests that are not in a lane, in order."""
    busy: Inflight | None = None
    """Request in the lane or on the instance."""
    running: bool = False
    """True if `busy` runs; otherwise it waits in the lane."""
    states: SequenceStates | None = None
    failure: ModserveError | None = None
    """Reason for its early end."""
    over: bool = False

    @property
    def first_waiting(self) -> Inflight | None:
        """The first waiting request, in the lane or before it."""
        if self.busy is not None and not self.running:
            return self.busy
        return self.waiting[0] if self.waiting else None


Turn: TypeAlias = tuple[float, float, int, "SequenceAccount"]
"""Places held over weight, time over weight, and a unique number: the smallest goes first."""


class SequenceAccount:
    """The sequences of a tenant."""

    __slots__ = ("contention", "held", "line", "live", "turn", "used", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.live = 0
        """Number of unfinished sequences."""
        self.held = 0
        """Number of places."""
        self.line: OrderedDict[Sequence, None] = OrderedDict()
        """Sequences waiting for a place."""
        self.used = 0.0
        """Nanoseconds of places over weight, in the period of contention with this number."""
        self.contention = 0
        self.turn: Turn | None = None


class PlaceShares:
    """Places of instances with `rows` each, numbered from 0, and the sequences that have one or wait for one."""

    def __init__(self, rows: int, count: int) -> None:
        self.waiting = 0
        self._free = FreePlaces(rows, count)
        self._accounts: dict[str, SequenceAccount] = {}
        self._turns: list[Turn] = []
        """Turns of the waiting tenants, the next one first."""
        self._turns_so_far = 0
        self._contention = 0
        """Number of the current period in which a sequence waits."""
        self._contention_ns = 0
        """Start of the current period of contention."""
        self._floor = 0.0
        """Value of `used` of the account that got the last place: later ones have no less."""
        self._sweep_at = _SWEEP_FROM

    def check(self, tenant: Tenant | None, label: str, model: str) -> None:
        """Check a tenant's limit. Raises `OverloadedError` if it has as many sequences as it may."""
        if tenant is None or tenant.concurrency is None:
            return
        account = self._accounts.get(tenant.name)
        if account is not None and account.live >= tenant.concurrency:
            raise OverloadedError(
                f"{label}tenant '{tenant.name}' has {account.live} sequences at model '{model}' that are not over, and "
                f"its 'concurrency' is {tenant.concurrency}; end one of them first",
                _RETRY_NS,
                too_many=True,
            )

    def add(self, number: int, now_ns: int) -> list[Sequence]:
        """Add an instance with places. Return the waiting sequences that now have one."""
        self._free.add(number)
        placed: list[Sequence] = []
        while self.waiting and (place := self._free.take()) is not None:
            placed.append(self._next(place, now_ns))
        return placed

    def remove(self, number: int) -> None:
        """Close an instance to further sequences; sequences with a place there keep it."""
        self._free.remove(number)

    def begin(self, sequence: Sequence, tenant: Tenant | None, now_ns: int) -> None:
        """Begin a sequence, which gets a place or waits."""
        account = sequence.account = self._account(tenant)
        account.live += 1
        place = self._free.take()
        if place is not None:
            _give(sequence, place, now_ns)
            return
        account.line[sequence] = None
        self.waiting += 1
        if account.turn is None:
            if not self._turns:
                self._contention += 1
                self._contention_ns = now_ns
                self._floor = 0.0
            account.used = max(self._use_of(account), self._floor)
            self._enter(account)

    def end(self, sequence: Sequence, now_ns: int) -> Sequence | None:
        """End a sequence, once. Return the sequence that now has its place."""
        account, place = sequence.account, sequence.place
        account.live -= 1
        if place is None:
            del account.line[sequence]
            self.waiting -= 1
            if account.turn is not None and not account.line:
                self._leave(account.turn)
            return None
        account.held -= 1
        if not self.waiting:
            self._free.give_back(place)
            return None
        self._charge(sequence, account, now_ns)
        return self._next(place, now_ns) if self._free.has(place) else None

    def _charge(self, sequence: Sequence, account: SequenceAccount, now_ns: int) -> None:
        """Charge a tenant for a place held while others waited."""
        since_ns = max(sequence.placed_ns, self._contention_ns)
        account.used = self._use_of(account) + (now_ns - since_ns) / account.weight
        if account.turn is not None:
            self._leave(account.turn)
            self._enter(account)

    def _next(self, place: tuple[int, int], now_ns: int) -> Sequence:
        turn = self._turns[0]
        self._leave(turn)
        account = turn[3]
        self._floor = max(self._floor, account.used)
        sequence, _ = account.line.popitem(last=False)
        self.waiting -= 1
        _give(sequence, place, now_ns)
        if account.line:
            self._enter(account)
        return sequence

    def _enter(self, account: SequenceAccount) -> None:
        self._turns_so_far += 1
        turn = account.turn = (account.held / account.weight, account.used, self._turns_so_far, account)
        insort(self._turns, turn)

    def _leave(self, turn: Turn) -> None:
        del self._turns[bisect_left(self._turns, turn)]
        turn[3].turn = None

    def _use_of(self, account: SequenceAccount) -> float:
        """Return the account's use of places in the current period of contention."""
        if account.contention != self._contention:
            account.contention = self._contention
            account.used = 0.0
        return account.used

    def _account(self, tenant: Tenant | None) -> SequenceAccount:
        """Return a tenant's account with its current weight; sequences without a tenant share one."""
        name, weight = ("", 1.0) if tenant is None else (tenant.name, tenant.weight)
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= self._sweep_at:
                self._sweep()
            account = self._accounts[name] = SequenceAccount(weight)
        elif account.weight != weight:
            account.weight = weight
            if account.turn is not None:
                self._leave(account.turn)
                self._enter(account)
        return account

    def _sweep(self) -> None:
        """Close accounts that are equivalent to new ones."""
        for name, account in list(self._accounts.items()):
            if not account.live and self._use_of(account) <= self._floor:
                del self._accounts[name]
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._accounts))


def _give(sequence: Sequence, place: tuple[int, int], now_ns: int) -> None:
    sequence.place = place
    sequence.placed_ns = now_ns
    sequence.account.held += 1


class FreePlaces:
    """Free places of instances, each with a row and an instance number. The first ones are used first.

    There may be millions of places, of which few are ever used: places of an instance from its first unused one on
    (`_fresh`) are not listed.
    """

    __slots__ = ("_free", "_fresh", "_rows")

    def __init__(self, rows: int, count: int) -> None:
        self._rows = rows
        self._free: list[tuple[int, int]] = []
        self._fresh: dict[int, int] = {}
        for number in range(count):
            self.add(number)

    def add(self, number: int) -> None:
        self._fresh[number] = 0
        heapq.heappush(self._free, (0, number))

    def remove(self, number: int) -> None:
        del self._fresh[number]
        self._free = [place for place in self._free if place[1] != number]
        heapq.heapify(self._free)

    def has(self, place: tuple[int, int]) -> bool:
        """True if a place belongs to an instance that gets sequences."""
        return place[1] in self._fresh

    def take(self) -> tuple[int, int] | None:
        if not self._free:
            return None
        place = heapq.heappop(self._free)
        row, number = place
        if row == self._fresh[number]:
            self._fresh[number] = row + 1
            if row + 1 < self._rows:
                heapq.heappush(self._free, (row + 1, number))
        return place

    def give_back(self, place: tuple[int, int]) -> None:
        if self.has(place):
            heapq.heappush(self._free, place)
