"""The repository index of several workers."""

from typing import Any

from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.workers import sums


def entry(name: str, version: int | None, state: LifecycleState = LifecycleState.READY, reason: str = "") -> IndexEntry:
    return IndexEntry(name, version, state, reason)


def test_a_version_is_ready_if_it_is_everywhere() -> None:
    ready, lost = entry("a", 1), entry("a", 1, LifecycleState.UNAVAILABLE, "it broke")
    assert sums.index({0: [ready], 1: [ready]}) == [ready]
    assert sums.index({0: [ready], 1: [lost]}) == [entry("a", 1, LifecycleState.UNAVAILABLE, "worker 1: it broke")]


def test_a_model_that_one_worker_has_not_loaded_says_so() -> None:
    ready, never = entry("a", None), entry("a", None, LifecycleState.UNKNOWN)
    assert sums.index({1: [never], 0: [ready]}) == [entry("a", None, LifecycleState.UNKNOWN, "worker 1: not loaded")]


def test_versions_are_in_order_of_their_numbers() -> None:
    rows = [entry("b", None, LifecycleState.UNKNOWN), entry("a", 10), entry("a", 9)]
    assert [(each.name, each.version) for each in sums.index({0: rows})] == [("a", 9), ("a", 10), ("b", None)]


def failure(message: str, count: int, first_ms: int, last_ms: int) -> dict[str, Any]:
    where = {"protocol": "http", "model": "a", "version": "1", "status": 400}
    return {**where, "message": message, "count": count, "first_ms": first_ms, "last_ms": last_ms}


def test_failures_of_workers_that_are_alike_are_one() -> None:
    first, second = [failure("no", 2, 3, 5), failure("bad", 1, 6, 6)], [failure("no", 4, 1, 7)]
    assert sums.failures([first, second]) == [failure("no", 6, 1, 7), failure("bad", 1, 6, 6)]
    assert sums.failures([]) == []
