"""The queue for models whose requests come from several tenants: each gets its share, by the rule of `fair_shares`.

Each tenant has a `LevelQueue` of its own, which says in what order its requests run, by priority and arrival. Above
them is an account for each tenant, which says whose turn it is. The most urgent request of that tenant runs next, with
those that may share its batch, of all tenants in their turns. So a batch fills across tenants, and everybody pays for
what runs. Requests without a tenant share an account.

What is counted for all tenants together: the sums of a group (the requests with the same `shape_key`), the order of
arrival, and the times at which requests have to leave. Each group has a calendar of the accounts with requests in it.

    account a:  level 2: x1 y1     level 4: x2         group x: x1 x2 x3, of a and b
    account b:  level 2: x3                            group y: y1, of a

`_insert` and `_remove` are the only places where a request enters and leaves.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from mypy_extensions import mypyc_attr

from modserve.core.requests.inflight import Inflight
from modserve.core.tenants import Tenant

from .batching import FAR_NS, Together
from .fair_shares import Account, Calendar, Shares
from .lengths import LengthIndex
from .level_queue import RIPE_LOOKED_AT, LevelQueue
from .queue import Line, RequestQueue

_LENGTHS_LOOKED_AT = 128
"""A rule that chooses by length sees so many requests of a group, those whose turn comes first."""


class TenantAccount(Account):
    """An account with the requests of its tenant."""

    __slots__ = ("groups", "queue", "size")

    def __init__(self, name: str, weight: float, queue: LevelQueue) -> None:
        super().__init__(name, weight)
        self.queue = queue
        self.size = 0
        """The sum of their batch sizes."""
        self.groups: dict[object, int] = {}
        """How many are in each group."""


@dataclass(slots=True, eq=False, repr=False)
class _Group(Together):
    """The requests of all tenants that may share a batch, in the order of their turns."""

    key: Any = None
    cost: Callable[[Inflight], float] = lambda inflight: 1.0
    calendar: Calendar = field(default_factory=Calendar)

    def __iter__(self) -> Iterator[Inflight]:
        return self.calendar.in_turn(self._requests, self.cost)

    def _requests(self, account: Account) -> Iterator[Inflight]:
        assert isinstance(account, TenantAccount), "only these are in the calendar: this is a bug"
        return account.queue.joining(self.key)


@mypyc_attr(allow_interpreted_subclasses=True)
class FairQueue(RequestQueue):
    """Its calls are those of `LevelQueue`. A look costs no more because many tenants wait.

    `cost` says what a request costs its tenant, in rows.
    """

    def __init__(
        self,
        *,
        sums: bool,
        ripe_size: int = 0,
        ripe_elements: int = 0,
        look_ahead: int = 1024,
        padded: Callable[[int], int] | None = None,
        cost: Callable[[Inflight], float],
    ) -> None:
        super().__init__(sums=sums)
        self._ripe_size = ripe_size
        self._ripe_elements = ripe_elements
        self._padded = padded
        self._cost = cost
        self.shares = Shares(
            lambda name, weight: TenantAccount(name, weight, LevelQueue(sums=False, look_ahead=look_ahead))
        )
        self._groups: dict[object, _Group] = {}
        self._ripe: dict[_Group, None] = {}
        self._line: Line = OrderedDict()
        """All in the order in which they came."""
        self._size = 0
        """The sum of their batch sizes."""

    def __iter__(self) -> Iterator[Inflight]:
        return self.shares.calendar.in_turn(_all_of, self._cost)

    def oldest_ns(self) -> int:
        return next(iter(self._line)).queue_start_ns

    def ahead(self, level: int, tenant: Tenant | None = None) -> tuple[int, int]:
        """Those of the tenant, and in the same time the others get their shares, if they have so many."""
        account = self.shares.account(tenant)
        own, own_size = account.queue.ahead(level)
        weight = self.shares.weight + (0.0 if account.calendars else account.weight)
        others = weight / account.weight - 1
        own_more, size_more = int((own + 1) * others), int((own_size + 1) * others)
        return (
            own + min(self.count - account.queue.count, own_more),
            own_size + min(self._size - account.size, size_more),
        )

    def share(self, tenant: Tenant | None, most: int) -> int:
        """How many of `most` places are a tenant's, by the weights of those that wait; one at least."""
        account = self.shares.account(tenant)
        weight = self.shares.weight + (0.0 if account.calendars else account.weight)
        return max(1, int(most * account.weight / weight))

    def waiting(self, tenant: Tenant | None) -> int:
        """How many requests of a tenant wait."""
        account = self.shares.accounts.get("" if tenant is None else tenant.name)
        return 0 if account is None else account.queue.count

    def waiting_by_tenant(self) -> dict[str, int]:
        """The same for all tenants of which any wait."""
        return {name: each.queue.count for name, each in self.shares.accounts.items() if name and each.queue.count}

    # In and out

    def append(self, inflight: Inflight, level: int = 0, timeout_ns: int = 0) -> None:
        self._arrivals += 1
        account = self.shares.account(inflight.request.tenant)
        account.queue.join(inflight, level, self._arrivals)
        self._insert(account, inflight)
        if inflight.deadline_ns or timeout_ns:
            self._remember(inflight, timeout_ns)

    def left(self, inflight: Inflight) -> None:
        account = self._account(inflight)
        account.queue.left(inflight)
        self._remove(account, inflight, self._groups[inflight.shape_key])
        if not account.queue.count:
            self.shares.end(account)
        if self.timed and not self.count:
            self._forget_times()

    def take(self, together: Together, count: int) -> list[Inflight]:
        return self.take_members(list(islice(together, count)))

    def take_members(self, batch: list[Inflight]) -> list[Inflight]:
        """Remove these requests of one group, which run now: their tenants pay."""
        group = self._groups[batch[0].shape_key]
        shares: dict[TenantAccount, list[Inflight]] = defaultdict(list)
        for inflight in batch:
            shares[self._account(inflight)].append(inflight)
        for account, members in shares.items():
            account.queue.take_members(members)
            cost = 0.0
            for inflight in members:
                cost += self._cost(inflight)
                self._remove(account, inflight, group)
            self.shares.charge(account, cost)
            if not account.queue.count:
                self.shares.end(account)
        if self.timed and not self.count:
            self._forget_times()
        return batch

    def move(self, inflight: Inflight, level: int, now_ns: int) -> None:
        """Let a request that waits go on waiting at another level of its tenant."""
        self._account(inflight).queue.move(inflight, level, now_ns)

    def promote(self, now_ns: int, ageing_ns: int) -> None:
        """As `LevelQueue.promote`, for the tenant whose turn it is."""
        if self.count:
            self._first().queue.promote(now_ns, ageing_ns)

    def _account(self, inflight: Inflight) -> TenantAccount:
        tenant = inflight.request.tenant
        return self.shares.accounts["" if tenant is None else tenant.name]

    def _first(self) -> TenantAccount:
        account = self.shares.calendar.first()
        assert isinstance(account, TenantAccount), "only these are in the calendar: this is a bug"
        return account

    def _insert(self, account: TenantAccount, inflight: Inflight) -> None:
        key, size = inflight.shape_key, inflight.batch_size or 1
        if account.queue.count == 1:
            self.shares.begin(account)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key=key, cost=self._cost)
            if self._padded is not None:
                group.lengths = LengthIndex(self._padded)
                group.lengths.last_arrival = FAR_NS
        members = account.groups.get(key, 0)
        if not members:
            group.calendar.add(account)
        account.groups[key] = members + 1
        account.size += size
        self._line[inflight] = None
        self._size += size
        self.count += 1
        group.count += 1
        group.size += size
        group.elements += size * inflight.length
        if self._sums:
            group.joined(inflight)
        else:
            group.stale = True
        if self._ripe_size and self._is_ripe(group):
            self._ripe[group] = None

    def _remove(self, account: TenantAccount, inflight: Inflight, group: _Group) -> None:
        """A request has left its tenant's queue."""
        size = inflight.batch_size or 1
        members = account.groups[group.key] - 1
        if members:
            account.groups[group.key] = members
        else:
            del account.groups[group.key]
            group.calendar.remove(account)
        account.size -= size
        del self._line[inflight]
        self._size -= size
        self.count -= 1
        group.count -= 1
        group.size -= size
        group.elements -= size * inflight.length
        group.stale = True
        if not group.count:
            del self._groups[group.key]
        if group in self._ripe and not (group.count and self._is_ripe(group)):
            del self._ripe[group]

    def _is_ripe(self, group: _Group) -> bool:
        return group.size >= self._ripe_size or 0 < self._ripe_elements <= group.elements

    # What may run

    def candidates(self) -> Iterable[Together]:
        yielded: set[_Group] = set()
        for group in self._in_turn():
            if group not in yielded:
                yielded.add(group)
                if self._looked_at(group):
                    yield group

    def _looked_at(self, group: _Group) -> bool:
        """Whether any of a group may run now. The rule may read it then."""
        group.whole = len(self._groups) == 1
        if group.lengths is not None:
            seen: Iterable[Inflight] = islice(group, _LENGTHS_LOOKED_AT)
            pressing = [inflight for inflight in self._pressing() if inflight.shape_key == group.key]
            group.lengths.refill(chain(seen, pressing))
        return group.whole or next(iter(group), None) is not None

    def _in_turn(self) -> Iterator[_Group]:
        yield self._groups[self._first().queue.head().shape_key]
        yield from islice(self._ripe, RIPE_LOOKED_AT)
        oldest = next(iter(self._line))
        for inflight in (oldest, *self._pressing()):
            yield self._groups[inflight.shape_key]


def _all_of(account: Account) -> Iterator[Inflight]:
    assert isinstance(account, TenantAccount), "only these are in the calendar: this is a bug"
    return iter(account.queue)


def rows(inflight: Inflight) -> float:
    """What a request costs its tenant where nothing is known of run times."""
    return float(inflight.batch_size or 1)
