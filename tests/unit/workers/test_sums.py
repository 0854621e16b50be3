"""The repository index of several workers."""

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
