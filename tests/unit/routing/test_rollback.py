"""When a version loses its weight."""

from modserve.core.configuration.routing_config import Rollback
from modserve.routing.rollback import RequestWindow, verdict

MS = 1_000_000


def window(*durations_ms: float, failures: int = 0, most: int = 200) -> RequestWindow:
    made = RequestWindow(most)
    for duration in durations_ms:
        made.add(0, round(duration * MS), False)
    for _ in range(failures):
        made.add(0, 0, True)
    return made


def test_the_share_of_failures() -> None:
    rule = Rollback("canary", "stable", error_share=0.1, least_requests=10)
    assert verdict(rule, window(*[1] * 4, failures=5), None) == "", "too few"
    assert verdict(rule, window(*[1] * 18, failures=2), None) == "", "as many as may"
    expected = "3 of the last 20 requests failed (15.0%), and at most 10.0% may"
    assert verdict(rule, window(*[1] * 17, failures=3), None) == expected


def test_failures_that_the_baseline_has_too_are_not_the_canarys() -> None:
    rule = Rollback("canary", "stable", error_share=0.1, least_requests=10)
    canary, stable = window(*[1] * 8, failures=12), window(*[1] * 40, failures=50)
    assert verdict(rule, canary, stable) == "", "60 % beside 55.6 %"
    expected = "12 of the last 20 requests failed (60.0%), and at most 10.0% may beyond the 50.0% of 'stable'"
    assert verdict(rule, canary, window(*[1] * 10, failures=10)) == "", "as many as may"
    assert verdict(rule, window(*[1] * 7, failures=13), window(*[1] * 10, failures=10)) == expected.replace(
        "12", "13"
    ).replace("60", "65")


def test_what_the_baseline_did_before_the_canarys_requests_does_not_count() -> None:
    rule = Rollback("canary", "stable", error_share=0.1, p95_ratio=2, least_requests=5)
    stable = window(*[100] * 30, failures=30)
    canary = RequestWindow(200)
    for _ in range(10):
        canary.add(7 * MS, MS, True)
        stable.add(8 * MS, MS, False)
    assert verdict(rule, canary, stable) == "10 of the last 10 requests failed (100.0%), and at most 10.0% may"
    assert (len(stable), stable.failures) == (10, 0)


def test_few_requests_of_a_baseline_excuse_little() -> None:
    rule = Rollback("canary", "stable", error_share=0.1, least_requests=10)
    assert verdict(rule, window(failures=10), window(failures=1)).endswith("may beyond the 10.0% of 'stable'")


def test_a_latency_in_itself() -> None:
    rule = Rollback("canary", "stable", p95_ns=20 * MS, least_requests=20)
    slow = "95 % of the last 20 requests took up to 500.0 ms, and at most 20.0 ms are allowed"
    assert verdict(rule, window(*[10] * 19, 500), None) == slow
    assert verdict(rule, window(*[10] * 39, 500), None) == "", "one of forty is none of the 95 %"
    assert verdict(rule, window(*[500] * 19), None) == "", "too few"


def test_a_latency_beside_another() -> None:
    rule = Rollback("canary", "stable", p95_ratio=2, least_requests=5)
    slow = "95 % of the last 5 requests took up to 30.0 ms, 3.00 times the 10.0 ms of 'stable', and at most 2 times "
    assert verdict(rule, window(*[30] * 5), window(*[10] * 5)) == f"{slow}that is allowed"
    assert verdict(rule, window(*[19] * 5), window(*[10] * 5)) == ""
    assert verdict(rule, window(*[30] * 5), window(*[10] * 4)) == "", "too few to compare with"


def test_failures_take_no_time() -> None:
    rule = Rollback("canary", "stable", p95_ns=20 * MS, least_requests=5)
    assert verdict(rule, window(*[30] * 4, failures=10), None) == ""
    assert verdict(rule, window(*[30] * 5, failures=10), None) != ""


def test_a_window_keeps_the_latest() -> None:
    some = window(*[1] * 5, failures=3, most=4)
    assert (len(some), some.failures) == (4, 3)
    some.add(0, MS, False)
    some.add(0, MS, False)
    assert (len(some), some.failures) == (4, 2)


def test_a_window_forgets_with_time() -> None:
    some = RequestWindow(10, span_ns=100)
    some.add(0, 1, True)
    some.add(50, 1, False)
    assert (len(some), some.failures) == (2, 1)
    some.forget(101)
    assert (len(some), some.failures) == (1, 0)
    some.add(200, 1, False)
    assert len(some) == 1


def test_no_requests_take_no_time() -> None:
    assert RequestWindow(1).p95_ns() == 0
