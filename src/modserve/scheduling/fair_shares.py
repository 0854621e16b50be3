"""Fair shares between tenants: deficit round robin, as a pure rule over accounts and costs.

Each tenant that waits has an *account*. Time is counted in *rounds*. In its round a tenant may spend its weight, in
rows: it is served while it has `credit`, and what it was served costs credit. The last request of its turn may cost
more than the credit left. The tenant then goes without in as many rounds as it takes to pay for that, and these rounds
are skipped at once: the account enters the round in which it has credit again. So a decision takes as long for 10,000
tenants as for one, for any weights and costs, and a tenant with large requests is served just as much as one with many
small ones.

A tenant that comes back does so in the present round: nobody saves up. But a debt stays until its rounds are over, so
it does not help to leave and come back either. When nobody waits, everybody has had what they asked for, and all debts
end.

    round 7:  a (credit 1)   c (credit 1)
    round 9:  b (credit 2), which has just had a request of 8 rows, and has the weight 4
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mypy_extensions import mypyc_attr

from modserve.core.tenants import Tenant

RequestT = TypeVar("RequestT")

_SWEEP_FROM = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class Account:
    """What a tenant may be served. It is active while it waits: in the calendar of all, and perhaps in others."""

    __slots__ = ("calendars", "credit", "name", "round", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.credit = 0.0
        self.round = -1
        self.calendars: dict[Calendar, None] = {}


AccountT = TypeVar("AccountT", bound=Account)


class Calendar:
    """Active accounts by their rounds, and within a round in the order in which they came to it."""

    def __init__(self) -> None:
        self._rounds: list[int] = []
        """Those with accounts, ascending."""
        self._accounts: dict[int, OrderedDict[Account, None]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._rounds

    def first(self) -> Account:
        """Whose turn it is. There is one."""
        return next(iter(self._accounts[self._rounds[0]]))

    def add(self, account: Account) -> None:
        """An account whose round does not change while it is here, but by `Shares.charge`."""
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
        """The requests of all accounts in the order in which they are served if nothing comes in between.

        `requests` are those of an account, the most urgent first. Nothing here may change while this is iterated over.
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
    """An account while the order is being worked out: those of its requests that are left, and the credit."""

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
    """The requests of an account in a round. The visit then goes to `later`, to the round in which it has credit."""
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
    """After how many rounds an account without credit has some again."""
    return int(-credit / weight) + 1


class Shares(Generic[AccountT]):
    """The accounts of all tenants at one model.

    `make` opens an account. Those that are not active are kept while they have a debt.
    """

    def __init__(self, make: Callable[[str, float], AccountT]) -> None:
        self._make = make
        self.accounts: dict[str, AccountT] = {}
        self.calendar = Calendar()
        """All that are active."""
        self.active = 0
        self.weight = 0.0
        """The sum of the weights of those that are active."""
        self.round = 0
        self._sweep_at = _SWEEP_FROM

    def account(self, tenant: Tenant | None) -> AccountT:
        """The account of a tenant, which from now on has its present weight; requests without a tenant share one."""
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
        """The first request of a tenant waits."""
        if account.round < self.round:
            account.round = self.round
            account.credit = account.weight
        self.calendar.add(account)
        self.active += 1
        self.weight += account.weight

    def charge(self, account: Account, cost: float) -> None:
        """A tenant has been served requests that cost so much."""
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
        """No request of a tenant waits any more. Call this after `charge` for the last of them."""
        self.calendar.remove(account)
        self.active -= 1
        self.weight -= account.weight
        if self.active:
            self._advance()
        else:
            self.accounts.clear()
            self.weight = 0.0
            self.round = 0
            self._sweep_at = _SWEEP_FROM

    def _advance(self) -> None:
        self.round = max(self.round, self.calendar.first().round)

    def _sweep(self) -> None:
        """Close the accounts that are like new ones."""
        kept = {name: each for name, each in self.accounts.items() if each.calendars or each.round > self.round}
        self.accounts = kept
        self._sweep_at = max(_SWEEP_FROM, 2 * len(kept))
