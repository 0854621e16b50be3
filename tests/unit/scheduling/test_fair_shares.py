"""Deficit round robin by itself: accounts, costs, and the order in which they are served."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.tenants import Tenant
from modserve.scheduling.fair_queue import Account, Shares


def served(shares: Shares[Account], cost: dict[str, float], times: int) -> Counter[str]:
    """What each of those that wait for ever is served in so many decisions."""
    rows: Counter[str] = Counter()
    for _ in range(times):
        account = shares.calendar.first()
        shares.charge(account, cost[account.name])
        rows[account.name] += cost[account.name]  # type: ignore[assignment]
    return rows


def waiting(weights: dict[str, float]) -> Shares[Account]:
    shares = Shares(Account)
    for name, weight in weights.items():
        shares.begin(shares.account(Tenant(name, weight)))
    return shares


def test_equal_tenants_are_served_by_turns() -> None:
    shares = waiting({"a": 1, "b": 1, "c": 1})
    order = []
    for _ in range(7):
        order.append(shares.calendar.first().name)
        shares.charge(shares.calendar.first(), 1)
    assert order == list("abcabca")


@pytest.mark.parametrize(
    ("costs", "weights"), [((1, 8), (1, 1)), ((8, 1), (3, 1)), ((5, 7), (0.25, 40)), ((16, 1), (0.05, 1))]
)
def test_tenants_are_served_by_their_weights_whatever_their_requests_cost(
    costs: tuple[float, float], weights: tuple[float, float]
) -> None:
    shares = waiting({"a": weights[0], "b": weights[1]})
    rows = served(shares, {"a": costs[0], "b": costs[1]}, 40_000)
    expected = weights[0] / sum(weights)
    assert rows["a"] / sum(rows.values()) == pytest.approx(expected, rel=0.03)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.05, 20), st.integers(1, 64)), min_size=2, max_size=6),
)
def test_nobody_is_ever_further_from_its_share_than_a_request_of_each(tenants: list[tuple[float, int]]) -> None:
    names = {str(number): weight for number, (weight, _) in enumerate(tenants)}
    costs = {str(number): cost for number, (_, cost) in enumerate(tenants)}
    shares = waiting(names)
    rows = Counter(dict.fromkeys(names, 0))
    for _ in range(300):
        account = shares.calendar.first()
        rows[account.name] += costs[account.name]
        shares.charge(account, costs[account.name])
        per_weight = {name: (rows[name] / names[name], (costs[name] + names[name]) / names[name]) for name in names}
        for one, one_more in per_weight.values():
            for other, other_more in per_weight.values():
                assert one - other <= one_more + other_more + 1e-6


def test_the_order_that_is_worked_out_is_the_one_that_comes_about() -> None:
    shares = waiting({"a": 1, "b": 2.5, "c": 0.3})
    costs = {"a": 3.0, "b": 1.0, "c": 2.0}

    def endless(account: Account) -> Iterator[str]:
        return repeat(account.name)

    expected = list(islice(shares.calendar.in_turn(endless, costs.__getitem__), 200))
    actual = []
    for _ in range(200):
        account = shares.calendar.first()
        actual.append(account.name)
        shares.charge(account, costs[account.name])
    assert actual == expected


def test_who_was_away_has_saved_nothing() -> None:
    shares = waiting({"a": 1, "b": 1})
    b = shares.account(Tenant("b"))
    shares.end(b)
    served(shares, {"a": 1}, 1000)
    shares.begin(b)
    assert served(shares, {"a": 1, "b": 1}, 100)["b"] == 50


def test_a_debt_stays_when_its_tenant_leaves_and_comes_back() -> None:
    shares = waiting({"a": 1, "b": 1})
    b = shares.account(Tenant("b"))
    served(shares, {"a": 1}, 1)
    shares.charge(b, 64)
    shares.end(b)
    shares.begin(shares.account(Tenant("b")))
    assert served(shares, {"a": 1, "b": 64}, 60) == {"a": 60}


def test_debts_end_when_nobody_waits() -> None:
    shares = waiting({"a": 1})
    a = shares.account(Tenant("a"))
    shares.charge(a, 1000)
    shares.end(a)
    assert shares.accounts == {}
    shares.begin(shares.account(Tenant("b")))
    shares.begin(shares.account(Tenant("a")))
    assert served(shares, {"a": 1, "b": 1}, 4) == {"a": 2, "b": 2}


def test_accounts_of_idle_tenants_are_closed() -> None:
    shares = waiting({"a": 1})
    for number in range(10_000):
        account = shares.account(Tenant(str(number)))
        shares.begin(account)
        shares.charge(account, 1)
        shares.end(account)
        served(shares, {"a": 1}, 2)
    assert len(shares.accounts) < 200


def test_a_new_weight_holds_at_once() -> None:
    shares = waiting({"a": 1, "b": 1})
    shares.account(Tenant("a", 3))
    assert shares.weight == 4
    assert served(shares, {"a": 1, "b": 1}, 400)["a"] == pytest.approx(300, abs=3)
