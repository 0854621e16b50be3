"""Queue for models with several tenants: each tenant gets its share.

Each tenant has its own `LevelQueue`, which orders its requests by priority and arrival. An account for each tenant
determines its turn. The most urgent request of the tenant with the next turn runs next, together with requests that may
share its batch, of all tenants in their turns. So a batch fills across tenants, and each pays for what runs. Requests
without a tenant share an account.

Counted for all tenants together: the sums of a group (the requests with the same `shape_key`), the order of arrival,
and the times at which requests must leave. Each group has a calendar of the accounts with requests in it.

    account a:  level 2: x1 y1     level 4: x2         group x: x1 x2 x3, of a and b
    account b:  level 2: x3                            group y: y1, of a

Requests enter and leave only in `_insert` and `_remove`.

Fair shares between tenants: deficit round robin, as a pure rule over accounts and costs.

Each waiting tenant has an *account*. Time is counted in *rounds*. In its round a tenant may spend its weight, in rows:
it is served while it has `credit`, and what it was served costs credit. The last request of its turn may cost more than
the remaining credit. The tenant then skips as many rounds as it takes to pay for that, all at once: the account enters
the round in which it has credit again. So a decision takes as long for 10,000 tenants as for one, with any weights and
costs, and a tenant with large requests gets the same service as one with many small ones.

A returning tenant enters the current round: credit is not saved. But a debt stays until its rounds are over, so leaving
and returning has no advantage either. When no request waits, each tenant has got what it asked for, and all debts end.

    round 7:  a (credit 1)   c (credit 1)
    round 9:  b (credit 2), which has just had a request of 8 rows, and has the weight 4
"""

from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from mypy_extensions import mypyc_attr

from modserve.core.requests.inflight import Inflight
from modserve.core.tenants import Tenant

from .batching import FAR_NS, BatchCandidates
from .level_queue import RIPE_LOOKED_AT, LevelQueue
from .prediction import LengthIndex
from .queue import GONE, Line, QueueSettings, RequestQueue

RequestT = TypeVar("RequestT")

_SWEEP_FROM = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class Account:
    """Fair share of a tenant. Active while it waits: in the calendar of all, and perhaps in others."""

    __slots__ = ("calendars", "credit", "name", "round", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.credit = 0.0
        self.round = -1
        self.calendars: dict[Calendar, None] = {}


AccountT = TypeVar("AccountT", bound=Account)


class Calendar:
    """Active accounts by round, and within a round in order of arrival."""

    def __init__(self) -> None:
        self._rounds: list[int] = []
        """Rounds with accounts, ascending."""
        self._accounts: dict[int, OrderedDict[Account, None]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._rounds

    def first(self) -> Account:
        """Return the account with the next turn. There must be one."""
        return next(iter(self._accounts[self._rounds[0]]))

    def add(self, account: Account) -> None:
        """Add an account. While it is here, only `Shares.charge` may change its round."""
        account.calendars[self] = None
        self.enter(account)

    def remove(self, account: Account) -> None:
        del account.calendars[self]
        self.leave(account)

    def enter(self, account: Account) -> None:
        accounts = self._accounts.get(account.round)
        if accounts is None:
            accounts = self._accounts[account.round] = OrderedDict()
            insort(self._rounds, account.round)
        accounts[account] = None

    def leave(self, account: Account) -> None:
        accounts = self._accounts[account.round]
        del accounts[account]
        if not accounts:
            del self._accounts[account.round]
            del self._rounds[bisect_left(self._rounds, account.round)]

    def in_turn(
        self, requests: Callable[[Account], Iterator[RequestT]], cost: Callable[[RequestT], float]
    ) -> Iterator[RequestT]:
        """Yield the requests of all accounts in the order of service without further arrivals.

        `requests`: requests of an account, most urgent first. Nothing here may change during the iteration.
        """
        later: dict[int, list[_Visit[RequestT]]] = {}
        rounds, place = self._rounds, 0
        while place < len(rounds) or later:
            number = rounds[place] if place < len(rounds) else min(later)
            if later:
                number = min(number, min(later))
            again = later.pop(number, [])
            if place < len(rounds) and rounds[place] == number:
                place += 1
                for account in self._accounts[number]:
                    yield from _turn(_Visit(account, requests(account), account.credit), number, cost, later)
            for visit in again:
                yield from _turn(visit, number, cost, later)


class _Visit(Generic[RequestT]):
    """Account during the computation of the order: its remaining requests and its credit."""

    __slots__ = ("account", "credit", "requests")

    def __init__(self, account: Account, requests: Iterator[RequestT], credit: float) -> None:
        self.account = account
        self.requests = requests
        self.credit = credit


def _turn(
    visit: _Visit[RequestT],
    number: int,
    cost: Callable[[RequestT], float],
    later: dict[int, list[_Visit[RequestT]]],
) -> Iterator[RequestT]:
    """Yield the requests of an account in a round, and add the visit to `later`, at its next round with credit."""
    credit = visit.credit
    for request in visit.requests:
        yield request
        credit -= cost(request)
        if credit <= 0:
            skipped = rounds_of_debt(credit, visit.account.weight)
            visit.credit = credit + skipped * visit.account.weight
            later.setdefault(number + skipped, []).append(visit)
            return


def rounds_of_debt(credit: float, weight: float) -> int:
    """Return the number of rounds after which an account without credit has some again."""
    return int(-credit / weight) + 1


class Shares(Generic[AccountT]):
    """Accounts of all tenants at one model.

    `make` opens an account. Inactive accounts are kept while they have a debt.
    """

    def __init__(self, make: Callable[[str, float], AccountT]) -> None:
        self._make = make
        self.accounts: dict[str, AccountT] = {}
        self.calendar = Calendar()
        """Calendar of all active accounts."""
        self.active = 0
        self.weight = 0.0
        """Sum of the weights of the active accounts."""
        self.round = 0
        self._sweep_at = _SWEEP_FROM

    def account(self, tenant: Tenant | None) -> AccountT:
        """Return a tenant's account with its current weight; requests without a tenant share one."""
        name, weight = ("", 1.0) if tenant is None else (tenant.name, tenant.weight)
        account = self.accounts.get(name)
        if account is None:
            if len(self.accounts) >= self._sweep_at:
                self._sweep()
            account = self.accounts[name] = self._make(name, weight)
        elif account.weight != weight:
            if account.calendars:
                self.weight += weight - account.weight
            account.weight = weight
        return account

    def begin(self, account: Account) -> None:
        """Activate the account of a tenant with its first waiting request."""
        if account.round < self.round:
            account.round = self.round
            account.credit = account.weight
        self.calendar.add(account)
        self.active += 1
        self.weight += account.weight

    def charge(self, account: Account, cost: float) -> None:
        """Charge a tenant for requests served at `cost`."""
        account.credit -= cost
        if account.credit > 0:
            return
        skipped = rounds_of_debt(account.credit, account.weight)
        for calendar in account.calendars:
            calendar.leave(account)
        account.credit += skipped * account.weight
        account.round += skipped
        for calendar in account.calendars:
            calendar.enter(account)
        self._advance()

    def end(self, account: Account) -> None:
        """Deactivate a tenant without waiting requests. Call this after `charge` for the last of them."""
        self.calendar.remove(account)
        self.active -= 1
        self.weight -= account.weight
        if self.active:
            self._advance()
        else:
            self.close_all()

    def close_all(self) -> None:
        """Close all accounts, with their debts: no tenant waits any more."""
        self.accounts.clear()
        self.calendar = Calendar()
        self.active = 0
        self.weight = 0.0
        self.round = 0
        self._sweep_at = _SWEEP_FROM

    def _advance(self) -> None:
        self.round = max(self.round, self.calendar.first().round)

    def _sweep(self) -> None:
        """Close accounts that are equivalent to new ones."""
        kept = {name: each for name, each in self.accounts.items() if each.calendars or each.round > self.round}
        self.accounts = kept
        self._sweep_at = max(_SWEEP_FROM, 2 * len(kept))


_SPARES = 64
_LENGTHS_LOOKED_AT = 128
"""Number of a group's next requests visible to a rule that chooses by length."""


class TenantAccount(Account):
    """An account with the requests of its tenant."""

    __slots__ = ("groups", "queue", "size")

    def __init__(self, name: str, weight: float, queue: LevelQueue) -> None:
        super().__init__(name, weight)
        self.queue = queue
        self.size = 0
        """Sum of their batch sizes."""
        self.groups: dict[object, int] = {}
        """Number of requests in each group."""


@dataclass(slots=True, eq=False, repr=False)
class _Group(BatchCandidates):
    """Requests of all tenants that may share a batch, in the order of their turns."""

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
    """Queue with the interface of `LevelQueue`, fair between tenants. A decision takes no longer with many waiting
    tenants.

    `cost`: cost of a request to its tenant, in rows.
    """

    def __init__(self, settings: QueueSettings, cost: Callable[[Inflight], float]) -> None:
        super().__init__(sums=settings.sums)
        self._ripe_size = settings.ripe_size
        self._ripe_elements = settings.ripe_elements
        self._padded = settings.padded
        self._cost = cost
        self._own = QueueSettings(look_ahead=settings.look_ahead)
        self._spares: list[LevelQueue] = []
        """Empty queues for new tenants: creating one takes as long as everything else if few requests wait."""
        self.shares = Shares(self._open)
        self._groups: dict[object, _Group] = {}
        self._ripe: dict[_Group, None] = {}
        self._line: Line = OrderedDict()
        """Requests in order of arrival."""
        self._size = 0
        """Sum of their batch sizes."""

    def __iter__(self) -> Iterator[Inflight]:
        return self.shares.calendar.in_turn(_all_of, self._cost)

    def oldest_ns(self) -> int:
        return next(iter(self._line)).queue_start_ns

    def ahead(self, level: int, tenant: Tenant | None = None) -> tuple[int, int]:
        """Return the tenant's requests ahead, with the others' shares in the same time, limited by their requests."""
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
        """Return a tenant's share of `most` places, by the weights of the waiting tenants; at least one."""
        account = self.shares.account(tenant)
        weight = self.shares.weight + (0.0 if account.calendars else account.weight)
        return max(1, int(most * account.weight / weight))

    def waiting(self, tenant: Tenant | None) -> int:
        """Return the number of waiting requests of a tenant."""
        account = self.shares.accounts.get("" if tenant is None else tenant.name)
        return 0 if account is None else account.queue.count

    def waiting_by_tenant(self) -> dict[str, int]:
        """Return the number of waiting requests, for all tenants with any."""
        return {name: each.queue.count for name, each in self.shares.accounts.items() if name and each.queue.count}

    # Arrival and departure

    def _open(self, name: str, weight: float) -> TenantAccount:
        return TenantAccount(name, weight, self._spares.pop() if self._spares else LevelQueue(self._own))

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

    def take(self, together: BatchCandidates, count: int) -> list[Inflight]:
        return self._take_all() if count == self.count else self.take_members(list(islice(together, count)))

    def _take_all(self) -> list[Inflight]:
        """Remove all requests, in order of arrival. No tenant waits any more, so none pays."""
        batch = list(self._line)
        for account in self.shares.accounts.values():
            if len(self._spares) < _SPARES and account.queue.clear():
                self._spares.append(account.queue)
        for inflight in batch:
            inflight.level = GONE
        self.shares.close_all()
        self._groups.clear()
        self._ripe.clear()
        self._line.clear()
        self.count = self._size = 0
        if self.timed:
            self._forget_times()
        return batch

    def take_members(self, batch: list[Inflight]) -> list[Inflight]:
        """Remove these requests of one group, which run now; charge their tenants."""
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
        """Move a waiting request to another level of its tenant."""
        self._account(inflight).queue.move(inflight, level, now_ns)

    def promote(self, now_ns: int, ageing_ns: int) -> None:
        """Promote requests like `LevelQueue.promote`, for the tenant with the next turn."""
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
            group.on_join(inflight)
        else:
            group.stale = True
        if self._ripe_size and self._is_ripe(group):
            self._ripe[group] = None

    def _remove(self, account: TenantAccount, inflight: Inflight, group: _Group) -> None:
        """Remove a request that has left its tenant's queue from all sums."""
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

    # Candidates

    def candidates(self) -> Iterable[BatchCandidates]:
        yielded: set[_Group] = set()
        for group in self._in_turn():
            if group not in yielded:
                yielded.add(group)
                if self._looked_at(group):
                    yield group

    def _looked_at(self, group: _Group) -> bool:
        """Prepare a group for the rule; return True if any of it may run now."""
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
    """Return the cost of a request to its tenant if run times are unknown."""
    return float(inflight.batch_size or 1)
