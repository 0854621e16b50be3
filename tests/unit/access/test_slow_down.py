"""Failures wait longer and longer, by address and time."""

import pytest

from modserve.access.authority import FREE, LONGEST, SlowDown, address_of


def test_the_first_failures_are_answered_at_once() -> None:
    rule = SlowDown()
    assert [rule.on_failure("a", 100.0) for _ in range(int(FREE))] == [0.0] * int(FREE)
    waits = [rule.on_failure("a", 100.0) for _ in range(200)]
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.05)
    assert waits[-1] == LONGEST


def test_failures_are_forgotten() -> None:
    rule = SlowDown()
    for _ in range(30):
        rule.on_failure("a", 100.0)
    assert rule.on_failure("a", 110.0) == pytest.approx(0.55)
    assert rule.on_failure("a", 200.0) == 0.0


def test_addresses_are_apart() -> None:
    rule = SlowDown()
    for _ in range(30):
        rule.on_failure("a", 100.0)
    assert rule.on_failure("b", 100.0) == 0.0


def test_any_number_of_addresses() -> None:
    rule = SlowDown()
    for number in range(20_000):
        rule.on_failure(str(number), float(number))
    assert len(rule) == 4096


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("192.0.2.1", 1), "192.0.2.1"),
        (("2001:db8::1:2:3:4", 1, 0, 0), "2001:db8::/64"),
        (("2001:db8::9", 1, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        (("a:b", 1), "a:b"),
        ("/run/socket", "/run/socket"),
        (None, ""),
    ],
)
def test_whose_failures_count_together(client: object, address: str) -> None:
    assert address_of(client) == address
